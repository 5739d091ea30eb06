//! The vocabulary: token texts, types and special ids, validated once when the file is opened.
use std::collections::HashMap;

use crate::error::{Error, Result};
use crate::gguf::{Gguf, Strings};

/// What a token is for; the numbers are those of `tokenizer.ggml.token_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TokenType {
    Normal = 1,
    Unknown = 2,
    Control = 3,
    UserDefined = 4,
    Unused = 5,
    Byte = 6,
}

impl TokenType {
    fn from_id(id: i32) -> Option<Self> {
        Some(match id {
            1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => return None,
        })
    }
}

/// Longer tokens do not exist; the bound keeps every lookup of a merge at constant cost.
const MAX_TOKEN_BYTES: usize = 4096;
/// Twice the largest vocabulary there is. A token costs some hundred bytes of tables beside the ten
/// it may take in a hostile file.
const MAX_TOKENS: usize = 1 << 19;

const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";

/// Texts that end a turn whatever type the converter gave them: it often forgets to mark them as
/// control tokens. No text can spell them by merges alone, the bars are tokens of their own.
const END_OF_TURN: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
];
/// Texts that end generation only where the converter marked them as special: as plain tokens
/// they are something else (`</s>` closes an HTML element in Qwen's vocabulary). The second half
/// separates files in code models.
const END_IF_SPECIAL: &[&str] = &[
    "</s>",
    "<eos>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "[PAD]",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<REPO>",
    "<reponame>",
    "<|file_sep|>",
];

/// Tokens around the text before a gap and behind it, and in front of what fills it, as the families of
/// code models spell them; for files that name no ids.
const INFILL: &[[&str; 3]] = &[
    ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"],
    ["<fim-prefix>", "<fim-suffix>", "<fim-middle>"],
    ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"],
    ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
    ["<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"],
    ["▁<PRE>", "▁<SUF>", "▁<MID>"],
    ["<PRE>", "<SUF>", "<MID>"],
];
/// What stands before each file of several.
const FILE_SEPARATORS: &[&str] = &["<|file_sep|>", "<|fim_sep|>", "<file_sep>"];

/// Tokens of fill-in-the-middle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Infill {
    pub prefix: u32,
    pub suffix: u32,
    pub middle: u32,
    /// In front of the name of a file.
    pub file: Option<u32>,
}

/// Token texts, types and special ids.
#[derive(Debug, Clone)]
pub struct Vocab {
    texts: Strings,
    types: Vec<TokenType>,
    ids: HashMap<String, u32>,
    typed: bool,
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    pub eot: Option<u32>,
    pub eom: Option<u32>,
    pub unk: Option<u32>,
    pub pad: Option<u32>,
    pub infill: Option<Infill>,
    end_of_text: Vec<u32>,
}

pub(super) fn bad(key: impl Into<String>, value: impl ToString, expected: impl ToString) -> Error {
    Error::Metadata {
        key: key.into(),
        value: value.to_string(),
        expected: expected.to_string(),
    }
}

impl Vocab {
    /// Reads and checks `tokenizer.ggml.{tokens, token_type, *_token_id}`.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self> {
        let texts = gguf.get_strings(TOKENS)?.ok_or_else(|| {
            bad(
                TOKENS,
                "missing",
                "an array of strings; this file has no vocabulary",
            )
        })?;
        if texts.is_empty() || texts.len() > MAX_TOKENS {
            return Err(bad(
                TOKENS,
                format!("an array of {} strings", texts.len()),
                format!("1 to {MAX_TOKENS} tokens"),
            ));
        }
        let mut ids = HashMap::with_capacity(texts.len());
        for (id, text) in (0_u32..).zip(texts.iter()) {
            if text.len() > MAX_TOKEN_BYTES {
                return Err(bad(
                    format!("{TOKENS}[{id}]"),
                    format!("{} bytes long", text.len()),
                    format!("at most {MAX_TOKEN_BYTES} bytes"),
                ));
            }
            // Converters leave holes in a vocabulary empty; an empty token matches nothing.
            if text.is_empty() {
                continue;
            }
            if let Some(first) = ids.insert(text.to_owned(), id) {
                return Err(bad(
                    format!("{TOKENS}[{id}]"),
                    format!("{:?}, the text of token {first} too", cut(text)),
                    "every token once; convert the model again",
                ));
            }
        }
        let types = match gguf.get_i32s(TYPES)? {
            None => vec![TokenType::Normal; texts.len()],
            Some(raw) if raw.len() != texts.len() => {
                return Err(bad(
                    TYPES,
                    format!("an array of {} i32", raw.len()),
                    format!("one for each of the {} tokens", texts.len()),
                ))
            }
            Some(raw) => (0_u32..)
                .zip(raw)
                .map(|(id, ty)| {
                    TokenType::from_id(*ty)
                        .ok_or_else(|| bad(format!("{TYPES}[{id}]"), ty, "a type from 1 to 6"))
                })
                .collect::<Result<_>>()?,
        };
        let mut vocab = Vocab {
            texts: texts.clone(),
            types,
            ids,
            typed: gguf.get(TYPES).is_some(),
            bos: None,
            eos: None,
            eot: None,
            eom: None,
            unk: None,
            pad: None,
            infill: None,
            end_of_text: Vec::new(),
        };
        vocab.bos = vocab.special(gguf, "bos")?;
        vocab.eos = vocab.special(gguf, "eos")?;
        vocab.eot = vocab.special(gguf, "eot")?;
        vocab.eom = vocab.special(gguf, "eom")?;
        vocab.unk = vocab.special(gguf, "unknown")?;
        // Never fed nor emitted here: a converter's placeholder such as -1 harms nobody.
        vocab.pad = vocab.special(gguf, "padding").unwrap_or(None);
        vocab.infill = vocab.infill(gguf)?;
        Ok(vocab)
    }

    fn infill(&self, gguf: &Gguf) -> Result<Option<Infill>> {
        // The second spelling is that of older files.
        let either = |name: &str, old: &str| match self.special(gguf, name)? {
            Some(id) => Ok(Some(id)),
            None => self.special(gguf, old),
        };
        let given = [
            either("fim_pre", "prefix")?,
            either("fim_suf", "suffix")?,
            either("fim_mid", "middle")?,
        ];
        let spelled = || INFILL.iter().map(|texts| texts.map(|text| self.id(text)));
        let mut all = std::iter::once(given).chain(spelled());
        let file = match self.special(gguf, "fim_sep")? {
            Some(id) => Some(id),
            None => FILE_SEPARATORS.iter().find_map(|text| self.id(text)),
        };
        Ok(all.find_map(|each| match each {
            [Some(prefix), Some(suffix), Some(middle)] => Some(Infill {
                prefix,
                suffix,
                middle,
                file,
            }),
            _ => None,
        }))
    }

    pub(super) fn special(&self, gguf: &Gguf, name: &str) -> Result<Option<u32>> {
        let key = format!("tokenizer.ggml.{name}_token_id");
        gguf.get_uint(&key)?
            .map(|id| {
                u32::try_from(id)
                    .ok()
                    .filter(|id| self.contains(*id))
                    .ok_or_else(|| bad(&key, id, format!("a token id below {}", self.len())))
            })
            .transpose()
    }

    /// Completes the special ids from well-known texts and collects those that end generation.
    /// Called last, when the tokenizer's kind has filled in its default ids.
    pub(super) fn finish(&mut self) {
        let mut end: Vec<u32> = Vec::new();
        // Where a turn has several messages, in channels, `<|end|>` ends each but the last: gpt-oss
        // and Solar Open.
        let has = |text: &str| self.id(text).is_some();
        let ends_a_message =
            has("<|return|>") && has("<|call|>") || has("<|flush|>") && has("<|calls|>");
        for text in END_OF_TURN {
            if let Some(id) = self.id(text) {
                if let Some(ty) = self.types.get_mut(id as usize) {
                    *ty = TokenType::Control;
                }
                if *text == "<|end|>" && ends_a_message {
                    continue;
                }
                end.push(id);
                if self.eot.is_none() && *text != "<|eom_id|>" {
                    self.eot = Some(id);
                }
                if self.eom.is_none() && *text == "<|eom_id|>" {
                    self.eom = Some(id);
                }
            }
        }
        let special = [TokenType::Control, TokenType::UserDefined];
        end.extend(
            END_IF_SPECIAL
                .iter()
                .filter_map(|text| self.id(text))
                .filter(|id| special.contains(&self.token_type(*id))),
        );
        end.extend([self.eos, self.eot, self.eom].into_iter().flatten());
        end.sort_unstable();
        end.dedup();
        self.end_of_text = end;
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.texts.len()
    }

    /// A vocabulary has at least one token.
    pub fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }

    /// Whether `id` is a token.
    pub fn contains(&self, id: u32) -> bool {
        (id as usize) < self.texts.len()
    }

    /// The text as the file holds it; empty for an id that is no token.
    pub fn text(&self, id: u32) -> &str {
        self.texts.get(id as usize).unwrap_or("")
    }

    /// All texts, by id.
    pub fn texts(&self) -> impl Iterator<Item = (u32, &str)> {
        (0_u32..).zip(self.texts.iter())
    }

    /// The type; [`TokenType::Unused`] for an id that is no token.
    pub fn token_type(&self, id: u32) -> TokenType {
        self.types
            .get(id as usize)
            .copied()
            .unwrap_or(TokenType::Unused)
    }

    /// Whether the file says the types; without them a text alone decides.
    pub(super) fn typed(&self) -> bool {
        self.typed
    }

    /// The token with this text as the file holds it.
    pub fn id(&self, text: &str) -> Option<u32> {
        self.ids.get(text).copied()
    }

    /// Ids that end generation, ascending.
    pub fn end_of_text(&self) -> &[u32] {
        &self.end_of_text
    }
}

/// The front of a long text, for messages.
pub(super) fn cut(text: &str) -> String {
    text.chars().take(40).collect()
}

//! The file format of pages and states: a header of fixed length, tokens, pages, state, and a checksum
//! over all of it. Files may be truncated, damaged or hostile: every length is checked against the file's
//! own and the model's before anything is allocated for it, and nothing is used before the checksum
//! matches.

#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::panic
)]

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::backend::{pages_of, PAGE_TOKENS};
use crate::checksum::{self, Sum};

const MAGIC: &[u8; 8] = b"OGPREFIX";

/// Counts up with every change of where something stands in a file, in a page or in a state: bytes of
/// another version are not read.
const VERSION: u32 = 4;

/// Bytes of the names of a type and a layout.
const NAME: usize = 16;

const HEAD: usize = 8 + 4 + 4 + 4 + 4 * 8 + 32 + 32 + 2 * NAME;

/// What bytes of pages and states mean something to: the same arithmetic, model, type and layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// [`crate::plan::ARITHMETIC`] of who computed them.
    pub arithmetic: u32,
    /// Of the model's file.
    pub model: Sum,
    pub kv_type: &'static str,
    pub layout: &'static str,
    /// Of a page in layers that see all of a sequence, and in those that see a window.
    pub page_bytes: usize,
    pub window_bytes: usize,
    pub state_bytes: usize,
}

impl Identity {
    /// A number for it.
    pub fn sum(&self) -> Sum {
        let mut sum = Sha256::new();
        sum.update(MAGIC);
        sum.update(VERSION.to_le_bytes());
        sum.update(self.arithmetic.to_le_bytes());
        sum.update(env!("CARGO_PKG_VERSION"));
        sum.update((PAGE_TOKENS as u64).to_le_bytes());
        sum.update(self.model);
        for name in [self.kv_type, self.layout] {
            sum.update(padded(name));
        }
        sum.finalize().into()
    }
}

/// What a file holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Content {
    /// What it is called, where that is not its tokens.
    pub key: Sum,
    /// Whether a key or value in it was beyond what the cache's type holds.
    pub saturated: bool,
    pub tokens: Vec<u32>,
    /// One after another.
    pub pages: Vec<u8>,
    /// What layers that see a window hold of the last of these pages, one after another.
    pub windows: Vec<u8>,
    /// Behind how many tokens there is a state, and the states one after another.
    pub state_ends: Vec<u32>,
    pub states: Vec<u8>,
}

/// Why a file is not used, and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub reason: String,
    pub remedy: String,
}

fn refusal(reason: impl Into<String>, remedy: &str) -> Refusal {
    Refusal {
        reason: reason.into(),
        remedy: remedy.into(),
    }
}

/// States of one file: at the end of its tokens, and of their last whole page.
const MOST_STATES: usize = 2;

const AGAIN: &str = "save it again";

fn padded(name: &str) -> [u8; NAME] {
    let mut bytes = [0; NAME];
    for (to, from) in bytes.iter_mut().zip(name.bytes()) {
        *to = from;
    }
    bytes
}

fn name(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    let text = String::from_utf8_lossy(bytes.get(..end).unwrap_or_default());
    text.escape_default().to_string()
}

/// Writes a file's bytes.
///
/// # Errors
/// What the system says.
pub fn write(to: &mut impl Write, identity: &Identity, content: &Content) -> std::io::Result<()> {
    let mut head = Vec::with_capacity(HEAD);
    head.extend(MAGIC);
    head.extend(VERSION.to_le_bytes());
    head.extend(identity.arithmetic.to_le_bytes());
    head.extend(u32::from(content.saturated).to_le_bytes());
    let n_pages = content.pages.len().checked_div(identity.page_bytes);
    let n_windows = content.windows.len().checked_div(identity.window_bytes);
    for n in [
        content.tokens.len(),
        n_pages.unwrap_or(0),
        n_windows.unwrap_or(0),
        content.state_ends.len(),
    ] {
        head.extend((n as u64).to_le_bytes());
    }
    head.extend(identity.model);
    head.extend(content.key);
    head.extend(padded(identity.kv_type));
    head.extend(padded(identity.layout));
    let numbers = content.tokens.iter().chain(&content.state_ends);
    let numbers: Vec<u8> = numbers.flat_map(|n| n.to_le_bytes()).collect();
    let parts = [
        &head[..],
        &numbers,
        &content.pages,
        &content.windows,
        &content.states,
    ];
    let sum = checksum::of(&parts);
    parts.iter().try_for_each(|part| to.write_all(part))?;
    to.write_all(&sum)
}

/// Takes bytes from the front of others.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], Refusal> {
        let (front, rest) = self
            .0
            .split_at_checked(n)
            .ok_or_else(|| refusal("it ends early", AGAIN))?;
        self.0 = rest;
        Ok(front)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Refusal> {
        let bytes = self.take(N)?;
        bytes
            .try_into()
            .map_err(|_| refusal("it ends early", AGAIN))
    }

    fn u64(&mut self) -> Result<u64, Refusal> {
        self.array().map(u64::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, Refusal> {
        self.array().map(u32::from_le_bytes)
    }
}

/// How long the parts of a file are.
struct Sizes {
    n_tokens: usize,
    /// Tokens, and behind how many of them states are.
    numbers: usize,
    pages: usize,
    windows: usize,
    states: usize,
}

impl Sizes {
    /// All of the file; `None` where that overflows.
    fn whole(&self) -> Option<u64> {
        let parts = [
            HEAD,
            self.numbers,
            self.pages,
            self.windows,
            self.states,
            size_of::<Sum>(),
        ];
        parts.iter().try_fold(0u64, |sum, part| {
            sum.checked_add(u64::try_from(*part).ok()?)
        })
    }
}

/// What a head says, held to what is wanted of the file.
fn read_head(
    head: &[u8],
    identity: &Identity,
    most_tokens: usize,
) -> Result<(Sizes, Content), Refusal> {
    let mut head = Bytes(head);
    if head.take(MAGIC.len())? != MAGIC {
        return Err(refusal(
            "it is not a saved prefix",
            "name a file that save_prefix wrote",
        ));
    }
    let version = head.u32()?;
    if version != VERSION {
        return Err(refusal(
            format!("it has version {version}, but this onegraph reads version {VERSION}"),
            AGAIN,
        ));
    }
    let (arithmetic, ours) = (head.u32()?, identity.arithmetic);
    if arithmetic != ours {
        return Err(refusal(
            format!("it has arithmetic {arithmetic}, but this onegraph uses {ours}"),
            AGAIN,
        ));
    }
    let saturated = head.u32()? != 0;
    let (n_tokens, n_pages) = (head.u64()?, head.u64()?);
    let (n_windows, n_states) = (head.u64()?, head.u64()?);
    let model: Sum = head.array()?;
    let key = head.array()?;
    let kv_type = head.take(NAME)?;
    if kv_type != padded(identity.kv_type) {
        return Err(refusal(
            format!(
                "its keys and values are {}, but those of the loaded model are {}",
                name(kv_type).to_lowercase(),
                identity.kv_type.to_lowercase()
            ),
            "load the model with that kv_type, or save it again",
        ));
    }
    let layout = head.take(NAME)?;
    if layout != padded(identity.layout) {
        return Err(refusal(
            format!(
                "it was saved on device {:?}, but the model runs on {:?}",
                name(layout),
                identity.layout
            ),
            "load the model on that kind of device, or save it again",
        ));
    }
    if model != identity.model {
        return Err(refusal(
            "it belongs to another model file",
            "load the file that it was saved with, or save it again",
        ));
    }
    let tokens = usize::try_from(n_tokens).ok().filter(|n| *n <= most_tokens);
    let Some(tokens) = tokens else {
        return Err(refusal(
            format!("it has {n_tokens} tokens, but the context has room for {most_tokens}"),
            "load the model with a larger n_ctx",
        ));
    };
    let damaged = |what: &str, n: u64, wanted: usize| {
        refusal(
            format!("it claims {n} {what}, but its tokens need {wanted}"),
            AGAIN,
        )
    };
    // A state may stand alone.
    let pages = pages_of(tokens);
    if n_pages != pages as u64 {
        return Err(damaged("pages", n_pages, pages));
    }
    // One may stand alone too.
    let most = match identity.window_bytes {
        0 => 0,
        _ => pages.max(1),
    };
    let windows = usize::try_from(n_windows).ok().filter(|n| *n <= most);
    let windows = windows.ok_or_else(|| damaged("pages of windows", n_windows, most))?;
    let most = if identity.state_bytes > 0 {
        MOST_STATES
    } else {
        0
    };
    let states = usize::try_from(n_states).ok().filter(|n| *n <= most);
    let states = states.ok_or_else(|| damaged("states", n_states, most))?;
    let too_long = || refusal("it is too long", AGAIN);
    let times = |n: usize, size: usize| n.checked_mul(size).ok_or_else(too_long);
    let numbers = tokens.checked_add(states).ok_or_else(too_long)?;
    let sizes = Sizes {
        n_tokens: tokens,
        numbers: times(numbers, size_of::<u32>())?,
        pages: times(pages, identity.page_bytes)?,
        windows: times(windows, identity.window_bytes)?,
        states: times(states, identity.state_bytes)?,
    };
    let content = Content {
        key,
        saturated,
        ..Content::default()
    };
    Ok((sizes, content))
}

/// Reads the file at `path`, of at most `most_tokens` tokens.
///
/// # Errors
/// Why it is not used.
pub fn read(path: &Path, identity: &Identity, most_tokens: usize) -> Result<Content, Refusal> {
    let system = |e: std::io::Error| refusal(e.to_string(), "check the path and its permissions");
    let regular = |stat: std::fs::Metadata| match stat.is_file() {
        true => Ok(stat.len()),
        // A pipe would never end.
        false => Err(refusal(
            "it is not a file",
            "name a file that save_prefix wrote",
        )),
    };
    regular(std::fs::metadata(path).map_err(system)?)?;
    let mut file = File::open(path).map_err(system)?;
    let length = regular(file.metadata().map_err(system)?)?;
    let mut head = [0; HEAD];
    file.read_exact(&mut head).map_err(|e| match e.kind() {
        std::io::ErrorKind::UnexpectedEof => refusal(
            format!("it has {length} bytes, but its header alone needs {HEAD}"),
            AGAIN,
        ),
        _ => system(e),
    })?;
    let (sizes, mut content) = read_head(&head, identity, most_tokens)?;
    if sizes.whole() != Some(length) {
        let whole = sizes.whole().map_or("too many".into(), |n| n.to_string());
        return Err(refusal(
            format!("it has {length} bytes, but its header says {whole}"),
            AGAIN,
        ));
    }
    let mut part = |n: usize| -> Result<Vec<u8>, Refusal> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(n).map_err(|_| {
            refusal(
                format!("{n} bytes of it do not fit in memory"),
                "end other programs",
            )
        })?;
        bytes.resize(n, 0);
        file.read_exact(&mut bytes).map_err(system)?;
        Ok(bytes)
    };
    let numbers = part(sizes.numbers)?;
    let pages = part(sizes.pages)?;
    let windows = part(sizes.windows)?;
    let states = part(sizes.states)?;
    let sum = part(size_of::<Sum>())?;
    if checksum::of(&[&head[..], &numbers, &pages, &windows, &states]) != sum[..] {
        return Err(refusal("its checksum does not match", AGAIN));
    }
    let number = |bytes: &[u8]| bytes.try_into().map(u32::from_le_bytes).unwrap_or(u32::MAX);
    content.tokens = numbers.chunks_exact(size_of::<u32>()).map(number).collect();
    content.state_ends = content.tokens.split_off(sizes.n_tokens);
    let inside = |end: &u32| *end as usize <= sizes.n_tokens;
    if !content.state_ends.iter().all(inside) {
        return Err(refusal("it has a state behind its last token", AGAIN));
    }
    (content.pages, content.windows, content.states) = (pages, windows, states);
    Ok(content)
}

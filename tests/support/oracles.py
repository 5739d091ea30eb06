"""The tokenizers to agree with, rebuilt from a GGUF's own metadata: HF tokenizers and llama.cpp;
and vocabularies made here, so that no published one is needed."""
# ruff: noqa: RUF001 (look-alike letters are the point)

import functools
import json
import unicodedata
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from support import strings

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

# As published with each model.
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
QWEN35 = QWEN2.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"\s\p{L}\p{N}", r"\s\p{L}\p{M}\p{N}")
SEED_CODER = QWEN2.replace(r"\p{N}]+[\r\n]*", r"\p{N}]+")
_FRONT, _BEHIND = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_FRONT}*{_BEHIND}+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_FRONT}+{_BEHIND}*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = GPT4O.replace("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "").replace(r"\p{N}{1,3}", r"\p{N}")
DEEPSEEK_LETTERS = (
    r"A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚ"
    r"Ḁ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻ"
    r"Ȿ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
DEEPSEEK_EAST_ASIAN = "[一-龥ࠀ-一가-\ud7ff]+"


def _cut(expression: str) -> Any:
    return pre_tokenizers.Split(Regex(expression), "isolated")


_DIGITS = pre_tokenizers.Digits(individual_digits=True)
_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
_GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
#: The steps of each family, each in what those before it left.
STEPS: dict[str, list[Any]] = {
    "gpt-2": [_GPT2],
    "mpt": [_GPT2],
    "smollm": [_DIGITS, _GPT2],
    "llama-bpe": [_cut(LLAMA3), _BYTES],
    "lfm2": [_cut(LLAMA3), _BYTES],
    "dbrx": [_cut(LLAMA3), _BYTES],
    "qwen2": [_cut(QWEN2), _BYTES],
    "qwen35": [_cut(QWEN35), _BYTES],
    "seed-coder": [_cut(SEED_CODER), _BYTES],
    "laguna": [_cut(r"[^\n]+|[\n]+"), _cut(QWEN2), _BYTES],
    "gpt-4o": [_cut(GPT4O), _BYTES],
    "tekken": [_cut(TEKKEN), _BYTES],
    "deepseek-llm": [
        _cut(r"[\r\n]"),
        _cut(rf"\s?[{DEEPSEEK_LETTERS}]+"),
        _cut(r"\s?[!-/:-~！-／：-～‘-‟　-。]+"),
        _cut(r"\s+$"),
        _cut(DEEPSEEK_EAST_ASIAN),
        _cut(r"\p{N}+"),
        _BYTES,
    ],
    "deepseek-coder": [
        *(_cut(r"[\r\n]"), _cut(r"\s?\p{L}+"), _cut(r"\s?\p{P}+"), _cut(DEEPSEEK_EAST_ASIAN)),
        *(_DIGITS, _BYTES),
    ],
    "deepseek-v3": [
        *(_cut(r"\p{N}{1,3}"), _cut("[一-龥぀-ゟ゠-ヿ]+")),
        _cut(
            r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
            r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        ),
        _BYTES,
    ],
    "falcon": [_cut(r"[\p{P}\$\+<=>\^~\|`]+"), _GPT2, _cut("[0-9][0-9][0-9]")],
}
#: Where a word that is a token is not merged.
IGNORE_MERGES = {"llama-bpe", "lfm2", "tekken"}


def known_to_llama_cpp(pre: str, c: str) -> bool:
    """Whether llama.cpp cuts at a character as the published expression does.

    Of the case of letters it knows a-z and A-Z, and it has no marks in words (GPT-4o, Tekken);
    white space beyond ASCII is a vertical tab to it, even where the expression names it (DeepSeek).
    """
    if c.isascii():
        return True
    if pre in ("gpt-4o", "tekken"):
        # What Python does not know as a character yet may be one of them.
        return unicodedata.category(c) not in ("Lu", "Ll", "Lt", "Mn", "Mc", "Me", "Cn")
    # Signs that are new in Unicode are none to it.
    is_new = pre == "deepseek-v3" and unicodedata.category(c) == "Cn"
    return not is_new and not (pre.startswith("deepseek") and c.isspace())


Metadata = dict[str, Any]


@functools.cache
def _metadata(path: Path) -> Metadata:
    fields = gguf.GGUFReader(path).fields
    prefix = "tokenizer.ggml."
    return {k[len(prefix) :]: f.contents() for k, f in fields.items() if k.startswith(prefix)}


def metadata(path: Path) -> Metadata:
    """`tokenizer.ggml.*` of a file, without the prefix; the caller may change it."""
    return dict(_metadata(path))


def write(path: Path, data: Metadata, *, model: bool = False, name: str = "test") -> Path:
    """A GGUF with this vocabulary; with `model` it has tensors, so that a server loads it."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(name)
    for key, value in data.items():
        key = f"tokenizer.ggml.{key}"
        if isinstance(value, list | bytes):
            writer.add_array(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_uint32(key, value)
    if model:
        n_vocab, n_embd = len(data["tokens"]), 32
        writer.add_block_count(1)
        writer.add_context_length(4096)
        writer.add_embedding_length(n_embd)
        writer.add_feed_forward_length(n_embd)
        writer.add_head_count(1)
        writer.add_head_count_kv(1)
        writer.add_layer_norm_rms_eps(1e-5)
        shapes = {"token_embd": (n_vocab, n_embd), "output_norm": (n_embd,)}
        square = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
        shapes |= {f"blk.0.{name}": (n_embd, n_embd) for name in square}
        shapes |= {f"blk.0.{name}": (n_embd,) for name in ("attn_norm", "ffn_norm")}
        for name, shape in shapes.items():
            dtype = np.float16 if len(shape) == 2 else np.float32
            writer.add_tensor(f"{name}.weight", np.ones(shape, dtype))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _merges(data: Metadata) -> list[tuple[str, str]]:
    pairs = (merge.split(" ") for merge in data["merges"])
    return [(left, right) for left, right in pairs]


class HuggingFace:
    """`tokenizers.Tokenizer` with the pre-tokenizer published for the vocabulary's family."""

    def __init__(self, data: Metadata, *, nfc: bool = False) -> None:
        tokens, types = data["tokens"], data["token_type"]
        plain = {t: i for i, t in enumerate(tokens) if types[i] in (NORMAL, UNUSED, BYTE, UNKNOWN)}
        if data["model"] == "llama":
            self.tokenizer = self._sentencepiece(data)
        elif data["model"] == "t5":
            self.tokenizer = self._unigram(data)
        elif data["model"] == "gemma4":
            self.tokenizer = self._of_characters(data, plain)
        else:
            pre = data["pre"]
            bpe = models.BPE(plain, _merges(data), ignore_merges=pre in IGNORE_MERGES)
            self.tokenizer = tokenizers.Tokenizer(bpe)
            self.tokenizer.pre_tokenizer = pre_tokenizers.Sequence(STEPS[pre])
            self.tokenizer.decoder = decoders.ByteLevel()
            if nfc:
                self.tokenizer.normalizer = normalizers.NFC()
        # Added tokens may get other ids; what matters is their text, by which ids are mapped back.
        for kind, special in ((USER_DEFINED, False), (CONTROL, True), (UNKNOWN, True)):
            added = [t for i, t in enumerate(tokens) if types[i] == kind]
            self.tokenizer.add_tokens(
                [tokenizers.AddedToken(t, special=special, normalized=False) for t in added]
            )
        self.ids = {t: i for i, t in enumerate(tokens)}

    @staticmethod
    def _of_characters(data: Metadata, plain: dict[str, int]) -> tokenizers.Tokenizer:
        unk = data["tokens"][data["unknown_token_id"]]
        vocab = plain | {unk: data["unknown_token_id"]}
        bpe = models.BPE(vocab, _merges(data), unk_token=unk, fuse_unk=True, byte_fallback=True)
        tokenizer = tokenizers.Tokenizer(bpe)
        tokenizer.normalizer = normalizers.Replace(" ", "▁")
        return tokenizer

    @staticmethod
    def _sentencepiece(data: Metadata) -> tokenizers.Tokenizer:
        tokens, scores = data["tokens"], data["scores"]
        vocab = {t: i for i, t in enumerate(tokens)}
        merges = []
        for piece, score in zip(tokens, scores, strict=True):
            pairs = [(piece[:i], piece[i:]) for i in range(1, len(piece))]
            known = [(a, b) for a, b in pairs if a in vocab and b in vocab]
            known.sort(key=lambda pair: (vocab[pair[0]], vocab[pair[1]]))
            merges += [(-score, pair) for pair in known]
        merges.sort(key=lambda merge: merge[0])
        unk = tokens[data.get("unknown_token_id", 0)]
        bpe = models.BPE(
            vocab, [pair for _, pair in merges], unk_token=unk, fuse_unk=True, byte_fallback=True
        )
        tokenizer = tokenizers.Tokenizer(bpe)
        steps: list[Any] = [normalizers.Replace(" ", "▁")]
        if data.get("add_space_prefix", True):
            steps.insert(0, normalizers.Prepend("▁"))
        tokenizer.normalizer = normalizers.Sequence(steps)
        return tokenizer

    @staticmethod
    def _unigram(data: Metadata) -> tokenizers.Tokenizer:
        # No text spells what is not a piece.
        kinds = zip(data["tokens"], data["token_type"], data["scores"], strict=True)
        pieces = [(t if kind in (NORMAL, BYTE) else f"\0{t}", score) for t, kind, score in kinds]
        unk = data["unknown_token_id"]
        of_bytes = BYTE in data["token_type"]
        tokenizer = tokenizers.Tokenizer(models.Unigram(pieces, unk, byte_fallback=of_bytes))
        steps: list[Any] = []
        if charsmap := data.get("precompiled_charsmap"):
            steps.append(normalizers.Precompiled(bytes(charsmap)))
        if data.get("remove_extra_whitespaces"):
            steps += [
                normalizers.Replace(Regex("^ +| +$"), ""),
                normalizers.Replace(Regex(" +"), " "),
            ]
        tokenizer.normalizer = normalizers.Sequence(steps)
        prefix = "always" if data.get("add_space_prefix") else "never"
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prefix, split=False)
        return tokenizer

    def encode(self, texts: Sequence[str], *, parse_special: bool = False) -> list[list[int]]:
        self.tokenizer.encode_special_tokens = not parse_special
        encoded = self.tokenizer.encode_batch(list(texts), add_special_tokens=False)
        if isinstance(self.tokenizer.model, models.Unigram):
            return [one.ids for one in encoded]
        return [[self.ids[token] for token in one.tokens] for one in encoded]


class LlamaCpp:
    """llama.cpp's own tokenizer, asked over loopback."""

    def __init__(self, path: Path) -> None:
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path = str(path)
        params.n_ctx = 256
        params.port = 0
        params.warmup = False
        self.server = xllamacpp.Server(params)
        # Its main loop answers: a server that goes before that has begun waits for it forever.
        with urllib.request.urlopen(self.server.listening_address + "/slots", timeout=60):
            pass

    def encode(
        self, texts: Sequence[str], *, add_special: bool = False, parse_special: bool = False
    ) -> list[list[int]]:
        return [self._one(text, add_special, parse_special) for text in texts]

    def _one(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
        body = {"content": text, "add_special": add_special, "parse_special": parse_special}
        request = urllib.request.Request(
            self.server.listening_address + "/tokenize",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as reply:
            tokens: list[int] = json.load(reply)["tokens"]
        return tokens


def byte_alphabet() -> list[str]:
    """The character that stands for each byte in the tokens of a byte-level vocabulary."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [b for b in range(256) if b not in shown]
    return [chr(b) if b in shown else chr(0x100 + hidden.index(b)) for b in range(256)]


def byte_level(merges: Sequence[tuple[bytes, bytes]], pre: str) -> Metadata:
    """A vocabulary of all bytes and what the merges make, and one control token, `<|end|>`."""
    alphabet = byte_alphabet()

    def text(raw: bytes) -> str:
        return "".join(alphabet[b] for b in raw)

    made = [text(a + b) for a, b in merges]
    tokens = [*alphabet, *dict.fromkeys(made), "<|end|>"]
    return {
        "model": "gpt2",
        "pre": pre,
        "tokens": tokens,
        "token_type": [NORMAL] * (len(tokens) - 1) + [CONTROL],
        "merges": [f"{text(a)} {text(b)}" for a, b in merges],
        "bos_token_id": len(tokens) - 1,
        "eos_token_id": len(tokens) - 1,
        "add_bos_token": False,
    }


def sentencepiece(**changes: Any) -> Metadata:
    """A vocabulary of bytes, the characters of some text, and pieces of it: the longer the
    earlier."""
    text = " ".join(strings.WORDS) + strings.CODE + " ".join(s[2] for s in strings.SCRIPTS.values())
    text = text.replace(" ", "▁")
    pieces = {text[i : i + n] for n in range(2, 7) for i in range(0, len(text) - n, 3)}
    # A piece is reached by merges only if its halves are: add them all the way down.
    work = list(pieces)
    while work:
        piece = work.pop()
        for half in (piece[:-1], piece[1:]):
            if len(half) > 1 and half not in pieces:
                pieces.add(half)
                work.append(half)
    merged = sorted(pieces, key=lambda p: (-len(p), p))
    single = sorted(set(text))
    head = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "<|im_end|>", "\n\n"]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, CONTROL, USER_DEFINED]
    tokens = [*head, *merged, *single]
    return {
        "model": "llama",
        "pre": "default",
        "tokens": tokens,
        "scores": [0.0] * len(head) + [-float(i) for i in range(len(merged) + len(single))],
        "token_type": types + [NORMAL] * (len(merged) + len(single)),
        "unknown_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    } | changes


def characters(*, newlines: bool = True, **changes: Any) -> Metadata:
    """A vocabulary of Gemma 4's kind: the pieces of `sentencepiece` in one line and the merges that
    lead to them, and runs of newlines, with the merges that lead to these or without."""
    data = sentencepiece()
    runs = ["\n" * n for n in range(1, 6)]
    head = data["tokens"][:260]
    pieces = [t for t in data["tokens"][260:] if "\n" not in t]
    kinds = [BYTE if token.startswith("<0x") else CONTROL for token in head]
    known = {*pieces}
    long = [piece for piece in pieces if len(piece) > 1]
    halves = [(p[:i], p[i:]) for p in long for i in (1, len(p) - 1)]
    merges = [(a, b) for a, b in halves if a in known and b in known]
    if newlines:
        merges += [(run[:i], run[i:]) for run in reversed(runs) for i in range(1, len(run))]
    return {
        "model": "gemma4",
        "tokens": [*head, *pieces, *runs],
        "token_type": kinds + [NORMAL] * (len(pieces) + len(runs)),
        "merges": [f"{a} {b}" for a, b in dict.fromkeys(merges)],
        "unknown_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "add_bos_token": True,
        "add_space_prefix": False,
    } | changes


#: What the charsmap of `unigram` replaces: keys that begin with others, that share their ends, and
#: that become nothing, a space, or more than they were.
REPLACED = {
    "\t": " ",
    "\n": " ",
    "\u3000": " ",
    "\xa0": " ",
    "\u200b": "",
    "\xad": "",
    "Ａ": "A",
    "ａ": "a",
    "ﬁ": "fi",
    "①": "1",
    "e\u0301": "é",
    "o\u0302": "ô",
    "o\u0302\u0301": "ố",
    "\u1100\u1161": "가",
    "\u1100\u1161\u11a8": "각",
    "㌖": "キロメートル",
    "\ufdfa": "صلى الله عليه وسلم",
}


def charsmap(replaced: dict[str, str]) -> bytes:
    """The keys as a double array of 32-bit units, then the replacements, a zero behind each."""
    texts, place = b"", {}
    for text in dict.fromkeys(replaced.values()):
        place[text] = len(texts)
        texts += text.encode() + b"\0"
    units: dict[int, int] = {0: 0}
    bases: set[int] = set()

    def add(index: int, keys: dict[bytes, str]) -> None:
        """The children of the node at `index`, which have these bytes behind them."""
        labels = sorted({key[0] if key else 0 for key in keys})
        # An offset below 2^21, and a base of its own whose children's places are free.
        own = (o for o in range(1, 1 << 21) if index ^ o not in bases)
        offset = next(o for o in own if all((index ^ o ^ b) not in units for b in labels))
        bases.add(index ^ offset)
        units[index] |= offset << 10 | (1 << 8 if b"" in keys else 0)
        units.update({index ^ offset ^ b: b for b in labels if b})
        if b"" in keys:
            units[index ^ offset] = 1 << 31 | place[keys[b""]]
        for b in filter(None, labels):
            add(
                index ^ offset ^ b,
                {key[1:]: to for key, to in keys.items() if key[:1] == bytes([b])},
            )

    add(0, {key.encode(): to for key, to in replaced.items()})
    # A unit that is no node, and nobody's child, where there is none.
    array = np.array([units.get(i, 1 << 31) for i in range(max(units) + 1)], "<u4").tobytes()
    return len(array).to_bytes(4, "little") + array + texts


def unigram(*, of_bytes: bool = False, **changes: Any) -> Metadata:
    """A Unigram vocabulary of the pieces of `sentencepiece`, its special tokens as XLM-R's."""
    data = sentencepiece()
    pieces = [t for t in data["tokens"][260:] if not set(t) & {"\n", "\t"}]
    head = ["<s>", "<pad>", "</s>", "<unk>", *(f"<0x{b:02X}>" for b in range(256) if of_bytes)]
    kinds = [CONTROL, CONTROL, CONTROL, UNKNOWN, *[BYTE] * (len(head) - 4)]
    # The longer the better, though not always; all of them float32 as they are.
    scores = [-(4 + 1.5 * len(t) + i * 37 % 101 / 64) for i, t in enumerate(pieces)]
    return {
        "model": "t5",
        "pre": "default",
        "tokens": [*head, *pieces, "<mask>"],
        "scores": [0.0] * len(head) + scores + [0.0],
        "token_type": [*kinds, *[NORMAL] * len(pieces), CONTROL],
        "bos_token_id": 0,
        "eos_token_id": 2,
        "unknown_token_id": 3,
        "seperator_token_id": 2,
        "padding_token_id": 1,
        "add_bos_token": True,
        "add_eos_token": True,
        "add_space_prefix": True,
        "remove_extra_whitespaces": True,
        "precompiled_charsmap": charsmap(REPLACED),
    } | changes

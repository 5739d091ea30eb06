"""Strings of every kind that tokenizers have tripped over; the same ones on every run."""
# ruff: noqa: RUF001 (look-alike letters are the point)

import random
import unicodedata
from collections.abc import Callable

#: First and last letter of a script, and a word or two of it.
SCRIPTS = {
    "Latin": (0x41, 0x24F, "naïve façade ŒUVRE ĳ ǅ ſtraße ﬁn"),
    "Greek": (0x370, 0x3FF, "Ὀδυσσεύς σοφός ΑΣ ς"),
    "Cyrillic": (0x400, 0x4FF, "Привет, мир! ё Ѣ"),
    "Armenian": (0x531, 0x58A, "Բարեւ"),
    "Hebrew": (0x5D0, 0x5EA, "שלום עולם שָׁלוֹם"),
    "Arabic": (0x620, 0x6FF, "مرحبا بالعالم ١٢٣ لا"),
    "Devanagari": (0x900, 0x97F, "नमस्ते दुनिया क्षत्रिय १२"),
    "Bengali": (0x980, 0x9FF, "ওহে বিশ্ব"),
    "Tamil": (0xB82, 0xBFA, "வணக்கம் உலகம்"),
    "Thai": (0xE01, 0xE5B, "สวัสดีชาวโลก ๑๒๓"),
    "Tibetan": (0xF00, 0xFD4, "བོད་ཡིག"),
    "Georgian": (0x10A0, 0x10FF, "გამარჯობა Ⴀ"),
    "Hangul": (0xAC00, 0xD7A3, "안녕하세요 세계"),
    "Jamo": (0x1100, 0x11FF, "각"),
    "Ethiopic": (0x1200, 0x137C, "ሰላም ፩፪"),
    "Cherokee": (0x13A0, 0x13F4, "ᎣᏏᏲ"),
    "Khmer": (0x1780, 0x17F9, "ជំរាបសួរ ០១"),
    "Mongolian": (0x1810, 0x1878, "ᠰᠠᠢᠨ"),
    "Hiragana": (0x3041, 0x3096, "こんにちは"),
    "Katakana": (0x30A1, 0x30FA, "カタカナ ｶﾅ ー"),
    "Han": (0x4E00, 0x9FFF, "你好，世界！漢字仮名"),
    "Han compatibility": (0xF900, 0xFAD9, "豈更"),
    "Han extension B": (0x20000, 0x2A6DF, "𠀀𪛖"),
    "Gothic": (0x10330, 0x1034A, "𐌲𐌿𐍄"),
    "Cuneiform": (0x12000, 0x12399, "𒀀𒁀"),
    "Hieroglyphs": (0x13000, 0x1342E, "𓀀𓃰"),
    "Mathematical": (0x1D400, 0x1D7FF, "𝔸𝟙𝛼"),
    "Adlam": (0x1E900, 0x1E959, "𞤀𞥑"),
}
EMOJI = [
    "😀",
    "👍",
    "👍🏽",
    "👩\u200d👩\u200d👧\u200d👦",
    "🏳️\u200d🌈",
    "🏴\u200d☠️",
    "🇨🇭",
    "🇯🇵🇺🇸",
    "❤️",
    "❤",
    "☎️",
    "1️⃣",
    "#️⃣",
    "🧑🏿\u200d🚀",
    "👨🏻\u200d🤝\u200d👨🏿",
    "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
    "🫠",
    "🪿",
    "♂️",
    "©",
    "™",
    "〰️",
    "🀄",
    "🃏",
    "🈁",
    "🆒",
]
CONTROLS = [chr(c) for c in [*range(0x20), *range(0x7F, 0xA0), 0xAD, 0x600, 0x61C, 0x70F, 0x180E]]
CONTROLS += [
    chr(c) for c in [*range(0x200B, 0x2010), *range(0x2028, 0x202F), *range(0x2060, 0x2070)]
]
CONTROLS += ["\ufeff", "\ufff9", "\ufffc", "\ufffd", "\U000e0001", "\U000e007f", "\U0001d173"]
SPACES = [
    *" \t\n\r\v\f\x1c\x1f\x85\xa0\u1680\u2000\u2003\u2009\u200a\u2028\u2029\u202f\u205f\u3000",
    "\r\n",
    "  ",
    "    ",
    "\n\n",
    "\n \n",
]
CODE = r'''
def f(x: int = 0) -> dict[str, "T"]:
    """Doc."""
    return {k: v for k, v in zip(x, y) if k != 'it\'s' and v >= 1e-10}  # why
#include <stdio.h>
int main(void) { for (int i = 0; i < 10; ++i) printf("%d\n", a[i] << 3); return 0; }
fn main() -> Result<(), Box<dyn Error>> { let x: &'static str = r#"raw"#; println!("{x:?}"); }
SELECT COUNT(*) FROM "t" WHERE a LIKE '%x%' AND b IS NOT NULL; -- note
<div class="a b" id='c'>&nbsp;<!-- c --><br/></div>
const re = /^[\w.+-]+@[\w-]+\.[\w.]+$/gi; let {a, ...b} = await f`t${x}`;
{"a": [1, 2.5, -3e+8, null, true], "b": {"c": "\u00e9\n"}}
sudo rm -rf /tmp/*.{log,txt} 2>/dev/null && echo $HOME || exit 1
\begin{equation} \frac{\partial f}{\partial x} = \sum_{i=0}^{n} x_i^2 \end{equation}
a==b!=c<=d>=e&&f||g??h?.i->j::k=>l<<=m>>>n**o//p/*q*/r...s
'''
WORDS = [
    "the",
    "quick",
    "Brown",
    "FOX",
    "it's",
    "they'RE",
    "I'll",
    "we'd",
    "You've",
    "can't",
    "'Tis",
    "o'clock",
    "''s",
    "'s",
    "'S",
    "'LL",
    "'vE",
    "snake_case",
    "camelCase",
    "HTTP2",
    "x86_64",
    "e.g.",
    "U.S.A.",
    "don’t",
    "‘quoted’",
    "“text”",
    "—",
    "–",
    "…",
    "co-op",
]
LOOK_ALIKES = [
    *("<s>", "</s>", "<unk>", "<pad>", "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|eot_id|>"),
    *("<|begin_of_text|>", "<|start_header_id|>", "<end_of_turn>", "[INST]", "[/INST]", "<<SYS>>"),
    *("<|im_start", "im_end|>", "<|", "|>", "<|im_|im_end|>end|>", "<|im_end|>>", "<<|im_end|>"),
    *("<|IM_END|>", "<| im_end |>", "<\u200b|im_end|>", "<｜end▁of▁sentence｜>", "▁", "▁▁", "▁the"),
    *("<0x0A>", "<0x41>", "<0xZZ>", "Ġ", "Ċ", "Ġthe", "ĠĠ", "Â", "<repo_name>", "<file_sep>"),
    *(
        "<|fim_prefix|>",
        "<tool_call>",
        "<think>",
        "[PAD151646]",
        "\\u003c",
        "&lt;s&gt;",
        "@@",
        "##s",
    ),
]


def _mix(rng: random.Random, parts: list[str], most: int, glue: list[str]) -> str:
    return "".join(rng.choice(parts) + rng.choice(glue) for _ in range(rng.randint(1, most)))


def scripts(rng: random.Random) -> str:
    first, last, sample = SCRIPTS[rng.choice(list(SCRIPTS))]
    letters = "".join(chr(rng.randint(first, last)) for _ in range(rng.randint(1, 12)))
    other = rng.choice(list(SCRIPTS.values()))[2]
    return _mix(rng, [sample, letters, other, *sample.split(" "), *WORDS], 5, ["", " ", ", ", "."])


def emoji(rng: random.Random) -> str:
    marks = ["\u200d", "\ufe0f", "\U0001f3fb", "\U0001f3ff", "a", "é", "1", "!"]
    return _mix(rng, [*EMOJI, *EMOJI, *marks], 10, ["", "", " ", "\n"])


def controls(rng: random.Random) -> str:
    return _mix(rng, [*CONTROLS, "a", "1", ".", " word"], 12, ["", "", " ", "x"])


def random_unicode(rng: random.Random) -> str:
    def one() -> str:
        while True:
            plane = rng.choice([0, 0, 0, 1, 1, 2, 3, rng.randint(4, 16)])
            code = plane << 16 | rng.randint(0, 0xFFFF)
            if rng.random() < 0.05:
                code = plane << 16 | rng.choice([0xFFFE, 0xFFFF, 0xFDD0])  # noncharacters
            if not 0xD800 <= code < 0xE000:
                return chr(code)

    return "".join(one() for _ in range(rng.randint(1, 20)))


def code(rng: random.Random) -> str:
    start = rng.randrange(len(CODE))
    text = CODE[start : start + rng.randint(1, 200)]
    return text.replace("    ", "\t") if rng.random() < 0.3 else text


def white_space(rng: random.Random) -> str:
    run = [s * rng.randint(1, 9) for s in SPACES]
    return _mix(rng, [*SPACES, *run, "a", "é", "1", "!", "'s", "の"], 10, [""])


def digits(rng: random.Random) -> str:
    number = str(rng.randrange(10 ** rng.randint(1, 25)))
    other = "".join(rng.choice("٣५๗߂０۴𝟙²½Ⅷ㊷①1 9") for _ in range(rng.randint(1, 8)))
    parts = [
        number,
        number,
        other,
        "0x1F",
        "1e-9",
        "3.14",
        "1,000,000",
        "2024-01-31",
        "-",
        "a",
        "v",
    ]
    return _mix(rng, parts, 5, ["", "", " ", ".", "\n"])


def look_alikes(rng: random.Random) -> str:
    return _mix(rng, [*LOOK_ALIKES, *LOOK_ALIKES, *WORDS], 6, ["", "", " ", "\n"])


CATEGORIES: dict[str, Callable[[random.Random], str]] = {
    "scripts": scripts,
    "emoji": emoji,
    "control characters": controls,
    "random Unicode": random_unicode,
    "code": code,
    "white space": white_space,
    "digits": digits,
    "look-alikes": look_alikes,
}


def strings(category: str, n: int = 500) -> list[str]:
    """`n` different strings."""
    rng = random.Random(f"{category} 1")
    found: dict[str, None] = {}
    while len(found) < n:
        found[CATEGORIES[category](rng)] = None
    return list(found)


def is_nfc(text: str) -> bool:
    return unicodedata.is_normalized("NFC", text)

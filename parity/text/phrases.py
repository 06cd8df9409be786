"""Texts that tell tokenizers apart: space, scripts, cases, numbers, code, and characters one by one.

Sentences of everyday prose give the same ids under most faults; a fault shows on what is rare.
"""

# ruff: noqa: RUF001  # characters that look like others are what these texts are for
from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ..probes.sentences import SENTENCES

PHRASES: Final = (
    "",
    " ",
    "\n",
    "\t",
    "   leading, and trailing   ",
    "double  spaces,   triple,    and" + " " * 17 + "seventeen",
    "tabs\tbetween\t\twords\t",
    "\tdef f(x):\n\t\treturn x\n",
    "one line\nanother\n\na third\n\n\n",
    "carriage\r\nreturn\rand line\u2028separator",
    "no\u00a0break thin\u2009space ideo\u3000graphic zero\u200bwidth join\u200der soft\u00adhyphen \ufeffmark",
    "ﬁne ﬂow ① ² ½ ℌ Ａｂｃ １２３ ㎏ ｶﾞ Ω Å ſ",
    "café cafe\u0301 ñ n\u0303 Å A\u030a ệ e\u0323\u0302 ô̂",
    "한국어 문장 \u1112\u1161\u11ab\u1100\u1173\u11af 텍스트",
    "ALL CAPS, MixedCase, camelCase, SCREAMING_SNAKE, İstanbul, ıssız, Straße, STRASSE, ΟΔΟΣ, ǅ",
    "Ünïcödé Ąćęłńóśźż Ёлки Йод Ґанок",
    "مرحبا بالعالم، كيف حالُكَ؟ می‌خواهم ١٢٣",
    "שלום עולם, מה שלומְךָ? \u200fימין\u200e left",
    "नमस्ते दुनिया। ४५६ สวัสดีชาวโลก தமிழ் বাংলা",
    "今天天气很好，我们去公园。日本語のテキスト、カタカナ。「引用」",
    "mixedαβγкириллица漢字scripts한글",
    "👍🏽 👩‍👩‍👧‍👦 🇩🇪🇫🇷 ❤️ 1️⃣ 🏴󠁧󠁢󠁳󠁣󠁴󠁿 🚂🚂🚂",
    "0 7 12 345 6789 12345678901234567890 3.14159 1,234,567.89 -5 +7 1e-10 0x1F 2026-11-22 10:05",
    "1st 2nd 100% $3.50 €1.000,00 #42 @7 No.5 x2 3D v1.2.3",
    "I'LL we've DON'T it's 'tis O'Neil they'd I'm You'Re 'TIS O'REILLY O'SULLIVAN O'TOOLE they'VERIFY ‘single’ “double” cannot",
    "for (int i = 0; i < n; ++i) { a[i] += b->c * ~d; } // sum\n    return a != NULL && !b;\n",
    'class A(B):\n    """Doc."""\n\n    x: dict[str, int] = {"k": 1}\n        # eight\n',
    '<div class="a">&amp; text</div><!-- note --> [link](https://a.example/b?c=d&e=%20#f) me@b.example',
    r"\frac{a}{b} $x^2$ C:\path\file \n \t ~/bin/*.sh",
    "!!! ... --- ??? *** ### === ~~~ ``` ((([[[{{{}}}]]]))) ?!?! .,;:",
    "under_score __dunder__ _ ▁ ▁▁a Ġ Ċ ## ##ing </w> @@ <0x0A> |",
    "\x00\x01\x1b[0m\x7f\x85 \ue000 \U000e0041 \U0010ffff",
    "a" * 99 + " " + "b" * 101 + " " + "c" * 201,
    "hello , world ! do n't you ' re . It 's ( here ) : `` so '' ?",
    "∑ ∫ ≤ ≠ √ ∞ → ⇒ × ÷ ± ° µ § ¶ © ® ™",
    "[CLS] [MASK] <s> </s> <unk> <pad> <|endoftext|> <|im_start|>user [INST] <<SYS>> <start_of_turn>",
)
SECOND: Final = "And  a second text, Straße No. 2."  # of a pair
TEXTS: Final = (*SENTENCES, *PHRASES)

# Where Unicode's normal forms, cases, accents and spaces do something, and scripts with marks.
RANGES: Final = (
    (0x00, 0x530),
    (0x590, 0x700),
    (0x900, 0x980),
    (0xE00, 0xE80),
    (0x1100, 0x1110),
    (0x1E00, 0x2190),
    (0x2460, 0x24FF),
    (0x3000, 0x3100),
    (0x3300, 0x3400),
    (0xF900, 0xFB50),
    (0xFE50, 0xFFF0),
    (0x1D400, 0x1D440),
)
BLOCK: Final = 16  # characters in one text


def character_blocks() -> Iterator[tuple[int, str]]:
    """Yield the first code point of every block, and a text with each character of it in a word.

    >>> next(text for first, text in character_blocks() if first == 0x40)[:10]
    'a@b aAb aB'
    """
    for start, stop in RANGES:
        for first in range(start, stop, BLOCK):
            codes = range(first, min(first + BLOCK, stop))
            yield first, " ".join(f"a{chr(code)}b" for code in codes)


def token_text(token: str) -> str:
    r"""Return a text with TOKEN alone, inside a word, doubled, in another case and between spaces.

    >>> token_text("<s>")
    'a<s>b  <s>  c <S>\n<s>\n<s><s>'
    """
    return f"a{token}b  {token}  c {token.swapcase()}\n{token}\n{token}{token}"

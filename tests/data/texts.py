"""Text that tokenizers stumble over."""

from __future__ import annotations

from hypothesis import strategies as st

PIECES = [
    "<|endoftext|>",
    "नमस्ते",
    "क्‍ष",
    "दुनिया",
    "مرحبا",
    "می‌خواهم",
    "é",
    "é",
    "한국어",
    "中文。",
    "👩‍👩‍👧",
    "❤️",
    "1️⃣",
    "ﬁ",
    " ",
    "  ",
    "\n",
    "\n\n",
    "\t",
    "\r\n",
    " ",
    "　",
    "​",
    "﻿",
    "\x00",
    "\x1c",
    "\x85",
    " ",
    "don't",
    "I'LL",
    "'s",
    "''",
    "1234567",
    "3.14",
    "x=y",
    "!!!",
    "...",
    "a",
    "The",
    " the",
]

any_text = st.one_of(
    st.text(),
    st.lists(st.sampled_from(PIECES), max_size=30).map("".join),
    st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=5)), max_size=20).map("".join),
)
"""Any Unicode text (without lone surrogates, which no UTF-8 file can hold), with a liking for what is difficult."""

utf8_text = any_text.filter(lambda text: not any("\ud800" <= letter <= "\udfff" for letter in text))

"""How plain text has what only layout shows: raised and lowered characters, ticked boxes, numbers of items."""

from __future__ import annotations

import re

UP, DOWN, LEVEL = "\ue002", "\ue003", "\ue004"
"""Private characters: what is behind the first is raised or lowered, up to the last."""
_SHIFTED = re.compile(
    f"([{UP}{DOWN}])([^{UP}{DOWN}{LEVEL}]*(?:{LEVEL}\\1[^{UP}{DOWN}{LEVEL}]*)*){LEVEL}"
)  # pieces of the same kind behind each other are one
_LEFT_OVER = dict.fromkeys(map(ord, (UP, DOWN, LEVEL)))
MAX_SHIFTED = 4
"""Raised within raised characters."""
_SIMPLE = re.compile(r"[+\-\u2212]?\w+(?:[.,]\w+)*")
_ORDINALS = frozenset(("st", "nd", "rd", "th", "e", "er", "re", "ème", "o", "a", "º", "ª", "tm", "sm"))
"""Raised letters that mean the same when they are not."""
_BASES = tuple(")]∑∏∫")
"""Signs that something stands above or below of."""
BOXES = {False: "\u2610 ", True: "\u2612 "}
"""What stands before a choice that is ticked or not."""
_ROMAN = dict(
    zip(
        (1000, 900, 500, 400, 100, 90, 50, 40, 10, 9, 5, 4, 1),
        ("m", "cm", "d", "cd", "c", "xc", "l", "xl", "x", "ix", "v", "iv", "i"),
        strict=True,
    )
)
MAX_LETTERED = 10_000
"""Larger numbers of items are written in digits."""


def write_shifted(text: str) -> str:
    """A text with its raised and lowered characters as in 10^6, CO_2 and x^(n+1), so that no number becomes another."""
    for _ in range(MAX_SHIFTED):
        text = _SHIFTED.sub(_write, text)
    return text.translate(_LEFT_OVER)


def _write(match: re.Match[str]) -> str:
    shifted = match[2].translate(_LEFT_OVER).strip()
    start, end = match.span()
    before = match.string[max(0, start - 2) : start].rstrip(LEVEL)[-1:]  # lowered, then raised
    behind = match.string[end : end + 1]
    if not (before.isalnum() or before in _BASES) or not (shifted[:1].isalnum() or shifted[:1] in "+-\u2212"):
        return match[2]
    if match[1] == UP and shifted.lower() in _ORDINALS:
        return match[2]
    runs_on = (shifted[-1:].isdigit() and behind.isdigit()) or (shifted[-1:].isalpha() and behind.isalpha())
    is_plain = _SIMPLE.fullmatch(shifted) and not runs_on
    return ("^" if match[1] == UP else "_") + (shifted if is_plain else f"({shifted})")


def write_number(number: int, kind: str) -> str:
    """The number of an item, in letters or Roman numerals where `kind` says so, as Word and CSS name the kinds."""
    name = kind.lower().replace("-", "")
    if number < 1 or number > MAX_LETTERED:
        return str(number)
    if "roman" in name:
        written = ""
        for value, digits in _ROMAN.items():
            written += digits * (number // value)
            number %= value
    elif "letter" in name:  # as Word goes on: z, aa, bb
        written = chr(ord("a") + (number - 1) % 26) * ((number - 1) // 26 + 1)
    elif "alpha" in name or "latin" in name:  # as browsers go on: z, aa, ab
        written = ""
        while number:
            number, letter = divmod(number - 1, 26)
            written = chr(ord("a") + letter) + written
    elif name in ("decimalzero", "decimalleadingzero"):
        return f"{number:02}"
    else:
        return str(number)
    return written.upper() if "upper" in name else written

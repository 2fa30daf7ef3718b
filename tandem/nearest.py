"""The valid name that a mistyped one most likely stands for."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, choices: Iterable[str]) -> str:
    """The choice most like `name`; the part after its last dot counts as much as all of it. ValueError without any."""

    def likeness(choice: str) -> float:
        whole, tail = _ratio(name, choice), _ratio(name.rpartition(".")[2], choice.rpartition(".")[2])
        return max(whole, tail) + whole / 100

    return max(choices, key=likeness)


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: "did you mean x?", or all choices where none is close."""
    names = list(choices)
    close = find_close(name, names)
    return f"did you mean {close}?" if close else f"choose one of {', '.join(names)}."


def find_close(name: str, choices: Iterable[str]) -> str | None:
    """The choice that `name` is a misspelling of, if there is one."""
    return next(iter(difflib.get_close_matches(name, list(choices), 1)), None)


def _ratio(first: str, second: str) -> float:
    return difflib.SequenceMatcher(None, first.lower(), second.lower()).ratio()

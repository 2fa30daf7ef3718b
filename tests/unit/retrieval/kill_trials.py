"""Builds and updates of an index that are killed (SIGKILL) at random moments, and what must hold afterwards.

    python tests/unit/retrieval/kill_trials.py --trials 20

After each kill: the index is the one before or the new one, whole; what was reported as embedded is not embedded
again; and the resumed run ends with the very content of a run that nobody disturbed. The last line says in which
states the kills left the folder. With --mutant chunks are committed before their manifest: that must be found.
"""

from __future__ import annotations

import argparse
import mmap
import os
import random
import shutil
import signal
import sqlite3
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandem.errors import RetrievalError
from tandem.retrieval import build as writer
from tandem.retrieval import store
from tandem.retrieval.build import BuildReport, build_index
from tandem.retrieval.documents import Document
from tandem.retrieval.index import Index
from tandem.retrieval.store import NAME, Manifest
from tests.unit.retrieval.helpers import content, num_vectors

AT_ONCE = 16
FACTORY = "IVF4,Flat"  # a kind that has a file of its own


class SlowEmbedder:
    """A vector by the hash of a text, a millisecond a batch."""

    name, dimension, fingerprint, window = "slow", 16, "5" * 32, None

    def embed(self, texts: Sequence[str], *, is_query: bool = False) -> NDArray[np.float32]:
        time.sleep(0.001)
        seeds = [int.from_bytes(blake2b(text.encode(), digest_size=8).digest()) for text in texts]
        vectors = np.array([np.random.default_rng(seed).normal(size=16) for seed in seeds])
        return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def corpus(names: range, changed: range = range(0)) -> list[Document]:
    return [
        Document(page_content=f"text {n}{' changed' * (n in changed)}", metadata={"source": f"{n}.txt"})
        for n in names
    ]


OLD = corpus(range(400))
NEW = corpus(range(100, 500), range(150, 250))  # 100 files are gone, 100 changed, 100 new


def build(directory: Path, documents: list[Document], told: Callable[[int, int], None]) -> BuildReport:
    return build_index(documents, directory, SlowEmbedder(), factory=FACTORY, progress=told)


class Trials:
    """Trials of one kind: from what `start` makes of an empty folder to the index of `NEW`."""

    def __init__(self, root: Path, before: list[Document], rng: random.Random) -> None:
        self.root, self.before, self.rng = root, before, rng
        self.done = mmap.mmap(-1, 8)  # shared with the child: how many texts it was told are embedded
        self.start = root / "start"
        self.start.mkdir(parents=True)
        if before:
            build(self.start, before, lambda done, total: None)
        self.old = content(self.start) if before else None
        self._undisturbed()  # imports and caches; the next one is timed
        self.new = self._undisturbed()

    def run(self) -> str:
        """One trial; gives the phase that the kill struck. AssertionError if a promise does not hold."""
        directory = self._fresh("trial")
        child = self._forked(directory)
        time.sleep(
            self.rng.choice([self.rng.uniform(0, self.embed_s), self.rng.uniform(self.embed_s, self.all_s)])
        )
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        done = struct.unpack("q", self.done[:8])[0]
        is_new = self._check_killed(directory)
        struck = "end" if is_new else self._phase(directory)
        report = build(directory, NEW, lambda done, total: None)
        most = 0 if is_new else self.num_missing - done
        assert most - AT_ONCE <= report.num_embedded <= most, (report.num_embedded, most, done)
        assert content(directory) == self.new
        names = {path.name for path in directory.iterdir()}
        assert names == {NAME, report.manifest.trained}, names
        assert num_vectors(directory) == len(NEW)
        return struck

    def _phase(self, directory: Path) -> str:
        """How far a run came that left the index before, by the vectors that it kept."""
        with suppress(sqlite3.OperationalError):  # before its table is there
            num_kept = num_vectors(directory) - len(self.before)
            return {0: "beginning", self.num_missing: "embedded"}.get(num_kept, "embedding")
        return "beginning"

    def _check_killed(self, directory: Path) -> bool:
        """The killed run's index is old or new, and whole; tells which."""
        try:
            found = content(directory)
        except RetrievalError as error:
            if self.old is None and "has none" in str(error):
                return False
            raise
        assert found in (self.old, self.new)
        index = Index.open(directory, SlowEmbedder.fingerprint)
        texts = [index.document(row).page_content for row in range(len(index))]
        assert np.array_equal(index.vectors(np.arange(len(index))), SlowEmbedder().embed(texts))
        index.close()
        return found == self.new

    def _undisturbed(self) -> dict[str, Any]:
        """A run that nobody kills: its result, and how long its two halves take."""
        directory = self._fresh("whole")
        seen: list[tuple[float, int]] = []
        started_s = time.perf_counter()
        report = build(
            directory, NEW, lambda done, total: seen.append((time.perf_counter() - started_s, total))
        )
        self.all_s, (self.embed_s, self.num_missing) = time.perf_counter() - started_s, seen[-1]
        assert report.num_embedded == self.num_missing == (200 if self.before else 400)
        return content(directory)

    def _fresh(self, name: str) -> Path:
        directory = self.root / name
        shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(self.start, directory)
        return directory

    def _forked(self, directory: Path) -> int:
        self.done[:8] = struct.pack("q", 0)
        child = os.fork()
        if child == 0:
            build(
                directory,
                NEW,
                lambda done, total: self.done.write(struct.pack("q", done)) and self.done.seek(0),
            )
            os._exit(0)
        return child


def slow_down(is_mutant: bool) -> None:
    """Stretches the phases that are over in no time, so that kills strike them."""
    content_digest, write_chunks = store.content_digest, store.Writer.write_chunks
    writer.EMBED_AT_ONCE = AT_ONCE

    def digest_slowly(database: sqlite3.Connection, manifest: Manifest) -> str:
        time.sleep(0.04)
        return content_digest(database, manifest)

    def write_hastily(self: store.Writer, placed: Mapping[int, Document], manifest: Manifest) -> None:
        write_chunks(self, placed, manifest)
        self.database.execute("COMMIT")
        time.sleep(0.2)  # so that some of the kills strike here
        self.database.execute("BEGIN IMMEDIATE")

    store.content_digest = digest_slowly
    if is_mutant:
        store.Writer.write_chunks = write_hastily  # type: ignore[method-assign]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--what", choices=("build", "update"), nargs="+", default=["build", "update"])
    parser.add_argument("--mutant", action="store_true")
    args = parser.parse_args()
    slow_down(args.mutant)
    struck: dict[str, Counter[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in args.what:
            before = OLD if name == "update" else []
            trials = Trials(Path(folder) / name, before, random.Random(args.seed))
            struck[name] = Counter(trials.run() for _ in range(args.trials))
    print(struck)


if __name__ == "__main__":
    sys.exit(main())

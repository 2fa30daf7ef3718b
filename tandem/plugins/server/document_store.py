"""The device's own documents where its site runs in the server's process: the index that it searches, and the files
that were added through the server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from threading import Lock

from tandem.config.files import replace_settings
from tandem.config.schema import Config
from tandem.corpora import CORPORA
from tandem.errors import RetrievalError
from tandem.plugins.server.indexing import Indexed, Indexer, Progress
from tandem.retrieval.loaders import NothingReadError
from tandem.system.file_kinds import endings, file_kinds, kind_of
from tandem.system.paths import data_folder
from tandem.topology import Party

SERVED_INDEXES = {"bundled": "served-notes", "household": "served-household"}
"""Indexes, in the data folder, of a device whose documents come with Tandem: those, and what was added."""
MAX_NAME_BYTES = 255  # of the name of a file, as file systems have it
NEVER_IN_NAMES = ("Cc", "Cs")  # Unicode's categories of control characters and of halves of surrogate pairs
ID_KEY_BYTES = 32


def read_endings() -> tuple[str, ...]:
    """The endings of files that are read."""
    return tuple(ending for kind in file_kinds() for ending in kind.endings)


class DocumentStore:
    """One index, and a folder next to it for the files that are added. Its methods block; they are safe for threads.

    Names are equal if they are in one normal form of Unicode: a Mac takes letters and their accents apart.
    """

    def __init__(self, index: Path, config: Config) -> None:
        """index: of the device, as `config` names it. Its files are kept next to it, in INDEX-documents/added."""
        self.index = index
        self.folder = index.with_name(f"{index.name}-documents") / "added"
        self.indexer = Indexer(index, config)
        self.turn = asyncio.Lock()  # of callers from a loop: files that take long hold one thread
        self._changing = Lock()

    def list_documents(self) -> list[dict[str, object]]:
        """Name, bytes of text and whether it can be deleted here, of every document. Raises RetrievalError."""
        from tandem.retrieval.store import Snapshot

        sizes: Counter[str] = Counter()
        with Snapshot(self.index) as index:
            prefix = self._place(index.manifest.roots)[1]
            indexed = index.sizes()
        added = {prefix + name: name for name in self._added()}
        for source, size in indexed.items():
            name = source[: source.find("/", len(prefix))] if "/" in source[len(prefix) :] else source
            sizes[name if name in added else source] += size  # what is in it counts
        return [
            {"name": added.get(source, source), "num_bytes": size, "is_deletable": source in added}
            for source, size in sorted(sizes.items())
        ]

    def _added(self) -> dict[str, Path]:
        """The files that were added, by their names in normal form."""
        return {normal(path.name): path for path in self.folder.glob("[!.]*") if path.is_file()}

    def _path(self, name: str) -> Path:
        """The path of the document of that name, which need not exist."""
        return self._added().get(normal(name), self.folder / normal(name))

    @contextlib.contextmanager
    def receive(self, name: str) -> Iterator[Path]:
        """A new file for a document of that name, to be filled and given to `add`; removed at the end if it is left."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        number, path = tempfile.mkstemp(suffix=Path(name).suffix.lower(), prefix=".", dir=self.folder)
        os.close(number)
        try:
            yield Path(path)
        finally:
            Path(path).unlink(missing_ok=True)

    def add(self, name: str, content: Path, progress: Progress) -> Indexed:
        """Index a file under that name, in place of one that has it. Raises RetrievalError, NothingReadError for a file
        that gives no text; nothing changed then."""
        target = self._path(name)
        with self._changing, self._keep_previous(target):
            others = self._added().keys() - {normal(name)}
            if others and not self._place()[0]:  # the index was built anew since they were added
                with contextlib.suppress(RetrievalError):
                    self.indexer.change("add", self.folder)
            content.replace(target)
            try:
                return self.indexer.change("add", target if self._place()[0] else self.folder, progress)
            except NothingReadError as error:
                _, prefix = self._place()
                sentences = [problem.removeprefix(prefix) for problem in error.problems]
                of_it = [sentence for sentence in sentences if sentence.startswith(normal(name))]
                raise NothingReadError((of_it or sentences)[0], sentences) from None

    def is_elsewhere(self, name: str) -> bool:
        """Whether the index has a document of that name which was not added here. Raises RetrievalError."""
        return any(
            not document["is_deletable"] and normal(str(document["name"])) == normal(name)
            for document in self.list_documents()
        )

    def has(self, name: str) -> bool:
        """Whether a document of that name was added."""
        return self._path(name).is_file()

    def delete(self, name: str) -> None:
        """Delete a document that was added. Raises RetrievalError."""
        target = self._path(name)
        with self._changing, self._keep_previous(target):
            _, prefix = self._place()
            is_last = not any(path != target for path in self.folder.glob("[!.]*"))
            self.indexer.change("delete", prefix.rstrip("/") if prefix and is_last else prefix + normal(name))
            target.unlink()

    def hold(self, notes: Path) -> None:
        """Make it the index of these notes and of what was added, unless it is. Raises RetrievalError."""
        with contextlib.suppress(RetrievalError):  # as where it is damaged
            self.indexer.change("refresh", notes)
            return
        self.indexer.change("build", notes, id_key=secrets.token_hex(ID_KEY_BYTES))
        if any(path.suffix.lower() in read_endings() for path in self.folder.glob("[!.]*")):
            self.indexer.change("add", self.folder)

    @contextlib.contextmanager
    def _keep_previous(self, target: Path) -> Iterator[None]:
        """Puts a file back as it was if what is done meanwhile fails."""
        previous = target.with_name(f".{secrets.token_hex(8)}")
        with contextlib.suppress(FileNotFoundError):
            shutil.copy2(target, previous)
        try:
            yield
        except BaseException:
            target.unlink(missing_ok=True)
            with contextlib.suppress(FileNotFoundError):
                previous.rename(target)
            raise
        finally:
            previous.unlink(missing_ok=True)

    def _place(self, roots: list[str] | None = None) -> tuple[bool, str]:
        """Whether the index remembers the folder of what was added, or takes files one by one; and what stands before
        the names of its files. roots: of its manifest, where that was read."""
        from tandem.retrieval.build import GIVEN, place_root
        from tandem.retrieval.store import read_manifest

        roots = read_manifest(self.index).roots if roots is None else roots
        if not roots or GIVEN in roots:
            return True, ""
        further, name = place_root(roots, str(self.folder))
        return further == roots, f"{name}/"


def normal(name: str) -> str:
    """A name in the form in which names are compared."""
    return unicodedata.normalize("NFC", name)


def why_no_name(name: str) -> str | None:
    """One sentence if a document cannot have that name."""
    if not name or "/" in name or "\\" in name:
        return f"A document is named by a file name without a path, this one is {name!r:.100}; leave out the folder."
    if wrong := [each for each in dict.fromkeys(name) if unicodedata.category(each) in NEVER_IN_NAMES]:
        shown = ", ".join(f"U+{ord(each):04X}" for each in wrong[:5])
        return f"A file name has no control characters, but {name!r:.100} has {shown}; rename the file."
    if name.startswith(".") or len(normal(name).encode()) > MAX_NAME_BYTES:
        return (
            f"A file name has 1 to {MAX_NAME_BYTES} bytes and does not begin with a dot, this one is {name!r:.100}; "
            "rename the file."
        )
    if kind_of(name) is not None:
        return None
    return f"Only {endings()} files can be read, but this one is {name!r:.100}; save what it says as text."


def open_store(config: Config) -> tuple[Config, DocumentStore | None]:
    """The documents of the device, and the settings with which to start it so that it follows them.

    None where it has none that could be added to: in mode "federated", with a LangChain store, or where no question
    uses documents. A device with notes that come with Tandem gets an index of its own, which holds them too. Raises
    TandemError.
    """
    config = config.resolve(Path.cwd())
    if Party.DEVICE not in config.parties or not config.device.num_documents:
        return config, None
    folder, notes = config.device.index_folder, None
    if folder is None:
        if not config.device.has_given_documents:
            return config, None
        folder = data_folder() / SERVED_INDEXES[config.device.index]
        notes = CORPORA[config.device.index] / Party.DEVICE
        config = replace_settings(config, {Party.DEVICE: {"index": str(folder)}})
    store = DocumentStore(folder, config)
    for remains in store.folder.glob(".*"):  # of a server that was killed
        remains.unlink(missing_ok=True)
    if notes is not None:
        store.hold(notes)
    return config, store

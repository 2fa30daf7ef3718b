"""Folders of good, bad and foreign files, read in a process that any of them may end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tandem.errors import RetrievalError
from tandem.retrieval import loaders
from tandem.retrieval.build import build_index, update_index
from tandem.retrieval.documents import MAX_HEADINGS, Cutting
from tandem.retrieval.index import Index
from tandem.retrieval.loaders import Limits, ReaderFailed, ReaderProcess, load_path
from tandem.retrieval.readers import Unreadable
from tandem.system.file_kinds import endings
from tests.unit.retrieval.conftest import pdf_bytes
from tests.unit.retrieval.helpers import read_with, refused


def test_a_folder_is_read_in_a_fixed_order_with_relative_sources(corpus: Path) -> None:
    (corpus / "sub").mkdir()
    (corpus / "sub" / "B.TXT").write_text("deep")
    (corpus / ".hidden.txt").write_text("secret")
    loaded = load_path(corpus)
    sources = [document.metadata["source"] for document in loaded.documents]
    assert sources == ["chess.txt", "puzzle.md", "soup.txt", "sub/B.TXT"]
    assert loaded.problems == []


def test_bad_files_among_good_ones_are_named_and_the_rest_goes_on(corpus: Path) -> None:
    (corpus / "lines.jsonl").write_text('{"text": "good"}\n{"text": 3}\n')
    (corpus / "one.png").write_bytes(b"")
    (corpus / "two.png").write_bytes(b"")
    (corpus / "README").write_text("no ending")
    loaded = load_path(corpus)
    assert len(loaded.documents) == 4
    only = f"only {endings()} are read; save what they say as text, if it matters."
    assert loaded.problems == [
        'lines.jsonl line 2 was left out: it has no "text" with a non-empty string; add one.',
        f"1 file without an ending was left out: {only}",
        f"2 files ending in .png were left out: {only}",
    ]


def test_a_missing_path(tmp_path: Path) -> None:
    with refused(
        f"A corpus must be a file or a folder, but {tmp_path}/nowhere does not exist; check its path."
    ):
        load_path(tmp_path / "nowhere")


def test_file_names_that_are_not_utf8(corpus: Path, tmp_path: Path, embedder) -> None:
    """Equal texts under such names are two chunks, and a change replaces the right one."""
    root = os.fsencode(corpus)
    for name in (b"\xff.txt", b"\xfe.txt"):
        (Path(os.fsdecode(root + b"/" + name))).write_text("Equal text.")
    (Path(os.fsdecode(root + b"/\xff.p\xffg"))).write_text("Left out.")
    directory = tmp_path / "index"
    report = build_index(corpus, directory, embedder)
    assert report.problems == [
        f"1 file ending in .p\\xffg was left out: only {endings()} are read; "
        "save what they say as text, if it matters."
    ]
    sources = sorted(str(chunk.metadata["source"]) for chunk in Index.open(directory).chunks())
    assert sources == ["\\xfe.txt", "\\xff.txt", "chess.txt", "puzzle.md", "soup.txt"]
    assert len({chunk.id for chunk in Index.open(directory).chunks()}) == 5
    Path(os.fsdecode(root + b"/\xff.txt")).write_text("Changed text.")
    report = update_index(directory, embedder, add=corpus)
    assert (report.num_replaced, report.num_unchanged, report.num_chunks) == (1, 4, 5)
    assert update_index(directory, embedder, delete=["\\xff.txt"]).num_deleted == 1


def test_links_that_lead_out_of_the_folder_are_not_followed(corpus: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    for name in ("a.txt", "b.txt"):
        (outside / name).write_text("private")
    (corpus / "folder").symlink_to(outside)
    (corpus / "a.txt").symlink_to(outside / "a.txt")
    (corpus / "b.txt").symlink_to("../outside/../outside/b.txt")
    (corpus / "gone.txt").symlink_to(outside / "gone.txt")
    (corpus / "loop.txt").symlink_to("loop.txt")
    (corpus / ".hidden.txt").symlink_to(outside / "a.txt")
    (corpus / "again.txt").symlink_to("soup.txt")
    documents, problems, _ = load_path(corpus)
    sources = [document.metadata["source"] for document in documents]
    assert sources == ["again.txt", "chess.txt", "puzzle.md", "soup.txt"]
    assert problems == [
        "loop.txt was left out: it cannot be read (Too many levels of symbolic links); check its rights.",
        "4 links that lead out of the folder were not followed (a.txt, b.txt, folder, ...); "
        "copy what should be indexed.",
    ]


# ---- Files that end or hold up whatever reads them: each costs its reader alone, and one sentence ----


DEPTH = 50_000
SLOW = "<!--" * 300_000  # minutes: for each of these the parser looks for its end
TOO_SLOW = "reading it took longer than 1 s; split it or save it as text"
NESTED = "nested more than 64 levels deep; flatten it"

MakeReader = Callable[[Limits], ReaderProcess]


@pytest.fixture
def make_reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeReader]:
    """Gives this test a reader process of its own, with which everything is read."""
    made: list[ReaderProcess] = []

    def make(limits: Limits) -> ReaderProcess:
        made.append(ReaderProcess(limits))
        monkeypatch.setattr(loaders, "SHARED", made[-1])
        return made[-1]

    yield make
    for process in made:
        process.close()


def wait_until(is_so: Callable[[], bool], seconds: float = 30) -> None:
    end_s = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end_s
        time.sleep(0.02)


@pytest.mark.parametrize("matter", ["x: " + "[" * DEPTH, "? " * DEPTH, "x: " + "{a: " * DEPTH, "- " * DEPTH])
def test_front_matter_that_is_nested_without_end(tmp_path: Path, matter: str) -> None:
    text = f"---\n{matter}\n---\nText."
    (tmp_path / "a.md").write_text(text)
    (tmp_path / "b.md").write_text("Chess.")
    documents, problems, failed = load_path(tmp_path)
    assert [document.page_content for document in documents] == [text, "Chess."]
    assert problems == [f"a.md: its front matter was read as text: it is {NESTED}."]
    assert failed == set()


@pytest.mark.parametrize("depth", [61, 62, 900, 20_000])
def test_metadata_of_a_line_that_is_nested_too_deeply(tmp_path: Path, embedder, depth: int) -> None:
    """The record and its metadata are two levels more."""
    nested = '{"text": "Chess.", "metadata": {"k": ' + "[" * depth + "]" * depth + "}}"
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/a.jsonl").write_text(f'{nested}\n{{"text": "Soup."}}\n')
    report = build_index(tmp_path / "notes", tmp_path / "index", embedder)
    if depth <= 62:
        assert (report.num_chunks, report.problems) == (2, [])
    else:
        (problem,) = report.problems
        assert problem.startswith("a.jsonl line 1 was left out: it is ")
        assert problem.endswith((f"{NESTED}.", "); repair it."))
        assert report.num_chunks == 1


def test_a_file_that_needs_too_much_memory(tmp_path: Path, make_reader: MakeReader) -> None:
    reader = make_reader(Limits(memory_mb=200))
    path = tmp_path / "a.html"
    path.write_text("<b>x" * 1_000_000)
    sentence = r"^reading it needed more than 200 MB of memory; split it or save"
    with pytest.raises(ReaderFailed, match=sentence):
        read_with(reader, path)
    path.write_text("<b>x")
    assert read_with(reader, path)[0][0].text == "x"


def test_a_file_that_unpacks_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaders, "MIN_CHARS", 10)
    monkeypatch.setattr(loaders, "CHARS_PER_BYTE", 0)
    (tmp_path / "a.pdf").write_bytes(pdf_bytes("One page.", "Another page."))
    (tmp_path / "z.txt").write_text("Chess.")
    (problem,) = load_path(tmp_path).problems
    assert problem == "a.pdf was left out: it unpacks to more than 10 characters; split it."


TEXTS = {
    "a.txt": "word " * 2_000,
    "a.md": "# A heading\n" * 1_000,
    "a.jsonl": '{"text": "a"}\n' * 30,
    "a.csv": ",".join(["cell"] * 2_000),
    "a.html": "<p>" + "x" * 10_000,
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_file_of_more_passages_than_a_reader_gives(
    tmp_path: Path, make_reader: MakeReader, name: str
) -> None:
    reader, cutting = make_reader(Limits(max_passages=9)), Cutting(400, 0)
    (tmp_path / name).write_text(TEXTS[name])
    with (tmp_path / name).open("rb") as file:
        with pytest.raises(Unreadable, match=r"^it holds more than 9 passages of text; split it$"):
            reader.read(file.fileno(), name, name, cutting)
        file.seek(0)
        passages, problems = make_reader(loaders.LIMITS).read(file.fileno(), name, name, cutting)
    assert problems == []
    assert len(passages) > 9 or name == "a.md"  # whose headings stand together
    assert max(len(passage.text) for passage in passages) <= MAX_HEADINGS * 400 + 400


def test_a_reader_that_dies_is_replaced(tmp_path: Path, make_reader: MakeReader) -> None:
    reader = make_reader(loaders.LIMITS)
    (tmp_path / "a.txt").write_text("Chess.")
    (tmp_path / "b.html").write_text(SLOW)
    (tmp_path / "c.txt").write_text("Soup.")
    read_with(reader, tmp_path / "a.txt")
    first = reader.pid()
    assert first is not None

    def kill() -> None:
        wait_until(lambda: sum(psutil.Process(first).cpu_times()[:2]) > 1)
        os.kill(first, signal.SIGSEGV)

    killer = threading.Thread(target=kill)
    killer.start()
    documents, problems, _ = load_path(tmp_path)
    killer.join()
    assert [document.page_content for document in documents] == ["Chess.", "Soup."]
    assert problems == [
        "b.html was left out: it ended its reader with signal 11 (SIGSEGV); repair it or save it as text."
    ]
    assert reader.pid() is None, "it ends with the files of the folder"


@pytest.mark.parametrize("is_busy", [False, True])
def test_no_reader_outlives_a_process_that_is_killed(tmp_path: Path, is_busy: bool) -> None:
    (tmp_path / "a.txt").write_text("Chess.")
    (tmp_path / "b.html").write_text(SLOW)
    script = f"""
import time
from pathlib import Path
from tandem.retrieval.loaders import SHARED, load_path
def read(name):
    with open({str(tmp_path)!r} + "/" + name, "rb") as file:
        SHARED.read(file.fileno(), name, name)
read("a.txt")
print(SHARED.pid(), flush=True)
{'read("b.html")' if is_busy else "time.sleep(60)"}
"""
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        reader = psutil.Process(int(parent.stdout.readline()))
        if is_busy:
            wait_until(lambda: sum(reader.cpu_times()[:2]) > 1)
        parent.kill()
    psutil.wait_procs([reader], timeout=20)
    # init need not have seen it yet
    assert not reader.is_running() or reader.status() == psutil.STATUS_ZOMBIE


def test_what_was_indexed_of_a_file_stays_while_it_cannot_be_read(
    corpus: Path, tmp_path: Path, embedder, make_reader: MakeReader
) -> None:
    make_reader(Limits(seconds=1, seconds_per_mb=0))
    (corpus / "page.html").write_text("Windmills grind at night.")
    build_index(corpus, tmp_path / "index", embedder)
    before = {chunk.page_content for chunk in Index.open(tmp_path / "index").chunks()}
    (corpus / "page.html").write_text(SLOW)
    (corpus / "new.txt").write_text("Something new.")
    sentences = [
        f"page.html was left out: {TOO_SLOW}.",
        "page.html: what the index held of it stays, since it was read before.",
    ]
    report = build_index(None, tmp_path / "index", embedder)
    assert report.problems == sentences
    after = {chunk.page_content for chunk in Index.open(tmp_path / "index").chunks()}
    assert after == before | {"Something new."}
    report = update_index(tmp_path / "index", embedder, add=corpus)
    assert (report.num_deleted, report.problems) == (0, sentences)
    with pytest.raises(RetrievalError, match=TOO_SLOW):
        update_index(tmp_path / "index", embedder, add=corpus / "page.html")
    assert update_index(tmp_path / "index", embedder, delete=["page.html"]).num_deleted == 1


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.html", "<p>Chess.</p><![ x-secret-x"),
        ("a.pdf", "secret secret"),
        ("a.md", "---\na: !secret b\n---\n"),
        ("a.md", "---\na: *secret\n---\n"),
    ],
)
def test_no_sentence_quotes_a_file(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    (tmp_path / "z.txt").write_text("Chess.")
    (problem,) = load_path(tmp_path).problems
    assert "secret" not in problem

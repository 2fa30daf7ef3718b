"""An unfinished answer's file: who may read it, what stays of it when, and that a torn or held one does no harm."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import stat
from collections.abc import AsyncGenerator, Iterator
from dataclasses import replace
from math import nan
from pathlib import Path

import pytest

from tandem import Config
from tandem.client.request import spec_of
from tandem.client.resume import MAX_FILES, Origin, Unfinished, keep, origin_of
from tandem.errors import QueryError
from tandem.events import DoneEvent, Event, SessionStatistics, SourcesEvent, collect
from tests.token_events import committed

SPEC = replace(spec_of(Config()), session=7, query="Which tea?\nThe green one?", seed=3)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the files are; empty."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "tandem" / "unfinished"


def create(session: int = SPEC.session, origin: Origin | None = None) -> Unfinished:
    unfinished = Unfinished.create(replace(SPEC, session=session), origin or {})
    assert unfinished is not None
    return unfinished


def left(*numbers: int) -> None:
    """A file whose process has died after these tokens."""
    unfinished = create()
    for step, number in enumerate(numbers):
        unfinished.add(committed(step, token=number))
    unfinished.close()


SOURCES = SourcesEvent(party="device", sources=(), retrieve_s=nan, prefill_s=nan)
LOADED = {
    "device": {"link_fingerprint": "77" * 32, "weights_fingerprint": "aa", "index_fingerprint": "0123456789"},
    "cloud": {"weights_fingerprint": "aa", "index_fingerprint": "9876543210"},
}


def loaded(party: str, **changes: str) -> dict[str, dict[str, str]]:
    return {**LOADED, party: LOADED[party] | changes}


@pytest.mark.parametrize(
    ("now", "difference"),
    [
        (loaded("device", link_fingerprint=""), "join link of the device was 77777777 and is none"),
        (loaded("device", weights_fingerprint="bb"), "model of the device was aa and is bb"),
        (loaded("cloud", template_fingerprint="cc"), "system prompt of the cloud was none and is cc"),
        (loaded("cloud", index_fingerprint="x"), "documents of the cloud was 98765432 and is x"),
        ({"device": LOADED["device"]}, "(the cloud was there)"),
    ],
)
def test_it_does_not_go_on_with_something_else(now: dict[str, dict[str, str]], difference: str) -> None:
    unfinished = create(origin=origin_of(SPEC, LOADED))
    unfinished.add(committed(0, token=5))
    unfinished.close()
    with pytest.raises(QueryError, match=r"Its 1 tokens stay kept\.$") as refusal:
        Unfinished.find().check_origin(now)
    assert difference in str(refusal.value)
    found = Unfinished.find()
    found.check_origin(LOADED)
    assert found.num_tokens == 1


def test_what_nobody_knew_when_it_began_is_not_compared() -> None:
    """A cloud that comes later; and the link of a party that answers by itself."""
    create(origin=origin_of(SPEC, {"device": LOADED["device"]})).check_origin(LOADED)
    alone = replace(SPEC, only="device", session=8)
    assert list(origin_of(alone, LOADED)) == ["device"]
    assert "link_fingerprint" not in origin_of(alone, LOADED)["device"]


def test_it_goes_on_before_the_last_token_with_the_same_query(folder: Path) -> None:
    left(5, 6, 7)
    found = Unfinished.find()
    resumed = found.resume()
    assert resumed.committed == (5, 6)
    assert replace(resumed, session=7, committed=()) == SPEC == found.spec
    assert resumed.session != SPEC.session
    for step, number in enumerate((5, 6, 7, 8)):
        found.add(committed(step, token=number))
    found.close()
    assert Unfinished.find().resume().committed == (5, 6, 7), "what the file had is not written again"


def test_it_is_for_this_user_alone(folder: Path) -> None:
    left(5)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()] == [0o600]


@pytest.mark.parametrize("torn", [b"12", b"1"])
def test_a_torn_line_does_not_count(folder: Path, torn: bytes) -> None:
    left(5, 6)
    (path,) = folder.iterdir()
    path.write_bytes(path.read_bytes() + torn)
    found = Unfinished.find()
    assert found.num_tokens == 2
    found.add(committed(2, token=9))
    found.close()
    assert Unfinished.find().num_tokens == 3


def test_damaged_and_held_ones_are_passed_over(folder: Path) -> None:
    left(5, 6)
    (folder / "ffffffff.answer").write_bytes(b"no spec\n1\n")
    held = create(session=8)
    found = Unfinished.find()
    assert found.spec.session == SPEC.session
    with pytest.raises(QueryError, match=r"^No unfinished answer is kept in .*unfinished; ask a question"):
        Unfinished.find()
    held.close()
    found.close()


def test_the_oldest_make_room_but_for_those_in_use(folder: Path) -> None:
    held = create(session=0)
    for session in range(1, 2 * MAX_FILES):
        create(session).close()
    names = {path.stem for path in folder.iterdir()}
    newest = {f"{session:08x}" for session in range(MAX_FILES, 2 * MAX_FILES)}
    assert names == newest | {"00000000"}
    held.close()


def test_a_folder_that_cannot_be_written_is_no_reason_not_to_answer(tmp_path: Path) -> None:
    (tmp_path / "tandem").write_text("a file in the way")
    assert Unfinished.create(SPEC, {}) is None


async def _events(*events: Event | Exception) -> AsyncGenerator[Event, None]:
    for event in events:
        if isinstance(event, Exception):
            raise event
        yield event


def follow(*events: Event | Exception) -> list[Event]:
    """The events of a query that is kept."""

    async def read() -> list[Event]:
        return [event async for event in keep(_events(*events), create())]

    return asyncio.run(read())


def done(reason: str, error: str | None = None) -> DoneEvent:
    return DoneEvent(reason=reason, statistics=SessionStatistics(), error=error)  # type: ignore[arg-type]


@pytest.mark.parametrize("reason", ["eos", "stop", "length", "cancelled"])
def test_nothing_is_left_of_an_answer_that_ended(folder: Path, reason: str) -> None:
    events = [committed(0, token=5), done(reason)]
    assert follow(*events) == events
    assert not list(folder.iterdir())


@pytest.mark.parametrize("num_tokens", [0, 1, 2])
def test_what_came_before_its_reader_left_is_kept(folder: Path, num_tokens: int) -> None:
    async def leave() -> None:
        events = keep(
            _events(SOURCES, committed(0, token=5), committed(1, token=6), committed(2, token=7)), create()
        )
        for _ in range(1 + num_tokens):
            await anext(events)
        await events.aclose()

    asyncio.run(leave())
    if num_tokens:
        assert Unfinished.find().resume().committed == (5, 6)[: num_tokens - 1]
    else:
        assert not list(folder.iterdir())


@pytest.mark.parametrize("degraded_from", [0, 1, 3])
def test_of_an_answer_that_went_on_alone_the_tokens_of_both_are_kept(
    folder: Path, degraded_from: int
) -> None:
    statistics = SessionStatistics(degraded_from=degraded_from)
    tokens = [committed(step, token=50 + step) for step in range(4)]
    assert len(follow(*tokens, DoneEvent(reason="eos", statistics=statistics))) == 5
    if not degraded_from:
        assert not list(folder.iterdir())
        return
    found = Unfinished.find()
    assert found.num_tokens == degraded_from
    found.add(committed(degraded_from, token=9))
    found.close()
    assert Unfinished.find().resume().committed == tuple(range(50, 50 + degraded_from))


def test_what_a_killed_process_had_begun_to_write_is_removed(folder: Path) -> None:
    left(5)
    (folder / "00000009.new").write_bytes(b"[half a quest")
    create(session=8).close()
    assert sorted(path.suffix for path in folder.iterdir()) == [".answer"] * 2


def test_a_query_that_failed_says_what_is_kept(folder: Path) -> None:
    kept = "Its first 2 tokens are kept; `tandem resume` goes on from them."
    (*_, last) = follow(
        committed(0, token=5), committed(1, token=6), done("failed", "The decoder has stopped.")
    )
    with pytest.raises(QueryError) as failed:
        collect([last], 0)
    assert str(failed.value) == f"The decoder has stopped. {kept}"
    with pytest.raises(QueryError) as lost:
        follow(committed(0, token=5), committed(1, token=6), QueryError("The device has stopped."))
    assert str(lost.value) == f"The device has stopped. {kept}"
    assert len(list(folder.iterdir())) == 1
    Unfinished.find().remove()
    (*_, last) = follow(done("failed", "The question is too long."))
    assert last == done("failed", "The question is too long."), "there is nothing to keep"
    assert not list(folder.iterdir())


@contextlib.contextmanager
def room_for(num_bytes: int) -> Iterator[None]:
    """Meanwhile the system refuses what would make a file longer, and takes what fits, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_is_full_at_the_beginning(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with room_for(10):
        assert Unfinished.create(SPEC, {}) is None
    assert list(folder.iterdir()) == [], "the question does not stay there"
    assert "cannot be kept" in caplog.text


def test_no_token_joins_on_to_what_a_full_disk_took_of_another(folder: Path) -> None:
    unfinished = create()
    unfinished.add(committed(0, token=5))
    (path,) = folder.iterdir()
    with room_for(path.stat().st_size + 2):
        unfinished.add(committed(1, token=123))
    unfinished.add(committed(2, token=45))
    assert list(folder.iterdir()) == []

"""The coordinators' table: bounds, faults, timers and more queries than may wait; what it says is in the transcripts.
And the other tables."""

from __future__ import annotations

import logging
from math import inf, isfinite, nan
from typing import Any

import pytest

from tandem.errors import Code, Fault, TandemError
from tandem.events import DoneEvent
from tandem.messages import (
    Begin,
    Cancel,
    Estimate,
    Heartbeat,
    LinkFrame,
    Open,
    Placement,
    Profile,
    Sources,
    Verdict,
    Vote,
)
from tandem.modes import SessionSpec
from tandem.protocol import table as tables
from tandem.protocol.link import LONGEST_TICK_S
from tandem.protocol.log import MAX_AHEAD
from tandem.protocol.routes import Send
from tandem.protocol.services import AggregatingTable, ProfilingTable, SchedulingSession, SchedulingTable
from tandem.protocol.session import ABANDONED_S, LINGER_S, StopCheck
from tandem.protocol.table import MAX_CLOSED_SESSIONS, MAX_EARLY_BYTES, MAX_EARLY_FRAMES, CoordinatorTable
from tandem.topology import PARTIES, Party
from tandem_lab.simulation.specs import make_spec
from tests.unit.lab.simulation.world import CODEC
from tests.unit.protocol.talk import bodies, decided, events, frame, to
from tests.unit.protocol.test_transcripts import STORIES
from tests.unit.protocol.transcript import complete, play


def spec(session: int = 1, **changes: Any) -> SessionSpec:
    return make_spec(**{"session": session, "query": "q", "seed": 0, "max_new_tokens": 2, **changes})


def host(party: Party = Party.DEVICE) -> CoordinatorTable:
    return CoordinatorTable(party, complete)


def verdict(step: int, target: int, decider: int = 0) -> Verdict:
    return Verdict(step=step, tokens=(target,), accepted=(1, 1), acceptance=(127, 127), next_decider=decider)


# ---- open and early frames -------------------------------------------------------------------------------------


def test_the_cloud_is_not_told_the_device_s_filter() -> None:
    filtered = spec(device_filter='{"source": "diary.md"}', cloud_filter='{"year": 2024}')
    (opening,) = bodies(host().open(filtered, 0.0))
    assert "diary" not in opening.spec
    assert "2024" in opening.spec


def test_early_frames_are_bounded() -> None:
    cloud = host(Party.CLOUD)
    for session in range(10 * MAX_EARLY_FRAMES):
        cloud.receive(frame(Heartbeat(), session=session), 0.0)
    assert cloud.num_early_frames == MAX_EARLY_FRAMES


def test_early_frames_are_bounded_in_bytes() -> None:
    """As many as may be kept, each as large as may be, would fill a gigabyte."""
    cloud = host(Party.CLOUD)
    large = Sources(party=1, ids=("x" * (MAX_EARLY_BYTES // 4),), retrieve_us=1, prefill_us=1, notes=())
    for session in range(9):
        cloud.receive(frame(large, session=session), 0.0)
    assert cloud.num_early_frames == 3


# ---- closed sessions -------------------------------------------------------------------------------------------


def test_closed_sessions_are_bounded() -> None:
    queue = host()
    for session in range(3 * MAX_CLOSED_SESSIONS):
        queue.open(spec(session), 0.0)
        queue.cancel(session, 0.1)
    assert not queue.sessions
    assert queue.num_closed_sessions == MAX_CLOSED_SESSIONS


def test_refused_sessions_are_bounded_and_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """A device opens one query under the numbers of many."""
    cloud = host(Party.CLOUD)
    with caplog.at_level(logging.WARNING, "tandem"):
        for session in range(2, 4 * MAX_CLOSED_SESSIONS):
            (answer,) = cloud.receive(frame(Open(spec=spec(1).to_json()), session=session), 0.0)
            assert isinstance(answer.message.body, Cancel)
    assert cloud.num_refused == 4 * MAX_CLOSED_SESSIONS - 2
    assert cloud.num_closed_sessions == MAX_CLOSED_SESSIONS
    assert len(caplog.records) == 10


@pytest.mark.parametrize("code", Code)
def test_a_peer_that_gives_up_in_mid_answer_takes_no_committed_token_with_it(code: Code) -> None:
    """Whatever it says the reason is."""
    story = STORIES["ending: What the cloud refuses in mid answer the device goes on with"]
    other = story.replace("code=busy", f"code={code}")
    assert play(other) == other


def test_a_session_that_breaks_does_not_stop_the_timers_of_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    queue = host()
    for session in (1, 2, 3):
        queue.open(spec(session), 0.0)

    def due(*args: Any) -> list[Send]:
        raise ZeroDivisionError("a bug")

    queue.sessions[2].peers[Party.CLOUD].due = due  # type: ignore[method-assign]
    sends = queue.tick(1.3)
    assert [send.message.session for send in sends if isinstance(send.message, LinkFrame)] == [1, 2, 3]
    (emitted,) = to("client", sends)
    assert emitted.session == 2
    assert emitted.event.error == (
        "The draft queue of the device failed on this query with ZeroDivisionError; see its log."
    )
    assert set(queue.sessions) == {1, 3}
    assert "session 2 of the device failed with ZeroDivisionError" in caplog.text
    assert "a bug" not in caplog.text


# ---- the session behind it -------------------------------------------------------------------------------------


def test_buffers_ahead_of_the_committed_prefix_are_bounded() -> None:
    cloud = host(Party.CLOUD)
    cloud.open(spec(placement="greedy", max_new_tokens=10**6), 0.0)
    session = cloud.sessions[1]
    for step in range(1, 3 * MAX_AHEAD):
        far = Vote(
            step=step, digest=step.to_bytes(8, "little"), tokens=(0,), payloads=(b"",), log_weights=(0.0,)
        )
        cloud.receive(frame(far, [1] * step), 0.1)
        cloud.receive(frame(verdict(step, 1), [1] * step), 0.1)
    assert len(session.ballots.entries[Party.DEVICE]) < MAX_AHEAD
    assert len(session.log.verdicts) < MAX_AHEAD
    assert len(session.peers[Party.DEVICE].claims.digests) <= MAX_AHEAD


def test_a_finished_device_lingers_while_the_cloud_is_heard_but_not_for_ever() -> None:
    silent, heard = host(), host()
    for queue in (silent, heard):
        queue.open(spec(max_new_tokens=1, placement="cloud"), 0.0)
        queue.receive(frame(verdict(0, 7, decider=1)), 0.0)
    now_s = 0.0
    freed: dict[str, float] = {}
    while now_s < ABANDONED_S + 5:
        now_s += LONGEST_TICK_S
        heard.receive(frame(Heartbeat()), now_s)
        for name, queue in (("silent", silent), ("heard", heard)):
            queue.tick(now_s)
            if not queue.sessions:
                freed.setdefault(name, now_s)
    assert freed["silent"] == pytest.approx(LINGER_S, abs=0.5)
    assert freed["heard"] == pytest.approx(ABANDONED_S, abs=0.5)


# ---- the other hosts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "table",
    [AggregatingTable(Party.DEVICE, CODEC), ProfilingTable(Party.DEVICE), SchedulingTable(Party.DEVICE)],
)
def test_a_misdirected_message_is_an_error_with_its_name(table: Any) -> None:
    table.receive(Begin(session=1, spec=spec().to_json()))
    with pytest.raises(TandemError, match="A Local is not for a"):
        table.receive(decided(0, 1))


BUSY = "The {} is busy: 1 queries are open and 2 wait; retry after 30 s, or {}."


def never_complete(spec: SessionSpec) -> StopCheck:
    return lambda tokens: None


@pytest.mark.parametrize("party", list(Party))
def test_beyond_the_queue_one_sentence(party: Party, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "MAX_WAITING", 2)
    table = CoordinatorTable(party, never_complete, max_open=1)
    for session in (1, 2, 3):
        table.open(make_spec(session=session, only=party), 0.0)
    (done,) = events(table.open(make_spec(session=4, only=party), 0.0))
    assert (done.reason, done.error) == ("failed", BUSY.format(party, "raise cluster.max_sessions"))
    assert not table.holds(4)
    assert table.num_waiting == 2
    if party is Party.CLOUD:
        opening = frame(Open(spec=make_spec(session=5).to_json()), session=5)
        reason = BUSY.format("cloud", "ask its owner to raise cluster.max_sessions")
        fault = Fault(code=Code.BUSY, retry_after_s=30)
        assert bodies(table.receive(opening, 0.0)) == [Cancel(reason=reason, fault=fault)]
        assert table.num_refused == 2


def test_all_that_wait_fail_at_once_where_no_query_can_be_taken() -> None:
    """As many as may wait, one after the other: no recursion."""
    obstacles: list[str | None] = [None]
    device = CoordinatorTable(Party.DEVICE, never_complete, lambda: obstacles[0], max_open=1)
    for session in range(tables.MAX_WAITING + 1):
        device.open(make_spec(session=session), 0.0)
    obstacles[0] = "The device's decoder has stopped."
    device.fail_all("The device's decoder has stopped.", 0.1)
    assert device.needs_ticks
    errors = [event.error for event in events(device.tick(0.2)) if isinstance(event, DoneEvent)]
    assert errors == ["The device's decoder has stopped."] * tables.MAX_WAITING
    assert not device.sessions
    assert not device.num_waiting


def profile(aggregator: Party = Party.DEVICE, **changes: Any) -> Profile:
    """Remote drafts of the cloud mostly fail: the cloud should aggregate."""
    values: dict[str, Any] = {
        "session": 1, "step": 3, "aggregator": PARTIES.index(aggregator), "decode_s": (0.06, 0.06),
        "acceptance": (0.95, 0.2), "rtt_s": 0.3, "rtt_average_s": 0.3,
        "bytes_per_s": inf, "notes": (),
    }  # fmt: skip
    return Profile(**{**values, **changes})


def session(placement: str, party: Party = Party.DEVICE) -> SchedulingSession:
    return SchedulingSession(make_spec(session=1, query="q", seed=0, placement=placement), party)  # type: ignore[arg-type]


def estimates(sends: list[Send]) -> list[Estimate]:
    return [send.message for send in sends if send.to == "draft_queue"]


def advice(sends: list[Send]) -> list[Party]:
    assert all(isinstance(send.message, Placement) for send in sends if send.to == "aggregator")
    return [PARTIES[send.message.aggregator] for send in sends if send.to == "aggregator"]


@pytest.mark.parametrize("placement", ["device", "cloud", "mirror", "random"])
@pytest.mark.parametrize("party", PARTIES)
def test_other_placements_are_estimated_and_never_advised(placement: str, party: Party) -> None:
    for seen in (profile(), profile(Party.CLOUD), profile(rtt_s=nan, decode_s=(nan, 0.06))):
        sends = session(placement, party).receive(seen)
        (estimate,) = estimates(sends)
        assert advice(sends) == []
        assert estimate.chosen == seen.aggregator
        assert estimate.profile is seen


def test_greedy_advises_its_own_aggregator_to_hand_over() -> None:
    on_device = session("greedy", Party.DEVICE)
    assert advice(on_device.receive(profile(Party.DEVICE))) == [Party.CLOUD]
    assert advice(on_device.receive(profile(Party.DEVICE))) == [
        Party.CLOUD
    ]  # repeated: it may have restarted


@pytest.mark.parametrize("bad", [nan, 0.0, inf, -1.0, 6.0])
def test_gaps_leave_it_finite_and_are_named(bad: float) -> None:
    seen = profile(decode_s=(bad, 0.06), acceptance=(nan, 0.2), rtt_s=bad)
    (estimate,) = estimates(session("greedy").receive(seen))
    assert isfinite(estimate.delta_z_s)
    assert any("acceptance rate of the device" in sentence for sentence in estimate.assumed)

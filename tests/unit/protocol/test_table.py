"""The coordinators' table: early frames, closed sessions, bounds; and that other tables hold nothing after End."""

from __future__ import annotations

import itertools
import logging
from dataclasses import replace
from math import nan
from typing import Any

import numpy as np
import pytest

from tandem.errors import Code, Fault, ProtocolError, TandemError
from tandem.events import ClientEvent, DoneEvent, PeerEvent, PlacementEvent, StopReason
from tandem.messages import (
    Ballot,
    Begin,
    Cancel,
    DecoderFailed,
    Done,
    End,
    Heartbeat,
    LinkFrame,
    Local,
    Observation,
    Observations,
    Open,
    Placement,
    Probe,
    Profile,
    Rejoin,
    Resync,
    Sources,
    Verdict,
    VerifyResult,
    Vote,
    Window,
)
from tandem.modes.spec import SessionSpec
from tandem.protocol.aggregating import AggregatingTable
from tandem.protocol.estimating import ProfilingTable, SchedulingTable
from tandem.protocol.liveness import LONGEST_TICK_S
from tandem.protocol.log import MAX_AHEAD
from tandem.protocol.outbox import Send
from tandem.protocol.peer import PROBE_BYTES
from tandem.protocol.prefix import Prefix
from tandem.protocol.session import ABANDONED_S, LINGER_S
from tandem.protocol.table import (
    MAX_CLOSED_SESSIONS,
    MAX_EARLY_BYTES,
    MAX_EARLY_FRAMES,
    CoordinatorTable,
)
from tandem.topology import PARTIES, Party
from tandem_lab.simulation.specs import make_spec
from tests.unit.lab.simulation.world import CODEC, VOCAB, distribution, tick_until
from tests.unit.protocol.talk import bodies, decided, frame, to, vote


def spec(session: int = 1, **changes: Any) -> SessionSpec:
    return make_spec(**{"session": session, "query": "q", "seed": 0, "max_new_tokens": 2, **changes})


def by_length(of: SessionSpec) -> Any:
    def finished(tokens: Any) -> StopReason | None:
        return "length" if len(tokens) >= of.sampling.max_new_tokens else None

    return finished


def host(party: Party = Party.DEVICE) -> CoordinatorTable:
    return CoordinatorTable(party, by_length)


def draft(party: Party, tokens: Any = (), session: int = 1) -> Vote:
    payload = distribution(0, party, tuple(tokens), ())
    return vote(Prefix(session, tokens), (0,), payloads=(payload,), log_weights=(0.0,), decode_us=30)


def certain(party: Party, token: int) -> Vote:
    """A draft of a law with one token; the device's weighs a little more."""
    dense = np.zeros(VOCAB)
    dense[token] = 1.0
    log_weight = 0.5 if party is Party.DEVICE else 0.0
    return replace(draft(party), payloads=(CODEC.encode(dense),), log_weights=(log_weight,))


def verdict(step: int, target: int, decider: int = 0) -> Verdict:
    return Verdict(step=step, tokens=(target,), accepted=(1, 1), acceptance=(127, 127), next_decider=decider)


def result() -> VerifyResult:
    """The first step is decided: token 7, which the device had drafted."""
    return VerifyResult(
        session=1, view=0, digest=Prefix(1).digest, step=0, voters=(0, 1), tokens=(7,), accepted=(1, 0),
        acceptance=(0.5, 0.5), next_decider=0,
    )  # fmt: skip


def ballot(device: Vote, cloud: Vote) -> Ballot:
    return Ballot(
        session=1, view=4, step=device.step, digest=device.digest, voters=(0, 1), tokens=(),
        payloads=device.payloads + cloud.payloads, log_weights=device.log_weights + cloud.log_weights,
    )  # fmt: skip


# ---- open and early frames -------------------------------------------------------------------------------------


def test_open_tells_the_actors_of_the_party() -> None:
    sends = host().open(spec(), 0.0)
    assert [send.to for send in sends] == ["decoder", "aggregator", "profiler", "scheduler", "peer"]
    assert all(SessionSpec.from_json(send.message.spec) == spec() for send in sends[:-1])
    assert bodies(sends) == [Open(spec=spec().to_json())]
    assert bodies(host(Party.CLOUD).open(spec(), 0.0)) == [
        Heartbeat()
    ]  # the home learns that it can be heard


def test_frames_that_come_before_the_query_are_taken_in() -> None:
    """The data plane may be quicker than the control plane: no draft waits for a resend."""
    cloud = host(Party.CLOUD)
    assert cloud.receive(frame(draft(Party.DEVICE)), 0.0) == []
    assert cloud.receive(frame(draft(Party.DEVICE, session=2), session=2), 0.0) == []
    cloud.open(spec(placement="mirror"), 0.1)
    (pair,) = to("aggregator", cloud.receive(Local(session=1, body=draft(Party.CLOUD)), 0.2))
    assert isinstance(pair, Ballot)


def test_a_cloud_that_opens_late_does_not_lengthen_the_round_trip() -> None:
    """The device's frames waited 2 s for the query to be opened; the link takes 10 ms each way."""
    device, cloud = host(), host(Party.CLOUD)
    device.open(spec(), 0.0)
    (early,) = [send.message for send in device.sessions[1].resend_all(0.0) if send.to == "peer"]
    cloud.receive(replace(early, body=Heartbeat()), 0.01)  # it has overtaken the Open
    answers = [send.message for send in cloud.open(spec(), 2.01) if send.to == "peer"]
    for answer in answers:
        device.receive(answer, 2.02)
    assert device.sessions[1].peers[Party.CLOUD].round_trips.rtt_s == pytest.approx(0.02, abs=1e-5)


def test_a_cancel_before_the_query_frees_it_at_the_next_tick() -> None:
    cloud = host(Party.CLOUD)
    cloud.receive(frame(Cancel(reason="Enough.")), 0.0)
    sends = cloud.open(spec(), 0.1)
    assert [type(message) for message in to("decoder", sends)] == [Begin, End]
    cloud.tick(0.15)
    assert not cloud.sessions


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


def finished(party: Party = Party.DEVICE) -> CoordinatorTable:
    """A host whose session has come to its end: two tokens, and the peer's Done."""
    queue = host(party)
    aggregator: Party = party.other
    queue.open(spec(placement=aggregator.value), 0.0)
    for step in range(2):
        queue.receive(frame(verdict(step, 7, PARTIES.index(aggregator)), [7] * step), 0.1)
    queue.receive(frame(Done(is_reply=False), [7, 7]), 0.2)
    assert not queue.sessions
    return queue


@pytest.mark.parametrize("party", PARTIES)
def test_a_closed_session_answers_whoever_is_still_at_it(party: Party) -> None:
    queue = finished(party)
    for body in (Heartbeat(), draft(party.other), Done(is_reply=False), verdict(1, 7)):
        (answer,) = queue.receive(frame(body, [7, 7]), 1.0)
        assert answer.message.body == Done(is_reply=True)
        assert answer.message.committed == 2


@pytest.mark.parametrize("party", PARTIES)
def test_a_closed_session_does_not_answer_a_last_word(party: Party) -> None:
    queue = finished(party)
    assert queue.receive(frame(Done(is_reply=True), [7, 7]), 1.0) == []
    assert queue.receive(frame(Cancel(reason="x")), 1.0) == []


def ping_pong(queues: dict[Party, CoordinatorTable], party: Party, body: Any, most: int = 10) -> int:
    """Frames that fly until both are silent, when `body` arrives at `side`."""
    waiting = [(party, frame(body, [1, 2, 3]))]
    for count in itertools.count():
        if not waiting:
            return count
        assert count < most, "no end of it"
        to_party, arriving = waiting.pop(0)
        for send in queues[to_party].receive(arriving, 5.0):
            if send.to == "peer":
                waiting.append((to_party.other, send.message))
    raise AssertionError


@pytest.mark.parametrize("party", PARTIES)
@pytest.mark.parametrize("body", [Heartbeat(), Done(is_reply=False), Done(is_reply=True), Cancel(reason="x")])
def test_two_closed_sessions_fall_silent(party: Party, body: Any) -> None:
    assert ping_pong({each: finished(each) for each in PARTIES}, party, body) <= 2


@pytest.mark.parametrize("party", PARTIES)
def test_a_closed_and_a_diverged_open_session_fall_silent(party: Party) -> None:
    """The open one has other tokens than the closed: a last word frees it all the same."""
    queues = {party: finished(party), party.other: host(party.other)}
    queues[party.other].open(spec(placement="mirror", max_new_tokens=9), 0.0)
    (repeated,) = queues[party.other].tick(1.3)  # an opening, or a heartbeat
    assert ping_pong(queues, party, repeated.message.body) <= 6  # two probes are among them
    assert not queues[party.other].sessions or party.other is Party.DEVICE


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


@pytest.mark.parametrize("party", PARTIES)
def test_an_actor_that_died_ends_its_sessions(party: Party) -> None:
    """The device's reason stays on the device: it may name what is private."""
    queue = host(party)
    queue.open(spec(1), 0.0)
    queue.open(spec(2), 0.0)
    sends = queue.fail_all("The decoder stopped.", 1.0)
    told = "The decoder stopped." if party is Party.CLOUD else "The device could not go on."
    cancel = Cancel(reason=told, fault=Fault(code=Code.LOST))
    assert bodies(sends) == [cancel] * 2
    done = [told.event.error for told in to("client", sends)]
    assert done == ([] if party is Party.CLOUD else ["The decoder stopped."] * 2)
    assert not queue.sessions
    (answer,) = queue.receive(frame(Heartbeat()), 2.0)
    assert answer.message.body == cancel


def test_only_words_of_tandem_cross_the_link() -> None:
    """Nobody promises what a failure without a code says: here a path of the cloud, there a line of a document."""
    cloud = host(Party.CLOUD)
    cloud.open(spec(1), 0.0)
    failed = DecoderFailed(session=1, reason="/home/mira/models/x cannot be loaded: 'a line of a document'.")
    (cancel,) = bodies(cloud.receive(failed, 0.1))
    assert cancel == Cancel(reason="The cloud could not go on; see its log.")


@pytest.mark.parametrize("on_peer_loss", ["continue", "wait", "fail"])
def test_a_query_that_the_cloud_refuses_fails_whatever_the_policy(on_peer_loss: str) -> None:
    """Else a device would answer alone what was asked wrongly. A cloud that merely fails is another matter."""
    cloud, device = host(Party.CLOUD), host()
    for queue in (cloud, device):
        queue.open(spec(on_peer_loss=on_peer_loss), 0.0)
    fault = Fault(code=Code.INVALID, option="cloud_filter")
    failed = DecoderFailed(session=1, reason="No such key.", fault=fault)
    (cancel,) = [send.message for send in cloud.receive(failed, 0.1) if send.to == "peer"]
    (told,) = to("client", device.receive(cancel, 0.2))
    assert (told.event.reason, told.event.error) == ("failed", "The cloud gave the query up: No such key.")
    assert told.event.fault == replace(fault, party=Party.CLOUD)
    (again,) = cloud.receive(frame(Heartbeat()), 0.3)
    assert again.message.body == Cancel(reason="No such key.", fault=fault)
    other = host()
    other.open(spec(on_peer_loss=on_peer_loss), 0.0)
    events = [told.event for told in to("client", other.receive(frame(Cancel(reason="Broken.")), 0.2))]
    assert any(isinstance(event, DoneEvent) for event in events) == (on_peer_loss != "continue")


@pytest.mark.parametrize("code", Code)
@pytest.mark.parametrize("on_peer_loss", ["continue", "wait", "fail"])
def test_a_peer_that_gives_up_in_mid_answer_takes_no_committed_token_with_it(
    code: Code, on_peer_loss: str
) -> None:
    """Whatever it says the reason is: by the policy the device goes on alone, as after a loss."""
    device = host()
    device.open(spec(placement="cloud", on_peer_loss=on_peer_loss), 0.0)
    device.receive(frame(verdict(0, 7, decider=1)), 0.1)
    cancel = Cancel(reason="No more room.", fault=Fault(code=code))
    (event,) = [told.event for told in to("client", device.receive(frame(cancel), 0.2))]
    if on_peer_loss == "continue":
        assert event == PeerEvent(step=1, is_alone=True, reason="No more room.", party=Party.CLOUD)
        assert device.sessions[1].prefix.tokens == [7]
        assert device.sessions[1].decides_alone
    else:
        assert (event.reason, event.error) == ("failed", "The cloud gave the query up: No more room.")


def test_a_query_that_goes_on_with_earlier_tokens_is_refused_like_a_new_one() -> None:
    device = host()
    device.open(spec(on_peer_loss="continue", committed=(7, 8)), 0.0)
    cancel = Cancel(reason="Full.", fault=Fault(code=Code.BUSY, retry_after_s=3))
    (event,) = [told.event for told in to("client", device.receive(frame(cancel), 0.2))]
    assert (event.reason, event.error) == ("failed", "The cloud gave the query up: Full.")


def test_queries_of_one_link_share_what_is_known_of_it_and_those_of_two_devices_do_not() -> None:
    queue = host(Party.CLOUD)
    queue.owner_of = {1: "phone", 2: "phone", 3: "laptop"}.__getitem__
    for session in (1, 2, 3):
        queue.open(spec(session), 0.0)
    rooms = [queue.sessions[session].peers[Party.DEVICE].window.room for session in (1, 2, 3)]
    assert rooms[0] is rooms[1]
    assert rooms[0] is not rooms[2]


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


def test_messages_for_nobody_are_dropped() -> None:
    queue = host()
    assert queue.receive(Local(session=5, body=draft(Party.DEVICE)), 0.0) == []
    assert queue.cancel(5, 0.0) == []
    assert queue.tick(0.0) == []


# ---- the session behind it -------------------------------------------------------------------------------------


def test_verdicts_are_committed_strictly_in_step_order_and_once() -> None:
    cloud = host(Party.CLOUD)
    cloud.open(spec(max_new_tokens=9), 0.0)
    told: list[Local] = []
    for step in (2, 1, 1, 0, 0, 2, 3):
        told += to("decoder", cloud.receive(frame(verdict(step, 10 + step)), 0.1))
    assert [each.body for each in told] == [verdict(step, 10 + step) for step in range(4)]


def test_a_draft_of_another_prefix_is_not_paired() -> None:
    device = host()
    device.open(spec(placement="device"), 0.0)
    device.receive(Local(session=1, body=draft(Party.DEVICE)), 0.1)
    assert to("aggregator", device.receive(frame(draft(Party.CLOUD, [9])), 0.1)) == []
    stale = replace(draft(Party.CLOUD), digest=b"another.")
    assert to("aggregator", device.receive(frame(stale), 0.1)) == []
    (pair,) = to("aggregator", device.receive(frame(draft(Party.CLOUD)), 0.1))
    assert pair.payloads == draft(Party.DEVICE).payloads + draft(Party.CLOUD).payloads
    assert to("aggregator", device.receive(frame(draft(Party.CLOUD)), 0.1)) == []  # a duplicate


def test_a_decision_counts_once_and_only_for_what_was_asked() -> None:
    device = host()
    device.open(spec(placement="device", max_new_tokens=9), 0.0)
    device.receive(Local(session=1, body=draft(Party.DEVICE)), 0.1)
    decision = result()
    assert device.receive(decision, 0.1) == []  # nothing was asked
    device.receive(frame(draft(Party.CLOUD)), 0.1)
    assert device.receive(replace(decision, voters=(0,)), 0.2) == [], "of other voters"
    sends = device.receive(decision, 0.2)
    assert bodies(sends)[0].tokens == (7,)
    assert to("decoder", sends) == [Local(session=1, body=bodies(sends)[0])]
    assert device.receive(decision, 0.3) == []


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


def test_drafts_travel_only_where_they_are_needed() -> None:
    for placement, travels in {"device": False, "cloud": True, "mirror": True}.items():
        device = host()
        device.open(spec(placement=placement), 0.0)
        sends = device.receive(Local(session=1, body=draft(Party.DEVICE)), 0.1)
        assert bodies(sends) == ([draft(Party.DEVICE)] if travels else [])


def test_frames_of_another_generation_are_ignored_but_heard() -> None:
    cloud = host(Party.CLOUD)
    cloud.open(spec(), 0.0)
    cloud.receive(frame(Resync(decider=0, tokens=(5,)), [5], view=2), 1.0)
    session = cloud.sessions[1]
    assert session.prefix.tokens == [5]
    cloud.receive(frame(verdict(1, 9), [5], view=1), 2.0)
    assert session.prefix.tokens == [5]
    assert session.peers[Party.DEVICE].silence_s(2.0) == 0.0
    cloud.receive(frame(Resync(decider=0, tokens=(6,)), [6], view=1), 2.0)
    cloud.receive(frame(Resync(decider=0, tokens=(6,)), [6], view=2), 2.0)
    assert session.prefix.tokens == [5]


def test_a_device_adopts_from_nobody() -> None:
    device = host()
    device.open(spec(), 0.0)
    device.receive(frame(Resync(decider=0, tokens=(5,)), [5], view=2), 1.0)
    assert device.sessions[1].prefix.tokens == []
    assert device.sessions[1].peers[Party.CLOUD].view == 0


def test_a_cloud_that_is_ahead_shows_what_the_device_can_compare() -> None:
    """Of a greater count the device cannot judge, and neither would ever learn of the difference."""
    cloud = host(Party.CLOUD)
    cloud.open(spec(max_new_tokens=9), 0.0)
    for step in range(2):
        cloud.receive(frame(verdict(step, 7), [7] * step), 0.1)
    (answer,) = cloud.receive(frame(Heartbeat(), [8]), 0.2)
    assert answer.message.committed == 1
    device = host()
    device.open(spec(placement="cloud", max_new_tokens=9), 0.0)
    device.receive(frame(verdict(0, 8, decider=1)), 0.1)
    resync = bodies(device.receive(answer.message, 0.3))
    assert resync[0] == Resync(decider=1, tokens=(8,))
    assert device.sessions[1].statistics.num_divergences == 1


def test_a_new_connection_brings_everything_unacknowledged_at_once() -> None:
    device = host()
    device.open(spec(placement="mirror"), 0.0)
    device.receive(Local(session=1, body=draft(Party.DEVICE)), 0.1)
    assert bodies(device.resend_all(0.2)) == [
        Open(spec=spec(placement="mirror").to_json()),
        draft(Party.DEVICE),
    ]
    device.receive(frame(Heartbeat()), 0.2)
    assert bodies(device.resend_all(0.2)) == [draft(Party.DEVICE)]
    idle = host(Party.CLOUD)
    idle.open(spec(), 0.0)
    assert bodies(idle.resend_all(0.2)) == [Heartbeat()]


def test_who_asked_hears_when_it_is_done_and_the_cloud_tells_nobody() -> None:
    for party in PARTIES:
        queue = host(party)
        queue.open(spec(max_new_tokens=1, placement=party.other), 0.0)
        decider = PARTIES.index(party.other)
        told = to("client", queue.receive(frame(verdict(0, 7, decider)), 0.5))
        if party is Party.CLOUD:
            assert told == []
        else:
            assert isinstance(told[-1], ClientEvent)
            assert isinstance(told[-1].event, DoneEvent)
            assert told[-1].event.reason == "length"
            assert told[-1].event.statistics.total_s == 0.5


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


def test_a_cloud_frees_what_a_silent_device_has_left() -> None:
    cloud = host(Party.CLOUD)
    cloud.open(spec(), 0.0)
    tick_until(cloud, ABANDONED_S - 1)
    assert cloud.sessions
    sends = tick_until(cloud, ABANDONED_S + 1, ABANDONED_S - 1)
    assert to("decoder", sends) == [End(session=1)]
    assert not cloud.sessions
    (answer,) = cloud.receive(frame(Heartbeat()), ABANDONED_S + 2)
    assert answer.message.body == Done(is_reply=True)


# ---- the other hosts -------------------------------------------------------------------------------------------


def small_hosts() -> list[Any]:
    return [
        AggregatingTable(Party.DEVICE, CODEC),
        ProfilingTable(Party.DEVICE),
        SchedulingTable(Party.DEVICE),
    ]


@pytest.mark.parametrize("number", range(3))
def test_a_host_holds_a_session_from_begin_to_end(number: int) -> None:
    small = small_hosts()[number]
    small.receive(Begin(session=1, spec=spec().to_json()))
    assert list(small.sessions) == [1]
    small.receive(End(session=1))
    small.receive(End(session=1))
    assert not small.sessions


@pytest.mark.parametrize("number", range(3))
def test_a_misdirected_message_is_an_error_with_its_name(number: int) -> None:
    small = small_hosts()[number]
    small.receive(Begin(session=1, spec=spec().to_json()))
    with pytest.raises(TandemError, match="A Local is not for a"):
        small.receive(decided(0, 1))


def test_an_aggregator_decides_the_same_every_time_and_hands_over_when_told() -> None:
    aggregator = AggregatingTable(Party.DEVICE, CODEC)
    aggregator.receive(Begin(session=1, spec=spec(placement="greedy").to_json()))
    pair = ballot(draft(Party.DEVICE), draft(Party.CLOUD))
    (first,), (second,) = aggregator.receive(pair), aggregator.receive(pair)
    assert first == second
    assert (first.message.view, first.message.digest) == (4, Prefix(1).digest)
    aggregator.receive(Placement(session=1, aggregator=1))
    (third,) = aggregator.receive(pair)
    assert third.message.next_decider == 0, "the cloud's draft was accepted: nothing is gained"
    rejected = ballot(certain(Party.DEVICE, 6), certain(Party.CLOUD, 7))
    (fourth,) = aggregator.receive(rejected)
    assert fourth.message.accepted == (1, 0)
    assert fourth.message.next_decider == 1
    aggregator.receive(Placement(session=1, aggregator=0))
    assert aggregator.receive(rejected)[0].message.next_decider == 0
    assert third.message.tokens == first.message.tokens
    assert aggregator.receive(replace(pair, session=2)) == []


def test_a_vote_that_cannot_be_read_names_its_voter() -> None:
    aggregator = AggregatingTable(Party.DEVICE, CODEC)
    aggregator.receive(Begin(session=1, spec=spec().to_json()))
    pair = ballot(draft(Party.DEVICE), draft(Party.CLOUD))
    (send,) = aggregator.receive(replace(pair, payloads=(pair.payloads[0], pair.payloads[1][:-1])))
    assert (send.message.unreadable, send.message.tokens) == ((1,), ())
    assert send.message.problem.startswith("The vote of the cloud cannot be read; install the same")
    with pytest.raises(ProtocolError, match=r"^The vote of the device cannot be read; install the same"):
        aggregator.receive(replace(pair, payloads=(pair.payloads[0][:-1], pair.payloads[1])))


UNREADABLE = "The vote of the cloud cannot be read; install the same version of Tandem there."


@pytest.mark.parametrize("on_peer_loss", ["wait", "continue", "fail"])
def test_a_vote_that_cannot_be_read_counts_as_none_and_the_cloud_as_lost(on_peer_loss: str) -> None:
    """It is acknowledged and so never comes again: the device waits for another one, goes on without, or says so."""
    device = host()
    device.open(spec(placement="mirror", on_peer_loss=on_peer_loss), 0.0)
    device.receive(Local(session=1, body=draft(Party.DEVICE)), 0.1)
    good = draft(Party.CLOUD)
    sends = device.receive(frame(replace(good, payloads=(good.payloads[0][:-1],))), 0.2)
    (pair,) = to("aggregator", sends)
    unreadable = VerifyResult(
        session=1, view=0, digest=pair.digest, step=0, voters=(0, 1), unreadable=(1,), problem=UNREADABLE
    )  # fmt: skip
    sends = device.receive(unreadable, 0.3)
    assert device.num_refused_frames == 1
    events = [sent.event for sent in to("client", sends)]
    if on_peer_loss == "fail":
        assert [event.error for event in events] == [
            f"{UNREADABLE[:-1]}, or set on_peer_loss to 'continue' or 'wait'."
        ]
        return
    session = device.sessions[1]
    assert session.statistics.num_refused_frames == 1
    if on_peer_loss == "continue":
        assert [(event.is_alone, event.reason) for event in events] == [(True, UNREADABLE)]
        assert [ballot.voters for ballot in to("aggregator", sends)] == [(0,)]
        back = device.receive(frame(good), 0.4)
        assert [sent.event.is_alone for sent in to("client", back)] == [False]
        return
    assert sends == []
    (again,) = to("aggregator", device.receive(frame(good), 0.4))
    assert again.payloads[1] == good.payloads[0]


def test_profiles_of_unknown_sessions_are_dropped() -> None:
    profile = Profile(
        session=9, step=0, aggregator=0, decode_s=(0.1, 0.1), acceptance=(0.5, 0.5), rtt_s=0.1,
        rtt_average_s=0.1, bytes_per_s=1e6, notes=(),
    )  # fmt: skip
    assert SchedulingTable(Party.DEVICE).receive(profile) == []


# ---- probes, handover, restarts --------------------------------------------------------------------------------


def test_a_probe_is_answered_at_once_and_the_first_frame_heard_is_followed_by_probes() -> None:
    device = host()
    device.open(spec(), 0.0)
    first = bodies(device.receive(frame(Heartbeat()), 0.1))
    assert [type(body) for body in first] == [Probe, Probe]
    assert [len(body.padding) for body in first] == [0, PROBE_BYTES]
    assert bodies(device.receive(frame(Probe(is_reply=False, padding=b"")), 0.2)) == [
        Probe(is_reply=True, padding=b"")
    ]
    assert bodies(device.receive(frame(Probe(is_reply=True, padding=b"")), 0.3)) == []


def test_the_verdict_hands_over() -> None:
    """The new aggregator asks as soon as it has committed the verdict; the old one asks no more."""
    device, cloud = host(), host(Party.CLOUD)
    for queue in (device, cloud):
        queue.open(spec(placement="greedy", max_new_tokens=9), 0.0)
        for party in PARTIES:
            of_party = draft(party)
            queue.receive(Local(session=1, body=of_party) if party is queue.party else frame(of_party), 0.1)
    decision = replace(result(), accepted=(1, 1), acceptance=(1.0, 1.0), next_decider=1)
    sends = device.receive(decision, 0.2)
    (sent,) = [body for body in bodies(sends) if isinstance(body, Verdict)]
    assert sent.next_decider == 1
    (told,) = [told.event for told in to("client", sends) if isinstance(told.event, PlacementEvent)]
    assert told == PlacementEvent(step=1, aggregator=Party.CLOUD)
    for queue, asks in ((device, 0), (cloud, 1)):
        if queue is cloud:
            queue.receive(frame(sent, [7]), 0.3)
        for party in PARTIES:
            of_party = draft(party, [7])
            sends = queue.receive(
                Local(session=1, body=of_party) if party is queue.party else frame(of_party, [7]),
                0.4,
            )
        assert len(to("aggregator", sends)) == asks


def test_a_restarted_decoder_is_given_the_committed_prefix() -> None:
    cloud = host(Party.CLOUD)
    cloud.open(spec(max_new_tokens=9), 0.0)
    cloud.receive(frame(verdict(0, 7)), 0.1)
    begin, adopt = to("decoder", cloud.restart("decoder"))
    assert isinstance(begin, Begin)
    assert adopt == Local(session=1, body=Resync(decider=0, tokens=(7,)))


def test_a_restarted_aggregator_is_asked_again() -> None:
    device = host()
    device.open(spec(), 0.0)
    device.receive(Local(session=1, body=draft(Party.DEVICE)), 0.1)
    (pair,) = to("aggregator", device.receive(frame(draft(Party.CLOUD)), 0.1))
    begin, again = to("aggregator", device.restart("aggregator"))
    assert isinstance(begin, Begin)
    assert again == pair


def test_the_next_query_probes_again_only_after_a_while() -> None:
    device = host()
    for number, (now_s, num_probes) in enumerate([(0.0, 2), (1.0, 0), (59.0, 0), (61.0, 2)], start=1):
        device.open(spec(number), now_s)
        sent = bodies(device.receive(frame(Heartbeat(), session=number), now_s))
        assert [type(body) for body in sent] == [Probe] * num_probes


def test_a_restarted_cloud_queue_asks_for_one_resync() -> None:
    cloud, device = host(Party.CLOUD), host()
    device.open(spec(placement="cloud", max_new_tokens=9), 0.0)
    device.receive(frame(verdict(0, 7, decider=1)), 0.1)
    (rejoin,) = bodies(cloud.reopen(spec(placement="cloud", max_new_tokens=9), 5, 1.0))
    assert rejoin == Rejoin(incarnation=5)
    assert (
        to("decoder", cloud.receive(frame(draft(Party.DEVICE, [7]), [7]), 1.1)) == []
    )  # it knows nothing yet
    assert Rejoin(incarnation=5) in bodies(cloud.tick(2.0))
    answer = bodies(device.receive(frame(rejoin), 1.1))
    assert Resync(decider=1, tokens=(7,)) in answer
    assert Resync not in map(type, bodies(device.receive(frame(rejoin), 1.2))), "a duplicate"
    cloud.receive(frame(Resync(decider=1, tokens=(7,)), [7], view=1), 1.3)
    assert cloud.sessions[1].prefix.tokens == [7]
    assert Rejoin(incarnation=5) not in bodies(cloud.tick(3.0))


def test_a_restarted_cloud_decides_nothing_until_it_knows_what_is_committed() -> None:
    """As the only voter it could: it would decide steps that are decided, and then have to drop them."""
    cloud, asked = host(Party.CLOUD), spec(mode="speculative", max_new_tokens=9)
    cloud.reopen(asked, 5, 1.0)
    assert to("decoder", cloud.tick(9.0)) == []
    payload = distribution(0, Party.CLOUD, (), ())
    own = vote((), (), payloads=(payload,))
    assert to("aggregator", cloud.receive(Local(session=1, body=own), 9.0)) == []
    cloud.receive(frame(Resync(decider=1, tokens=(7,)), [7], view=1), 9.1)
    (wanted,) = to("decoder", cloud.tick(9.7))
    assert (wanted.body.digest, wanted.body.tokens) == (Prefix(1, [7]).digest, ())
    assert to("decoder", cloud.tick(9.8)) == [], "once"


def test_what_one_query_showed_is_where_the_next_begins() -> None:
    profiler = ProfilingTable(Party.DEVICE)
    assert profiler.receive(Begin(session=1, spec=spec().to_json())) == []
    seen = Observation(
        step=0, aggregator=0, decode_s=(0.05, 0.05), acceptance=(0.5, 0.5), rtt_s=0.3, bytes_per_s=nan,
    )  # fmt: skip
    profiler.receive(Observations(session=1, steps=(seen,)))
    (window,) = profiler.receive(Begin(session=2, spec=spec(2).to_json()))
    assert window.message == Window(session=2, size=9)  # ceil((0.3 + 0.05) / 0.05) + 2

"""The coordinators' table: bounds, faults and timers; what it says is in the transcripts. And the other tables."""

from __future__ import annotations

import itertools
import logging
from dataclasses import replace
from math import inf, nan
from typing import Any

import numpy as np
import pytest

from tandem.errors import Code, Fault, ProtocolError, TandemError
from tandem.events import PeerEvent, StopReason
from tandem.messages import (
    Ballot,
    Begin,
    Cancel,
    DecoderReady,
    Done,
    DraftWindow,
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
    Sources,
    Verdict,
    Vote,
    decode,
    encode,
)
from tandem.modes.spec import SessionSpec
from tandem.protocol.aggregating import AggregatingTable
from tandem.protocol.estimating import ProfilingTable, SchedulingTable
from tandem.protocol.liveness import LONGEST_TICK_S
from tandem.protocol.log import MAX_AHEAD
from tandem.protocol.outbox import Send
from tandem.protocol.prefix import Prefix
from tandem.protocol.session import ABANDONED_S, LINGER_S
from tandem.protocol.table import (
    MAX_CLOSED_SESSIONS,
    MAX_EARLY_BYTES,
    MAX_EARLY_FRAMES,
    TICK_S,
    CoordinatorTable,
)
from tandem.topology import PARTIES, Party
from tandem_lab.simulation.specs import make_spec
from tests.unit.lab.simulation.world import CODEC, VOCAB, distribution
from tests.unit.protocol.talk import bodies, decided, events, frame, to, vote


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


def ballot(device: Vote, cloud: Vote) -> Ballot:
    return Ballot(
        session=1, view=4, step=device.step, digest=device.digest, voters=(0, 1), tokens=(),
        payloads=device.payloads + cloud.payloads, log_weights=device.log_weights + cloud.log_weights,
    )  # fmt: skip


# ---- open and early frames -------------------------------------------------------------------------------------


def test_open_tells_the_actors_of_the_party() -> None:
    sends = host().open(spec(), 0.0)
    assert [send.to for send in sends] == ["decoder", "aggregator", "profiler", "scheduler", "peer"]
    assert all(send.message.spec == spec() for send in sends[:-1])
    assert bodies(sends) == [Open(spec=spec().to_json())]


def test_the_cloud_is_not_told_the_device_s_filter() -> None:
    filtered = spec(device_filter='{"source": "diary.md"}', cloud_filter='{"year": 2024}')
    (opening,) = bodies(host().open(filtered, 0.0))
    assert "diary" not in opening.spec
    assert "2024" in opening.spec


def test_documents_reach_the_client_with_times_and_notes() -> None:
    device, cloud = host(), host(Party.CLOUD)
    for queue in (device, cloud):
        queue.open(spec(), 0.0)
    ready = DecoderReady(
        session=1, sources=("a",), scores=(0.5,), retrieve_us=1_500_000, prefill_us=2, notes=("1 cut.",)
    )  # fmt: skip
    (sources,) = to("peer", cloud.receive(ready, 0.1))
    for shown in (*events(device.receive(ready, 0.1)), *events(device.receive(sources, 0.2))):
        assert (shown.retrieve_s, shown.prefill_s, shown.notes) == (1.5, 2e-6, ("1 cut.",))


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


def test_timers_run_as_often_as_the_least_patient_query_that_is_asked_here_needs() -> None:
    device, cloud = host(), host(Party.CLOUD)
    assert device.tick_s == TICK_S
    for session, (patience_s, tick_s) in enumerate(
        [(inf, 0.05), (1.0, 0.05), (0.1, 0.025), (1e-9, 0.005)], 1
    ):
        for table in (device, cloud):
            table.open(spec(session, patience_s=patience_s), 0.0)
        assert (device.tick_s, cloud.tick_s) == (tick_s, TICK_S)


def test_messages_for_nobody_are_dropped() -> None:
    queue = host()
    assert queue.receive(Local(session=5, body=draft(Party.DEVICE)), 0.0) == []
    assert queue.cancel(5, 0.0) == []
    assert queue.tick(0.0) == []


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


def test_a_spec_is_written_once_and_read_by_other_processes_alone() -> None:
    begins = [send.message for send in host().open(spec(), 0.0) if send.to != "peer"]
    assert len({id(begin.spec.to_json()) for begin in begins}) == 1
    for begin in begins:
        here, elsewhere = ProfilingTable(Party.DEVICE), ProfilingTable(Party.DEVICE)
        here.receive(begin)
        elsewhere.receive(decode(encode(begin)))
        assert here.sessions[1].spec is begin.spec
        assert elsewhere.sessions[1].spec == begin.spec


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


def test_profiles_of_unknown_sessions_are_dropped() -> None:
    profile = Profile(
        session=9, step=0, aggregator=0, decode_s=(0.1, 0.1), acceptance=(0.5, 0.5), rtt_s=0.1,
        rtt_average_s=0.1, bytes_per_s=1e6, notes=(),
    )  # fmt: skip
    assert SchedulingTable(Party.DEVICE).receive(profile) == []


# ---- probes, handover, restarts --------------------------------------------------------------------------------


def test_the_next_query_probes_again_only_after_a_while() -> None:
    device = host()
    for number, (now_s, num_probes) in enumerate([(0.0, 2), (1.0, 0), (59.0, 0), (61.0, 2)], start=1):
        device.open(spec(number), now_s)
        sent = bodies(device.receive(frame(Heartbeat(), session=number), now_s))
        assert [type(body) for body in sent] == [Probe] * num_probes


def test_what_one_query_showed_is_where_the_next_begins() -> None:
    profiler = ProfilingTable(Party.DEVICE)
    assert profiler.receive(Begin(session=1, spec=spec().to_json())) == []
    seen = Observation(
        step=0, aggregator=0, decode_s=(0.05, 0.05), acceptance=(0.5, 0.5), rtt_s=0.3, bytes_per_s=nan,
    )  # fmt: skip
    profiler.receive(Observations(session=1, steps=(seen,)))
    (window,) = profiler.receive(Begin(session=2, spec=spec(2).to_json()))
    assert window.message == DraftWindow(session=2, size=9)  # ceil((0.3 + 0.05) / 0.05) + 2

"""A query that is asked at a worker: it opens, streams, ends and loses its parties through the server."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tandem.errors import Code, Fault
from tandem.events import DoneEvent, PeerEvent, ProvisionalEvent, RetractEvent, SourcesEvent, TokenEvent
from tandem.messages import (
    Cancel,
    DecoderReady,
    Done,
    Heartbeat,
    Local,
    Logprobs,
    Open,
    Resync,
    Sources,
    Tail,
    Verdict,
    VerifyResult,
    Vote,
)
from tandem.modes.spec import SessionSpec
from tandem.protocol.admission import AdmittingTable
from tandem.protocol.log import join_verdicts
from tandem.protocol.outbox import Send
from tandem.protocol.prefix import Prefix
from tandem.protocol.session import ABANDONED_S
from tandem.protocol.table import CoordinatorTable
from tandem.topology import PAIR, SERVER, star
from tandem_lab.simulation.specs import make_spec
from tests.unit.lab.simulation.world import tick_until
from tests.unit.protocol.talk import crossing, events, frame, vote, votes

SPEC = make_spec(
    mode="federated", workers=("ada", "ben"), weights=(0.5, 0.5), home="ada", on_peer_loss="continue"
)
READY = DecoderReady(session=1, sources=("7f",), scores=(0.5,), retrieve_us=3, prefill_us=2, notes=())
START = Prefix(1).digest
VERDICT = Verdict(step=0, tokens=(7,), accepted=(1,), acceptance=(), next_decider=0)
KNOWN = Logprobs(logprob=-1.0, top_ids=(), top_logprobs=())


def table(party: str) -> CoordinatorTable:
    return CoordinatorTable(party, lambda spec: lambda tokens: "length" if len(tokens) > 8 else None)


def to_home(verdict: Verdict, lost: list[int], last_voters: list[int], *known: Logprobs) -> Verdict:
    tail = Tail(logprobs=known, lost=tuple(lost), last_voters=tuple(last_voters))
    return replace(verdict, tail=(tail,))


def own_vote(party: int, *tokens: int) -> Vote:
    """Of a worker, behind these tokens."""
    return vote(tokens, (), payloads=(bytes([party]),))


def decided(server: CoordinatorTable, now_s: float, *, voters: tuple[int, ...] = (1, 2)) -> list[Send]:
    """The server's aggregator decides the first token."""
    result = VerifyResult(
        session=1, view=0, digest=START, step=0, voters=voters, tokens=(7,), accepted=(0,), acceptance=(0.0,),
        next_decider=0, tail=(Tail(logprobs=(KNOWN,)),),
    )  # fmt: skip
    return server.receive(result, now_s)


def opened(spec: SessionSpec = SPEC) -> tuple[CoordinatorTable, CoordinatorTable, CoordinatorTable]:
    """Home, server and another worker, which have all heard of each other."""
    home, server, other = table("ada"), table(SERVER), table("ben")
    for send in home.open(spec, 0.0):
        if send.to == "peer":
            for passed in server.receive(send.message, 0.0, "ada"):
                if passed.to == "peer" and passed.peer == "ben":
                    other.receive(passed.message, 0.0, SERVER)
    home.receive(frame(Heartbeat()), 0.0, SERVER)
    server.receive(frame(Heartbeat()), 0.0, "ben")
    return home, server, other


# ---- who is nearer to home -----------------------------------------------------------------------------------------


def test_every_party_knows_the_way_home() -> None:
    topology = star(SERVER, ("ada", "ben"), "ada")
    assert (topology.home, topology.authority) == ("ada", SERVER)
    assert [topology.toward_home(party) for party in topology.parties] == ["ada", None, SERVER]
    assert [star(SERVER, ("ada", "ben")).toward_home(party) for party in topology.parties] == [
        None,
        SERVER,
        SERVER,
    ]
    assert [PAIR.toward_home(party) for party in PAIR.parties] == [None, "device"]


def test_the_home_opens_the_query_at_the_server_and_that_at_the_others() -> None:
    home, server, other = table("ada"), table(SERVER), table("ben")
    ((peer, opening),) = crossing(home.open(SPEC, 0.0))
    assert (peer, type(opening)) == (SERVER, Open)
    passed = crossing(server.receive(frame(opening), 0.0, "ada"))
    assert ("ben", Open) in [(to, type(body)) for to, body in passed]
    assert all(not isinstance(body, Open) for to, body in passed if to == "ada")
    (opening,) = [body for to, body in passed if to == "ben"]
    answered = crossing(other.receive(frame(opening), 0.0, SERVER))
    assert [(to, type(body)) for to, body in answered] == [(SERVER, Heartbeat)]
    assert other.sessions[1].spec == SPEC


@pytest.mark.parametrize(("party", "source"), [(SERVER, "ben"), ("ben", "ada")])
def test_only_who_is_nearer_to_home_opens_a_query(party: str, source: str) -> None:
    there = table(party)
    (refusal,) = crossing(there.receive(frame(Open(spec=SPEC.to_json())), 0.0, source))
    assert refusal[0] == source
    assert isinstance(refusal[1], Cancel)
    assert there.num_refused == 1
    assert not there.sessions


def test_a_query_that_waits_at_a_worker_shows_that_to_the_server() -> None:
    busy = AdmittingTable("ben", lambda spec: lambda tokens: None, max_open=1)
    busy.open(make_spec(session=2, only="ben"), 0.0)
    sent = crossing(busy.receive(frame(Open(spec=SPEC.to_json())), 0.0, SERVER))
    assert {(to, type(body)) for to, body in sent} == {(SERVER, Heartbeat)}


# ---- what reaches the client ---------------------------------------------------------------------------------------


def test_events_are_for_the_client_of_the_home_alone() -> None:
    home, server, other = opened()
    assert [type(event) for event in events(home.receive(READY, 0.1))] == [SourcesEvent]
    home.receive(frame(to_home(VERDICT, [], [2])), 0.1, SERVER)
    for party, index in (("ada", 1), ("ben", 2)):
        server.receive(frame(own_vote(index)), 0.1, party)
    assert events(decided(server, 0.2)) == []
    assert events(server.receive(READY, 0.2)) == events(other.receive(READY, 0.2)) == []
    assert events(other.receive(frame(VERDICT), 0.2, SERVER)) == []
    assert server.sessions[1].prefix.tokens == home.sessions[1].prefix.tokens == [7]


def test_sources_of_another_worker_reach_the_home_as_marks() -> None:
    home, server, other = opened()
    ((to, sources),) = crossing(other.receive(READY, 0.1))
    assert (to, type(sources)) == (SERVER, Sources)
    relayed = [body for to, body in crossing(server.receive(frame(sources), 0.2, "ben")) if to == "ada"]
    assert relayed == [sources] == [Sources(party=2, ids=("7f",), retrieve_us=3, prefill_us=2, notes=())]
    (event,) = events(home.receive(frame(relayed[0]), 0.3, SERVER))
    assert event.party == "ben"
    assert [(source.id, source.score, source.title, source.text) for source in event.sources] == [
        ("7f", None, None, None)
    ]


def test_only_the_home_hears_log_probabilities_and_who_was_last() -> None:
    _, server, _ = opened(replace(SPEC, num_logprobs=0))
    server.receive(frame(own_vote(2)), 0.1, "ben")
    server.receive(frame(own_vote(1)), 0.2, "ada")
    verdicts = {to: body for to, body in crossing(decided(server, 0.3)) if isinstance(body, Verdict)}
    assert verdicts == {
        "ben": replace(VERDICT, accepted=(0,), acceptance=(0,)),
        "ada": to_home(replace(VERDICT, accepted=(0,), acceptance=(0,)), [], [1], KNOWN),
    }


def test_what_the_decider_says_shows_in_the_token() -> None:
    home, _, _ = opened(replace(SPEC, num_logprobs=0, vocab_size=8))
    told = to_home(VERDICT, [], [2], KNOWN)
    (token,) = [
        each for each in events(home.receive(frame(told), 0.1, SERVER)) if isinstance(each, TokenEvent)
    ]
    assert (token.aggregator, token.last_voter, token.logprob.logprob) == (SERVER, "ben", -1.0)
    assert token.device_accepted
    assert not token.is_alone


def test_a_verdict_for_the_home_stays_one() -> None:
    told = to_home(replace(VERDICT, tokens=(7, 8), accepted=(3,)), [2], [2, 1])
    assert join_verdicts([told]) is told
    home, _, _ = opened()
    sends = home.receive(frame(to_home(VERDICT, [], [2])), 0.1, SERVER)
    sends = home.receive(frame(told, (7,), number=2), 0.2, SERVER)
    (token,) = [event for event in events(sends) if isinstance(event, TokenEvent)]
    assert (token.token, token.last_voter) == (8, "ada")


def test_the_home_shows_the_server_s_drafts_until_they_are_decided() -> None:
    home, _, _ = opened(replace(SPEC, show_drafts=True))
    proposal = vote((), (7, 8))
    shown = events(home.receive(frame(proposal), 0.1, SERVER))
    assert [(type(event), event.token) for event in shown] == [(ProvisionalEvent, 7), (ProvisionalEvent, 8)]
    assert events(home.receive(frame(proposal), 0.1, SERVER)) == [], "once"
    told = to_home(replace(VERDICT, tokens=(7, 9), accepted=(1,)), [], [2, 2])
    confirmed, retracted, other = events(home.receive(frame(told, number=2), 0.2, SERVER))
    assert (confirmed.token, retracted, other.token) == (7, RetractEvent(step=1), 9)


# ---- losses --------------------------------------------------------------------------------------------------------


def test_the_home_shows_whom_the_server_lost_and_got_back() -> None:
    home, _, _ = opened()
    (lost, token) = events(home.receive(frame(to_home(VERDICT, [2], [0])), 0.1, SERVER))
    assert lost == PeerEvent(step=0, is_alone=True, party="ben")
    assert token.is_alone
    assert token.last_voter is None
    later = to_home(replace(VERDICT, step=1), [], [2])
    (back, token) = events(home.receive(frame(later, (7,), number=2), 0.2, SERVER))
    assert back == PeerEvent(step=1, is_alone=False, party="ben")
    assert not token.is_alone
    assert home.sessions[1].statistics.degraded_from == 0


def test_the_server_says_in_its_verdict_whom_it_lost() -> None:
    _, server, _ = opened()
    for step in range(40):
        server.receive(frame(Heartbeat()), 0.1 * step, "ada")
        server.tick(0.1 * step)
    assert server.sessions[1].lost == {"ben"}
    server.receive(frame(own_vote(1)), 4.0, "ada")
    told = [body for to, body in crossing(decided(server, 4.1, voters=(1,))) if to == "ada"]
    assert [body.tail[0].lost for body in told if isinstance(body, Verdict)] == [(2,)]


def test_the_server_waits_for_the_home_and_frees_the_query_in_the_end() -> None:
    _, server, _ = opened()
    for step in range(int(ABANDONED_S)):
        server.receive(frame(Heartbeat()), float(step), "ben")
        tick_until(server, step + 1.0, float(step))
    assert server.sessions[1].lost == set()
    tick_until(server, ABANDONED_S + 1, ABANDONED_S)
    assert not server.sessions
    told = crossing(server.receive(frame(Heartbeat()), ABANDONED_S + 2, "ben"))
    assert [(to, type(body)) for to, body in told] == [("ben", Done)]


def test_a_home_that_lost_the_server_goes_on_with_its_own_votes() -> None:
    home, _, _ = opened()
    home.receive(frame(to_home(VERDICT, [], [2])), 0.1, SERVER)
    sends = [send for step in range(60) for send in home.tick(0.1 * step)]
    assert PeerEvent(step=1, is_alone=True, party=SERVER) in events(sends)
    here = Prefix(1, [7]).digest
    assert here in [asked.digest for asked in votes(sends)]
    sends = home.receive(Local(session=1, body=own_vote(1, 7)), 6.0)
    (ballot,) = [send.message for send in sends if send.to == "aggregator"]
    assert ballot.voters == (1,)
    alone = VerifyResult(
        session=1, view=0, digest=here, step=1, voters=(1,), tokens=(3,), accepted=(0,), acceptance=(0.0,),
        next_decider=1,
    )  # fmt: skip
    sends = home.receive(alone, 6.1)
    (token,) = [event for event in events(sends) if isinstance(event, TokenEvent)]
    assert (token.token, token.aggregator, token.is_alone) == (3, "ada", True)
    (asked,) = votes(sends)
    assert asked.digest == Prefix(1, [7, 3]).digest, "at once, without a proposal"


def lost_server(**changes: Any) -> tuple[CoordinatorTable, list[Send]]:
    home, _, _ = opened(replace(SPEC, **changes))
    return home, [send for step in range(60) for send in home.tick(0.1 * step)]


def test_a_server_that_comes_back_is_dismissed_and_changes_no_token() -> None:
    home, _ = lost_server()
    for body in (Heartbeat(), to_home(VERDICT, [], [2]), Resync(decider=0, tokens=(9,))):
        ((to, last),) = crossing(home.receive(frame(body, view=1), 7.0, SERVER))
        assert (to, type(last)) == (SERVER, Cancel)
    assert crossing(home.receive(frame(Cancel(reason="It is over.")), 7.1, SERVER)) == []
    assert home.sessions[1].prefix.tokens == []
    assert not home.sessions[1].is_over


@pytest.mark.parametrize("policy", ["wait", "fail"])
def test_a_home_without_a_server_waits_or_fails(policy: str) -> None:
    home, sends = lost_server(on_peer_loss=policy)
    done = [event for event in events(sends) if isinstance(event, DoneEvent)]
    assert (1 in home.sessions) is (policy == "wait")
    assert [event.reason for event in done] == ([] if policy == "wait" else ["failed"])
    assert all("The server has been silent for" in (event.error or "") for event in done)


@pytest.mark.parametrize("policy", ["wait", "continue"])
def test_a_server_that_gives_up_leaves_the_home_alone(policy: str) -> None:
    home, _, _ = opened(replace(SPEC, on_peer_loss=policy))
    told = events(home.receive(frame(Cancel(reason="The server's decoder has stopped.")), 0.2, SERVER))
    if policy == "continue":
        assert told == [
            PeerEvent(step=0, is_alone=True, party=SERVER, reason="The server's decoder has stopped.")
        ]
    else:
        assert [(event.reason, event.error) for event in told] == [
            ("failed", "The server gave the query up: The server's decoder has stopped.")
        ]


# ---- the end -------------------------------------------------------------------------------------------------------


def test_who_gives_up_at_home_ends_the_query_everywhere() -> None:
    home, server, other = opened()
    ((to, gave_up),) = crossing(home.cancel(1, 0.1))
    assert (to, type(gave_up)) == (SERVER, Cancel)
    passed = crossing(server.receive(frame(gave_up), 0.2, "ada"))
    assert [(to, type(body)) for to, body in passed] == [("ben", Cancel)]
    other.receive(frame(passed[0][1]), 0.3, SERVER)
    assert all(not each.sessions for each in (home, server, other))


def test_a_worker_that_refuses_the_query_fails_it_at_home() -> None:
    home, server, _ = opened()
    refused = Cancel(reason="ben has no such documents.", fault=Fault(code=Code.INVALID))
    passed = [body for to, body in crossing(server.receive(frame(refused), 0.1, "ben")) if to == "ada"]
    (done,) = events(home.receive(frame(passed[0]), 0.2, SERVER))
    assert done.reason == "failed"
    assert "ben has no such documents." in (done.error or "")
    assert done.fault == Fault(code=Code.INVALID, party=SERVER)


def test_shown_tokens_are_never_taken_back() -> None:
    home, _, _ = opened()
    home.receive(frame(to_home(VERDICT, [], [2])), 0.1, SERVER)
    (done,) = events(home.receive(frame(Resync(decider=0, tokens=(9,)), view=1), 0.2, SERVER))
    assert (done.reason, done.error) == (
        "failed",
        "The server has other tokens than those shown here; ask again.",
    )

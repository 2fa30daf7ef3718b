"""Every frame that a party might send, in every mode and placement, in turn and out of turn: who may, and what happens.

What is legal is written down here once more, by hand; `Routes.rights` derives it. Everything else must be refused and
counted, and must change neither the committed tokens nor anything that is held, nor end the query.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf, nan
from typing import Any

import pytest

from tandem.messages import (
    Cancel,
    Done,
    Heartbeat,
    LinkBody,
    ListRequest,
    Logprobs,
    Open,
    Probe,
    Rejoin,
    Resync,
    Sources,
    Tail,
    Verdict,
    Vote,
    registry,
)
from tandem.modes import SessionSpec
from tandem.protocol.log import Prefix
from tandem.protocol.routes import Routes
from tandem.protocol.table import CoordinatorTable
from tandem.topology import at_start
from tandem_lab.simulation.specs import change_spec, make_spec
from tests.unit.protocol.talk import frame, vote
from tests.unit.protocol.test_transcripts import STORIES
from tests.unit.protocol.transcript import play

START = Prefix(1)
ALWAYS = {Heartbeat, Probe, Done, Cancel}
DUAL_LISTS = {"race_depth": 2, "vocab_size": 16, "temperature": 1.0}
WORKERS = ("ada", "ben", "cy")
PROPOSAL, REQUEST, VOTE, VOTES = "proposal", "request", "vote", "votes"
"""Forms of a `Vote`: a drafter's with a token and without any, a voter's on one prefix and along a proposal."""
NAMED, TO_HOME, RELAYED = "named", "to home", "relayed"
"""Forms of a body that only some may send: a verdict with log probabilities, or with what is behind the decider, and
sources of another party."""

SPECS: dict[str, SessionSpec] = {
    "device": make_spec(placement="device", **DUAL_LISTS),
    "cloud": make_spec(placement="cloud", **DUAL_LISTS),
    "greedy": make_spec(placement="greedy", **DUAL_LISTS),
    "mirror": make_spec(placement="mirror", **DUAL_LISTS),
    "mirror, whole votes": make_spec(placement="mirror"),
    "solo": make_spec(only="device"),
    "solo, cloud": make_spec(only="cloud"),
    "speculative": make_spec(mode="speculative"),
    "speculative, logprobs": make_spec(mode="speculative", num_logprobs=1, vocab_size=16),
    "federated": make_spec(mode="federated", workers=WORKERS, weights=(0.5, 0.25, 0.25)),
    "federated, lists": make_spec(mode="federated", workers=WORKERS, **DUAL_LISTS),
    "federated at ada": make_spec(mode="federated", workers=WORKERS, home="ada", **DUAL_LISTS),
}

# To whom who may send what, beside what everybody may send to every peer.
TO_SERVER = {VOTE, VOTES, Sources, Rejoin}
FROM_SERVER = {Open, Resync, PROPOSAL, REQUEST, Verdict}
LEGAL: dict[str, dict[tuple[str, str], set[Any]]] = {
    "device": {
        ("device", "cloud"): {Open, Resync, Verdict, ListRequest},
        ("cloud", "device"): {Sources, Rejoin, PROPOSAL},
    },
    "cloud": {
        ("device", "cloud"): {Open, Resync, PROPOSAL},
        ("cloud", "device"): {Sources, Rejoin, Verdict, ListRequest},
    },
    "greedy": {
        ("device", "cloud"): {Open, Resync, PROPOSAL, Verdict, ListRequest},
        ("cloud", "device"): {Sources, Rejoin, PROPOSAL, Verdict, ListRequest},
    },
    "mirror": {
        ("device", "cloud"): {Open, Resync, PROPOSAL, ListRequest},
        ("cloud", "device"): {Sources, Rejoin, PROPOSAL, ListRequest},
    },
    "mirror, whole votes": {
        ("device", "cloud"): {Open, Resync, PROPOSAL},
        ("cloud", "device"): {Sources, Rejoin, PROPOSAL},
    },
    "solo": {},
    "solo, cloud": {},
    "speculative": {
        ("device", "cloud"): {Open, Resync, PROPOSAL, REQUEST},
        ("cloud", "device"): {Sources, Rejoin, Verdict},
    },
    "speculative, logprobs": {
        ("device", "cloud"): {Open, Resync, PROPOSAL, REQUEST},
        ("cloud", "device"): {Sources, Rejoin, Verdict, NAMED},
    },
    "federated": {
        **{("server", worker): FROM_SERVER for worker in WORKERS},
        **{(worker, "server"): TO_SERVER for worker in WORKERS},
    },
    "federated, lists": {
        **{("server", worker): FROM_SERVER | {ListRequest} for worker in WORKERS},
        **{(worker, "server"): TO_SERVER for worker in WORKERS},
    },
    "federated at ada": {
        ("ada", "server"): {Open, VOTE, VOTES},
        ("server", "ada"): {Resync, PROPOSAL, REQUEST, TO_HOME, ListRequest, Sources, RELAYED},
        **{("server", worker): FROM_SERVER | {ListRequest} for worker in WORKERS if worker != "ada"},
        **{(worker, "server"): TO_SERVER for worker in WORKERS if worker != "ada"},
    },
}


@dataclass(frozen=True)
class Try:
    """One frame of `source` at `party`."""

    name: str
    source: str
    party: str
    body: LinkBody
    is_legal: bool

    def __str__(self) -> str:
        return f"{self.name}: {self.source} to {self.party}, {self.body.words}"


def make_bodies(spec: SessionSpec, source: str) -> dict[Any, LinkBody]:
    """One well-formed body of each kind, as far as the sender's place allows."""
    roles = spec.roles
    party = roles.topology.parties.index(source) if source in roles.topology.parties else 0
    is_dual, num_drafters = spec.rules.name == "dual", len(roles.drafters)
    verdict = {
        "step": 0, "tokens": (1,), "accepted": (1,) * num_drafters, "acceptance": (),
        "next_decider": roles.topology.parties.index(roles.deciders[0]),
    }  # fmt: skip
    known = Logprobs(logprob=-1.0, top_ids=(), top_logprobs=())
    sources = Sources(party=party, ids=("7f",), retrieve_us=1, prefill_us=1, notes=())
    bodies: list[LinkBody] = [
        Heartbeat(),
        Probe(is_reply=False, padding=b""),
        Done(is_reply=False),
        Cancel(reason="Enough."),
        Open(spec=spec.to_json()),
        sources,
        Verdict(**verdict),
        ListRequest(step=0, digest=START.digest, depth=4),
        Resync(decider=verdict["next_decider"], tokens=(2,)),
        Rejoin(incarnation=7),
    ]  # fmt: skip
    assert {type(body) for body in bodies} == {*registry.body_classes} - {Vote}, "one of each other kind"
    weight = (0.0,) * roles.weighs_by_documents
    return {
        **{type(body): body for body in bodies},
        PROPOSAL: vote(payloads=(b"x",) * is_dual, log_weights=weight * is_dual),
        REQUEST: vote((), ()),
        VOTE: vote((), (), payloads=(b"x",), log_weights=weight),
        VOTES: vote(payloads=(b"x", b"y"), log_weights=weight * 2),
        NAMED: Verdict(**verdict, tail=(Tail(logprobs=(known,)),)),
        TO_HOME: Verdict(**verdict, tail=(Tail(last_voters=(0,)),)),
        RELAYED: replace(sources, party=len(roles.roles) - 1 - (party == len(roles.roles) - 1)),
    }


def tries() -> Iterator[Try]:
    everybody = ("device", "cloud", "server", *WORKERS)
    for name, spec in SPECS.items():
        parties = spec.roles.topology.parties
        for party in parties:
            for source in everybody:
                if source == party:
                    continue
                peers = spec.roles.topology.peers(party)
                legal = LEGAL[name].get((source, party), set()) | (ALWAYS if source in peers else set())
                for kind, body in make_bodies(spec, source).items():
                    yield Try(name, source, party, body, kind in legal)


TRIES = list(tries())


def opened(spec: SessionSpec, party: str) -> CoordinatorTable:
    table = CoordinatorTable(party, lambda spec: lambda tokens: "length" if len(tokens) >= 9 else None)
    table.open(spec, 0.0)
    return table


def standing(table: CoordinatorTable) -> tuple[Any, ...]:
    """All that a frame may change."""
    session = table.sessions[1]
    return (
        list(session.prefix.tokens), session.log.decider, session.log.view, dict(session.log.verdicts),
        {party: dict(held) for party, held in session.ballots.entries.items()}, session.ballots.pending,
        session.end.reason, session.is_over, set(session.lost),
        {peer: (link.view, link.seen_view, list(link.deliveries.received)) for peer, link in session.peers.items()},
        {peer: (dict(each.claims.digests), each.is_lost, each.is_finished) for peer, each in session.peers.items()},
    )  # fmt: skip


def test_the_tries_are_all_kinds_in_all_places() -> None:
    assert len(TRIES) > 2000
    assert sum(each.is_legal for each in TRIES) > 200
    assert {type(each.body) for each in TRIES if each.is_legal} == set(registry.body_classes)


@pytest.mark.parametrize("name", SPECS)
def test_what_nobody_may_send_is_refused_and_counted_and_changes_nothing(name: str) -> None:
    for each in (one for one in TRIES if one.name == name and not one.is_legal):
        table = opened(SPECS[name], each.party)
        before = standing(table)
        assert table.receive(frame(each.body, number=5), 0.1, each.source) == [], each
        assert table.num_refused_frames == 1, each
        assert table.sessions[1].statistics.num_refused_frames == 1, each
        assert standing(table) == before, each


@pytest.mark.parametrize("name", SPECS)
def test_what_an_honest_party_sends_is_taken(name: str) -> None:
    for each in (one for one in TRIES if one.name == name and one.is_legal):
        table = opened(SPECS[name], each.party)
        spec = SPECS[name]
        if name == "greedy" and each.source == "cloud" and isinstance(each.body, Verdict | ListRequest):
            table.sessions[1].log.decider = "cloud"
        view = 1 if isinstance(each.body, Resync) else 0
        table.receive(frame(each.body, view=view, number=5), 0.1, each.source)
        assert table.num_refused_frames == 0, each
        assert isinstance(each.body, Verdict) == (_tokens(table) == [1]), each
        assert type(each.body) in Routes(spec, each.source).rights


def _tokens(table: CoordinatorTable) -> list[int]:
    return table.sessions[1].prefix.tokens if 1 in table.sessions else []


# ---- forms ---------------------------------------------------------------------------------------------------------

SPECULATIVE = SPECS["speculative"]
NAMED_SPEC = make_spec(mode="speculative", num_logprobs=2, vocab_size=8)
FEDERATED = make_spec(mode="federated", weights=(0.5, 0.5))
BY_DOCUMENTS = make_spec(mode="federated", workers=("ada", "ben"))
ASKED_AT_ADA = change_spec(BY_DOCUMENTS, home="ada")
DUAL = make_spec(placement="device")
DRAFT = make_bodies(SPECS["mirror"], "cloud")[PROPOSAL]
FOLLOWED = make_bodies(SPECS["federated, lists"], "ada")[VOTE]
DECIDED = make_bodies(SPECULATIVE, "cloud")[Verdict]
PAIR_VERDICT = make_bodies(DUAL, "cloud")[Verdict]
IDS, ONE_VOTE = vote(), vote((), (), payloads=(b"",))
RELAYED_SOURCES = Sources(ids=("7f",), retrieve_us=1, prefill_us=1, notes=(), party=2)
TOLD = Tail(lost=(2,), last_voters=(2,))
TOLD_VERDICT = Verdict(step=0, tokens=(1,), accepted=(1,), acceptance=(), next_decider=0, tail=(TOLD,))


def change(body: LinkBody, **values: Any) -> LinkBody:
    return replace(body, **values)


def known(*top: tuple[int, float], logprob: float = -1.0) -> Logprobs:
    ids, logprobs = zip(*top, strict=True) if top else ((), ())
    return Logprobs(logprob=logprob, top_ids=ids, top_logprobs=logprobs)


def with_logprobs(*logprobs: Logprobs) -> LinkBody:
    return change(DECIDED, tail=(Tail(logprobs=logprobs),))


FORMS: list[tuple[str, str, SessionSpec, LinkBody, str]] = [
    ("device", "cloud", SPECS["mirror"], change(DRAFT, log_weights=(nan,)),
     "cloud sent a log weight of nan, which must be finite or -inf; check its version."),
    ("server", "ada", SPECS["federated, lists"], change(FOLLOWED, log_weights=(inf,)),
     "ada sent a log weight of inf, which must be finite or -inf; check its version."),
    ("server", "ada", SPECS["federated, lists"],
     change(FOLLOWED, tokens=(1,) * 17, payloads=(b"x",) * 18, log_weights=(0.0,) * 18),
     "A vote of ada in mode federated has 0 to 16 tokens (got 17); check its settings."),
    ("cloud", "device", SPECULATIVE, change(IDS, tokens=tuple(range(17))),
     "A vote of device in mode speculative has 0 to 16 tokens (got 17); check its settings."),
    ("server", "ada", SPECS["federated, lists"],
     change(FOLLOWED, tokens=(16,), payloads=(b"x",) * 2, log_weights=(0.0,) * 2),
     "ada sent token 16, but the vocabulary has 16 tokens; use the same tokenizer at all parties."),
    ("device", "cloud", SPECULATIVE, change(DECIDED, tokens=(1 << 32,)),
     "cloud sent token 4294967296, but the vocabulary has 262144 tokens; use the same tokenizer at all parties."),
    ("device", "cloud", SPECULATIVE, change(DECIDED, tokens=(1,) * 65),
     "A verdict in mode speculative has at most 64 tokens (got 65 from cloud); check its version."),
    ("device", "cloud", SPECS["cloud"], change(PAIR_VERDICT, tokens=(1, 2)),
     "A verdict in mode dual has at most 1 token (got 2 from cloud); check its version."),
    ("device", "cloud", SPECS["cloud"], change(PAIR_VERDICT, acceptance=(1, 128)),
     "An expected acceptance is at most 127 (got 128 from cloud); check its version."),
    ("device", "cloud", SPECS["mirror"], ListRequest(step=0, digest=START.digest, depth=0),
     "cloud asked for 0 tokens of a vote; check its version."),
    ("cloud", "device", SPECULATIVE, Resync(decider=1, tokens=(1,) * 65),
     "device sent 65 tokens to be adopted, but an answer has at most 64; check its settings."),
    ("cloud", "device", SPECULATIVE, ONE_VOTE,
     "A vote of device on 0 tokens in mode speculative comes with 0 distributions (got 1); check its version."),
    ("device", "cloud", DUAL, ONE_VOTE,
     "A vote of cloud in mode dual has 1 token (got 0); check its settings."),
    ("cloud", "device", SPECS["mirror"], change(DRAFT, tokens=(1, 2)),
     "A vote of device in mode dual has 1 token (got 2); check its settings."),
    ("device", "cloud", SPECULATIVE, change(DECIDED, accepted=(2,)),
     "cloud sent a verdict that accepts more than its tokens; check its version."),
    ("server", "worker-2", FEDERATED, change(ONE_VOTE, payloads=()),
     "A vote of worker-2 on 0 tokens in mode federated comes with 1 distribution (got 0); check its version."),
    ("server", "worker-2", FEDERATED, change(ONE_VOTE, log_weights=(0.0,)),
     "A vote of worker-2 on 0 tokens in mode federated comes with 0 log weights (got 1); check its version."),
    ("server", "ben", BY_DOCUMENTS, ONE_VOTE,
     "A vote of ben on 0 tokens in mode federated comes with 1 log weight (got 0); check its version."),
    ("device", "cloud", SPECULATIVE, IDS,
     "cloud sent a vote, which it may not send the device in mode speculative; check its settings."),
    ("device", "cloud", DUAL, PAIR_VERDICT,
     "cloud sent a verdict, which it may not send the device in mode dual with placement device; check its settings."),
    ("device", "cloud", SPECULATIVE, PAIR_VERDICT,
     "A verdict in mode speculative counts for 1 drafters (got 2 from cloud); check its version."),
    ("device", "cloud", SPECULATIVE, change(DECIDED, tokens=()),
     "cloud sent a verdict without a token; check its version."),
    ("device", "cloud", SPECULATIVE, with_logprobs(known()),
     "cloud sent log probabilities, which this query does not ask of it; check its version."),
    ("cloud", "device", DUAL, change(PAIR_VERDICT, tail=(Tail(logprobs=(known(),)),)),
     "device sent a verdict with 1 tails, which it may not send the cloud in mode dual with placement device; "
     "check its settings."),
    ("ada", "server", ASKED_AT_ADA, change(TOLD_VERDICT, tail=()),
     "server sent a verdict with 0 tails, which it may not send ada in mode federated; check its settings."),
    ("device", "cloud", NAMED_SPEC, change(DECIDED, tail=(Tail(logprobs=(known(),), last_voters=(1,)),)),
     "cloud named the last voters of 1 tokens in a verdict that has 0 of several voters; check its version."),
    ("device", "cloud", NAMED_SPEC, change(DECIDED, tail=(Tail(logprobs=(known(),), lost=(0,)),)),
     "cloud sent word of party 0, which is none behind it; check its settings."),
    ("device", "cloud", SPECULATIVE, change(RELAYED_SOURCES, party=0),
     "cloud sent word of party 0, which is none behind it; check its settings."),
    ("server", "ben", BY_DOCUMENTS, change(RELAYED_SOURCES, party=1),
     "ben sent word of party 1, which is none behind it; check its settings."),
    ("device", "cloud", NAMED_SPEC, with_logprobs(known(), known()),
     "cloud sent log probabilities of 2 tokens in a verdict of 1; check its version."),
    *(
        ("device", "cloud", NAMED_SPEC, with_logprobs(impossible),
         "cloud sent log probabilities that no distribution has, or more than 2 of a step; check its version.")
        for impossible in (
            known((1, -2.0), (2, -2.0), (3, -2.0)),
            known((1, -2.0), (1, -2.0)),
            known((8, -2.0)),
            known((1, -0.1), (2, -0.1)),
            known((1, nan)),
            known((1, -inf)),
            known(logprob=0.1),
            Logprobs(logprob=-1.0, top_ids=(1,), top_logprobs=()),
        )
    ),
    ("cloud", "device", DUAL, change(PAIR_VERDICT, next_decider=1),
     "device hands over to party 1, which does not decide in mode dual; check its settings."),
    *(
        ("ada", "server", ASKED_AT_ADA, body,
         f"server sent word of party {number}, which is none behind it; check its settings.")
        for body, number in (
            (change(RELAYED_SOURCES, party=1), 1),
            (change(RELAYED_SOURCES, party=3), 3),
            (change(TOLD_VERDICT, tail=(replace(TOLD, lost=(1,)),)), 1),
        )
    ),
    ("ada", "server", ASKED_AT_ADA, change(TOLD_VERDICT, tail=(replace(TOLD, last_voters=()),)),
     "server named the last voters of 0 tokens in a verdict that has 1 of several voters; check its version."),
    ("ada", "server", ASKED_AT_ADA, change(TOLD_VERDICT, tail=(replace(TOLD, last_voters=(3,)),)),
     "server named party 3, which there is not; check its version."),
    ("ada", "server", ASKED_AT_ADA, change(TOLD_VERDICT, tail=(replace(TOLD, logprobs=(known(),)),)),
     "server sent log probabilities, which this query does not ask of it; check its version."),
]  # fmt: skip


@pytest.mark.parametrize(("party", "source", "spec", "body", "sentence"), FORMS)
def test_a_form_that_no_honest_party_sends_is_refused_in_one_sentence(
    party: str,
    source: str,
    spec: SessionSpec,
    body: LinkBody,
    sentence: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    table = opened(spec, party)
    before = standing(table)
    assert table.receive(frame(body, view=int(isinstance(body, Resync)), number=5), 0.1, source) == []
    assert standing(table) == before, "nor is it acknowledged"
    assert table.num_refused_frames == table.sessions[1].statistics.num_refused_frames == 1
    assert [record.getMessage() for record in caplog.records] == [
        f"{at_start(party)} refused a frame, 1 so far: {sentence}"
    ]


def test_a_party_without_documents_has_a_weight_of_minus_infinity() -> None:
    device = opened(SPECS["mirror"], "device")
    device.receive(frame(change(DRAFT, log_weights=(-inf,))), 0.1, "cloud")
    assert device.num_refused_frames == 0


def test_who_repeats_what_is_refused_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    table = CoordinatorTable("device", lambda spec: lambda tokens: None)
    table.open(SPECULATIVE, 0.0)
    with caplog.at_level(logging.WARNING, "tandem"):
        for _ in range(100):
            table.receive(frame(with_logprobs(known())), 0.1)
    assert table.num_refused_frames == 100
    assert len(caplog.records) == 7


# ---- mutants -------------------------------------------------------------------------------------------------------


def rights_by_role(patch: pytest.MonkeyPatch) -> None:
    """Whoever may decide may send verdicts: so it was, and a cloud wrote whole answers under `mirror`."""
    original = Routes.rights.func

    def by_role(self: Routes) -> Any:
        peers = self.topology.peers(self.party)
        return {**original(self), Verdict: peers if self.roles.role(self.party).decides else ()}

    patch.setattr(Routes, "rights", property(by_role))


def without_turns(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Routes, "check_turn", lambda *args: None)


def test_a_right_by_role_alone_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    rights_by_role(monkeypatch)
    with pytest.raises(AssertionError):
        test_what_nobody_may_send_is_refused_and_counted_and_changes_nothing("mirror")


@pytest.mark.parametrize(
    "title",
    [
        "A step is decided by the party whose turn it is",
        "A verdict before its turn waits, and is refused if the turn went to another",
        "A request for more of a vote keeps to turns",
    ],
)
def test_a_right_without_a_turn_is_found(title: str, monkeypatch: pytest.MonkeyPatch) -> None:
    without_turns(monkeypatch)
    story = STORIES[f"deciding: {title}"]
    assert play(story) != story

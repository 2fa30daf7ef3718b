"""Who may send what: each fault of a role is one sentence, counted, and the session goes on."""

from __future__ import annotations

import logging
import math
from dataclasses import replace

import pytest

from tandem.messages import (
    Cancel,
    LinkBody,
    LinkFrame,
    Logprobs,
    Open,
    Proposal,
    Resync,
    Sources,
    Tail,
    Verdict,
    Votes,
)
from tandem.modes.spec import SessionSpec
from tandem.protocol.prefix import Prefix
from tandem.protocol.session_tables import CoordinatorTable
from tandem_lab.simulation.specs import change_spec, make_spec

DIGEST = Prefix(1).digest
VOTES = Votes(party=0, step=0, digests=(DIGEST,), payloads=(b"",), log_weights=())
IDS = Proposal(party=0, step=0, digest=DIGEST, tokens=(1,), payloads=(), log_weights=(), decode_us=0)
DRAFT = replace(IDS, payloads=(b"x",), log_weights=(0.0,))
VERDICT = Verdict(step=0, tokens=(1,), accepted=(1,), acceptance=(), next_decider=1)
PAIR_VERDICT = replace(VERDICT, accepted=(1, 1), acceptance=(1, 1), next_decider=0)
SPECULATIVE = make_spec(mode="speculative")
NAMED = make_spec(mode="speculative", num_logprobs=2, vocab_size=8)
FEDERATED = make_spec(mode="federated", weights=(0.5, 0.5))
BY_DOCUMENTS = make_spec(mode="federated", workers=("ada", "ben"))
DUAL = make_spec(placement="device")
ASKED_AT_ADA = change_spec(BY_DOCUMENTS, home="ada")
RELAYED = Sources(ids=("7f",), retrieve_us=1, prefill_us=1, notes=(), party=2)
TOLD = Tail(lost=(2,), last_voters=(2,))
TO_HOME = replace(VERDICT, next_decider=0, tail=(TOLD,))


def known(*top: tuple[int, float], logprob: float = -1.0) -> Logprobs:
    ids, logprobs = zip(*top, strict=True) if top else ((), ())
    return Logprobs(logprob=logprob, top_ids=ids, top_logprobs=logprobs)


def with_logprobs(*logprobs: Logprobs, accepted: tuple[int, ...] = (1,)) -> Verdict:
    return replace(VERDICT, accepted=accepted, tail=(Tail(logprobs=logprobs),))


def frame(body: LinkBody) -> LinkFrame:
    return LinkFrame(
        session=1, view=0, number=1, committed=0, committed_digest=DIGEST, stamp=1, echo=0,
        held_us=0, body=body,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("party", "source", "spec", "body", "sentence"),
    [
        (
            "cloud", "device", SPECULATIVE, VOTES,
            "device sent votes, which it may not send the cloud in mode speculative; "
            "check its settings.",
        ),
        (
            "device", "cloud", DUAL, replace(VOTES, party=1),
            "cloud sent votes, which it may not send the device in mode dual with placement device; "
            "check its settings.",
        ),
        (
            "device", "cloud", SPECULATIVE, replace(VERDICT, accepted=(2,)),
            "cloud sent a verdict that accepts more than its tokens; check its version.",
        ),
        (
            "server", "worker-2", FEDERATED, replace(VOTES, party=1),
            "worker-2 sent votes of party 1; check its settings.",
        ),
        (
            "server", "worker-2", FEDERATED, replace(VOTES, party=2, payloads=()),
            "worker-2 sent 0 votes on 1 prefixes; check its version.",
        ),
        (
            "server", "worker-2", FEDERATED, replace(VOTES, party=2, log_weights=(0.0,)),
            "worker-2 sent 1 log weights with 1 votes, of which this query has 0; check its version.",
        ),
        (
            "server", "ben", BY_DOCUMENTS, replace(VOTES, party=2),
            "ben sent 0 log weights with 1 votes, of which this query has 1; check its version.",
        ),
        (
            "cloud", "device", SPECULATIVE, replace(IDS, tokens=tuple(range(17))),
            "A proposal in mode speculative has 0 to 16 tokens (got 17 from device); check its settings.",
        ),
        (
            "cloud", "device", make_spec(placement="mirror"), replace(DRAFT, tokens=(1, 2)),
            "A proposal in mode dual has 1 token (got 2 from device); check its settings.",
        ),
        (
            "cloud", "device", SPECULATIVE, DRAFT,
            "A proposal of 1 token in mode speculative comes with 0 distributions (got 1 from device); "
            "check its version.",
        ),
        (
            "device", "cloud", SPECULATIVE, replace(IDS, party=1),
            "cloud sent a proposal, which it may not send the device in mode speculative; "
            "check its settings.",
        ),
        (
            "device", "cloud", DUAL, DRAFT,
            "cloud sent a proposal of party 0; check its settings.",
        ),
        (
            "cloud", "device", SPECULATIVE, VERDICT,
            "device sent a verdict, which it may not send the cloud in mode speculative; "
            "check its settings.",
        ),
        (
            "device", "cloud", DUAL, PAIR_VERDICT,
            "cloud sent a verdict, which it may not send the device in mode dual with placement device; "
            "check its settings.",
        ),
        (
            "device", "cloud", SPECULATIVE, PAIR_VERDICT,
            "A verdict in mode speculative counts for 1 drafters (got 2 from cloud); check its version.",
        ),
        (
            "device", "cloud", SPECULATIVE, replace(VERDICT, tokens=()),
            "cloud sent a verdict without a token; check its version.",
        ),
        (
            "device", "cloud", SPECULATIVE, with_logprobs(known()),
            "cloud sent log probabilities, which this query does not ask of it; check its version.",
        ),
        (
            "cloud", "device", replace(DUAL, num_logprobs=2), with_logprobs(known(), accepted=(1, 1)),
            "device sent a verdict with 1 tails, which it may not send the cloud in mode dual with placement device; "
            "check its settings.",
        ),
        (
            "ada", "server", ASKED_AT_ADA, replace(TO_HOME, tail=()),
            "server sent a verdict with 0 tails, which it may not send ada in mode federated; check its settings.",
        ),
        (
            "device", "cloud", NAMED, replace(with_logprobs(known()), tail=(Tail(logprobs=(known(),)),) * 2),
            "cloud sent a verdict with 2 tails, which it may not send the device in mode speculative; check its "
            "settings.",
        ),
        (
            "device", "cloud", NAMED, replace(VERDICT, tail=(Tail(logprobs=(known(),), last_voters=(1,)),)),
            "cloud named the last voters of 1 tokens in a verdict that has 0 of several voters; check its version.",
        ),
        (
            "device", "cloud", NAMED, replace(VERDICT, tail=(Tail(logprobs=(known(),), lost=(0,)),)),
            "cloud sent word of party 0, which is none behind it; check its settings.",
        ),
        (
            "device", "cloud", SPECULATIVE, replace(RELAYED, party=0),
            "cloud sent word of party 0, which is none behind it; check its settings.",
        ),
        (
            "server", "ben", BY_DOCUMENTS, replace(RELAYED, party=1),
            "ben sent word of party 1, which is none behind it; check its settings.",
        ),
        (
            "device", "cloud", NAMED, with_logprobs(known(), known()),
            "cloud sent log probabilities of 2 tokens in a verdict of 1; check its version.",
        ),
        *(
            (
                "device", "cloud", NAMED, with_logprobs(impossible),
                "cloud sent log probabilities that no distribution has, or more than 2 of a step; check its version.",
            )
            for impossible in (
                known((1, -2.0), (2, -2.0), (3, -2.0)),
                known((1, -2.0), (1, -2.0)),
                known((8, -2.0)),
                known((1, -0.1), (2, -0.1)),
                known((1, math.nan)),
                known((1, -math.inf)),
                known(logprob=0.1),
                Logprobs(logprob=-1.0, top_ids=(1,), top_logprobs=()),
            )
        ),
        (
            "cloud", "device", DUAL, replace(PAIR_VERDICT, next_decider=1),
            "device hands over to party 1, which does not decide in mode dual; check its settings.",
        ),
        (
            "device", "cloud", DUAL, Resync(decider=0, tokens=()),
            "cloud sent tokens to be adopted, which it may not send the device in mode dual with placement device; "
            "check its settings.",
        ),
        *(
            (
                party, source, ASKED_AT_ADA, body,
                f"{source} sent word of party {number}, which is none behind it; check its settings.",
            )
            for party, source, body, number in (
                ("ada", "server", replace(RELAYED, party=1), 1),
                ("ada", "server", replace(RELAYED, party=3), 3),
                ("ada", "server", replace(TO_HOME, tail=(replace(TOLD, lost=(1,)),)), 1),
            )
        ),
        (
            "ada", "server", ASKED_AT_ADA, replace(TO_HOME, tail=(replace(TOLD, last_voters=()),)),
            "server named the last voters of 0 tokens in a verdict that has 1 of several voters; check its version.",
        ),
        (
            "ada", "server", ASKED_AT_ADA, replace(TO_HOME, tail=(replace(TOLD, last_voters=(3,)),)),
            "server named party 3, which there is not; check its version.",
        ),
        (
            "ada", "server", ASKED_AT_ADA, replace(TO_HOME, tail=(replace(TOLD, logprobs=(known(),)),)),
            "server sent log probabilities, which this query does not ask of it; check its version.",
        ),
    ],
)  # fmt: skip
def test_what_a_role_does_not_allow_is_refused_counted_and_survived(
    party: str,
    source: str,
    spec: SessionSpec,
    body: LinkBody,
    sentence: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    table = CoordinatorTable(party, lambda spec: lambda tokens: None)
    table.open(spec, 0.0)
    session = table.sessions[1]
    with caplog.at_level(logging.WARNING, "tandem"):
        assert table.receive(frame(body), 0.1, source) == []
    assert [record.getMessage() for record in caplog.records] == [
        f"The {party} refused a frame, 1 so far: {sentence}"
    ]
    assert table.num_refused_frames == session.lifecycle.statistics.num_refused_frames == 1
    assert session.links[source].receipts.numbers == [], "not acknowledged"
    assert not any(session.ballots.entries.values())
    assert not session.lifecycle.is_over


def test_who_repeats_what_is_refused_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    table = CoordinatorTable("device", lambda spec: lambda tokens: None)
    table.open(SPECULATIVE, 0.0)
    with caplog.at_level(logging.WARNING, "tandem"):
        for _ in range(100):
            table.receive(frame(with_logprobs(known())), 0.1)
    assert table.num_refused_frames == 100
    assert len(caplog.records) == 7


def test_log_probabilities_that_were_asked_for_reach_the_client() -> None:
    table = CoordinatorTable("device", lambda spec: lambda tokens: None)
    table.open(NAMED, 0.0)
    sends = table.receive(frame(with_logprobs(known((7, -0.5), (1, -1.0)))), 0.1)
    (event,) = [send.message.event for send in sends if send.to == "client"]
    assert (event.logprob.token, event.logprob.logprob) == (1, -1.0)
    assert [(top.token, top.logprob) for top in event.top_logprobs] == [(7, -0.5), (1, -1.0)]


def test_a_role_that_is_allowed_goes_through() -> None:
    """What the mode allows is taken in by the same session that refused something."""
    table = CoordinatorTable("cloud", lambda spec: lambda tokens: None)
    table.open(SPECULATIVE, 0.0)
    table.receive(frame(VOTES), 0.1)
    table.receive(frame(replace(IDS, tokens=tuple(range(16)))), 0.2)
    session = table.sessions[1]
    assert len(session.ballots.entries["device"]) == 16
    assert session.links["device"].receipts.numbers == [1]


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (
            replace(FEDERATED, weights=(0.5, 0.4)).to_json(),
            "The weights of the voters have sum 1 (got 0.5, 0.4); scale them.",
        ),
        (
            DUAL.to_json().replace('"placement"', '"mode":"triple","placement"'),
            "The spec of a session is malformed at its settings ('The setting mode must be one of dual, ",
        ),
    ],
)
def test_a_query_that_no_mode_allows_is_refused_where_it_is_opened(spec: str, sentence: str) -> None:
    table = CoordinatorTable("worker-1", lambda spec: lambda tokens: None)
    (refusal,) = table.receive(frame(Open(spec=spec)), 0.1, "server")
    assert isinstance(refusal.message.body, Cancel)
    assert refusal.message.body.reason.startswith(sentence)
    assert table.num_refused == 1


def test_a_verdict_of_the_lost_peer_does_not_count_after_the_device_went_on_alone() -> None:
    """It decides a step after one that the device now decides itself, so it may rest on other tokens."""
    table = CoordinatorTable("device", lambda spec: lambda tokens: None)
    table.open(make_spec(placement="cloud", on_peer_loss="continue", peer_loss_margin_s=0.1), 0.0)
    late = replace(PAIR_VERDICT, step=1, tokens=(9,), next_decider=1)
    table.receive(frame(late), 0.1)
    session = table.sessions[1]
    assert len(session.log.verdicts) == 1
    table.tick(5.0)
    assert session.lifecycle.lost == {"cloud"}
    assert not session.log.verdicts

"""Log probabilities of a whole run of both parties' machines are those of the draft-free loop, and alter nothing."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from tandem.errors import ConfigError
from tandem.events import TokenEvent
from tandem.modes import SessionSpec, reference_shaping
from tandem.topology import PARTIES, Party
from tandem_lab.simulation import specs
from tandem_lab.simulation.link import Link
from tandem_lab.simulation.oracle import WorldVoter
from tandem_lab.simulation.virtual import Outcome, VirtualRun
from tandem_lab.simulation.world import CODEC, NEVER, VOCAB, World, codec_for, stop_rule

LISTS = {"vocab_size": VOCAB, "race_depth": 2}
WHOLE = {"vocab_size": VOCAB}
NUM_TOKENS = 12
SLOW_LINK = Link(delay_s=0.05, jitter_s=0.05, drop=0.1)


def make_spec(seed: int, **changes: Any) -> SessionSpec:
    basis = {"placement": "mirror", "temperature": 1.0, "max_new_tokens": NUM_TOKENS, "on_peer_loss": "wait"}
    return specs.make_spec(**{"seed": seed, "num_logprobs": VOCAB, **basis, **changes})


def run(spec: SessionSpec, link: Link = SLOW_LINK) -> Outcome:
    return VirtualRun(
        spec,
        {party: World(spec.seed, party, first_end=NEVER, codec=codec_for(spec)) for party in PARTIES},
        CODEC,
        finished=stop_rule(spec.sampling.max_new_tokens, NEVER),
        link=link,
        decode_s=lambda party, rng: rng.expovariate(50),
        seed=spec.seed,
    ).run()


def tokens_of(outcome: Outcome) -> list[TokenEvent]:
    assert outcome.done is not None
    return outcome.of(TokenEvent)


def target_of(spec: SessionSpec, tokens: list[int], voters: tuple[str, ...]) -> list[float]:
    """The target after these tokens, by the draft-free loop."""
    votes = [WorldVoter(spec, Party(party), NEVER)(tokens) for party in voters]
    target = reference_shaping.mix(votes, [1.0] if len(votes) == 1 else None)
    return [mass / math.fsum(target) for mass in target]


def check(spec: SessionSpec, events: list[TokenEvent]) -> None:
    assert len(events) == NUM_TOKENS
    ids = [event.token for event in events]
    for event in events:
        voters = (Party.DEVICE,) if event.is_alone else spec.parties
        target = target_of(spec, ids[: event.step], voters)
        assert event.logprob is not None
        assert event.logprob.token == event.token
        assert event.logprob.logprob == pytest.approx(math.log(target[event.token]), abs=1e-6)
        named = {top.token: math.exp(top.logprob) for top in event.top_logprobs}
        assert named == pytest.approx({token: mass for token, mass in enumerate(target) if mass}, rel=1e-6)
        assert math.fsum(named.values()) == pytest.approx(1.0, abs=1e-9)
        order = [top.logprob for top in event.top_logprobs]
        assert order == sorted(order, reverse=True)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("placement", ["mirror", "device"])
@pytest.mark.parametrize("votes", [LISTS, WHOLE], ids=["lists", "whole"])
def test_all_alternatives_are_the_target_and_the_answer_stays(
    votes: dict[str, Any], placement: str, temperature: float
) -> None:
    for seed in range(3):
        spec = make_spec(seed, placement=placement, temperature=temperature, **votes)
        outcome = run(spec)
        check(spec, tokens_of(outcome))
        without = run(replace(spec, num_logprobs=None))
        assert [event.token for event in tokens_of(without)] == outcome.tokens[Party.DEVICE]
        assert all(event.logprob is None and not event.top_logprobs for event in tokens_of(without))


@pytest.mark.parametrize("votes", [LISTS, WHOLE], ids=["lists", "whole"])
def test_what_is_decided_without_the_cloud_is_of_the_device_alone(votes: dict[str, Any]) -> None:
    spec = make_spec(1, on_peer_loss="continue", peer_loss_margin_s=0.2, **votes)
    events = tokens_of(run(spec, Link(delay_s=0.02, cut_s=(0.0, 60.0))))
    assert all(event.is_alone for event in events)
    check(spec, events)


def test_one_party_alone_names_its_own_distribution() -> None:
    spec = make_spec(2, only="device", **LISTS)
    check(spec, tokens_of(run(spec)))


@pytest.mark.parametrize(
    ("changes", "cause", "remedy"),
    [
        ({"placement": "cloud"}, 'placement "cloud"', 'set placement to "mirror" or "device"'),
        ({"placement": "greedy"}, 'placement "greedy"', 'set placement to "mirror" or "device"'),
        (
            {
                "mode": "federated",
                "workers": ("alice", "bob"),
                "weights": (0.5, 0.5),
                "race_depth": 8,
                "vocab_size": 1 << 17,
            },
            "2 workers",
            "lower max_proposal",
        ),
    ],
)
def test_where_the_home_knows_no_target_they_are_refused(
    changes: dict[str, Any], cause: str, remedy: str
) -> None:
    with pytest.raises(ConfigError, match="num_logprobs") as raised:
        make_spec(0, **changes).rules.check_logprobs()
    assert cause in str(raised.value)
    assert remedy in str(raised.value)
    make_spec(0, **{**changes, "num_logprobs": None}).rules.check_logprobs()

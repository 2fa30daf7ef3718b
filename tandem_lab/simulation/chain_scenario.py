"""Speculative and federated queries, their faults and their answers: all that a seed says of a run."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Literal

import numpy as np

from tandem.aggregation.coupling import noise
from tandem.codecs.token import TargetLogprobs, log_probabilities
from tandem.events import PeerEvent
from tandem.modes import reference
from tandem.modes.proposing import MAX_PROPOSAL
from tandem.modes.spec import SessionSpec
from tandem.protocol.session import StopCheck
from tandem.scheduler.lengths import load_length_policy
from tandem_lab.simulation.oracle import WorldVoter
from tandem_lab.simulation.specs import change_spec, make_spec, vary_layouts
from tandem_lab.simulation.world import CODEC, NEVER, VOCAB, number, stop_rule

NUM_TOKENS = 24
DRAFTERS = ("good", "garbage", "n-gram", "replaced")

Drafter = Callable[[tuple[int, ...]], bytes]
"""The drafter's encoded distribution after some tokens."""
WILD = "tandem_lab.simulation.wild_lengths:WildLengths"
QS = ("tandem.papers.qs:LastAccepted", "tandem.papers.qs:DoubleDqn")
for _policy in (WILD, *QS):
    load_length_policy(_policy, {}, "The simulator")

ChainFaultKind = Literal["stall", "crash", "models", "aggregator", "cut"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainFault:
    """What goes wrong at one party.

    stall: it stands still. crash: it loses all that it knew, and asks for a Resync when it is back. models: its decoder
    is restarted. aggregator: so is that. cut: nothing passes between it and the hub.
    """

    kind: ChainFaultKind
    party: str
    at_s: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainScenario:
    """All that is drawn from a seed."""

    seed: int
    spec: SessionSpec
    drafter: str
    first_end: int
    model_s: dict[str, float]  # mean time of a pass, by party
    faults: tuple[ChainFault, ...]
    cancel_s: float | None  # when the user gives the query up
    is_recomputing: bool  # decoders are restarted all the time, and compute again what they have said

    @property
    def check_stop(self) -> StopCheck:
        """Why an answer is complete."""
        return stop_rule(self.spec.sampling.max_new_tokens, self.first_end)


def make_chain_scenario(seed: int, num_workers: int) -> ChainScenario:
    """num_workers: of federated mode; 0 is speculative."""
    rng = random.Random(number("chain", seed, num_workers))
    masses = [rng.choice([0.0, 0.5, 1.0, 2.0]) + 0.1 for _ in range(num_workers)]
    spec = make_spec(
        session=seed + 1,
        seed=seed,
        mode="federated" if num_workers else "speculative",
        device_documents=0,
        cloud_documents=0,
        weights=tuple(mass / sum(masses) for mass in masses),
        temperature=rng.choice([0.0, 1.0, 1.0]),
        max_new_tokens=NUM_TOKENS,
        on_peer_loss=rng.choice(["wait", "continue", "continue"]),
        peer_loss_margin_s=rng.choice([0.1, 1.0]),
        max_proposal=rng.choice([0, 1, 2, 5, MAX_PROPOSAL]),
        max_window=rng.choice([1, 4, 16, 32]),
        pacing=rng.choice(["stop_and_wait", "pipelined", "cloud_goes_on"]),
    )
    spec = change_spec(spec, length_policy=_pick_policy(seed, spec.decoding.pacing))
    budget = 0 if num_workers else _pick_budget(seed)
    spec = _vary_votes(spec, seed) if num_workers else change_spec(spec, uplink_budget_bits=budget)
    parties = spec.roles.topology.parties
    faults = tuple(_plan_fault(rng, parties) for _ in range(rng.choice([0, 1, 2, 4])))
    # What a Resync rolls back is computed again in any case.
    may_recompute = not any(fault.kind in ("crash", "cut", "stall") for fault in faults)
    scenario = ChainScenario(
        seed=seed,
        spec=spec,
        drafter=rng.choice(DRAFTERS),
        first_end=rng.choice([NEVER, 12]),
        model_s={party: rng.choice([0.003, 0.03, 0.1]) for party in parties},
        faults=faults,
        cancel_s=3.0 * rng.random() if rng.random() < 0.05 else None,
        is_recomputing=may_recompute and rng.random() < 0.5,
    )
    return _move_home(scenario) if num_workers else scenario


def _move_home(scenario: ChainScenario) -> ChainScenario:
    """Half of the federated queries are asked at a worker. Drawn apart, so that recorded seeds keep the rest.

    The coordinator that holds the user's answer does not crash: with it the query is gone. The server may where the
    home continues without it.
    """
    rng = random.Random(number("home", scenario.seed))
    spec, server = scenario.spec, scenario.spec.roles.topology.authority
    home = rng.choice(spec.roles.voters)
    if rng.random() < 0.5:
        return scenario
    may_crash = spec.on_peer_loss == "continue" and rng.random() < 0.5
    elsewhere = server if may_crash else next(name for name in spec.roles.voters if name != home)
    faults = tuple(
        replace(fault, party=elsewhere) if (fault.kind, fault.party) == ("crash", home) else fault
        for fault in scenario.faults
    )
    return replace(scenario, spec=change_spec(spec, workers=spec.roles.voters, home=home), faults=faults)


def _vary_votes(spec: SessionSpec, seed: int) -> SessionSpec:
    """What votes of a federated query depend on, and how they travel. Drawn apart, as all that came later is."""
    rng = random.Random(number("votes", seed))
    workers = spec.roles.voters
    has_documents, is_weighed, is_listed = rng.random() < 0.6, rng.random() < 0.8, rng.random() < 0.5
    if has_documents:
        spec = replace(
            spec,
            documents={worker: rng.choice([0, 2, 3]) for worker in workers},
            question_weight=rng.choice([0.0, 1.0, 0.5]),
            evidence_weight=rng.choice([0.0, 1.0, 1.0]),
            evidence_memory=rng.choice([0.5, 1.0]),
        )
        spec = vary_layouts(spec, seed)
        if is_weighed:
            spec = replace(spec, workers=workers, weights=())
    if is_listed:
        spec = replace(spec, race_depth=rng.choice([1, 2, 3]), vocab_size=VOCAB)
    return spec


def _pick_policy(seed: int, pacing: str) -> str:
    """How lengths of proposals are chosen; "wild" may be any each time."""
    policies = ["fixed", "best", "wild"]
    if pacing != "cloud_goes_on":
        policies += QS
    policy = random.Random(number("lengths", seed)).choice(policies)
    return WILD if policy == "wild" else policy


def _pick_budget(seed: int) -> int:
    """Bits of a proposal: mostly without limit, else of no id, of one or of four."""
    return random.Random(number("budget", seed)).choice([0, 0, 0, 0, 0, 16, 24, 100])


def _plan_fault(rng: random.Random, parties: Sequence[str]) -> ChainFault:
    kinds: tuple[ChainFaultKind, ...] = ("stall", "crash", "crash", "models", "aggregator", "cut", "cut")
    kind = rng.choice(kinds)
    # The home's coordinator holds the user's answer: with it the query is gone.
    party = rng.choice(parties[1:] if kind in ("crash", "cut") else parties)
    seconds = rng.choice([0.0, 0.3, 3.0, 8.0]) * rng.random()
    return ChainFault(kind=kind, party=party, at_s=2.5 * rng.random(), seconds=seconds)


# ---- models ----------------------------------------------------------------------------------------------------


def voter_of(scenario: ChainScenario, party: str) -> WorldVoter:
    """What a voter says, as a function of the tokens."""
    return _voter(scenario.spec, party, scenario.first_end)


@lru_cache(maxsize=64)
def _voter(spec: SessionSpec, party: str, first_end: int) -> WorldVoter:
    return WorldVoter(spec, party, first_end)


def draft_from(scenario: ChainScenario, payload: bytes, step: int) -> int:
    """The token that an encoded distribution gives: the winner of the race, or the most probable one."""
    is_greedy = scenario.spec.sampling.temperature == 0
    return _draw(payload, None if is_greedy else scenario.seed, step)


def logprobs_of(spec: SessionSpec, party: str, payload: bytes, token: int) -> TargetLogprobs | None:
    """What `party` says beside a token of an encoded distribution."""
    if spec.num_logprobs is None or not spec.rules.names_logprobs(party):
        return None
    return log_probabilities(CODEC.decode(payload), token, spec.num_logprobs)


@lru_cache(maxsize=10_000)
def _draw(payload: bytes, seed: int | None, step: int) -> int:
    dense = CODEC.decode(payload).dense(VOCAB)
    return int(np.argmax(dense / (1.0 if seed is None else noise(seed, step, np.arange(VOCAB)))))


def make_drafter(scenario: ChainScenario) -> Drafter:
    """good: a voter's own distribution; garbage: any token; n-gram: what followed the last token before;
    replaced: one after another in the middle of the session."""
    good_like = scenario.spec.roles.voters[-1]

    def guess(tokens: tuple[int, ...]) -> bytes:
        return voter_of(scenario, good_like).payload(tokens, codec=CODEC)

    def garbage(tokens: tuple[int, ...]) -> bytes:
        return certain(number("garbage", scenario.seed, tokens) % VOCAB)

    def repeat(tokens: tuple[int, ...]) -> bytes:
        before = [after for token, after in pairwise(tokens) if token == tokens[-1]]
        return certain(before[-1] if before else 0)

    kinds: dict[str, Drafter] = {"good": guess, "garbage": garbage, "n-gram": repeat}
    if scenario.drafter != "replaced":
        return kinds[scenario.drafter]
    return lambda tokens: (guess, garbage, repeat)[len(tokens) // 6 % 3](tokens)


@lru_cache(maxsize=VOCAB)
def certain(token: int) -> bytes:
    """The encoded distribution that gives this token."""
    return CODEC.encode(np.eye(VOCAB)[token])


# ---- the answer ------------------------------------------------------------------------------------------------


def expected_chain(scenario: ChainScenario, events: Sequence[PeerEvent] = ()) -> list[int]:
    """The draft-free loop of the mode. events: who was lost and came back, as the home logged it."""

    draft = make_drafter(scenario)

    def drafter(tokens: Sequence[int]) -> reference.Vote:
        return reference.Vote([float(p) for p in CODEC.decode(draft(tuple(tokens))).dense(VOCAB)])

    spec, names = scenario.spec, scenario.spec.roles.voters
    voters = [voter_of(scenario, name) for name in names]
    weights = None if spec.roles.weighs_by_documents else spec.weights or (1.0,)
    seed = scenario.seed if spec.sampling.temperature > 0 else None

    def is_complete(tokens: Sequence[int]) -> bool:
        return bool(tokens) and scenario.check_stop(tokens) is not None

    def present(step: int) -> list[int]:
        lost = {event.party: event.is_alone for event in events if event.step <= step}
        if lost.get(spec.roles.topology.authority, False):  # the home continues alone
            return [names.index(spec.home)]
        return [number for number, name in enumerate(names) if not lost.get(name, False)]

    if events:
        return reference.answer_with_losses(voters, weights, drafter, present, is_complete, seed)
    if spec.decoding.mode == "speculative":
        return reference.speculative(voters[0], is_complete, seed)
    return reference.federated(voters, weights, is_complete, seed)

"""All that a seed says of a run: the query, the links, the models, what goes wrong; and the answer that must come out.

What came to scenarios later is drawn from a generator of its own, so that recorded seeds keep the rest.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from tandem.aggregation.document_weights import Weights
from tandem.aggregation.rules import LOTTERY
from tandem.events import PeerEvent
from tandem.modes import SessionSpec, reference, reference_shaping
from tandem.modes.mode import MAX_PROPOSAL
from tandem.protocol.routes import ActorKind
from tandem.protocol.session import StopCheck
from tandem.scheduler import load_length_policy
from tandem.topology import PARTIES, Party
from tandem_lab.simulation.link import Link, Wire
from tandem_lab.simulation.oracle import WorldVoter, dense_of
from tandem_lab.simulation.specs import change_spec, make_spec, vary_layouts
from tandem_lab.simulation.world import EOS, NEVER, VOCAB, World, codec_for, number, stop_rule

MIN_TOKENS = 16
"""Committed tokens of any run in mode dual, at least."""
NUM_TOKENS = 24
"""Of an answer in the other modes, at most."""
PATIENCE = 0.4
"""Share of the dual queries that the device or both parties decide whose steps wait for a limited time."""
RACE_LISTS = 0.4
"""Share of the dual queries with coupled drafts whose votes are race lists."""
FIRST_FRAMES = 14
"""Frames of a direction among which faults are planted one by one: any run sends more."""
HELD_S = 0.4
"""How long a frame is held back, and how far two copies of it lie apart, at most."""
STATELESS: tuple[ActorKind, ...] = ("aggregator", "profiler", "scheduler")
"""Actors whose crash should cost next to nothing."""
DRAFTERS = ("good", "garbage", "n-gram", "replaced")

FrameFault = Literal["drop", "duplicate", "hold"]
FaultKind = Literal["stall", "cut", "host"] | ActorKind
Drafter = Callable[[tuple[int, ...]], bytes]
"""The encoded distribution of a drafter without a vote after some tokens."""


class WildLengths:
    """A `LengthPolicy`: from 0 to beyond the limit, in no order, to show that no choice changes an answer."""

    def __init__(self, max_length: int, seed: int | None = None) -> None:
        self._rng, self._max_length = random.Random(max_length if seed is None else seed), max_length

    def choose(self) -> int:
        """Each as often as the others."""
        return self._rng.randint(-1, self._max_length + 3)

    def observe(self, length: int, num_accepted: int, draft_s: float) -> None:
        """Nothing to learn."""


WILD = f"{__name__}:WildLengths"
for _policy in (WILD, "last_accepted"):
    load_length_policy(_policy, {}, "The simulator")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What goes wrong at one party.

    stall: everything there stands still. cut: nothing passes between it and the others. host: all its actors lose what
    they knew. Or the one actor that does.
    """

    kind: FaultKind
    party: str
    at_step: int = 0  # when the home has committed so many tokens
    after_s: float  # and so much later
    seconds: float  # how long it lasts


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """All that is drawn from a seed."""

    seed: int
    spec: SessionSpec
    link: Link
    frames: Mapping[tuple[str, str], Mapping[int, FrameFault]] = field(
        default_factory=dict
    )  # by sender and receiver, and number
    faults: tuple[Fault, ...] = ()
    first_end: int  # no end-of-sequence and no stop pattern up to so many tokens
    model_s: Mapping[str, float]  # by party: mean of an exponential distribution
    hop_jitter_s: float = 0.0  # messages within a site overtake each other
    hop_loss: float = 0.0  # and get lost, with this probability
    is_rounding: bool = False  # a decoder that was restarted computes old distributions a little otherwise
    slips: Mapping[int, int] = field(default_factory=dict)  # by step: how far the cloud's token is off
    drafter: str = "good"  # one without a vote
    restarts: float = 0.0  # share of the passes after which a decoder is restarted
    abandons: bool = True  # passes that nobody wants any more
    cancel_s: float | None = None  # when the user gives the query up

    @property
    def check_stop(self) -> StopCheck:
        """Why an answer is complete."""
        return stop_rule(self.spec.sampling.max_new_tokens, self.first_end)

    @property
    def is_dual(self) -> bool:
        """Whether all parties draft and vote, or one alone."""
        return self.spec.roles.drafters == self.spec.roles.voters

    def make_models(self, *, is_rounding: bool) -> dict[str, World]:
        """What each party retrieves and says."""
        voters = PARTIES if self.is_dual else self.spec.roles.voters
        models: dict[str, World] = {
            party: World(
                self.seed,
                party,
                first_end=self.first_end,
                is_rounding=is_rounding,
                codec=codec_for(self.spec),
            )
            for party in voters
        }
        rest = [] if self.is_dual else [party for party in self.spec.parties if party not in voters]
        return models | {party: ScriptedDrafter(self.seed, party, make_drafter(self)) for party in rest}

    def decode_s(self, party: str, rng: random.Random) -> float:
        """How long a model's next job takes; a drafter without a vote is quick."""
        role = self.spec.roles.role(party)
        return rng.expovariate(1 / self.model_s[party]) / (4 if role.drafts and not role.votes else 1)


# ---- links and faults ------------------------------------------------------------------------------------------------


class FaultyWire(Wire):
    """One direction of a link that meddles with chosen frames too, and counts what became of all."""

    def __init__(self, link: Link, planted: Mapping[int, FrameFault]) -> None:
        """planted: by the number of the frame in this direction, from 0."""
        super().__init__(link)
        self.counts: Counter[str] = Counter()
        self._planted = planted
        self._num_frames = 0
        self._latest_s = 0.0

    def arrivals(self, now_s: float, num_bytes: int, rng: random.Random) -> list[float]:
        """When copies of a frame sent now arrive; none if it is lost."""
        found = super().arrivals(now_s, num_bytes, rng)
        match self._planted.get(self._num_frames):
            case "drop":
                found = []
            case "duplicate":
                found += [arrival_s + HELD_S * rng.random() for arrival_s in found]
            case "hold":
                self.counts["held"] += len(found)
                found = [arrival_s + HELD_S * rng.random() for arrival_s in found]
            case None:
                pass
        self._num_frames += 1
        self.counts["dropped"] += not found
        self.counts["duplicated"] += max(0, len(found) - 1)
        for arrival_s in found:
            self.counts["reordered"] += arrival_s < self._latest_s
            self._latest_s = max(self._latest_s, arrival_s)
        return found


def plan_frames(rng: random.Random, most: int) -> dict[int, FrameFault]:
    """One to `most` of the first frames of one direction."""
    kinds: tuple[FrameFault, ...] = ("drop", "duplicate", "hold")
    return {rng.randrange(FIRST_FRAMES): rng.choice(kinds) for _ in range(rng.randint(1, most))}


def plan_link(rng: random.Random) -> Link:
    """A link that delays, and mostly does more than that."""
    start_s = 1.5 * rng.random()
    cut_s = (start_s, start_s + rng.choice([0.3, 2.0, 5.0]) * rng.random()) if rng.random() < 0.15 else None
    return Link(
        delay_s=rng.choice([0.0, 0.0, 0.01, 0.05, 0.15]),
        jitter_s=rng.choice([0.0, 0.02, 0.1, 0.3]),
        drop=rng.choice([0.0, 0.0, 0.05, 0.2]),
        duplicate=rng.choice([0.0, 0.0, 0.1, 0.3]),
        cut_s=cut_s,
        is_in_order=rng.random() < 0.2,
    )


# ---- mode dual -------------------------------------------------------------------------------------------------------


def make_scenario(seed: int) -> Scenario:
    """A dual query whose every dial is drawn from the seed, and at least one fault for it."""
    rng = random.Random(number("fuzz", seed))
    spec = _with_patience(vary_layouts(_with_race_lists(_make_dual_spec(rng, seed), seed), seed), seed)
    link = plan_link(rng)
    is_mirror = spec.decoding.placement == "mirror"
    steps = [rng.randrange(MIN_TOKENS) for _ in range(rng.choice([0, 1, 3, 6]))] if is_mirror else []
    most = rng.choice([0, 1, 2, 4])
    faults = tuple(_plan_dual_fault(rng, spec.sampling.max_new_tokens) for _ in range(rng.randint(0, most)))
    scenario = Scenario(
        seed=seed,
        spec=spec,
        link=link,
        frames={(party, party.other): plan_frames(rng, 4) for party in PARTIES},
        faults=faults,
        slips={step: rng.randrange(1, VOCAB) for step in steps},
        is_rounding=rng.random() < 0.5,
        first_end=rng.choice([NEVER, NEVER, MIN_TOKENS]),
        model_s={party: rng.choice([0.003, 0.03, 0.03, 0.1]) for party in PARTIES},
        hop_jitter_s=rng.choice([0.0, 0.02, 0.1]),
        hop_loss=random.Random(number("hop loss", seed)).choice([0.0, 0.0, 0.02]),
    )
    return scenario if spec.rules.all_decide else replace(scenario, slips={})


def _make_dual_spec(rng: random.Random, seed: int) -> SessionSpec:
    """Placement "mirror" needs coupled drafts: a query without them is placed greedily instead."""
    values: dict[str, Any] = dict(
        session=seed + 1,
        seed=seed,
        eos_token_ids=(EOS,),
        draft_rule=rng.choice(["coupled", "coupled", "algorithm1"]),
        temperature=rng.choice([0.0, 0.7, 1.0]),
        placement=rng.choice(["device", "cloud", "greedy", "random", "mirror", "mirror"]),
        max_new_tokens=rng.choice([MIN_TOKENS, MIN_TOKENS, 18, 24]),
        device_documents=rng.choice([0, 2, 2]),
        cloud_documents=rng.choice([0, 3, 3]),
        question_weight=rng.choice([0.0, 1.0, 1.0, 0.5]),
        evidence_weight=rng.choice([0.0, 1.0, 1.0]),
        evidence_memory=rng.choice([0.5, 1.0]),
        max_window=rng.randint(1, 16),
        on_peer_loss=rng.choice(["wait", "wait", "continue"]),
        peer_loss_margin_s=rng.choice([0.1, 1.0]),
        show_drafts=bool(seed % 2),
    )
    if (values["draft_rule"], values["placement"]) == ("algorithm1", "mirror"):
        values["placement"] = "greedy"
    return make_spec(**values)


def _with_race_lists(spec: SessionSpec, seed: int) -> SessionSpec:
    """A share of the queries with coupled drafts votes with short race lists."""
    rng = random.Random(number("race lists", seed))
    if spec.decoding.draft_rule != "coupled" or rng.random() >= RACE_LISTS:
        return spec
    return replace(spec, race_depth=rng.choice([1, 2, 3]), vocab_size=VOCAB)


def _with_patience(spec: SessionSpec, seed: int) -> SessionSpec:
    """A share of the queries that the device may decide alone waits for a limited time at each step."""
    rng = random.Random(number("patience", seed))
    if spec.decoding.placement not in ("device", "mirror") or rng.random() >= PATIENCE:
        return spec
    return change_spec(spec, patience_s=rng.choice([0.001, 0.05, 0.2, 1.0]))


def _plan_dual_fault(rng: random.Random, last_step: int) -> Fault:
    """A stall or a crash at any step of an answer, its end included.

    The device's draft queue holds the user's answer: with it the query is gone.
    """
    at_step, after_s = rng.randint(0, last_step), rng.choice([0.0, 0.1, 0.3]) * rng.random()
    seconds = rng.choice([0.0, 0.0, 0.02, 0.3, 3.0]) * rng.random()
    is_stall, party = rng.random() < 0.25, rng.choice(PARTIES)
    kind = "stall" if is_stall else rng.choice(("draft_queue", "decoder", rng.choice(STATELESS)))
    if kind == "draft_queue":
        party = Party.CLOUD
    return Fault(kind=kind, party=party, at_step=at_step, after_s=after_s, seconds=seconds)


def by_lottery(scenario: Scenario) -> Scenario:
    """The same with that rule, above temperature 0."""
    temperature, spec = scenario.spec.sampling.temperature or 1.0, scenario.spec
    peer_share = random.Random(number("peer share", scenario.seed)).choice([1.0, 1.0, 0.5, 0.2])
    changed = change_spec(spec, draft_rule=LOTTERY, temperature=temperature, max_peer_share=peer_share)
    return replace(scenario, spec=changed)


# ---- modes whose drafter has no vote ---------------------------------------------------------------------------------


def make_chain_scenario(seed: int, num_workers: int) -> Scenario:
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
    # Bits of a proposal: mostly without limit, else of no id, of one or of four.
    budget = random.Random(number("budget", seed)).choice([0, 0, 0, 0, 0, 16, 24, 100])
    spec = _vary_votes(spec, seed) if num_workers else change_spec(spec, uplink_budget_bits=budget)
    topology = spec.roles.topology
    faults = tuple(_plan_chain_fault(rng, topology.parties) for _ in range(rng.choice([0, 1, 2, 4])))
    # What a Resync rolls back is computed again in any case.
    may_restart = not any(fault.kind in ("host", "cut", "stall") for fault in faults)
    of_links = random.Random(number("chain run", seed))
    scenario = Scenario(
        seed=seed,
        spec=spec,
        link=plan_link(of_links),
        frames={
            (party, peer): plan_frames(of_links, 4)
            for party in topology.parties
            for peer in topology.peers(party)
        },
        drafter=rng.choice(DRAFTERS),
        first_end=rng.choice([NEVER, 12]),
        model_s={party: rng.choice([0.003, 0.03, 0.1]) for party in topology.parties},
        faults=faults,
        hop_jitter_s=0.01,
        cancel_s=3.0 * rng.random() if rng.random() < 0.05 else None,
        is_rounding=(is_restarting := may_restart and rng.random() < 0.5),
        restarts=0.3 if is_restarting else 0.0,
        abandons=random.Random(number("abandons", seed)).random() < 0.5,
    )
    return _move_home(scenario) if num_workers else scenario


def _move_home(scenario: Scenario) -> Scenario:
    """Half of the federated queries are asked at a worker.

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
        replace(fault, party=elsewhere) if (fault.kind, fault.party) == ("host", home) else fault
        for fault in scenario.faults
    )
    return replace(scenario, spec=change_spec(spec, workers=spec.roles.voters, home=home), faults=faults)


def _vary_votes(spec: SessionSpec, seed: int) -> SessionSpec:
    """What votes of a federated query depend on, and how they travel."""
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
    """How lengths of proposals are chosen; those that are wild may be any each time."""
    policies = ["fixed", WILD, *([] if pacing == "cloud_goes_on" else ["last_accepted"])]
    return random.Random(number("lengths", seed)).choice(policies)


def _plan_chain_fault(rng: random.Random, parties: Sequence[str]) -> Fault:
    kinds: tuple[FaultKind, ...] = ("stall", "host", "host", "decoder", "aggregator", "cut", "cut")
    kind = rng.choice(kinds)
    # The home's coordinator holds the user's answer: with it the query is gone.
    party = rng.choice(parties[1:] if kind in ("host", "cut") else parties)
    seconds = rng.choice([0.0, 0.3, 3.0, 8.0]) * rng.random()
    return Fault(kind=kind, party=party, after_s=2.5 * rng.random(), seconds=seconds)


class ScriptedDrafter(World):
    """A drafter without a vote, of any quality."""

    def __init__(self, seed: int, party: str, draft: Drafter) -> None:
        super().__init__(seed, party)
        self._draft = draft

    def payload(self, tokens: Sequence[int], weights: Weights, lineage: Sequence[bytes] = ()) -> bytes:
        """The encoded distribution of the step after these tokens."""
        return self._draft(tuple(tokens))


def make_drafter(scenario: Scenario) -> Drafter:
    """good: a voter's own distribution; garbage: any token; n-gram: what followed the last token before;
    replaced: one after another in the middle of the session."""
    spec = scenario.spec
    good_like = voter_of(scenario, spec.roles.voters[-1])

    def garbage(tokens: tuple[int, ...]) -> bytes:
        return certain(spec, number("garbage", scenario.seed, tokens) % VOCAB)

    def repeat(tokens: tuple[int, ...]) -> bytes:
        before = [after for token, after in pairwise(tokens) if token == tokens[-1]]
        return certain(spec, before[-1] if before else 0)

    kinds: dict[str, Drafter] = {"good": good_like.payload, "garbage": garbage, "n-gram": repeat}
    if scenario.drafter != "replaced":
        return kinds[scenario.drafter]
    return lambda tokens: (good_like.payload, garbage, repeat)[len(tokens) // 6 % 3](tokens)


def certain(spec: SessionSpec, token: int) -> bytes:
    """The encoded distribution that gives this token."""
    return codec_for(spec).encode(np.eye(VOCAB)[token])


# ---- the answer ------------------------------------------------------------------------------------------------------


def voter_of(scenario: Scenario, party: str) -> WorldVoter:
    """What a voter says, as a function of the tokens."""
    return _voter(scenario.spec, party, scenario.first_end)


@lru_cache(maxsize=64)
def _voter(spec: SessionSpec, party: str, first_end: int) -> WorldVoter:
    return WorldVoter(spec, party, first_end)


def expected_answer(
    scenario: Scenario, events: Sequence[PeerEvent] = (), alone: Collection[int] = ()
) -> list[int]:
    """The draft-free loop of a query with coupled drafts, by lottery, or at temperature 0.

    events: who was lost and came back, as the home logged it; for modes whose drafter has no vote. alone: in mode dual
    the steps that the device decided alone, as it logged them.
    """
    spec, by_lottery = scenario.spec, scenario.spec.rules.draft_rule == LOTTERY
    names, server = spec.roles.voters, spec.roles.topology.authority
    voters = [voter_of(scenario, name) for name in names]
    seed = scenario.seed if spec.sampling.temperature > 0 else None
    draft = make_drafter(scenario)

    def drafter(tokens: Sequence[int]) -> reference_shaping.Forecast:
        return reference_shaping.Forecast(dense_of(spec, draft(tuple(tokens))))

    def is_complete(tokens: Sequence[int]) -> bool:
        return bool(tokens) and scenario.check_stop(tokens) is not None

    def present(step: int) -> list[int]:
        lost = {event.party: event.is_alone for event in events if event.step <= step}
        if lost.get(server, False):  # the home continues alone
            return [names.index(spec.home)]
        return [number for number, name in enumerate(names) if not lost.get(name, False)]

    if scenario.is_dual:
        if len(voters) == 1:
            return reference.solo(voters[0], is_complete, seed)
        most, device, both = [1.0, spec.max_peer_share], [0], [0, 1]
        if not alone:
            return reference.dual(voters[0], voters[1], is_complete, seed, spec.max_peer_share, by_lottery)
        return reference.answer_with_losses(
            voters,
            None,
            drafter,
            lambda step: device if step in alone else both,
            is_complete,
            seed,
            most,
            by_lottery,
        )
    weights = None if spec.roles.weighs_by_documents else spec.weights or (1.0,)
    most = [1.0 if name == spec.home else spec.max_peer_share for name in names]
    if events:
        return reference.answer_with_losses(
            voters, weights, drafter, present, is_complete, seed, most, by_lottery
        )
    if len(voters) == 1:
        return reference.speculative(voters[0], is_complete, seed)
    return reference.federated(voters, weights, is_complete, seed, most, by_lottery)

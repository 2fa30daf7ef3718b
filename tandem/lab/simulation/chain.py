"""Speculative and federated sessions under a virtual clock: scripted models, a drafter of any quality, faulty links.

It runs `tandem.protocol.chain.ChainSession` at every party; frames are encoded and decoded on the way. After every
event the committed tokens of all parties are compared, as tokens.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count, pairwise

import numpy as np

from tandem.aggregation.coupling import noise
from tandem.aggregation.distributions import Distribution
from tandem.lab.simulation.faults import FaultyWire, plan_frames, plan_link
from tandem.lab.simulation.invariants import InvariantError
from tandem.lab.simulation.world import CODEC, NEVER, VOCAB, distribution, number, stop_rule
from tandem.modes import reference
from tandem.modes.roles import Roles, federated, speculative
from tandem.protocol.chain import MAX_RUN_AHEAD, Block, ChainSession, Decide, Outgoing
from tandem.protocol.lines import MAX_ENTRIES
from tandem.protocol.messages import MAX_LINE, LinkFrame, decode_link, encode

TICK_S = 0.05
LIMIT_S = 300.0
NUM_TOKENS = 24
DRAFTERS = ("good", "garbage", "n-gram", "replaced")
MAX_KEPT = MAX_ENTRIES + MAX_LINE
"""Entries of any store of a party, at most."""

Drafter = Callable[[tuple[int, ...]], int]
"""One proposed token after some tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainScenario:
    """All that is drawn from a seed."""

    seed: int
    roles: Roles
    drafter: str
    max_line: int  # tokens of a proposal are drawn from 1 to this many each time
    temperature: float
    first_end: int
    model_s: dict[str, float]  # mean time of a pass, by party


def make_chain_scenario(seed: int, num_workers: int) -> ChainScenario:
    """num_workers: of federated mode; 0 is speculative."""
    rng = random.Random(number("chain", seed, num_workers))
    masses = [rng.choice([0.0, 0.5, 1.0, 2.0]) + 0.1 for _ in range(num_workers)]
    roles = federated([mass / sum(masses) for mass in masses]) if num_workers else speculative()
    return ChainScenario(
        seed=seed,
        roles=roles,
        drafter=rng.choice(DRAFTERS),
        max_line=rng.choice([1, 2, 5, MAX_LINE]),
        temperature=rng.choice([0.0, 1.0, 1.0]),
        first_end=rng.choice([NEVER, 12]),
        model_s={party: rng.choice([0.003, 0.03, 0.1]) for party in roles.topology.parties},
    )


def payload_of(scenario: ChainScenario, party: str, tokens: Sequence[int]) -> bytes:
    """A voter's encoded distribution after these tokens."""
    return distribution(scenario.seed, party, tuple(tokens), (), scenario.first_end)


def make_decide(scenario: ChainScenario) -> Decide:
    """The decider's rule: the votes mixed in order, then the race, or the most probable token."""
    weights = [weight or 0.0 for weight in scenario.roles.weights]

    def decide(payloads: Sequence[bytes], step: int) -> int:
        dense = [CODEC.decode(payload).dense(VOCAB) for payload in payloads]
        target = weights[0] * dense[0]
        for weight, vote in zip(weights[1:], dense[1:], strict=True):
            target = target + weight * vote
        clocks = 1.0 if scenario.temperature == 0 else noise(scenario.seed, step, np.arange(VOCAB))
        return int(np.argmax(target / clocks))

    return decide


def make_drafter(scenario: ChainScenario) -> Drafter:
    """good: guesses from a voter's own distribution; garbage: anything; n-gram: what followed the last token before;
    replaced: one after another in the middle of the session."""
    good_like = scenario.roles.voters[-1]

    def guess(tokens: tuple[int, ...]) -> int:
        found: Distribution = CODEC.decode(payload_of(scenario, good_like, tokens))
        clocks = 1.0 if scenario.temperature == 0 else noise(scenario.seed, len(tokens), np.arange(VOCAB))
        return int(np.argmax(found.dense(VOCAB) / clocks))

    def garbage(tokens: tuple[int, ...]) -> int:
        return number("garbage", scenario.seed, tokens) % VOCAB

    def repeat(tokens: tuple[int, ...]) -> int:
        before = [after for token, after in pairwise(tokens) if token == tokens[-1]]
        return before[-1] if before else 0

    kinds: dict[str, Drafter] = {"good": guess, "garbage": garbage, "n-gram": repeat}
    if scenario.drafter != "replaced":
        return kinds[scenario.drafter]
    return lambda tokens: (guess, garbage, repeat)[len(tokens) // 6 % 3](tokens)


def expected_chain(scenario: ChainScenario) -> list[int]:
    """The draft-free loop of the mode."""
    check = stop_rule(NUM_TOKENS, scenario.first_end)

    def voter(party: str) -> reference.Voter:
        return lambda tokens: reference.Vote(
            [float(p) for p in CODEC.decode(payload_of(scenario, party, tokens)).dense(VOCAB)]
        )

    voters = [voter(party) for party in scenario.roles.voters]
    seed = scenario.seed if scenario.temperature > 0 else None

    def is_complete(tokens: Sequence[int]) -> bool:
        return bool(tokens) and check(tokens) is not None

    if scenario.roles.mode == "speculative":
        return reference.speculative(voters[0], is_complete, seed)
    weights = [weight or 0.0 for weight in scenario.roles.weights]
    return reference.federated(voters, weights, is_complete, seed)


class ChainRun:
    """One session at all its parties, watched."""

    def __init__(self, scenario: ChainScenario, session_class: type[ChainSession] = ChainSession) -> None:
        self.scenario = scenario
        self.now_s = 0.0
        self.counts: Counter[str] = Counter()
        self.rng = random.Random(number("chain run", scenario.seed))
        self.parties = {
            party: session_class(
                scenario.seed, scenario.roles, party, make_decide(scenario), stop_rule(NUM_TOKENS, scenario.first_end),
                0.0,
            )
            for party in scenario.roles.topology.parties
        }  # fmt: skip
        self._drafter = make_drafter(scenario)
        self._busy: set[tuple[str, str]] = set()
        self._stalled_s = dict.fromkeys(self.parties, 0.0)
        self._numbers = count()
        self._events: list[tuple[float, int, str, Callable[[], None]]] = []
        link = plan_link(self.rng)
        self.wires = {
            (party, peer): FaultyWire(link, plan_frames(self.rng, 4))
            for party in self.parties
            for peer in scenario.roles.topology.peers(party)
        }

    def run(self) -> list[int]:
        """The tokens that all parties committed. Raises InvariantError."""
        for party, session in self.parties.items():
            self._at(0.0, party, partial(self._send, party, session.greet(0.0)))
            self._at(TICK_S, party, partial(self._tick, party))
        for _ in range(self.rng.choice([0, 1, 3])):
            stalled = self.rng.choice(list(self.parties))
            self._at(3.0 * self.rng.random(), stalled, partial(self._stall, stalled, 2.0 * self.rng.random()))
        while self._events and not self._is_over():
            when_s, order, party, act = heapq.heappop(self._events)
            if when_s < self._stalled_s[party]:
                heapq.heappush(self._events, (self._stalled_s[party], order, party, act))
                continue
            self.now_s = when_s
            if when_s > LIMIT_S:
                raise InvariantError(
                    f"it did not end: {[len(each.prefix) for each in self.parties.values()]} tokens"
                )
            act()
            self._check()
            self._work(party)
        for wire in self.wires.values():
            self.counts.update(wire.counts)
        sessions = list(self.parties.values())
        self.counts["tokens accepted"] += max(each.lines.num_accepted for each in sessions)
        self.counts["frames resent"] += sum(
            link.num_resent_frames for each in sessions for link in each.links.values()
        )
        return self._decider.prefix.tokens

    def check_end(self, expected: Sequence[int]) -> None:
        """Raise InvariantError unless every party has exactly these tokens."""
        for party, session in self.parties.items():
            if session.prefix.tokens != list(expected):
                raise InvariantError(
                    f"{party} committed {session.prefix.tokens}, the draft-free loop {list(expected)}"
                )

    @property
    def _decider(self) -> ChainSession:
        return self.parties[self.scenario.roles.deciders[0]]

    def _is_over(self) -> bool:
        return all(session.is_over for session in self.parties.values())

    def _check(self) -> None:
        decided = self._decider.prefix.tokens
        for party, session in self.parties.items():
            tokens = session.prefix.tokens
            if tokens != decided[: len(tokens)]:
                raise InvariantError(f"{party} committed {tokens}, the decider {decided}")
            kept = [len(session.lines), len(session.votes) // len(session.votes.votes), len(session.verdicts)]
            kept += [len(link.backlog) for link in session.links.values()]
            if max(kept) > MAX_KEPT:
                raise InvariantError(f"{party} keeps {kept} entries")

    # ---- time ------------------------------------------------------------------------------------------------------

    def _at(self, when_s: float, party: str, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when_s, next(self._numbers), party, act))

    def _stall(self, party: str, seconds: float) -> None:
        self.counts["stalls"] += 1
        self._stalled_s[party] = self.now_s + seconds

    def _tick(self, party: str) -> None:
        self._send(party, self.parties[party].tick(self.now_s))
        self._at(self.now_s + TICK_S, party, partial(self._tick, party))

    def _send(self, party: str, frames: Outgoing) -> None:
        for peer, frame in frames:
            data = encode(frame)
            for arrival_s in self.wires[party, peer].arrivals(self.now_s, len(data), self.rng):
                self._at(arrival_s, peer, partial(self._receive, peer, party, data))

    def _receive(self, party: str, source: str, data: bytes) -> None:
        frame: LinkFrame = decode_link(data)
        self._send(party, self.parties[party].receive(source, frame, self.now_s))

    # ---- models ----------------------------------------------------------------------------------------------------

    def _work(self, party: str) -> None:
        """Start what this party's models should do next."""
        session = self.parties[party]
        duration_s = self.rng.expovariate(1 / self.scenario.model_s[party])
        if (party, "draft") not in self._busy and (after := session.next_draft()) is not None:
            self._busy.add((party, "draft"))
            self._at(self.now_s + duration_s / 4, party, partial(self._draft, party, after))
        if (party, "vote") not in self._busy and (block := session.next_block(self.now_s)) is not None:
            self._busy.add((party, "vote"))
            self._at(self.now_s + duration_s, party, partial(self._vote, party, block))

    def _draft(self, party: str, after: tuple[int, ...]) -> None:
        self._busy.discard((party, "draft"))
        tokens: list[int] = []
        for _ in range(min(self.rng.randint(1, self.scenario.max_line), MAX_RUN_AHEAD)):
            tokens.append(self._drafter((*after, *tokens)))
        self._send(party, self.parties[party].propose(after, tokens, self.now_s))

    def _vote(self, party: str, block: Block) -> None:
        self._busy.discard((party, "vote"))
        lengths = range(block.first, len(block.tokens) + 1)
        payloads = [payload_of(self.scenario, party, block.tokens[:length]) for length in lengths]
        self.counts["votes"] += len(payloads)
        self._send(party, self.parties[party].vote(block, payloads, self.now_s))


def play_chain(
    seed: int, num_workers: int, session_class: type[ChainSession] = ChainSession
) -> tuple[int, Counter[str]]:
    """One run compared with the draft-free loop: tokens committed, and what happened. Raises InvariantError."""
    scenario = make_chain_scenario(seed, num_workers)
    run = ChainRun(scenario, session_class)
    tokens = run.run()
    run.check_end(expected_chain(scenario))
    return len(tokens), run.counts

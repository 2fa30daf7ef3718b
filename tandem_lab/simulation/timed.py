"""An answer whose drafter has no vote, under the virtual clock with times of a benchmark.

The machines are the protocol's own, the votes scripted. Whether the draft for a step is the target is given, as coupled
drafts have it (it depends on the committed tokens alone). Frames go out one after the other at the rate of the link and
take half a round trip, and nothing is lost. Where the processor time of passes and frames is known, parties that share
a core wait for each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any

from tandem.messages import encode
from tandem.protocol.decoding import Forward, Job, Prefill, Result
from tandem.protocol.outbox import Send
from tandem.topology import SERVER
from tandem_lab.simulation.chain import ChainRun
from tandem_lab.simulation.chain_scenario import ChainScenario, certain, expected_chain
from tandem_lab.simulation.core import Core, Task
from tandem_lab.simulation.faults import FaultyWire
from tandem_lab.simulation.link import Link
from tandem_lab.simulation.specs import make_spec
from tandem_lab.simulation.world import NEVER, VOCAB

HOP_S = 0.0005
"""Between two actors of one party, unless another time is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Processor time, in seconds. Parties with one number of a core share it."""

    pass_s: Mapping[str, float]  # by party: of a pass of its model, beside its tokens
    token_s: Mapping[str, float]  # of each token that a pass drafts or votes on
    frame_s: Mapping[str, float]  # to send a frame, and to take one in
    core: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """What takes how long, in seconds."""

    passes_s: Mapping[str, float]  # a pass of each party's model, at least, whatever the number of its tokens
    rtt_s: float
    bits_per_s: float = inf  # each way, by each pair of parties
    header_bytes: int = 0  # of each frame, besides its own
    hop_s: float = HOP_S  # between two actors of one party
    late_s: float = 0.0  # from the end of a pass until its result is handed over
    work: Work | None = (
        None  # None: nothing but `passes_s` takes time, everyone has a core, and nothing is late
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """One answer."""

    committed_s: tuple[float, ...]  # of each token, since the question
    num_accepted: int  # tokens that the drafter had proposed
    num_passes: Mapping[str, int]  # of each party's model; abandoned ones count
    waited_for: Mapping[str, int]  # tokens for which this voter's vote came last
    num_frames: Mapping[str, int]  # by their sender
    num_bytes: Mapping[str, int]  # with all headers, by their sender


class TimedRun(ChainRun):
    """One answer whose tokens are those of the scripted votes, and whose drafts are right where `accepted` says so."""

    def __init__(self, scenario: ChainScenario, times: Times, accepted: Sequence[bool]) -> None:
        tokens = expected_chain(scenario)

        def draft(prefix: tuple[int, ...]) -> bytes:
            step = len(prefix)
            if step >= len(tokens) or list(prefix) != tokens[:step]:
                return certain(0)
            return certain(tokens[step] if accepted[step] else (tokens[step] + 1) % VOCAB)

        super().__init__(scenario, drafter=draft)
        self.num_passes: Counter[str] = Counter()
        self._times = times
        self._started_s: dict[str, float] = {}  # by party, its last pass
        self._passes: dict[str, Task] = {}
        self._cores: dict[int, Core] = {}
        self._turns: Counter[Core] = Counter()
        self.num_frames: Counter[str] = Counter()
        self.num_bytes: Counter[str] = Counter()
        link = Link(
            delay_s=times.rtt_s / 2,
            bytes_per_s=times.bits_per_s / 8,
            header_bytes=times.header_bytes,
            is_in_order=True,
        )
        self.wires = {ends: FaultyWire(link, {}) for ends in self.wires}

    def learn_from(self, before: TimedRun) -> None:
        """Estimates of an earlier run at the home party, before this one begins."""
        own, earlier = self.parties[self.home], before.parties[self.home]
        own.profiler, own.scheduler = earlier.profiler, earlier.scheduler

    def hop_s(self) -> float:
        """Always the same."""
        return self._times.hop_s

    def pass_s(self, party: str, job: Job) -> float:
        """As given; prompts are read at once."""
        if isinstance(job, Prefill):
            return 0.0
        self.num_passes[party] += 1
        return self._times.passes_s[party]

    def compute(self, party: str, job: Forward) -> list[Result]:
        """As the base class, with the time that the pass took."""
        pass_us = round(1e6 * (self.now_s - self._started_s[party]))
        return [result._replace(decode_us=pass_us) for result in super().compute(party, job)]

    def cross(self, party: str, send: Send) -> None:
        """As the base class; counted, and no sooner than the party has the time."""
        self.num_frames[party] += 1
        self.num_bytes[party] += len(encode(send.message)) + self._times.header_bytes
        self._handle(party, partial(super().cross, party, send))

    def _receive(self, party: str, source: str, data: bytes) -> None:
        self._handle(party, partial(super()._receive, party, source, data))

    def _handle(self, party: str, done: Callable[[], None]) -> None:
        """A frame passes a party's draft queue."""
        if self._times.work is None:
            done()
        else:
            self._load(party, Task(f"{party}/draft_queue", self._times.work.frame_s[party], done))

    def _start(self, party: str, job: Job) -> None:
        """As the base class; a pass that computes for longer than the least time is done then."""
        self._started_s[party] = self.now_s
        if self._times.work is None or isinstance(job, Prefill):
            super()._start(party, job)
            return
        work, num_tokens = self._times.work, 1 + job.num_earlier
        least_s, start = self.now_s + self.pass_s(party, job), self.parties[party].num_starts

        def finish() -> None:
            done_s = max(self.now_s, least_s) + self._times.late_s
            self._at(done_s, party, partial(self._finish, party, start, job))

        work_s = work.pass_s[party] + num_tokens * work.token_s[party]
        self._passes[party] = Task(f"{party}/decoder", work_s, finish)
        self._load(party, self._passes[party])

    def _load(self, party: str, task: Task) -> None:
        assert self._times.work is not None
        core = self._cores.setdefault(self._times.work.core[party], Core())
        core.add(self.now_s, task)
        self._plan_turn(core)

    def _plan_turn(self, core: Core) -> None:
        """The core's next task is done then; one that was planned before is out of date."""
        if (next_s := core.next_s()) < inf:
            self._turns[core] += 1
            self._at(next_s, "", partial(self._take_turn, core, self._turns[core]))

    def _take_turn(self, core: Core, turn: int) -> None:
        if turn != self._turns[core]:
            return
        for task in core.take_done(self.now_s):
            self._at(self.now_s, task.process.partition("/")[0], task.done)
        self._plan_turn(core)

    def _work(self, party: str) -> None:
        """A pass that nobody wants any more is abandoned, as on a real model."""
        state = self.parties[party]
        job = state.busy_with
        if isinstance(job, Forward):
            session = state.decoder.sessions.get(job.session)
            if session is None or not session.is_current(job):
                state.busy_with = None
                if self._times.work is not None:
                    core = self._cores[self._times.work.core[party]]
                    core.remove(self.now_s, self._passes[party])
                    self._plan_turn(core)
        super()._work(party)


def play_timed(
    options: Mapping[str, Any], times: Times, accepted: Sequence[bool], seed: int = 0, **changes: Any
) -> Timing:
    """An answer with as many tokens as `accepted` has. options: of the query; changes: other fields of its spec.

    times.passes_s names the parties: device and cloud, or the server and the workers, whose weights are equal.
    """
    is_federated = SERVER in times.passes_s
    workers = tuple(party for party in times.passes_s if is_federated and party != SERVER)
    spec = make_spec(
        session=1,
        seed=seed,
        temperature=1.0,
        max_new_tokens=len(accepted),
        on_peer_loss="wait",
        device_documents=0,
        cloud_documents=0,
        workers=workers,
        weights=tuple(1.0 / len(workers) for _ in workers),
        **{**options, **changes},
    )
    scenario = ChainScenario(
        seed=seed,
        spec=spec,
        drafter="good",
        first_end=NEVER,
        model_s=dict(times.passes_s),
        faults=(),
        cancel_s=None,
        is_recomputing=False,
    )
    run = TimedRun(scenario, times, accepted)
    if spec.rules.adapts_lengths(spec.home):  # what an answer before this one has shown, as in a benchmark
        before = TimedRun(scenario, times, accepted)
        before.run()
        run.learn_from(before)
    run.run()
    run.check_end()
    return Timing(
        committed_s=tuple(token.committed_s for token in run.tokens),
        num_accepted=sum(token.device_accepted for token in run.tokens),
        num_passes=dict(run.num_passes),
        waited_for=Counter(token.last_voter for token in run.tokens if token.last_voter is not None),
        num_frames=dict(run.num_frames),
        num_bytes=dict(run.num_bytes),
    )

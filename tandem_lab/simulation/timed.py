"""An answer whose drafter has no vote, under the virtual clock with times of a benchmark.

The machines are the protocol's own, the votes scripted. Whether the draft for a step is the target is given, as coupled
drafts have it (it depends on the committed tokens alone). Frames go out one after the other at the rate of the link and
take half a round trip, and nothing is lost. Where the processor time of passes and frames is known, parties that share
a core wait for each other.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any

from tandem.messages import LinkFrame, encode
from tandem.protocol.decoding import Job, Prefill
from tandem.topology import SERVER
from tandem_lab.numbers import ratio
from tandem_lab.simulation.link import Link
from tandem_lab.simulation.scenario import Scenario, ScriptedDrafter, certain, expected_answer
from tandem_lab.simulation.specs import make_spec
from tandem_lab.simulation.watched import WatchedRun
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


def pace_s(answers: Sequence[Sequence[float]]) -> float:
    """Seconds per token of answers, each of which tells when its tokens came. The first frame's are where time begins.

    nan if all came with the first.
    """
    later = [(times_s, sum(at_s > times_s[0] for at_s in times_s)) for times_s in answers if times_s]
    return ratio(sum(times_s[-1] - times_s[0] for times_s, num in later if num), sum(num for _, num in later))


ROUNDING_S = 1e-9
"""Work that is left below this is done."""


@dataclass(slots=True, eq=False)
class Task:
    """Something that a process computes."""

    process: str
    left_s: float  # of a core by itself
    done: Callable[[], None]


class Core:
    """One core. Each process computes one task at a time, in their order."""

    def __init__(self) -> None:
        self._tasks: dict[str, deque[Task]] = {}
        self._now_s = 0.0

    def add(self, now_s: float, task: Task) -> None:
        """A process is to compute this, behind what it has."""
        self._advance(now_s)
        self._tasks.setdefault(task.process, deque()).append(task)

    def remove(self, now_s: float, task: Task) -> None:
        """Nobody wants it any more; nothing happens if it is done."""
        self._advance(now_s)
        tasks = self._tasks.get(task.process, deque())
        if task in tasks:
            tasks.remove(task)
        self._clean()

    def next_s(self) -> float:
        """When the next task is done unless another comes; inf: there is none."""
        left_s = min((tasks[0].left_s for tasks in self._tasks.values()), default=inf)
        return self._now_s + left_s * len(self._tasks)

    def take_done(self, now_s: float) -> list[Task]:
        """Those that are done by now, which must be no later than `next_s`."""
        self._advance(now_s)
        done = [tasks.popleft() for tasks in self._tasks.values() if tasks[0].left_s <= ROUNDING_S]
        self._clean()
        return done

    def _advance(self, now_s: float) -> None:
        share_s = (now_s - self._now_s) / max(1, len(self._tasks))
        for tasks in self._tasks.values():
            tasks[0].left_s -= share_s
        self._now_s = now_s

    def _clean(self) -> None:
        self._tasks = {process: tasks for process, tasks in self._tasks.items() if tasks}


class TimedRun(WatchedRun):
    """One answer whose tokens are those of the scripted votes, and whose drafts are right where `accepted` says so."""

    def __init__(self, scenario: Scenario, times: Times, accepted: Sequence[bool]) -> None:
        super().__init__(scenario)
        tokens, drafter = expected_answer(scenario), scenario.spec.roles.drafters[0]

        def draft(prefix: tuple[int, ...]) -> bytes:
            step = len(prefix)
            if step >= len(tokens) or list(prefix) != tokens[:step]:
                return certain(scenario.spec, 0)
            return certain(scenario.spec, tokens[step] if accepted[step] else (tokens[step] + 1) % VOCAB)

        self.parties[drafter].model = ScriptedDrafter(scenario.seed, drafter, draft)
        self.num_passes: Counter[str] = Counter()
        self.num_frames: Counter[str] = Counter()
        self.num_bytes: Counter[str] = Counter()
        self._times = times
        self._passes: dict[str, Task] = {}
        self._cores: dict[int, Core] = {}
        self._turns: Counter[Core] = Counter()

    def hop_s(self) -> float:
        """Always the same."""
        return self._times.hop_s

    def cross(self, party: str, peer: str, frame: LinkFrame) -> None:
        """As the base class; counted, and no sooner than the party has the time."""
        self.num_frames[party] += 1
        self.num_bytes[party] += len(encode(frame)) + self._times.header_bytes
        self._handle(party, partial(super().cross, party, peer, frame))

    def receive_frame(self, party: str, source: str, frame: LinkFrame) -> None:
        """As the base class, likewise."""
        self._handle(party, partial(super().receive_frame, party, source, frame))

    def _handle(self, party: str, done: Callable[[], None]) -> None:
        """A frame passes a party's draft queue."""
        if self._times.work is None:
            done()
        else:
            self._load(party, Task(f"{party}/draft_queue", self._times.work.frame_s[party], done))

    def start(self, party: str, job: Job) -> None:
        """A pass takes the given time, or longer if it computes for longer; prompts are read at once."""
        started_s, work = self.now_s, self._times.work

        def finish() -> None:
            self.finish(party, job, self.now_s - started_s)

        if isinstance(job, Prefill):
            self.at(started_s, finish, party)
            return
        self.num_passes[party] += 1
        least_s = started_s + self._times.passes_s[party]
        if work is None:
            self.at(least_s, finish, party)
            return

        def hand_over() -> None:
            self.at(max(self.now_s, least_s) + self._times.late_s, finish, party)

        work_s = work.pass_s[party] + (1 + job.num_earlier) * work.token_s[party]
        self._passes[party] = Task(f"{party}/decoder", work_s, hand_over)
        self._load(party, self._passes[party])

    def abandon(self, party: str) -> None:
        """The core is free for others."""
        if self._times.work is not None:
            core = self._cores[self._times.work.core[party]]
            core.remove(self.now_s, self._passes[party])
            self._plan_turn(core)

    def _load(self, party: str, task: Task) -> None:
        assert self._times.work is not None
        core = self._cores.setdefault(self._times.work.core[party], Core())
        core.add(self.now_s, task)
        self._plan_turn(core)

    def _plan_turn(self, core: Core) -> None:
        """The core's next task is done then; one that was planned before is out of date."""
        if (next_s := core.next_s()) < inf:
            self._turns[core] += 1
            self.at(next_s, partial(self._take_turn, core, self._turns[core]))

    def _take_turn(self, core: Core, turn: int) -> None:
        if turn != self._turns[core]:
            return
        for task in core.take_done(self.now_s):
            self.at(self.now_s, task.done, task.process.partition("/")[0])
        self._plan_turn(core)


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
    link = Link(
        delay_s=times.rtt_s / 2,
        bytes_per_s=times.bits_per_s / 8,
        header_bytes=times.header_bytes,
        is_in_order=True,
    )
    scenario = Scenario(seed=seed, spec=spec, link=link, first_end=NEVER, model_s=times.passes_s)
    run = TimedRun(scenario, times, accepted)
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

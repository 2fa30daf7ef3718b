"""Plays a trace on the link between two sides and asks questions meanwhile, one after the other.

Knows a running cluster, a network, the clock. What was seen goes into a `Replay`, also if this ends early.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from tandem.client.tandem import Tandem
from tandem.errors import TandemError
from tandem.topology import PARTIES, Party
from tandem_lab.bench.records import lost_s
from tandem_lab.bench.work import Work
from tandem_lab.netlab import NetLab, play
from tandem_lab.netlab.ping import Ping
from tandem_lab.replay.records import QuestionRun, Replay, Reply

FIRST_SEED = 1
"""Of the first question; each further one has the next. The same questions get the same answers, if none is alone."""


class Replayer:
    """One replay. `run` may be called once."""

    def __init__(
        self, tandem: Tandem, lab: NetLab, into: Replay, progress: Callable[[str], None] = lambda line: None
    ) -> None:
        self._tandem, self._lab, self._into, self._progress = tandem, lab, into, progress
        self._is_stopped = threading.Event()
        self._failure: BaseException | None = None
        self._start_s = 0.0

    def run(self, questions: Sequence[str]) -> None:
        """Asks until the trace has ended, each question at least once. Raises TandemError where no answer comes."""
        ping = Ping(self._lab)
        player = threading.Thread(target=self._play, name="trace", daemon=True)
        work = Work.of(self._tandem)
        before = {party: self._lab.counters(party) for party in PARTIES}
        self._start_s = time.monotonic()
        player.start()
        ping.start()
        try:
            self._ask_all(questions)
        finally:
            self._into.took_s = self._now_s()
            self._is_stopped.set()
            player.join()
            self._into.replies = self._since_start(ping.stop())
            self._into.num_pings = ping.num_sent
            self._into.counters = {party: self._lab.counters(party).since(before[party]) for party in PARTIES}
        self._raise_failure()
        with suppress(TandemError):  # a cloud that the trace has cut off tells nothing: not measured
            self._into.lost_s = self._lost_s(Work.of(self._tandem).since(work))

    def _lost_s(self, work: Work) -> dict[Party, float]:
        """Decode time that rollback cost each side, at most. The cloud has no part in tokens of the device alone."""
        tokens = [token for asked in self._into.asked for token in asked.tokens]
        committed = {Party.DEVICE: len(tokens), Party.CLOUD: sum(not token.is_alone for token in tokens)}
        return {
            party: lost_s(work.num_forwards[party], committed[party], work.decode_s[party])
            for party in PARTIES
        }

    def _ask_all(self, questions: Sequence[str]) -> None:
        number, is_told = 0, False
        while number < len(questions) or self._now_s() < self._into.trace.end_s:
            self._raise_failure()
            self._ask(questions[number % len(questions)], FIRST_SEED + number)
            number += 1
            note = self._into.trace.note_at(self._now_s())
            if note and number < len(questions) and not is_told:
                self._progress(f"trace: {note}")
                is_told = True

    def _ask(self, question: str, seed: int) -> None:
        asked = QuestionRun(question, seed, self._now_s())
        self._into.asked.append(asked)
        try:
            for event in self._tandem.stream(question, seed=seed):
                asked.events.append(event)
        except TandemError as error:
            asked.error = str(error)
            raise
        if asked.done is not None:
            asked.error = asked.done.error
        self._progress(f"{self._now_s():.1f} s: {question} {asked.error or asked.answer}")

    def _play(self) -> None:
        try:
            steps = play(self._lab, self._into.trace, time.monotonic, time.sleep, self._is_stopped.is_set)
            self._into.rows.extend(steps)
        except BaseException as error:  # told to whoever asks
            self._failure = error

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _now_s(self) -> float:
        return time.monotonic() - self._start_s

    def _since_start(self, replies: Sequence[Reply]) -> tuple[Reply, ...]:
        shift_s = time.time() - self._now_s()
        return tuple(Reply(each.sent_s - shift_s, each.number, each.rtt_s) for each in replies)

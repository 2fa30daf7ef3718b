"""A processor core in virtual time, shared in equal parts by the processes that have something to compute."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

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

"""A core's time is shared in equal parts by those that compute."""

from __future__ import annotations

from math import inf

import pytest

from tandem_lab.simulation.timed import Core, Task


def task(process: str, left_s: float) -> Task:
    return Task(process, left_s, lambda: None)


def run(core: Core) -> list[tuple[float, str]]:
    """When whose tasks are done."""
    done = []
    while (now_s := core.next_s()) < inf:
        done += [(round(now_s, 6), each.process) for each in core.take_done(now_s)]
    return done


def test_two_processes_take_turns_and_the_longer_one_ends_alone() -> None:
    core = Core()
    core.add(1.0, task("one", 0.2))
    core.add(1.0, task("two", 0.3))
    assert run(core) == [(1.4, "one"), (1.5, "two")]


def test_a_process_does_one_thing_after_the_other() -> None:
    core = Core()
    for left_s in (0.1, 0.2):
        core.add(0.0, task("one", left_s))
    core.add(0.1, task("two", 0.1))
    assert core.next_s() == pytest.approx(0.1)
    assert run(core) == [(0.1, "one"), (0.3, "two"), (0.4, "one")]


def test_who_comes_later_slows_what_is_left() -> None:
    core = Core()
    core.add(0.0, task("one", 0.3))
    core.add(0.2, task("two", 1.0))
    assert core.next_s() == pytest.approx(0.4)


def test_what_nobody_wants_any_more_takes_no_time() -> None:
    core, unwanted = Core(), task("one", 5.0)
    core.add(0.0, unwanted)
    core.add(0.0, task("two", 0.2))
    core.remove(0.2, unwanted)
    core.remove(0.2, unwanted)
    assert run(core) == [(0.3, "two")]

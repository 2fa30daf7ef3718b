"""Reminders come ever less often, and for the present debt only."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tandem.protocol.reminders import FIRST_S, MAX_WAIT_S, Farewells, Reminder

DEBT = (0, b"prefix 1")


def times(reminder: Reminder, until_s: float) -> list[float]:
    return [now / 20 for now in range(int(20 * until_s)) if reminder.is_due(DEBT, now / 20)]


def test_the_wait_doubles() -> None:
    due = times(Reminder(), 60.0)
    assert due[0] == pytest.approx(FIRST_S)
    gaps = [later - earlier for earlier, later in pairwise(due)]
    assert gaps == pytest.approx([2.0, 4.0, *[MAX_WAIT_S] * (len(gaps) - 2)])


def test_another_debt_starts_the_wait_again() -> None:
    reminder = Reminder()
    times(reminder, 10.0)
    assert not reminder.is_due((0, b"prefix 2"), 10.0)
    assert not reminder.is_due((0, b"prefix 2"), 10.9)
    assert reminder.is_due((0, b"prefix 2"), 11.0)


def test_nothing_owed_nothing_reminded() -> None:
    reminder = Reminder()
    assert not any(reminder.is_due(None, now_s) for now_s in range(100))


def test_the_end_is_repeated_three_times_and_forgotten() -> None:
    farewells = Farewells()
    farewells.add(7, 0.0)
    said = [now / 10 for now in range(300) if farewells.take_due(now / 10)]
    assert len(said) == Farewells.REPEATS
    assert len(farewells) == 0

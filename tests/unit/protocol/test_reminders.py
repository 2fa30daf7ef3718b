"""Reminders come ever less often, and for the present debt only."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tandem.protocol.session import FIRST_REMINDER_S, MAX_REMINDER_S, Debt, Reminders
from tandem.protocol.table import Farewells

DEBT = (0, b"prefix 1")


def times(reminders: Reminders, until_s: float, debt: Debt = DEBT, first_s: float = 0.0) -> list[float]:
    ticks = (first_s + number / 20 for number in range(int(20 * (until_s - first_s))))
    return [now_s for now_s in ticks if reminders.take_due({"decoder": debt}, now_s)]


def test_the_wait_doubles() -> None:
    due = times(Reminders(), 60.0)
    assert due[0] == pytest.approx(FIRST_REMINDER_S)
    gaps = [later - earlier for earlier, later in pairwise(due)]
    assert gaps == pytest.approx([2.0, 4.0, *[MAX_REMINDER_S] * (len(gaps) - 2)])


def test_another_debt_starts_the_wait_again() -> None:
    reminders = Reminders()
    times(reminders, 10.0)
    assert times(reminders, 12.0, (0, b"prefix 2"), first_s=10.0) == pytest.approx([11.0])


def test_each_actor_has_its_own_wait() -> None:
    reminders = Reminders()
    reminders.take_due({"decoder": DEBT, "aggregator": None}, 0.0)
    assert reminders.take_due({"decoder": DEBT, "aggregator": DEBT}, 1.0) == ["decoder"]
    assert reminders.take_due({"decoder": DEBT, "aggregator": DEBT}, 2.0) == ["aggregator"]


def test_nothing_owed_nothing_reminded() -> None:
    assert times(Reminders(), 100.0, debt=None) == []


def test_the_end_is_repeated_three_times_and_forgotten() -> None:
    farewells = Farewells()
    farewells.add(7, 0.0)
    said = [now / 10 for now in range(300) if farewells.take_due(now / 10)]
    assert len(said) == Farewells.REPEATS
    assert len(farewells) == 0

"""Provisional tokens: a display that draws them as they are told always ends with the committed text.

`test_fuzz` replays such a display in every other run.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from tandem.events import DoneEvent, Event, ProvisionalEvent, RetractEvent, TokenEvent
from tandem.protocol.report import Provisional
from tandem.topology import PARTIES, Party
from tandem_lab.simulation.virtual import Outcome
from tandem_lab.simulation.watched import Display
from tests.unit.lab.simulation.planted import Planted, both_tests_of
from tests.unit.lab.simulation.world import PLACEMENTS, Case, make_case


def case_of(seed: int, **changes: Any) -> Case:
    """Delay, jitter, drops, cuts; and in every other case a peer that is given up and comes back."""
    loss = {"on_peer_loss": "continue", "peer_loss_margin_s": 0.1} if seed % 2 else {}
    placement = PLACEMENTS[seed % len(PLACEMENTS)]
    return make_case(seed, placement, **{"show_drafts": True, "max_new_tokens": 16, **loss, **changes})


def check(outcome: Outcome, party: Party = Party.DEVICE) -> Display:
    """Replay the events; AssertionError where a display would have lied."""
    display = Display()
    for event in outcome.events:
        display.add(event)
    assert [token for token, _ in display.pieces] == outcome.tokens[party]
    for event, following in pairwise(outcome.events):
        if isinstance(event, RetractEvent):
            assert isinstance(following, TokenEvent | DoneEvent), "what replaces it is told next"
    return display


def test_a_display_ends_with_the_committed_text_and_the_rest_of_the_stream_is_unchanged() -> None:
    """To the bit, times included."""

    def rest(events: list[Event]) -> list[str]:
        return [repr(event) for event in events if not isinstance(event, ProvisionalEvent | RetractEvent)]

    num_retracted = 0
    for seed in range(20):
        told, plain = case_of(seed).run(), case_of(seed, show_drafts=False).run()
        num_retracted += check(told).num_retracted
        assert rest(told.events) == [repr(event) for event in plain.events]
        assert (told.num_frames, told.num_bytes) == (plain.num_frames, plain.num_bytes)
        assert told.ended_s == plain.ended_s
    assert num_retracted > 15


@pytest.mark.parametrize("party", PARTIES)
def test_alone_nothing_is_retracted_but_drafts_past_the_end(party: Party) -> None:
    for seed in range(10):
        outcome = case_of(seed, only=party).run()
        check(outcome, party)
        assert all(not isinstance(event, RetractEvent) for event in outcome.events[:-2])


def test_a_cancelled_answer_retracts_what_is_not_committed() -> None:
    case = case_of(4, max_new_tokens=64)
    outcome = case.run(prepare=lambda run: run.at(0.4, lambda: run.cancel(Party.DEVICE)))
    assert outcome.done is not None
    assert outcome.done.reason == "cancelled"
    check(outcome)


def test_the_first_is_there_as_soon_as_on_the_device_alone() -> None:
    for seed in range(10):
        case = case_of(seed).over(delay_s=0.5)
        both, alone = case.run(), case.having(only=Party.DEVICE).run()
        firsts = [outcome.of(ProvisionalEvent)[0].shown_at_s for outcome in (both, alone)]
        assert firsts[0] == pytest.approx(firsts[1], abs=0.3), "the length of a decode differs"
        assert firsts[0] < both.of(TokenEvent)[0].committed_s


# ---- mutants: the fuzz property must find them ------------------------------------------------------------------


def no_retraction(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Provisional, "retract", lambda self, step: self.shown.truncate(step) or [])


def one_by_one(patch: pytest.MonkeyPatch) -> None:
    """Only the contradicted token is void, what was drafted on it stays."""

    def commit(self: Provisional, step: int, token: int) -> list[Event]:
        if len(self.shown) > step:
            self.shown.tokens[step] = token
            return []
        self.shown.append(token)
        return []

    patch.setattr(Provisional, "commit", commit)


def told_by_step(patch: pytest.MonkeyPatch) -> None:
    """Any draft of the next step is told, whatever it was conditioned on, and its step only."""

    def extend(self: Provisional, held: Any, now_s: float) -> list[Event]:
        return [
            ProvisionalEvent(step=draft.step, token=draft.token, text="", shown_at_s=now_s)
            for draft in held.values()
        ]

    patch.setattr(Provisional, "extend", extend)


def left_at_the_end(patch: pytest.MonkeyPatch) -> None:
    """Only a contradiction voids anything; the end of the answer does not."""

    def retract(self: Provisional, step: int) -> list[Event]:
        return []

    def commit(self: Provisional, step: int, token: int) -> list[Event]:
        if len(self.shown) > step and self.shown.tokens[step] == token:
            return []
        is_void = len(self.shown) > step
        self.shown.truncate(step)
        self.shown.append(token)
        return [RetractEvent(step=step)] if is_void else []

    patch.setattr(Provisional, "retract", retract)
    patch.setattr(Provisional, "commit", commit)


SEEDS = range(1, 60, 2)  # of queries that show drafts
MUTANTS = {
    "no_retraction": Planted(no_retraction, SEEDS, 1),
    "one_by_one": Planted(one_by_one, SEEDS, 1),
    "told_by_step": Planted(told_by_step, SEEDS, 1),
    "left_at_the_end": Planted(left_at_the_end, SEEDS, 41),
}
test_the_property_finds, test_the_witness_is_among_the_seeds_that_find = both_tests_of(MUTANTS)

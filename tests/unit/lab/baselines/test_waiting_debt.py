"""CONCORD's waiting debt: which steps wait, and that each has the token that the reference page says."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from tandem.events import TokenEvent
from tandem.topology import Party
from tandem_lab.baselines import waiting_debt
from tandem_lab.baselines.waiting_debt import WaitingDebt, WaitingDebtRun
from tandem_lab.simulation.link import Link
from tandem_lab.simulation.scenario import Scenario, expected_answer
from tandem_lab.simulation.virtual import Outcome
from tests.unit.lab.simulation.world import Case, agree, make_spec, synchronous

RTT_S, PASS_S = 0.2, 0.02
SEEDS = range(12)


def spec_of(seed: int, **changes: Any) -> Any:
    fixed = {"placement": "device", "draft_rule": "coupled", "temperature": 0.0, "max_new_tokens": 16}
    return make_spec(seed, **{**fixed, "device_documents": 2, "cloud_documents": 3, **changes})


def ask(seed: int, relief_s: float, **changes: Any) -> Outcome:
    make: Any = partial(WaitingDebtRun, relief_s=relief_s)
    case = Case(spec_of(seed, **changes), Link(delay_s=RTT_S / 2))
    run: WaitingDebtRun = case.make(lambda party, rng: PASS_S, kind=make)
    return run.run()


def audit(outcome: Outcome, relief_s: float) -> Iterator[bool]:
    """Keeps its own account of an answer: no step waits while there is debt, none is skipped without."""
    debt_s = committed_s = 0.0
    for token in outcome.of(TokenEvent):
        since_s = max(committed_s, token.device_arrived_s)
        if token.is_alone:
            assert debt_s > 0, "skipped without debt"
            debt_s = max(0.0, debt_s - relief_s)
        else:
            waited_s = max(0.0, token.cloud_arrived_s - since_s)
            assert debt_s == 0 or waited_s == 0, "waited in debt"
            debt_s = 0.0 if not token.device_accepted else debt_s + waited_s
        committed_s = token.committed_s
        yield token.is_alone


def check(relief_s: float) -> None:
    """By the token-wise loop and by that which drafts ahead; each token is the mixture's or the device's own."""
    marks: list[bool] = []
    for seed in SEEDS:
        for max_window in (1, 8):
            outcome = ask(seed, relief_s, max_window=max_window)
            told = list(audit(outcome, relief_s))
            spec = spec_of(seed, max_window=max_window)
            scenario = Scenario(seed=seed, spec=spec, link=Link(), first_end=0, model_s={})
            alone = [step for step, is_alone in enumerate(told) if is_alone]
            assert list(agree(outcome)) == expected_answer(scenario, alone=alone)
            marks += told
    assert 10 < sum(marks) < len(marks) - 10


@pytest.mark.parametrize("relief_s", [0.02, 0.1])
def test_steps_wait_as_long_as_waiting_has_paid(relief_s: float) -> None:
    check(relief_s)


class NeverRemits(WaitingDebt):
    def wait(self, waited_s: float, *, is_changed: bool) -> None:
        super().wait(waited_s, is_changed=False)


class NeverRepays(WaitingDebt):
    def skip(self) -> None:
        pass


class NeverOwes(WaitingDebt):
    def wait(self, waited_s: float, *, is_changed: bool) -> None:
        pass


@pytest.mark.parametrize(
    ("mutant", "fault"),
    [
        (NeverRemits, "skipped without debt"),
        (NeverRepays, "skipped without debt"),
        (NeverOwes, "waited in debt"),
    ],
)
def test_another_account_is_found(
    mutant: type[WaitingDebt], fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_debt, "WaitingDebt", mutant)
    with pytest.raises(AssertionError, match=fault):
        check(0.1)


def test_a_cloud_that_is_never_waited_for_gives_the_answer_of_both() -> None:
    """Over a link without delay, to a cloud whose vote is always there first."""
    for seed in SEEDS:
        make: Any = partial(WaitingDebtRun, relief_s=0.0)
        case = Case(spec_of(seed), Link())
        run = case.make(lambda party, rng: PASS_S if party is Party.DEVICE else PASS_S / 8, kind=make)
        assert agree(run.run()) == synchronous(spec_of(seed))

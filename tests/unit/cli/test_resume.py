"""`tandem resume`: what it goes on with, where, and what it says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tandem.cli import main
from tandem.client.request import spec_of
from tandem.client.resume import Unfinished
from tandem.config.schema import Config
from tandem.events import TokenEvent

from .conftest import TEXTS, FakeTandem, Run, answer_events


@pytest.fixture
def unfinished() -> None:
    """An answer whose process died after two tokens."""
    left = Unfinished.create(replace(spec_of(Config()), session=5, query="Which game?", seed=9), {})
    assert left is not None
    for event in [event for event in answer_events() if isinstance(event, TokenEvent)][:2]:
        left.add(event)
    left.close()


@pytest.mark.usefixtures("unfinished")
def test_the_rest_of_the_answer(tandem: FakeTandem, run: Run) -> None:
    _, out, err = run("resume", "--address", "10.0.0.1:6379", code=0)
    assert [question for question, _ in tandem.asked] == ["Which game?"]
    assert [address for address, _ in tandem.started] == ["10.0.0.1:6379"]
    assert out.startswith("".join(TEXTS).strip())
    assert "seed       9" in out
    assert "going on after 2 tokens" in err


@pytest.mark.usefixtures("unfinished")
def test_only_the_answer(tandem: FakeTandem, run: Run) -> None:
    assert run("resume", "--quiet", "--fresh", code=0).out.strip() == "".join(TEXTS).strip()


def test_where_nothing_is_unfinished_nothing_is_started(tandem: FakeTandem, run: Run) -> None:
    said = run("resume", code=1).err
    assert said.startswith("tandem: No unfinished answer is kept in ")
    assert said.endswith("; ask a question with `tandem ask`.\n")
    assert not tandem.started


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_setting_keeps_questions_off_the_disk(tandem: FakeTandem, is_kept: bool) -> None:
    assert main(["ask", "Which game?", "--set", f"cluster.keep_unfinished={str(is_kept).lower()}"]) == 0
    ((_, options),) = tandem.asked
    assert options["resumable"] is is_kept

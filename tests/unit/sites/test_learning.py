"""A drafter that learns from committed answers on a device that runs: more of its drafts stand, no answer changes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandem import Config, Tandem
from tandem.errors import ConfigError, QueryError
from tandem.topology import Party
from tandem_lab.training.bundle import read_bundled_questions

QUESTION = read_bundled_questions()[0].question
SETTINGS = (
    "cluster.runtime=inline",
    "decoding.mode=speculative",
    "decoding.pacing=pipelined",  # beside a cloud that goes on by itself, what stands depends on the time
    "device.model=bundled-drafter",
    "device.num_documents=0",
    "device.learns=true",
)
LESSONS = 12


@pytest.fixture(scope="module")
def tandem(state: Path) -> Iterator[Tandem]:
    with Tandem.launch(Config.load(None, SETTINGS)) as tandem:
        yield tandem


def num_lessons(tandem: Tandem) -> int:
    (decoder,) = [each for each in tandem.status()["actors"] if each["name"] == "device/decoder"]
    return int(decoder["extra"]["num_lessons"])


def num_accepted(tandem: Tandem) -> int:
    """Asks once; that the answer is the cloud's alone is asserted on the way."""
    before = num_lessons(tandem)
    answer = tandem.query(QUESTION, temperature=0.0)
    assert answer.text == tandem.query(QUESTION, temperature=0.0, only="cloud").text
    deadline_s = time.monotonic() + 60
    while num_lessons(tandem) == before:
        assert time.monotonic() < deadline_s, "it learned nothing"
        time.sleep(0.01)
    return answer.statistics.num_device_accepted


@pytest.mark.nightly("trains over many answers")
def test_more_drafts_stand_and_no_answer_changes(tandem: Tandem, state: Path) -> None:
    accepted = [num_accepted(tandem) for _ in range(LESSONS)]
    assert accepted[-1] > accepted[0], accepted
    (head,) = state.rglob("learned/*.safetensors")
    assert head.stat().st_size > 100_000


def test_it_has_no_vote(tandem: Tandem) -> None:
    refused = r"^The device's model learns from answers \(device\.learns = true\), so it may draft, but not vote in "
    with pytest.raises(QueryError, match=refused):
        tandem.query(QUESTION, only=Party.DEVICE)


@pytest.mark.parametrize(
    ("setting", "mode"), [("cloud.learns=true", "speculative"), ("device.learns=true", "dual")]
)
def test_who_has_a_vote_does_not_learn(setting: str, mode: str) -> None:
    name = setting.partition(".")[0]
    with pytest.raises(ConfigError, match=rf'{name}\.learns is true, but in mode "{mode}" {name} has a vote'):
        Config.load(None, [f"decoding.mode={mode}", setting])

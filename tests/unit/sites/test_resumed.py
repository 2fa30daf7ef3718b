"""An answer whose process was killed is resumed from the tokens on disk, and is the one that would have been."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tandem import Config, Tandem
from tandem.client.request import build_spec
from tandem.client.resume import Unfinished, origin_of
from tandem.errors import QueryError
from tandem.events import Answer, ProvisionalEvent, TokenEvent
from tandem.sites.local import LocalDeployment, launch
from tandem.sites.socket import connect, listening, reserved, socket_folder

from .conftest import command

QUESTION = "Which game should Mira try?"
OPTIONS: dict[str, Any] = {"seed": 11, "temperature": 1.0, "max_new_tokens": 24}
WAIT = Config.load(None, ["link.on_peer_loss=wait"])
STOPPED = (
    r"^The device \(process \d+\) has stopped; .* Its first \d+ tokens are kept; `tandem resume` goes on"
)
MODES: dict[str, dict[str, Any]] = {
    "mirror": {},
    "algorithm1": {"placement": "cloud", "draft_rule": "algorithm1"},
    "speculative": {"mode": "speculative"},
    "patience": {"patience_s": 100.0},
    "only": {"only": "cloud"},
}
"""Ways of working together, which differ in who begins with what."""


@pytest.fixture(scope="module")
def sites(state: Path) -> Iterator[LocalDeployment]:
    """Both parties in this process, which other commands of this user find as their device."""
    sites = launch(WAIT, lambda line: None)
    with contextlib.closing(sites), reserved(socket_folder()), listening(sites, WAIT, socket_folder()):
        yield sites


@pytest.fixture(scope="module")
def rag(sites: LocalDeployment) -> Tandem:
    return Tandem(WAIT, sites)


def cut(rag: Tandem, answer: Answer, num_tokens: int, **options: Any) -> Unfinished:
    """What is left of a query after some tokens of this answer."""
    spec = build_spec(rag.config, rag.described, QUESTION, **OPTIONS, **options)
    unfinished = Unfinished.create(spec, origin_of(spec, rag.described))
    assert unfinished is not None
    for event in answer.tokens[:num_tokens]:
        unfinished.add(event)
    unfinished.close()
    return Unfinished.find()


@pytest.mark.parametrize("mode", MODES)
def test_it_is_the_answer_of_an_undisturbed_run(rag: Tandem, mode: str) -> None:
    options = MODES[mode]
    whole = rag.query(QUESTION, **OPTIONS, **options)
    for num_tokens in {1, 2, 13, len(whole.tokens)}:
        resumed = rag.resume(cut(rag, whole, num_tokens, **options))
        assert resumed.token_ids == whole.token_ids
        assert (resumed.text, resumed.reason, resumed.seed) == (whole.text, whole.reason, whole.seed)
        assert {source.id for source in resumed.sources} == {source.id for source in whole.sources}
        assert resumed.statistics.num_resumed == min(num_tokens, len(whole.tokens)) - 1
        assert not resumed.is_degraded
    with pytest.raises(QueryError, match="No unfinished answer is kept"):
        rag.resume()


def test_another_prefix_gives_another_answer(rag: Tandem) -> None:
    """What is on disk counts: the tokens of another seed are taken over, and the rest follows from them."""
    whole, other = (rag.query(QUESTION, **OPTIONS | {"seed": seed}) for seed in (11, 12))
    resumed = rag.resume(cut(rag, other, 6))
    assert resumed.token_ids[:5] == other.token_ids[:5] != whole.token_ids[:5]


def test_drafts_are_shown_behind_the_tokens_of_before(rag: Tandem) -> None:
    whole = rag.query(QUESTION, **OPTIONS)
    unfinished = cut(rag, whole, 9, show_drafts=True)
    text = ""
    for event in rag.stream_resumed(unfinished):
        if isinstance(event, TokenEvent):
            text += event.text
        elif isinstance(event, ProvisionalEvent):
            assert event.step >= 8
    assert text.strip() == whole.text


def test_what_the_device_answered_alone_is_asked_of_both_again(rag: Tandem) -> None:
    whole, other = (rag.query(QUESTION, **OPTIONS | {"seed": seed}) for seed in (11, 12))
    assert whole.token_ids[5:9] != other.token_ids[5:9]
    kept = cut(rag, replace(whole, tokens=whole.tokens[:5] + other.tokens[5:9]), 9)
    kept.cut(5)
    kept.close()
    resumed = rag.resume()
    assert resumed.token_ids == whole.token_ids
    assert resumed.statistics.num_resumed == 4


@pytest.mark.nightly("two processes that load models")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_process_that_was_ended_is_resumed_by_a_command(
    rag: Tandem, state: Path, how: signal.Signals
) -> None:
    sampling = ("--seed", "11", "--temperature", "1", "--max-new-tokens", "24")
    asking = command("ask", QUESTION, *sampling, "--set", "link.on_peer_loss=wait")
    assert asking.stdout is not None
    assert asking.stdout.read(1), asking.communicate()
    asking.send_signal(how)
    _, left = asking.communicate(timeout=120)
    assert asking.returncode == (-how if how == signal.SIGKILL else 128 + how)
    assert ("kept; `tandem resume`" in left) is (how != signal.SIGKILL)
    (file,) = (state / "tandem" / "unfinished").iterdir()
    num_tokens = file.read_bytes().count(b"\n") - 1
    whole = rag.query(QUESTION, **OPTIONS)
    passages = [source.text for source in whole.sources if source.text]
    assert passages
    assert not any(json.dumps(passage)[1:40] in file.read_text() for passage in passages)
    assert 0 < num_tokens <= len(whole.tokens)

    done = command("resume", "--json")
    out, said = done.communicate(timeout=300)
    assert done.returncode == 0, said
    assert f"going on after {num_tokens} tokens" in said
    answer = json.loads(out)
    assert [each["token"] for each in answer["tokens"]] == list(whole.token_ids)
    assert (answer["answer"], answer["seed"]) == (whole.text, 11)
    assert answer["statistics"]["num_resumed"] == num_tokens - 1
    assert not file.exists()


def test_without_its_device_a_command_says_what_is_kept(state: Path) -> None:
    sites = launch(WAIT, lambda line: None)
    folder = state / "other"
    with contextlib.closing(sites), reserved(folder), contextlib.ExitStack() as offer:
        offer.enter_context(listening(sites, WAIT, folder))
        with Tandem(WAIT, connect(lambda line: None, folder)) as asking:
            events = asking.stream(QUESTION, **OPTIONS, resumable=True)
            while not isinstance(next(events), TokenEvent):
                pass
            offer.close()
            with pytest.raises(QueryError, match=STOPPED):
                list(events)
    Unfinished.find().remove()

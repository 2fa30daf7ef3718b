"""Sites in one process, used as a program would: events, cancelling, status, an end without remains, and neither Ray
nor a process."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tandem import Config, Tandem
from tandem.actors.decoder import DecoderActor
from tandem.errors import ConfigError, QueryError
from tandem.events import DoneEvent, SourcesEvent, TokenEvent
from tandem.plugins.embedders import Embedder
from tandem.retrieval import build_index
from tandem.topology import Party
from tandem_lab.bundled import read_bundled_questions
from tests.waiting import wait_until

ASKED = read_bundled_questions()[0]
QUESTION, ANSWER = ASKED.question, ASKED.answer
OWN_TASKS = {"retriever/serve", "decoder/work", "draft_queue/tick"}


def is_idle(rag: Tandem) -> bool:
    """Whether no actor holds a session or runs a task that is not its own."""
    return not any(
        actor["num_sessions"] or {task.split("/", 1)[1] for task in actor["tasks"]} - OWN_TASKS
        for actor in rag.status()["actors"]
    )


def test_the_answer_needs_both_corpora_and_shows_the_passages_of_its_home(rag: Tandem) -> None:
    answer = rag.query(QUESTION, seed=7)
    assert (answer.text, answer.reason) == (ANSWER, "eos")
    device, cloud = ([each for each in answer.sources if each.party is party] for party in Party)
    assert (len(device), len(cloud)) == (4, 16)
    assert all(source.title and source.text for source in device)
    assert {(source.title, source.text) for source in cloud} == {(None, None)}
    assert answer.statistics.sent_bytes > 0
    wait_until(lambda: is_idle(rag))


def test_events_come_as_they_happen_and_in_order(rag: Tandem) -> None:
    began_s, arrived_s = time.monotonic(), []
    events = []
    for event in rag.stream(QUESTION, seed=7, show_drafts=True):
        events.append(event)
        arrived_s.append(time.monotonic() - began_s)
    tokens = [event for event in events if isinstance(event, TokenEvent)]
    assert [event.step for event in tokens] == list(range(len(tokens)))
    assert "".join(event.text for event in tokens).strip() == ANSWER
    assert {event.party for event in events if isinstance(event, SourcesEvent)} == set(Party)
    assert isinstance(events[-1], DoneEvent)
    assert len(set(arrived_s)) > len(tokens) / 2, "they came one by one"


def test_leaving_a_stream_early_cancels_both_parties(rag: Tandem) -> None:
    for event in rag.stream(QUESTION, max_new_tokens=200, temperature=1.0, seed=1):
        if isinstance(event, TokenEvent) and event.step == 2:
            break
    wait_until(lambda: is_idle(rag))


def test_what_fails_is_one_sentence_and_nothing_dies_of_it(rag: Tandem) -> None:
    with pytest.raises(QueryError, match=r"(?i)tokens.*context"):
        rag.query("why " * 3000)
    with pytest.raises(QueryError, match=r"^The cloud gave the query up: A filter must name metadata"):
        rag.query(QUESTION, cloud_filter={"colour": "red"})
    with pytest.raises(QueryError, match=r"^A filter must name metadata .* 'colour' is none of .*source"):
        rag.query(QUESTION, device_filter={"colour": "red"})
    with pytest.raises(ConfigError, match="temperature"):
        rag.query(QUESTION, temperature=-1.0)
    assert rag.query(QUESTION, seed=7).text == ANSWER


def test_closing_leaves_no_thread_and_ends_what_is_half_read() -> None:
    before = set(threading.enumerate())
    rag = Tandem.launch(runtime="inline")
    stream = rag.stream(QUESTION, max_new_tokens=200, temperature=1.0, seed=1)
    next(stream)
    rag.close()
    rag.close()
    with pytest.raises(QueryError, match=r"^This Tandem is closed"):
        next(stream)
    wait_until(lambda: not set(threading.enumerate()) - before)


class DeafDecoder(DecoderActor):
    """The cloud's says nothing."""

    async def work(self) -> None:
        if self.party == Party.DEVICE:
            await super().work()


def test_a_cloud_that_gives_no_token_is_waited_for_as_long_as_the_query_says() -> None:
    """Its draft queue lives, so it is slow, not lost."""
    with Tandem.launch(runtime="inline", actor_classes={"decoder": DeafDecoder}) as rag:
        with pytest.raises(QueryError, match=r"^An answer must begin within 1 s"):
            rag.query(QUESTION, timeout_s=1.0)
        answer = rag.query(QUESTION, patience_s=0.05, seed=7)
        assert answer.token_ids == rag.query(QUESTION, only="device", seed=7).token_ids
        assert answer.statistics.num_late_votes == len(answer.tokens)
        assert not answer.is_degraded


def test_the_next_question_finds_what_was_added_to_an_index(tmp_path: Path) -> None:
    (notes := tmp_path / "notes").mkdir()
    (notes / "mira.txt").write_text("Mira likes puzzle games.")
    build_index(notes, tmp_path / "index", Embedder.load("offline"))
    config = Config.load(None, [f"device.index={tmp_path / 'index'}", "sampling.max_new_tokens=2"])
    with Tandem.launch(config, runtime="inline") as rag:
        assert len(rag.query(QUESTION).own_sources) == 1
        (notes / "tom.txt").write_text("Tom likes chess.")
        build_index(notes, tmp_path / "index", Embedder.load("offline"))
        assert {source.text for source in rag.query(QUESTION).own_sources} == {
            "Mira likes puzzle games.",
            "Tom likes chess.",
        }


@pytest.mark.parametrize(
    ("start", "sentence"),
    [
        (
            lambda: Tandem.launch(runtime="local"),
            r"^cluster\.runtime must be auto, inline, ray, or MODULE:FUNCTION of your own \(got 'local'\); the "
            r"default is \"auto\"\.$",
        ),
        (
            lambda: Tandem.launch(runtime="inline", hosts={}),
            r'^hosts says where Ray nodes run, but the runtime is "inline"',
        ),
        (
            lambda: Tandem.connect("10.0.0.1:6379", Config.load(None, ["cluster.runtime=inline"])),
            r"^Tandem\.connect needs a Ray cluster, but cluster\.runtime is \"inline\"",
        ),
    ],
    ids=["launch", "hosts", "connect"],
)
def test_what_only_ray_has_is_one_sentence(start: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        start()


SCRIPT = """
import json, sys
import psutil
import tandem
from tandem import Tandem
assert "ray" not in sys.modules
with Tandem.launch(runtime="inline") as rag:
    answer = rag.query("Which game should Mira try?", seed=7)
    num_processes = 1 + len(psutil.Process().children(recursive=True))
    num_actors = len(rag.status()["actors"])
ray = sorted(name for name in sys.modules if name.partition(".")[0] == "ray")
print(json.dumps([answer.text, ray, num_processes, num_actors]))
"""


def test_an_answer_loads_no_ray_in_one_process() -> None:
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result == ["Mira likes puzzle games, so try Pukan Vakun.", [], 1, 12]


def test_what_prepares_an_actor_is_light() -> None:
    """Two threads that import transformers at once get half of it, so `actors.loading` has them take turns."""
    modules = "actors.decoder actors.retriever corpora engine.places"
    names = ", ".join(f"tandem.{name}" for name in modules.split())
    script = f"import sys, {names}; print({{'torch', 'transformers'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"

"""Tandem as a LlamaIndex LLM: the same answers as `Tandem.query`, in LlamaIndex's own forms."""

from __future__ import annotations

import asyncio
import contextlib
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from llama_index.core.llms import ChatMessage, MessageRole
from llama_index.core.prompts import PromptTemplate

from tandem import Answer, Tandem
from tandem.plugins.clients.llamaindex import TandemLLM
from tests.server.running import QUESTION


@pytest.fixture(scope="module")
def answer(tandem: Tandem) -> Answer:
    return tandem.query(QUESTION, seed=5)


@pytest.fixture(scope="module")
def llm(tandem: Tandem) -> TandemLLM:
    return TandemLLM(tandem=tandem, seed=5)


def user(text: str) -> ChatMessage:
    return ChatMessage(role=MessageRole.USER, content=text)


def test_complete_and_chat(llm: TandemLLM, answer: Answer, tandem: Tandem) -> None:
    for response in (llm.complete(QUESTION), llm.chat([user(QUESTION)])):
        known = response.raw
        assert known is not None
        assert known["tandem"]["seed"] == 5
        assert {source["party"] for source in known["tandem"]["sources"]} == {"device", "cloud"}
        assert known["usage"]["prompt_tokens"] == tandem.count_tokens(QUESTION)
        assert known["usage"]["completion_tokens"] == len(answer.tokens)
    assert llm.complete(QUESTION).text == answer.text
    assert llm.chat([user(QUESTION)]).message.content == answer.text
    assert llm.predict(PromptTemplate("Which games does {name} like?"), name="Mira") == answer.text


def test_the_documents_of_the_home_are_nodes_with_what_they_said(llm: TandemLLM, answer: Answer) -> None:
    streamed = [*llm.stream_chat([user(QUESTION)])][-1]
    for response in (llm.complete(QUESTION), llm.chat([user(QUESTION)]), streamed):
        nodes = response.additional_kwargs["source_nodes"]
        assert [node.node.text for node in nodes] == [source.text for source in answer.own_sources]
        assert [node.score for node in nodes] == [source.score for source in answer.own_sources]
        for number, node in enumerate(nodes):
            spans = [span for span in answer.citations if span.document == number]
            expected = [[span.start, span.end, round(span.share, 4)] for span in spans]
            assert node.node.metadata["spans"] == expected
    assert len(answer.citations) > 0


def test_streams_grow_to_the_answer_and_asynchronous_twins_give_it(llm: TandemLLM, answer: Answer) -> None:
    completions = list(llm.stream_complete(QUESTION))
    messages = list(llm.stream_chat([user(QUESTION)]))
    assert len(completions) == len(messages) > 5
    assert "".join(each.delta or "" for each in completions) == completions[-1].text == answer.text
    assert "".join(each.delta or "" for each in messages) == messages[-1].message.content == answer.text
    assert completions[-1].raw is not None
    assert completions[-1].raw["finish_reason"] == "stop"

    async def ask() -> list[str | None]:
        completions = [each async for each in await llm.astream_complete(QUESTION)]
        messages = [each async for each in await llm.astream_chat([user(QUESTION)])]
        whole = (await llm.acomplete(QUESTION)).text, (await llm.achat([user(QUESTION)])).message.content
        return [*whole, completions[-1].text, messages[-1].message.content]

    assert asyncio.run(ask()) == [answer.text] * 4


def test_the_missing_package_is_named() -> None:
    script = "import sys; sys.modules['llama_index'] = None; import tandem.plugins.clients.llamaindex"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "ImportError: TandemLLM needs llama-index-core" in done.stderr
    assert "[llamaindex]" in done.stderr


def test_the_example(
    tandem: Tandem, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It starts its parties itself; here it gets those that run."""
    monkeypatch.setattr(Tandem, "launch", lambda **_: contextlib.nullcontext(tandem))
    example = runpy.run_path(
        str(Path(__file__).parents[2] / "examples" / "chat_models.py"), run_name="__main__"
    )
    answer = tandem.query(example["QUESTION"], seed=7)
    shown = capsys.readouterr().out.splitlines()
    assert shown[2:] == [f"LlamaIndex: {answer.text}", "  accepted: device, cloud"]
    assert shown[0].startswith("LangChain: ")
    assert shown[1].startswith("  read: device ")

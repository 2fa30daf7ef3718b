"""Tandem as a LangChain chat model: the same answers as `Tandem.query`, in LangChain's own forms."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from pydantic import BaseModel, Field

from tandem import Answer, Tandem
from tandem.errors import ConfigError, QueryError
from tandem.plugins.clients.langchain import ChatTandem
from tests.server.running import LONG, QUESTION, Served


@pytest.fixture(scope="module")
def answer(tandem: Tandem) -> Answer:
    return tandem.query(QUESTION, seed=5)


@pytest.fixture(scope="module")
def chat(tandem: Tandem) -> ChatTandem:
    return ChatTandem(tandem=tandem, seed=5)


def test_an_answer_has_its_usage_and_what_tandem_knows(
    chat: ChatTandem, answer: Answer, tandem: Tandem
) -> None:
    message = chat.invoke(QUESTION)
    assert isinstance(message, AIMessage)
    assert message.content == answer.text
    num_prompt_tokens = tandem.count_tokens(QUESTION)
    assert message.usage_metadata == {
        "input_tokens": num_prompt_tokens,
        "output_tokens": len(answer.tokens),
        "total_tokens": num_prompt_tokens + len(answer.tokens),
    }
    known = message.response_metadata
    assert (known["model_name"], known["finish_reason"]) == ("tandem", "stop")
    assert known["tandem"]["seed"] == 5
    assert {source["party"] for source in known["tandem"]["sources"]} == {"device", "cloud"}
    assert set(known["tandem"]["acceptance"]) == {"device", "cloud"}
    assert known["tandem"]["degraded"] is None


def test_citations_are_annotations_of_the_text(chat: ChatTandem, answer: Answer) -> None:
    whole: Any = None
    for chunk in chat.stream(QUESTION):
        whole = chunk if whole is None else whole + chunk
    for message in (chat.invoke(QUESTION), whole):
        annotations = message.additional_kwargs["annotations"]
        assert len(annotations) == len(answer.citations) > 0
        for each, span in zip(annotations, answer.citations, strict=True):
            source = answer.own_sources[span.document]
            assert each["type"] == "citation"
            assert (each["start_index"], each["end_index"]) == (span.start, span.end)
            assert (each["title"], each["cited_text"]) == (source.title, source.text)
            assert each["extras"]["document_id"] == source.id


class Tokens(BaseCallbackHandler):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def on_llm_new_token(self, token: str, **_: Any) -> None:
        self.texts.append(token)


def test_a_stream_is_the_answer_piece_by_piece(chat: ChatTandem, answer: Answer) -> None:
    tokens = Tokens()
    chunks = list(chat.stream(QUESTION, config={"callbacks": [tokens]}))
    assert len(chunks) > 5
    assert "".join(tokens.texts) == "".join(str(chunk.content) for chunk in chunks) == answer.text
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    assert whole.usage_metadata is not None
    assert whole.usage_metadata["output_tokens"] == len(answer.tokens)
    assert whole.response_metadata["tandem"]["seed"] == 5


def test_batch_and_the_asynchronous_twins(chat: ChatTandem, answer: Answer) -> None:
    async def ask() -> tuple[str, str, list[str]]:
        streamed = "".join([str(chunk.content) async for chunk in chat.astream(QUESTION)])
        batch = await chat.abatch([QUESTION, QUESTION])
        return str((await chat.ainvoke(QUESTION)).content), streamed, [str(each.content) for each in batch]

    assert [each.content for each in chat.batch([QUESTION, QUESTION])] == [answer.text] * 2
    assert asyncio.run(ask()) == (answer.text, answer.text, [answer.text] * 2)


def test_answers_follow_a_schema(chat: ChatTandem) -> None:
    class Rated(BaseModel):
        name: Literal["chess", "go"]
        stars: int = Field(ge=1, le=5)

    assert chat.with_structured_output(Rated).invoke(QUESTION).stars in range(1, 6)
    rated: Any = chat.with_structured_output(Rated.model_json_schema()).invoke(QUESTION)
    assert rated["name"] in ("chess", "go")
    with pytest.raises(NotImplementedError, match="include_raw"):
        chat.with_structured_output(Rated, include_raw=True)
    assert chat.invoke(QUESTION, top_p=0.5, presence_penalty=0.5, temperature=1.0).content


def test_leaving_a_stream_ends_its_query(served: Served) -> None:
    chat = ChatTandem(tandem=served.tandem, **{"seed": 0} | LONG)
    stream = chat.stream(QUESTION)
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    served.wait_until_idle()


ASK, HELLO = HumanMessage("Hello."), AIMessage("Hello.")
CALL = AIMessage("", tool_calls=[{"name": "add", "args": {}, "id": "a"}])
IMAGE = HumanMessage([{"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}])


@pytest.mark.parametrize(
    ("messages", "sentence"),
    [
        ([], "The last message must be of the user, but there is none; add the question."),
        ([ASK, HELLO], "The last message must be of user, but it is of assistant; add the question."),
        (
            [ASK, ToolMessage("4", tool_call_id="a")],
            "A message must be of the user, the assistant or the system, but one is of type 'tool'; leave it out.",
        ),
        ([ASK, CALL], "A message must be text, but one has a part of type 'tool_call'; send text only."),
        ([IMAGE], "A message must be text, but one has a part of type 'image_url'; send text only."),
    ],
)
def test_messages_that_make_no_question_are_refused(
    chat: ChatTandem, messages: list[BaseMessage], sentence: str
) -> None:
    with pytest.raises(QueryError) as refused:
        chat.invoke(messages)
    assert str(refused.value) == sentence


def test_numbers_and_parts_are_read_as_other_servers_read_them(tandem: Tandem) -> None:
    """-1 is any seed and no limit; parts of a message are on lines of their own."""
    parts = HumanMessage([{"type": "text", "text": "Which games"}, "does Mira like?"])
    asked = ChatTandem(tandem=tandem, seed=-1, max_tokens=-1, stop=[""]).invoke([parts], top_k=-1, top_p=0)
    seed = asked.response_metadata["tandem"]["seed"]
    assert seed >= 0
    assert asked.content == tandem.query("Which games\ndoes Mira like?", seed=seed).text


def test_options_that_no_query_has_are_refused(chat: ChatTandem, tandem: Tandem) -> None:
    with pytest.raises(ConfigError, match="sead does not exist; the nearest is 'seed'"):
        ChatTandem(tandem=tandem, options={"sead": 5})
    with pytest.raises(
        ConfigError, match="history is no option of a chat model; send the earlier turns as messages"
    ):
        chat.invoke(QUESTION, history=[])
    with pytest.raises(ConfigError, match="temperature"):
        chat.invoke(QUESTION, temperature=-1.0)
    with pytest.raises(NotImplementedError):  # LangChain's own, for a model that calls no tools
        chat.bind_tools([])

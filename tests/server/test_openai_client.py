"""The `openai` package against the server: streams, options, errors, cancellation, load."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pydantic
import pytest

from tandem import Tandem
from tandem.conversation import SYSTEM_PROMPT
from tests.server.running import LONG, LONG_SEEDS, QUESTION, Served, read_metrics, wait_until

openai = pytest.importorskip("openai")

HOT = {"temperature": 1.0, "max_tokens": 12}


def say(role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def ask(client: Any, question: str = QUESTION, **options: Any) -> Any:
    return client.chat.completions.create(model="tandem", messages=[say("user", question)], **options)


def test_chat_is_the_answer_of_the_python_api(client: Any, tandem: Tandem) -> None:
    answer = tandem.query(QUESTION, seed=5)
    completion = ask(client, seed=5)
    choice = completion.choices[0]
    assert (choice.message.role, choice.message.content) == ("assistant", answer.text)
    assert (choice.finish_reason, completion.object) == ("stop", "chat.completion")
    assert completion.usage.completion_tokens == len(answer.tokens)
    assert completion.usage.total_tokens == completion.usage.prompt_tokens + len(answer.tokens)
    assert completion.usage.prompt_tokens > 3
    assert completion.system_fingerprint.startswith("fp_")
    extra = completion.tandem
    assert (extra["seed"], extra["degraded"]) == (5, None)
    statistics = answer.statistics
    assert extra["acceptance"]["device"] == round(statistics.num_device_accepted / statistics.num_tokens, 4)
    titles = {source["party"]: source["title"] for source in extra["sources"]}
    assert titles["device"].endswith(".md")
    assert titles["cloud"] is None
    assert extra["statistics"]["sent_bytes"] > 0
    assert len(extra["citations"]) == len(answer.citations) > 0
    for each, span in zip(extra["citations"], answer.citations, strict=True):
        source = extra["sources"][each["source"]]
        assert choice.message.content[each["start"] : each["end"]] == answer.text[span.start : span.end]
        assert (each["id"], each["title"]) == (source["id"], source["title"])
        assert source["party"] == "device"
        assert 0.5 < each["share"] <= 1.0


def test_stream_holds_the_same_text_with_usage_last(client: Any, tandem: Tandem) -> None:
    text = tandem.query(QUESTION, seed=5).text
    chunks = list(ask(client, seed=5, stream=True, stream_options={"include_usage": True}))
    deltas = [chunk.choices[0].delta for chunk in chunks[:-1]]
    assert deltas[0].role == "assistant"
    assert "".join(delta.content or "" for delta in deltas) == text
    assert len([delta for delta in deltas if delta.content]) > 5
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]][-2:] == [None, "stop"]
    whole = ask(client, seed=5).tandem
    assert (chunks[-2].tandem["seed"], chunks[-2].tandem["citations"]) == (5, whole["citations"])
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens > 5
    assert len({chunk.id for chunk in chunks}) == 1


def test_text_completion(client: Any, tandem: Tandem) -> None:
    text = tandem.query(QUESTION, seed=5).text
    completion = client.completions.create(model="tandem", prompt=QUESTION, seed=5)
    assert completion.choices[0].text == text
    chunks = list(client.completions.create(model="tandem", prompt=[QUESTION], seed=5, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == text
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_same_seed_same_answer_alone_and_under_load(served: Served, client: Any) -> None:
    alone = [ask(client, seed=seed, **HOT).choices[0].message.content for seed in range(4)]
    assert len(set(alone)) > 1

    async def all_at_once() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as many:
            calls = [ask(many, seed=number % 4, **HOT) for number in range(12)]
            return [done.choices[0].message.content for done in await asyncio.gather(*calls)]

    assert asyncio.run(all_at_once()) == alone * 3


def test_options_of_tandem_in_the_extra_body(client: Any, tandem: Tandem) -> None:
    options = {
        "only": "device",
        "num_documents": 1,
        "device_filter": {"source": "note-01-mira-games.md"},
        "on_peer_loss": "fail",
        "top_k": 5,
    }
    answer = tandem.query(QUESTION, seed=2, **options)
    completion = ask(client, seed=2, extra_body=options)
    assert completion.choices[0].message.content == answer.text
    assert [source["party"] for source in completion.tandem["sources"]] == ["device"]
    assert completion.tandem["statistics"]["sent_bytes"] == 0
    assert completion.tandem["acceptance"] == {}


def test_models_and_embeddings(client: Any) -> None:
    name, embedder = [model.id for model in client.models.list()]
    assert client.models.retrieve(name).id == "tandem"
    assert client.models.retrieve(embedder).id == embedder
    texts = ["Mira likes games.", "It rains.", "Mira likes games."]
    first, rain, again = [
        each.embedding for each in client.embeddings.create(model=embedder, input=texts).data
    ]
    assert first == again
    assert sum(value * value for value in first) == pytest.approx(1, abs=1e-5)
    plain = client.embeddings.create(model=embedder, input="It rains.", encoding_format="float").data[0]
    assert plain.embedding == pytest.approx(rain, abs=1e-6)


UNSUPPORTED, INVALID = "unsupported_parameter", "invalid_value"
NEVER = {"type": "object", "required": ["a"], "properties": {"a": False}}
COSTLY = {"type": "integer", "multipleOf": 19_999_999}
MOON = {"only": "device", "num_documents": {"moon": 1}}
RED = {"colour": "red"}


def schema_format(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"schema": schema}}


@pytest.mark.parametrize(
    ("options", "param", "code", "sentence"),
    [
        ({"model": "gpt-5"}, "model", "model_not_found", ""),
        ({"top_p": -1}, "top_p", INVALID, "top_p must be greater than 0 (got -1"),
        ({"top_p": True}, "top_p", INVALID, "(got True)"),
        ({"presence_penalty": 3}, "presence_penalty", INVALID, "less than or equal to 2 (got 3"),
        ({"frequency_penalty": "x"}, "frequency_penalty", INVALID, "(got 'x')"),
        ({"logit_bias": {"1": 101}}, "logit_bias", INVALID, "less than or equal to 100"),
        ({"logit_bias": {"the": 1}}, "logit_bias", INVALID, "must be a valid integer"),
        ({"logit_bias": {"1": True}}, "logit_bias", INVALID, ""),
        ({"logit_bias": [1]}, "logit_bias", INVALID, ""),
        ({"stop": [1]}, "stop", INVALID, ""),
        ({"seed": True}, "seed", INVALID, ""),
        ({"seed": "x", "n": 2}, "seed", INVALID, ""),
        ({"seed": 1 << 64}, "seed", INVALID, ""),
        ({"response_format": schema_format(NEVER)}, "response_format", INVALID, ""),
        ({"response_format": schema_format(3)}, "response_format", INVALID, ""),
        ({"response_format": schema_format(COSTLY)}, "response_format", INVALID, ""),
        ({"extra_body": {"guided_regex": "(?=a)"}}, "guided_regex", INVALID, ""),
        ({"extra_body": {"guided_json": "x"}}, "guided_json", INVALID, ""),
        ({"temperature": -1}, "temperature", INVALID, "must be greater than or equal to 0 (got -1"),
        ({"max_tokens": 0}, "max_tokens", INVALID, ""),
        ({"max_completion_tokens": 0}, "max_completion_tokens", INVALID, "greater than or equal to 1 (got 0)"),
        ({"extra_body": {"placement": "moon"}}, "placement", INVALID, "must be device, cloud, greedy, mirror,"),
        ({"extra_body": {"only": "moon"}}, "only", INVALID, ""),
        ({"extra_body": MOON}, "num_documents", INVALID, ""),
        ({"extra_body": {"device_filter": RED}}, "device_filter", INVALID, ""),
        ({"extra_body": {"cloud_filter": RED, "on_peer_loss": "wait"}}, "cloud_filter", INVALID, ""),
        ({"extra_body": {"timeout_s": 0}}, "timeout_s", INVALID, ""),
        ({"messages": [say("user", "Hi"), say("tool", "4")]}, "messages[1]", UNSUPPORTED, "does not call tools"),
        ({"messages": [say("user", "word " * 3000)]}, "messages", "context_length_exceeded", ""),
        ({"messages": [say("user", " ")]}, "messages", INVALID, ""),
    ],
)  # fmt: skip
def test_bad_requests_are_errors_that_call_the_option_as_the_request_does(
    client: Any, served: Served, options: dict[str, Any], param: str, code: str, sentence: str
) -> None:
    error = openai.NotFoundError if code == "model_not_found" else openai.BadRequestError
    for is_stream in (False, True):
        request = {"model": "tandem", "messages": [say("user", QUESTION)], **options}
        with pytest.raises(openai.APIError if is_stream else error) as raised:
            list(client.chat.completions.create(**request, stream=is_stream))
        assert (raised.value.param, raised.value.code) == (param, code)
        assert sentence in raised.value.message
        assert not sentence or param in raised.value.message
    served.wait_until_idle()


def test_what_is_ignored_is_named_in_a_header(client: Any) -> None:
    create = client.chat.completions.with_raw_response.create
    asked = {"model": "tandem", "messages": [say("user", QUESTION, name="zomi")], "max_tokens": 2}
    some = {"user": "somebody", "metadata": {"a": "b"}, "extra_body": {"placment": "device"}}
    raw = create(**asked, **some)
    assert raw.headers["x-tandem-ignored"] == "messages.name, metadata, user, placment"
    asked["messages"] = [say("user", QUESTION)]
    assert create(**asked, stream=True, store=False).headers["x-tandem-ignored"] == "store"
    assert "x-tandem-ignored" not in create(**asked).headers


def test_an_answer_follows_a_schema(client: Any) -> None:
    class Numbered(pydantic.BaseModel):
        is_game: bool
        number: Literal[1, 2, 3]

    parsed = client.chat.completions.parse(
        model="tandem", messages=[say("user", QUESTION)], response_format=Numbered, temperature=1.0, seed=1
    )
    assert parsed.choices[0].message.parsed.number in (1, 2, 3)
    regex = ask(client, temperature=5.0, seed=1, extra_body={"guided_regex": "(ab)+c"})
    assert set(regex.choices[0].message.content) == set("abc")


def test_several_answers_have_the_seeds_that_follow(client: Any, tandem: Tandem, served: Served) -> None:
    texts = [tandem.query(QUESTION, seed=seed, temperature=1.0, max_new_tokens=12) for seed in (4, 5, 6)]
    completion = ask(client, n=3, seed=4, **HOT)
    assert [choice.index for choice in completion.choices] == [0, 1, 2]
    assert [choice.message.content for choice in completion.choices] == [answer.text for answer in texts]
    assert len({answer.text for answer in texts}) > 1
    assert completion.usage.completion_tokens == sum(len(answer.tokens) for answer in texts)
    assert [choice.tandem["seed"] for choice in completion.choices] == [4, 5, 6]
    assert completion.usage.prompt_tokens == ask(client, max_tokens=1).usage.prompt_tokens
    chunks = list(ask(client, n=3, seed=4, stream=True, stream_options={"include_usage": True}, **HOT))
    assert chunks[-1].usage == completion.usage
    streamed = ["", "", ""]
    for chunk in chunks[:-1]:
        (choice,) = chunk.choices
        streamed[choice.index] += choice.delta.content or ""
    assert streamed == [answer.text for answer in texts]
    assert len({chunk.id for chunk in chunks}) == 1
    served.wait_until_idle()


def test_a_client_that_leaves_ends_all_its_answers_and_no_other(client: Any, served: Served) -> None:
    first = ask(client, stream=True, n=3, seed=LONG_SEEDS[0], **LONG)
    second = ask(client, stream=True, seed=LONG_SEEDS[1], **LONG)
    next(iter(first)), next(iter(second))
    assert served.num_open() == 4
    first.close()
    wait_until(lambda: served.num_open() == 1)
    next(iter(second))
    assert served.num_sessions() > 0
    second.close()
    served.wait_until_idle()
    assert served.num_open() == 0


def test_a_system_message_is_of_its_request_alone(client: Any, tandem: Tandem, http: Any) -> None:
    def count() -> float:
        return read_metrics(http.get("/metrics").text)["tandem_own_system_prompts_total{}"]

    before = count()
    messages = [say("system", "Be rude."), say("user", QUESTION), say("developer", "Be brief.")]
    completion = client.chat.completions.create(model="tandem", messages=messages, seed=5)
    answer = tandem.query(QUESTION, seed=5, system_prompt="Be rude.\n\nBe brief.")
    assert completion.choices[0].message.content == answer.text
    assert count() == before + 1
    messages = [say("system", SYSTEM_PROMPT), say("user", QUESTION)]
    client.chat.completions.create(model="tandem", messages=messages, seed=5)
    assert count() == before + 1


@pytest.mark.parametrize(("thinking", "beginning"), [("marked", "<think>"), ("begun", "")])
def test_what_a_model_thinks_is_not_its_answer(
    client: Any, tandem: Tandem, monkeypatch: pytest.MonkeyPatch, thinking: str, beginning: str
) -> None:
    """A grammar stands for a reasoning model, which there is none of here."""
    grammar = {"regex": f"{beginning}Hm, games\\.\n</think>\n\nChess\\."}
    options = {"extra_body": {"grammar": grammar, "seed": 2}, "temperature": 1.0}
    whole = f"{beginning}Hm, games.\n</think>\n\nChess."
    assert ask(client, **options).choices[0].message.content == whole, "of a template without thoughts"
    monkeypatch.setitem(tandem.described["device"], "thinking", thinking)
    choice = ask(client, **options).choices[0]
    assert (choice.message.content, choice.message.reasoning_content) == ("Chess.", "Hm, games.")
    assert choice.finish_reason == "stop"
    chunks = [chunk.choices[0] for chunk in ask(client, stream=True, **options)]
    thought = "".join(getattr(chunk.delta, "reasoning_content", None) or "" for chunk in chunks)
    text = "".join(chunk.delta.content or "" for chunk in chunks)
    assert (thought, text, chunks[-1].finish_reason) == ("Hm, games.", "Chess.", "stop")
    stopped = ask(client, stop=["games"], **options).choices[0]
    assert (stopped.message.content, stopped.message.reasoning_content) == ("", "Hm,")
    assert stopped.finish_reason == "stop"
    json_of_7 = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"const": 7}}}
    assert ask(client, response_format=json_of_7).choices[0].message.content == "7", "no room for a thought"

"""Tools through every interface, of a model whose template takes them; a grammar makes it say what a test needs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

import httpx
import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool

from tandem import Config, Tandem
from tandem.adapters.langchain import ChatTandem
from tandem.client.request import build_spec
from tandem.errors import QueryError
from tandem.tools import CallFormat, split_calls
from tandem_lab.quality.local import answer_uncompressed
from tandem_lab.quality.memoized import local_pair
from tandem_lab.simulation.specs import change_spec
from tests import chat_model, tool_templates
from tests.server.running import Served, serving

openai = pytest.importorskip("openai")
pytest.importorskip("llguidance", reason="answers that follow a grammar need llguidance (extra [grammar])")

QUESTION = "How far is it from Vey to Drezi?"
ASKED = {"role": "user", "content": QUESTION}
PARAMETERS = {
    "type": "object",
    "properties": {"a": {"enum": ["Vey", "Drezi"]}, "b": {"enum": ["Vey", "Drezi"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
FUNCTION = {"name": "distance", "description": "Between two towns, in km.", "parameters": PARAMETERS}
TOOLS = [{"type": "function", "function": FUNCTION}]
ARGUMENTS = {"a": "Vey", "b": "Drezi"}
SAID = "Let me see."
OPTIONS = {"num_documents": 1, "seed": 3}


@pytest.fixture(scope="module")
def tandem(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tandem]:
    """Two models of one family."""
    folders = [
        chat_model.build(
            tmp_path_factory.mktemp("model") / "model",
            seed=seed,
            chat_template=tool_templates.HERMES,
            added=("<tool_call>", "</tool_call>"),
        )
        for seed in range(2)
    ]
    config = Config.load(
        None,
        [f"device.model={folders[0]}", f"cloud.model={folders[1]}", "link.on_peer_loss=wait"],
    )
    with Tandem.launch(config, runtime="inline") as launched:
        yield launched


@pytest.fixture(scope="module")
def served(tandem: Tandem) -> Iterator[Served]:
    with serving(tandem) as running:
        yield running


@pytest.fixture(scope="module")
def http(served: Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served.url, timeout=180) as client:
        yield client


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def form(tandem: Tandem) -> CallFormat:
    return CallFormat(**tandem.described["device"]["calls"])


@pytest.fixture(scope="module")
def two_calls(form: CallFormat) -> dict[str, str]:
    """The grammar of an answer that says something and calls twice."""
    begin, end = (form.tokens[text.strip()] for text in (form.begin, form.end))
    written = json.dumps(json.dumps({"name": "distance", "arguments": ARGUMENTS}))
    call = f"<[{begin}]> {written} <[{end}]>"
    return {"lark": f'start: "{SAID}\\n" {call} "\\n" {call}'}


def ask(
    client: Any, messages: Any = (ASKED,), tools: Any = TOOLS, grammar: Any = None, **options: Any
) -> Any:
    extra = OPTIONS | ({"grammar": grammar} if grammar else {})
    return client.chat.completions.create(
        model="tandem", messages=list(messages), tools=tools, extra_body=extra, **options
    )


# ---- OpenAI's interface ----------------------------------------------------------------------------------------


def test_calls_of_a_completion(client: Any, two_calls: dict[str, str]) -> None:
    response = ask(client, grammar=two_calls)
    (choice,) = response.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", SAID)
    assert [call.function.name for call in choice.message.tool_calls] == ["distance"] * 2
    assert [json.loads(call.function.arguments) for call in choice.message.tool_calls] == [ARGUMENTS] * 2
    assert len({call.id for call in choice.message.tool_calls}) == 2
    assert response.usage.prompt_tokens > 40, "with the tools"
    assert ask(client, tools=None, grammar=two_calls).choices[0].finish_reason == "stop"


def test_calls_of_a_stream(client: Any, two_calls: dict[str, str]) -> None:
    chunks = [chunk.choices[0] for chunk in ask(client, grammar=two_calls, stream=True)]
    assert "".join(chunk.delta.content or "" for chunk in chunks) == SAID
    calls = [call for chunk in chunks for call in chunk.delta.tool_calls or ()]
    assert [(call.index, call.function.name) for call in calls] == [(0, "distance"), (1, "distance")]
    assert [json.loads(call.function.arguments) for call in calls] == [ARGUMENTS] * 2
    assert chunks[-1].finish_reason == "tool_calls"


def test_a_tool_that_must_be_called_is_called(client: Any) -> None:
    """The model is random: a grammar of the tool's schema makes it a call."""
    for choice in ("required", {"type": "function", "function": {"name": "distance"}}):
        message = (
            ask(client, tool_choice=choice, parallel_tool_calls=False, temperature=1.0).choices[0].message
        )
        (call,) = message.tool_calls
        assert (message.content, call.function.name) == (None, "distance")
        assert set(json.loads(call.function.arguments)) == {"a", "b"}


def test_what_follows_a_grammar_is_no_thought(
    client: Any, tandem: Tandem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a template that opens a thought: it would never end."""
    monkeypatch.setitem(tandem.described["device"], "thinking", "begun")
    assert ask(client, tool_choice="required", parallel_tool_calls=False).choices[0].message.tool_calls
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"const": 7}}}
    assert ask(client, tools=None, response_format=form).choices[0].message.content == "7"


@pytest.mark.parametrize("value", ["NaN", '"\\ud800"'])
def test_what_no_response_can_hold_is_no_call(
    http: httpx.Client, form: CallFormat, two_calls: dict[str, str], value: str
) -> None:
    lark = two_calls["lark"].replace('\\"Vey\\"', value.replace("\\", r"\\").replace('"', r"\""))
    for path, body in (
        ("messages", MESSAGE),
        ("chat/completions", {"messages": [ASKED], "tools": TOOLS, **OPTIONS}),
    ):
        answered = http.post(f"/v1/{path}", json={"model": "tandem", **body, "grammar": {"lark": lark}})
        assert answered.status_code == 200
        assert "tool_calls" not in answered.text
        assert "tool_use" not in answered.text


def test_a_call_that_is_cut_is_none(client: Any) -> None:
    choice = ask(client, tool_choice="required", max_tokens=6).choices[0]
    assert (choice.finish_reason, choice.message.tool_calls) == ("length", None)
    assert choice.message.content.startswith("<tool_call>")


def test_tools_and_results_are_part_of_the_question(
    client: Any, tandem: Tandem, two_calls: dict[str, str]
) -> None:
    """Of a loop of an agent, to the answer of the Python API."""
    called = ask(client, grammar=two_calls).choices[0].message.to_dict()
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "7"} for call in called["tool_calls"]]
    history = [called, *results]
    options: dict[str, Any] = {"max_new_tokens": 12, "temperature": 1.0, **OPTIONS}
    message = ask(client, [ASKED, *history], max_tokens=12, temperature=1.0).choices[0].message
    texts = {
        name: tandem.query(QUESTION, **asked, **options).text
        for name, asked in {
            "whole": {"history": history, "tools": TOOLS},
            "without tools": {"history": history},
            "without results": {"tools": TOOLS},
        }.items()
    }
    assert message.content == texts["whole"]
    assert len(set(texts.values())) == 3


def test_a_format_lets_calls_through(client: Any) -> None:
    form = {"type": "json_object", "schema": {"type": "object", "properties": {"km": {"const": 7}}, "required": ["km"],
            "additionalProperties": False}}  # fmt: skip
    kinds = set()
    for seed in range(8):
        extra = {"response_format": form, "seed": seed, "num_documents": 0}
        choice = client.chat.completions.create(
            model="tandem", messages=[ASKED], tools=TOOLS, temperature=3.0, extra_body=extra
        ).choices[0]  # fmt: skip
        kinds.add(choice.finish_reason)
        assert choice.message.tool_calls or json.loads(choice.message.content) == {"km": 7}
    assert kinds <= {"stop", "tool_calls"}


def test_results_without_tools_are_read(client: Any) -> None:
    """An agent may give the last word to the model without any."""
    call = {
        "id": "c",
        "type": "function",
        "function": {"name": "distance", "arguments": json.dumps(ARGUMENTS)},
    }
    messages = [ASKED, {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c", "content": "7"}]  # fmt: skip
    for tools, choice in ((openai.omit, openai.omit), (TOOLS, "none")):
        assert ask(client, messages, tools, tool_choice=choice, max_tokens=2).usage.completion_tokens == 2


# ---- the other interfaces --------------------------------------------------------------------------------------


RESPONSE_TOOLS = [{"type": "function", **FUNCTION, "strict": False}]


def test_calls_of_a_response(client: Any, two_calls: dict[str, str]) -> None:
    extra = OPTIONS | {"grammar": two_calls}
    response = client.responses.create(model="tandem", input=QUESTION, tools=RESPONSE_TOOLS, extra_body=extra)
    assert [item.type for item in response.output] == ["message", "function_call", "function_call"]
    assert (response.output_text, response.status) == (SAID, "completed")
    assert [json.loads(item.arguments) for item in response.output[1:]] == [ARGUMENTS] * 2
    results = [
        {"type": "function_call_output", "call_id": item.call_id, "output": "7"}
        for item in response.output[1:]
    ]
    again = client.responses.create(
        model="tandem",
        input=[ASKED, *(item.to_dict() for item in response.output), *results],
        tools=RESPONSE_TOOLS,
        max_output_tokens=2,
        extra_body=OPTIONS,
    )
    assert again.usage.output_tokens == 2


def test_a_stream_of_a_response_with_calls(client: Any, two_calls: dict[str, str]) -> None:
    extra = OPTIONS | {"grammar": two_calls}
    with client.responses.stream(
        model="tandem", input=QUESTION, tools=RESPONSE_TOOLS, extra_body=extra
    ) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert [item.type for item in final.output] == ["message", "function_call", "function_call"]
    done = [event for event in events if event.type == "response.function_call_arguments.done"]
    assert [(event.name, json.loads(event.arguments)) for event in done] == [("distance", ARGUMENTS)] * 2
    added = [event for event in events if event.type == "response.output_item.added"]
    assert [(event.output_index, event.item.id) for event in added] == [
        (place, item.id) for place, item in enumerate(final.output)
    ]
    named = client.responses.create(
        model="tandem",
        input=QUESTION,
        tools=RESPONSE_TOOLS,
        tool_choice={"type": "function", "name": "distance"},
        parallel_tool_calls=False,
        extra_body=OPTIONS,
    )
    assert [item.type for item in named.output] == ["function_call"]
    assert (named.parallel_tool_calls, final.parallel_tool_calls) == (False, True)


MESSAGE_TOOLS = [{"type": None, "name": "distance", "description": "In km.", "input_schema": PARAMETERS}]
MESSAGE = {"model": "tandem", "max_tokens": 256, "messages": [ASKED], "tools": MESSAGE_TOOLS, **OPTIONS}


def test_calls_of_a_message(http: httpx.Client, two_calls: dict[str, str]) -> None:
    message = http.post("/v1/messages", json={**MESSAGE, "grammar": two_calls}).json()
    text, *calls = message["content"]
    assert (text, message["stop_reason"]) == ({"type": "text", "text": SAID}, "tool_use")
    assert [(call["type"], call["name"], call["input"]) for call in calls] == [
        ("tool_use", "distance", ARGUMENTS)
    ] * 2
    results = [{"type": "tool_result", "tool_use_id": call["id"], "content": "7"} for call in calls]
    results[0]["content"] = [{"type": "text", "text": "7"}]  # type: ignore[assignment]
    turns = [ASKED, {"role": "assistant", "content": message["content"]}]
    for more in ([], [{"type": "text", "text": "And back?"}]):
        again = [*turns, {"role": "user", "content": [*results, *more]}]
        answered = http.post("/v1/messages", json={**MESSAGE, "messages": again, "max_tokens": 2})
        assert answered.json()["usage"]["output_tokens"] == 2
    for choice in ({"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "distance"}):
        forced = http.post("/v1/messages", json={**MESSAGE, "tool_choice": choice}).json()
        assert {block["type"] for block in forced["content"]} == {"tool_use"}


def test_a_stream_of_a_message_with_calls(http: httpx.Client, two_calls: dict[str, str]) -> None:
    text = http.post("/v1/messages", json={**MESSAGE, "grammar": two_calls, "stream": True}).text
    events = [json.loads(block.split("data: ")[1]) for block in text.strip().split("\n\n")]
    begun = [event for event in events if event["type"] == "content_block_start"]
    assert [(event["index"], event["content_block"]["type"]) for event in begun] == [
        (0, "text"), (1, "tool_use"), (2, "tool_use")
    ]  # fmt: skip
    assert begun[1]["content_block"]["input"] == {}
    grown: dict[int, str] = {}
    for event in events:
        if event["type"] == "content_block_delta":
            piece = event["delta"].get("partial_json", event["delta"].get("text"))
            grown[event["index"]] = grown.get(event["index"], "") + piece
    assert grown[0].strip() == SAID
    assert [json.loads(grown[place]) for place in (1, 2)] == [ARGUMENTS] * 2
    assert [event["index"] for event in events if event["type"] == "content_block_stop"] == [0, 1, 2]
    assert events[-2]["delta"]["stop_reason"] == "tool_use"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("responses", {"input": QUESTION, "tools": [{"type": "custom", "name": "shell"}]}),
        ("responses", {"input": QUESTION, "tools": [{"type": "function"}]}),
        (
            "messages",
            {"messages": [ASKED], "max_tokens": 2, "tools": [{"type": "bash_20250124", "name": "bash"}]},
        ),
        ("messages", {"messages": [ASKED], "max_tokens": 2, "tools": ["bash"]}),
        ("messages", {"messages": [ASKED], "max_tokens": 2, "tools": [{"name": "\ud800"}]}),
        (
            "responses",
            {"input": QUESTION, "tools": [{"type": "function", "name": "a", "parameters": {"b": "\ud800"}}]},
        ),
    ],
)
def test_other_tools_are_refused(http: httpx.Client, path: str, body: dict[str, Any]) -> None:
    answered = http.post(f"/v1/{path}", content=json.dumps({"model": "tandem", **body}))
    assert answered.status_code == 400
    unused = json.dumps({"model": "tandem", "max_output_tokens": 2, "tool_choice": "none", **body})
    if path == "responses":
        assert http.post(f"/v1/{path}", content=unused).status_code == 200


# ---- Python ----------------------------------------------------------------------------------------------------


@tool
def distance(a: Literal["Vey", "Drezi"], b: Literal["Vey", "Drezi"]) -> int:
    """Between two towns, in km."""
    return len(a + b)


def test_langchain_binds_tools(tandem: Tandem, two_calls: dict[str, str]) -> None:
    chat = ChatTandem(tandem=tandem, seed=3, options={"num_documents": 1})
    message = chat.bind_tools([distance], grammar=two_calls).invoke(QUESTION)
    assert isinstance(message, AIMessage)
    assert (message.text, message.response_metadata["finish_reason"]) == (SAID, "tool_calls")
    assert [(call["name"], call["args"]) for call in message.tool_calls] == [("distance", ARGUMENTS)] * 2
    results = [
        ToolMessage(str(distance.invoke(call["args"])), tool_call_id=call["id"])
        for call in message.tool_calls
    ]
    again = chat.bind_tools([distance], max_new_tokens=2).invoke([HumanMessage(QUESTION), message, *results])
    assert again.usage_metadata["output_tokens"] == 2
    streamed = list(chat.bind_tools([distance], grammar=two_calls).stream(QUESTION))
    merged = streamed[0]
    for chunk in streamed[1:]:
        merged += chunk
    assert merged.text == SAID
    assert [call["args"] for call in merged.tool_calls] == [ARGUMENTS] * 2
    forced = chat.bind_tools([distance], tool_choice="distance").invoke(QUESTION)
    assert {call["name"] for call in forced.tool_calls} == {"distance"}
    named = {"type": "function", "function": {"name": "distance"}}
    for options in ({"tool_choice": named}, {"tool_choice": "any", "strict": True}):
        forced = chat.bind_tools([distance], parallel_tool_calls=False, **options).invoke(QUESTION)
        assert [call["name"] for call in forced.tool_calls] == ["distance"]
    assert not chat.bind_tools([distance], tool_choice="none", max_new_tokens=2).invoke(QUESTION).tool_calls
    with pytest.raises(QueryError, match="there is no tool of that name"):
        chat.bind_tools([distance], tool_choice="time")


def test_calls_of_the_python_api(tandem: Tandem, form: CallFormat, two_calls: dict[str, str]) -> None:
    answer = tandem.query(QUESTION, tools=TOOLS, grammar=two_calls, seed=3, num_documents=1)
    text, calls = split_calls(answer.text, form, ["distance"])
    assert (text, [json.loads(call.arguments) for call in calls]) == (SAID, [ARGUMENTS] * 2)


@pytest.mark.parametrize(
    ("party", "calls", "sentence"),
    [
        ("cloud", None, "The chat template of the cloud takes no tools and no results of them"),
        (
            "cloud",
            {"begin": "<call>"},
            "of the cloud writes calls of tools in another way than that of the device",
        ),
    ],
)
def test_parties_that_do_not_write_calls_alike(
    tandem: Tandem, monkeypatch: pytest.MonkeyPatch, party: str, calls: Any, sentence: str
) -> None:
    monkeypatch.setitem(tandem.described[party], "calls", calls)
    with pytest.raises(QueryError, match=sentence):
        tandem.query(QUESTION, tools=TOOLS)
    assert tandem.query(QUESTION, tools=TOOLS, only="device", max_new_tokens=2).tokens


@pytest.mark.parametrize("rule", ["coupled", "lottery"])
def test_answers_are_those_of_the_loop_without_drafts(tandem: Tandem, rule: str) -> None:
    """Tools and results are part of both parties' rows; the cloud without them would write another answer."""
    called = {
        "id": "c",
        "type": "function",
        "function": {"name": "distance", "arguments": json.dumps(ARGUMENTS)},
    }
    history = [
        {"role": "assistant", "content": SAID, "tool_calls": [called]},
        {"role": "tool", "tool_call_id": "c", "content": "7"},
    ]
    options: Any = {
        "tools": TOOLS,
        "history": history,
        "mode": "dual",
        "draft_rule": rule,
        "temperature": 1.0,
    }
    options |= {"max_new_tokens": 16, **OPTIONS}
    answer = tandem.query(QUESTION, **options)
    assert not answer.is_degraded
    spec = build_spec(tandem.config, tandem.described, QUESTION, **options)
    pair = local_pair(tandem.config)
    assert list(answer.token_ids) == answer_uncompressed(spec, pair.engines, pair.retrievers)
    bare = change_spec(spec, tools="")
    assert list(answer.token_ids) != answer_uncompressed(bare, pair.engines, pair.retrievers)

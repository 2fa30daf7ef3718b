"""Every field of a request for a completion: read, refused with the reason, or ignored and named."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("fastapi")

from tandem.conversation import Message, read_history
from tandem.server.completion_requests import MAX_ANSWERS, MAX_STOPS, HomeModel, read_chat, read_prompt
from tandem.server.http import MAX_LOGGED, MAX_NAMES, ApiError, name_ignored
from tandem.tools import CallFormat, ToolCall

CONFIGURED = "Be brief."
PLAIN = HomeModel(system_prompt=CONFIGURED)
QUESTION = "Which games does Mira like?"
ASK = {"role": "user", "content": QUESTION}
TOOL = {"type": "function", "function": {"name": "add"}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
CALLED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
ANY = {"type": "object"}
READ: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"temperature": 0.5, "top_p": 0.9, "min_p": 0.1}, {"temperature": 0.5, "top_p": 0.9, "min_p": 0.1}),
    ({"presence_penalty": 1, "frequency_penalty": -0.5}, {"presence_penalty": 1, "frequency_penalty": -0.5}),
    ({"seed": 7, "stop": "x"}, {"seed": 7, "stop": "x"}),
    ({"stop_sequences": ["x"]}, {"stop": ["x"]}),
    ({"max_tokens": 3}, {"max_new_tokens": 3}),
    ({"max_completion_tokens": 3, "max_tokens": 3}, {"max_new_tokens": 3}),
    ({"max_output_tokens": 3}, {"max_new_tokens": 3}),
    ({"logit_bias": {"12": -100, "7": 1.5}}, {"logit_bias": {12: -100, 7: 1.5}}),
    ({"logit_bias": {}}, {"logit_bias": {}}),
    ({"logprobs": True, "top_logprobs": 2}, {"num_logprobs": 2}),
    ({"logprobs": False}, {}),
    ({"response_format": {"type": "text"}}, {}),
    ({"response_format": {"type": "json_object"}}, {"grammar": {"json_schema": ANY}}),
    ({"response_format": {"type": "json_object", "schema": SCHEMA}}, {"grammar": {"json_schema": SCHEMA}}),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": SCHEMA}}},
        {"grammar": {"json_schema": SCHEMA}},
    ),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}}, {"grammar": {"json_schema": ANY}}),
    ({"guided_json": SCHEMA}, {"grammar": {"json_schema": SCHEMA}}),
    ({"json_schema": SCHEMA}, {"grammar": {"json_schema": SCHEMA}}),
    ({"guided_regex": "[ab]+"}, {"grammar": {"regex": "[ab]+"}}),
    ({"mode": "speculative", "num_documents": 1}, {"mode": "speculative", "num_documents": 1}),
    ({"suffix": "", "echo": False, "modalities": ["text"], "n": 1, "best_of": 1}, {}),
    ({"top_p": None, "tools": None, "stop": None, "audio": None}, {}),
]  # fmt: skip


def request(**options: Any) -> Any:
    return read_chat({"model": "tandem", "messages": [ASK], **options}, PLAIN)


@pytest.mark.parametrize(("fields", "options"), READ)
def test_fields_that_are_read(fields: dict[str, Any], options: dict[str, Any]) -> None:
    wanted = request(**fields)
    assert (wanted.options, wanted.ignored, wanted.question) == (options, (), QUESTION)


@pytest.mark.parametrize(
    ("fields", "ignored"),
    [
        (
            {"metadata": {}, "store": False, "user": "u", "reasoning_effort": "low", "verbosity": "low"},
            "metadata, store, user, reasoning_effort, verbosity",
        ),
        (
            {"service_tier": "auto", "parallel_tool_calls": True, "prompt_cache_key": "k", "prediction": {}},
            "service_tier, parallel_tool_calls, prompt_cache_key, prediction",
        ),
        ({"safety_identifier": "s", "placment": "device"}, "safety_identifier, placment"),
        ({"tools": [TOOL], "tool_choice": "none"}, "tools, tool_choice"),
        ({"functions": [TOOL], "function_call": "none"}, "functions, function_call"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [], "tool_choice": "auto"}, "tools, tool_choice"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        (
            {"stream": True, "stream_options": {"include_usage": True, "include_obfuscation": False}},
            "stream_options.include_obfuscation",
        ),
        ({"messages": [{**ASK, "name": "a", "audio": None, "prefix": True}]}, "messages.name, messages.prefix"),
    ],
)  # fmt: skip
def test_fields_that_change_nothing_are_named(fields: dict[str, Any], ignored: str) -> None:
    wanted = request(**fields)
    assert ", ".join(wanted.ignored) == ignored
    assert wanted.options == {}


@pytest.mark.parametrize(
    ("fields", "param", "sentence"),
    [
        ({"tools": [TOOL]}, "tools", "The chat template of this model takes no tools"),
        ({"tools": [TOOL], "tool_choice": "auto"}, "tools", "set tool_choice to 'none'"),
        ({"tools": [TOOL], "tool_choice": "required"}, "tools", "use a model whose template does"),
        ({"functions": [TOOL]}, "functions", "The option functions is not supported"),
        ({"modalities": ["text", "audio"]}, "modalities", "answers are text"),
        ({"audio": {"voice": "a"}}, "audio", "answers are text"),
        ({"web_search_options": {}}, "web_search_options", "none is of the web"),
        ({"suffix": "x"}, "suffix", "an answer follows the prompt"),
        ({"echo": True}, "echo", "the answer holds no prompt"),
        ({"previous_response_id": "r"}, "previous_response_id", "nothing is kept"),
        ({"n": 0}, "n", f"a whole number from 1 to {MAX_ANSWERS}, but it is 0"),
        ({"n": MAX_ANSWERS + 1}, "n", "send several requests with different seeds"),
        ({"n": True}, "n", "but it is True"),
        ({"n": 1.0}, "n", "but it is 1.0"),
        ({"n": 2, "best_of": 3}, "best_of", "must be 2, as n is, but it is 3"),
        ({"best_of": 2}, "best_of", "leave it out"),
        ({"stop": ["x"] * (MAX_STOPS + 1)}, "stop", f"stop must be at most {MAX_STOPS} texts"),
        ({"stop": ["x"] * 1_000_000}, "stop", f"at most {MAX_STOPS}"),
        ({"stop_sequences": ["x"] * 65}, "stop_sequences", "stop_sequences must be at most 64 texts"),
        ({"stop": "a", "stop_sequences": "b"}, "stop_sequences", "but stop is 'a'; give one of them"),
        ({"max_tokens": 2, "max_completion_tokens": 3}, "max_tokens", "give one of them"),
        ({"logit_bias": {"the": 1}}, "logit_bias", "it is 'the'"),
        ({"logit_bias": {"1" * 5000: 1}}, "logit_bias", "name tokens by their ids"),
        ({"logit_bias": {"-1": 1}}, "logit_bias", "it is '-1'"),
        ({"logprobs": 1}, "logprobs", "true or false"),
        ({"top_logprobs": 2}, "top_logprobs", "set logprobs to true"),
        ({"logprobs": True, "top_logprobs": True}, "top_logprobs", "but it is True"),
        ({"stream": 1}, "stream", "true or false"),
        ({"stream_options": 1}, "stream_options", "must be an object"),
        ({"stream_options": {"include_usage": 1}}, "include_usage", "true or false"),
        ({"show_drafts": True}, "stream", "needs a stream"),
        ({"response_format": "json"}, "response_format", "it is 'json'"),
        ({"response_format": {"type": "xml"}}, "response_format", "json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": 3}}, "response_format", "correct it"),
        ({"response_format": {"type": "json_object"}, "guided_json": SCHEMA}, "response_format", "give one of them"),
        ({"system_prompt": "A", "messages": [{"role": "system", "content": "B"}, ASK]}, "messages", "give one of them"),
        ({"messages": [ASK, {"role": "assistant", "content": "Hi"}]}, "messages", "add the question"),
        ({"messages": [{"role": "poet", "content": "Hi"}]}, "messages[0].role", "it is 'poet'"),
        ({"messages": [{"role": ["user"], "content": "Hi"}]}, "messages[0].role", "user, assistant, tool"),
        ({"messages": ["Hi"]}, "messages[0]", "an object with role and content"),
        ({"messages": {"role": "user"}}, "messages", "a list of at least one message"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content", "must be text"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]", "'image_url'"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": 3}]}]}, "messages[0].content[0]", "text"),
        (
            {"messages": [ASK, {"role": "assistant", "content": None, "tool_calls": [{}]}, ASK]},
            "messages[1].tool_calls",
            "Calls of tools are a list of",
        ),
        ({"messages": [ASK, {"role": "tool", "content": "4"}]}, "messages[1]", "must follow the call"),
        ({"messages": [ASK, CALLED]}, "messages", "add the result of each call"),
        ({"messages": [ASK, {"role": "function", "content": "4"}]}, "messages[1].role", "it is 'function'"),
        ({"messages": [{**ASK, "function_call": {"name": "a"}}]}, "messages[0].function_call", "tool_calls only"),
        ({"messages": [{"role": "assistant", "audio": {"id": "a"}}, ASK]}, "messages[0].audio", "tool_calls only"),
        ({"model": None}, "model", 'set "model"'),
    ],
)  # fmt: skip
def test_fields_that_are_refused_are_named_with_the_reason(
    fields: dict[str, Any], param: str, sentence: str
) -> None:
    with pytest.raises(ApiError) as refused:
        request(**fields)
    assert (refused.value.status, refused.value.param) == (400, param)
    assert sentence in refused.value.message
    assert len(refused.value.message) < 400


@pytest.mark.parametrize(
    ("messages", "own_prompt", "question", "history"),
    [
        ([ASK], None, QUESTION, ()),
        ([{"role": "system", "content": f" {CONFIGURED}\n"}, ASK], None, QUESTION, ()),
        ([{"role": "system", "content": " "}, ASK], None, QUESTION, ()),
        ([{"role": "system", "content": "Be rude."}, ASK], "Be rude.", QUESTION, ()),
        (
            [
                {"role": "developer", "content": "One."},
                ASK,
                {"role": "system", "content": [{"type": "text", "text": "Two."}]},
            ],
            "One.\n\nTwo.",
            QUESTION,
            (),
        ),
        (
            [{"role": "user", "content": "It rains."}, {"role": "user", "content": ""}, ASK],
            None,
            f"It rains.\n\n{QUESTION}",
            (),
        ),
        (
            [
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": None},
                {"role": "assistant", "content": "", "refusal": None, "tool_calls": []},
                ASK,
            ],
            None,
            QUESTION,
            (Message("user", "Hi"), Message("assistant", "")),
        ),
        (
            [
                {"role": "assistant", "content": [{"type": "output_text", "text": "Welcome!"}]},
                {"role": "user", "content": [{"type": "input_text", "text": QUESTION}]},
            ],
            None,
            QUESTION,
            (Message("user", ""), Message("assistant", "Welcome!")),
        ),
    ],
)
def test_messages(
    messages: list[Any], own_prompt: str | None, question: str, history: tuple[Message, ...]
) -> None:
    wanted = request(messages=messages)
    assert (wanted.question, wanted.options.get("history", ())) == (question, history)
    assert wanted.options.get("system_prompt") == own_prompt
    assert wanted.names.get("system_prompt") == (own_prompt and "messages")


def test_a_prompt_is_one_text() -> None:
    assert read_prompt({"model": "tandem", "prompt": [QUESTION], "logprobs": 2}).options == {
        "num_logprobs": 2
    }
    for prompt in ([1, 2], ["a", "b"], None, {}):
        with pytest.raises(ApiError, match="prompt must be one text"):
            read_prompt({"model": "tandem", "prompt": prompt})


def test_what_is_ignored_is_named_within_bounds_and_logged_once() -> None:
    logged: set[str] = set()
    assert name_ignored([], logged) == {}
    assert name_ignored(["user", "a b\r\nSet-Cookie: x", "user", "\ud83d"], logged) == {
        "X-Tandem-Ignored": "user, a?b??Set-Cookie??x, ?"
    }
    assert logged == {"user"}, "what may be a text is not logged"
    many = name_ignored((f"a{number}{'x' * 1000}" for number in range(1000)), logged)["X-Tandem-Ignored"]
    assert many.count(",") == MAX_NAMES
    assert many.endswith(", ...")
    assert len(many) < 1000
    assert len(logged) == MAX_LOGGED


# ---- tools -----------------------------------------------------------------------------------------------------

FORM = CallFormat(begin="<tool_call>\n", end="\n</tool_call>", name="name", arguments="arguments")
SUM = {"type": "function", "function": {"name": "add", "parameters": SCHEMA}}
MUL = {"type": "function", "function": {"name": "multiply", "parameters": SCHEMA}}
STRICT = {"type": "function", "function": {**SUM["function"], "strict": True}}


def ask_with_tools(has_grammars: bool = True, **options: Any) -> Any:
    home = HomeModel(system_prompt=CONFIGURED, calls=FORM, has_grammars=has_grammars)
    return read_chat({"model": "tandem", "messages": [ASK], "tools": [SUM, MUL], **options}, home)


def start_of(wanted: Any) -> str:
    return str(wanted.options["grammar"]["lark"].splitlines()[0])


def test_tools_go_to_the_query() -> None:
    for choice in ({}, {"tool_choice": "auto"}, {"tool_choice": None}, {"parallel_tool_calls": True}):
        wanted = ask_with_tools(**choice)
        assert wanted.options == {"tools": [SUM, MUL]}
        assert (wanted.tools, wanted.ignored) == (("add", "multiply"), ())
        assert "multiply" in "".join(wanted.texts), "the client wrote them"


def test_a_tool_that_must_be_called_is_a_grammar() -> None:
    for choice, rules in (
        ("required", ("tool_0", "arguments_0", "tool_1", "arguments_1")),
        ({"type": "function", "function": {"name": "multiply"}}, ("tool_0", "arguments_0")),
    ):
        lark = ask_with_tools(tool_choice=choice).options["grammar"]["lark"]
        assert [line.partition(":")[0] for line in lark.splitlines()] == ["start", "call", *rules]
    assert '"multiply"' in lark
    assert '"add"' not in lark
    assert start_of(ask_with_tools(tool_choice="required")) == 'start: call ("\\n" call)*'
    single = ask_with_tools(tool_choice="required", parallel_tool_calls=False)
    assert start_of(single) == "start: call"


def test_one_call_at_most_ends_the_answer() -> None:
    wanted = ask_with_tools(parallel_tool_calls=False, stop="x")
    assert wanted.options["stop"] == ["x", "</tool_call>"]
    assert wanted.is_single
    for wrong in (3, True, {"a": 1}):
        assert ask_with_tools(parallel_tool_calls=False, stop=wrong).options["stop"] == wrong, (
            "which a query refuses"
        )
    listed = HomeModel(system_prompt=CONFIGURED, calls=CallFormat("[", "]", "name", "arguments"))
    body = {"model": "tandem", "messages": [ASK], "tools": [SUM], "parallel_tool_calls": False}
    assert "stop" not in read_chat(body, listed).options, "arguments may be lists"


def test_a_format_is_of_answers_that_call_nothing() -> None:
    form = {"type": "json_object", "schema": SCHEMA}
    assert start_of(ask_with_tools(response_format=form)) == 'start: json | call ("\\n" call)*'
    must = ask_with_tools(response_format=form, tool_choice="required")
    assert "json:" not in must.options["grammar"]["lark"]
    assert not any(wanted.may_think for wanted in (must, ask_with_tools(response_format=form)))
    with pytest.raises(ApiError, match="give one of them"):
        ask_with_tools(guided_regex="a", tool_choice="required")


def test_strict_tools_are_followed_where_grammars_can_be() -> None:
    assert start_of(ask_with_tools(tools=[STRICT])).startswith("start: TEXT | opened (tool_0)")
    assert ask_with_tools(tools=[STRICT]).may_think
    wanted = ask_with_tools(has_grammars=False, tools=[STRICT])
    assert ("grammar" in wanted.options, wanted.ignored) == (False, ("tools.strict",))


@pytest.mark.parametrize(
    ("options", "param", "sentence"),
    [
        ({"tools": {"a": 1}}, "tools", "a list of at most 128 tools"),
        ({"tools": [{"type": "web_search"}]}, "tools", "tools[0] is {'type': 'web_search'}"),
        ({"tools": [SUM, SUM]}, "tools", "names 'add' more than once"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools", "must have a name"),
        ({"tools": [{"type": "function", "function": {"name": "a", "parameters": []}}]}, "tools", None),
        ({"tools": [{"type": "function", "function": {"name": "a", "parameters": 3}}]}, "tools", "a JSON schema"),
        ({"tool_choice": "add"}, "tool_choice", "a function of add, multiply, but it is 'add'"),
        ({"tool_choice": {"type": "function", "function": {"name": "sub"}}}, "tool_choice", "a function of add"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice", "a function of add, multiply"),
        ({"tool_choice": 3}, "tool_choice", "auto, required, none"),
        ({"parallel_tool_calls": 1}, "parallel_tool_calls", "true or false"),
    ],
)  # fmt: skip
def test_wrong_tools_are_one_sentence(options: dict[str, Any], param: str, sentence: str | None) -> None:
    if sentence is None:  # an empty list says as little as nothing
        assert ask_with_tools(**options).tools == ("a",)
        return
    with pytest.raises(ApiError) as refused:
        ask_with_tools(**options)
    assert (refused.value.status, refused.value.param) == (400, param)
    assert sentence in refused.value.message


def test_calls_and_results_are_turns() -> None:
    result = {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "1"}]}
    (call,) = (ToolCall("add", '{"a": 1}', "call_1"),)
    called, gave = Message("assistant", "", (call,)), Message("tool", "1", tool_call_id="call_1")
    asked, done = Message("user", QUESTION), Message("assistant", "It is 1.")
    thanks = {"role": "user", "content": "Thanks"}
    for messages, question, history in (
        ([ASK, CALLED, result], QUESTION, [called, gave]),
        ([ASK, CALLED, result, CALLED, result], QUESTION, [called, gave, called, gave]),
        ([ASK, CALLED, result, result, {"role": "assistant", "content": "It is 1."}, thanks], "Thanks",
         [asked, called, gave, gave, done]),
        ([ASK, CALLED, result, thanks], "Thanks", [asked, called, gave, Message("assistant", "")]),
        ([ASK, {"role": "assistant", "content": "Let me see."}, CALLED, result], QUESTION,
         [Message("assistant", "Let me see.", (call,)), gave]),
    ):  # fmt: skip
        wanted = ask_with_tools(messages=messages)
        assert (wanted.question, list(wanted.options["history"])) == (question, history)
        assert read_history(history) == tuple(history)

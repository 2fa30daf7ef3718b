"""Every field of a request for a completion: read, refused with the reason, or ignored and named."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("fastapi")

from tandem.conversation import Message
from tandem.plugins.server.completion_requests import MAX_ANSWERS, MAX_STOPS, read_chat
from tandem.plugins.server.http import ApiError

CONFIGURED = "Be brief."
QUESTION = "Which games does Mira like?"
ASK = {"role": "user", "content": QUESTION}
TOOL = {"type": "function", "function": {"name": "add"}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
CALLED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
ANY = {"type": "object"}
PARTS = [{"type": "text", "text": "The code is 44"}, {"type": "text", "text": "17 boats. Which code?"}]
"""A file that was attached, and the question."""
READ: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"temperature": 0.5, "top_p": 0.9, "min_p": 0.1}, {"temperature": 0.5, "top_p": 0.9, "min_p": 0.1}),
    ({"presence_penalty": 1, "frequency_penalty": -0.5}, {"presence_penalty": 1, "frequency_penalty": -0.5}),
    ({"seed": 7, "stop": "x"}, {"seed": 7, "stop": ["x"]}),
    ({"seed": -1, "max_tokens": -1, "top_k": -1}, {"top_k": 0}),
    ({"max_completion_tokens": -1.0, "top_p": 0.0, "temperature": 0.7}, {"temperature": 0}),
    ({"seed": -2}, {"seed": (1 << 64) - 2}),
    ({"stop": ""}, {"stop": []}),
    ({"stop_sequences": ["", "x"]}, {"stop": ["x"]}),
    ({"stop_sequences": ["x"]}, {"stop": ["x"]}),
    ({"max_tokens": 3}, {"max_new_tokens": 3}),
    ({"max_completion_tokens": 3, "max_tokens": 3}, {"max_new_tokens": 3}),
    ({"max_output_tokens": 3}, {"max_new_tokens": 3}),
    ({"logit_bias": {"12": -100, "7": 1.5}}, {"logit_bias": {"12": -100, "7": 1.5}}),
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
    return read_chat({"model": "tandem", "messages": [ASK], **options}, CONFIGURED)


@pytest.mark.parametrize(("fields", "options"), READ)
def test_fields_that_are_read(fields: dict[str, Any], options: dict[str, Any]) -> None:
    wanted = request(**fields)
    assert (wanted.options, wanted.ignored, wanted.question) == (options, (), QUESTION)


@pytest.mark.parametrize(
    ("fields", "ignored"),
    [
        ({"metadata": {}, "store": False, "user": "u", "reasoning_effort": "low", "verbosity": "low"},
         "metadata, store, user, reasoning_effort, verbosity"),
        ({"service_tier": "auto", "parallel_tool_calls": True, "prompt_cache_key": "k", "prediction": {}},
         "service_tier, parallel_tool_calls, prompt_cache_key, prediction"),
        ({"safety_identifier": "s", "placment": "device"}, "safety_identifier, placment"),
        ({"tools": [TOOL], "tool_choice": "none"}, "tools, tool_choice"),
        ({"functions": [TOOL], "function_call": "none"}, "functions, function_call"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [], "tool_choice": "auto"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "none"}, "parallel_tool_calls": 3},
         "tools, tool_choice, parallel_tool_calls"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": True, "include_obfuscation": False}},
         "stream_options.include_obfuscation"),
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
        ({"tools": [TOOL]}, "tools", "The option tools is not supported: Tandem does not call tools"),
        ({"tools": [TOOL], "tool_choice": "auto"}, "tools", "an assistant as one; leave it out."),
        ({"functions": [TOOL]}, "functions", "Tandem does not call tools"),
        ({"modalities": ["text", "audio"]}, "modalities", "answers are text"),
        ({"audio": {"voice": "a"}}, "audio", "answers are text"),
        ({"web_search_options": {}}, "web_search_options", "none is of the web"),
        ({"suffix": "x"}, "suffix", "an answer follows the prompt"),
        ({"echo": True}, "echo", "the answer holds no prompt"),
        ({"previous_response_id": "r"}, "previous_response_id", "nothing is kept"),
        ({"n": 0}, "n", "must be greater than or equal to 1 (got 0)"),
        ({"n": MAX_ANSWERS + 1}, "n", f"less than or equal to {MAX_ANSWERS}"),
        ({"n": True}, "n", "must be a valid integer (got True)"),
        ({"n": 2, "best_of": 3}, "best_of", "must be 2, as n is, but it is 3"),
        ({"stop": ["x"] * (MAX_STOPS + 1)}, "stop", f"stop must be at most {MAX_STOPS} texts"),
        ({"stop": ["x"] * 1_000_000}, "stop", f"at most {MAX_STOPS}"),
        ({"stop_sequences": ["x"] * 65}, "stop_sequences", "stop_sequences must be at most 64 texts"),
        ({"stop": "a", "stop_sequences": "b"}, "stop_sequences", "but stop is 'a'; give one of them"),
        ({"max_tokens": 2, "max_completion_tokens": 3}, "max_completion_tokens", "give one of them"),
        ({"logprobs": 1}, "logprobs", "must be a valid boolean (got 1)"),
        ({"top_logprobs": 2}, "top_logprobs", "set logprobs to true"),
        ({"stream": 1}, "stream", "must be a valid boolean (got 1)"),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage", "must be a valid boolean (got 1)"),
        ({"show_drafts": True}, "stream", "show_drafts shows drafts as they come"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": 3}}, "response_format.json_schema", "(got 3)"),
        ({"response_format": {"type": "json_object"}, "guided_json": SCHEMA}, "guided_json", "give one of them"),
        ({"system_prompt": "A", "messages": [{**ASK, "role": "system"}, ASK]}, "system_prompt", "give one of them"),
        ({"messages": [ASK, {"role": "assistant", "content": "Hi"}]}, "messages", "add the question"),
        ({"messages": [{"role": ["user"], "content": "Hi"}]}, "messages[0].role", "must be 'user', 'assistant',"),
        ({"messages": ["Hi"]}, "messages[0]", "must be a valid dictionary (got 'Hi')"),
        ({"messages": [{"content": "Hi"}]}, "messages[0].role", "messages[0].role is missing; correct it."),
        ({"messages": []}, "messages", "must have at least 1 item"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content", "must be a valid list (got 3)"),
        ({"messages": [{**ASK, "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type", "'image_url'"),
        ({"messages": [ASK, CALLED, ASK]}, "messages[1]", "must be no call of a tool, nor its result: Tandem"),
        ({"messages": [ASK, {"role": "tool", "content": "4"}]}, "messages[1]", "`tandem mcp` offers it"),
        ({"messages": [ASK, {"role": "function", "content": "4"}]}, "messages[1]", "does not call tools"),
        ({"messages": [{**ASK, "function_call": {"name": "a"}}]}, "messages[0]", "correct it"),
        ({"messages": [ASK, ASK, {"role": "user", "content": [{"type": "tool_result"}]}]}, "messages[2]", "its result"),
        ({"messages": [{"role": "assistant", "audio": {"id": "a"}}, ASK]}, "messages[0]", "must be text, without"),
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
        ([{"role": "developer", "content": "One."}, ASK,
          {"role": "system", "content": [{"type": "text", "text": "Two."}]}], "One.\n\nTwo.", QUESTION, ()),
        ([{"role": "user", "content": "It rains."}, {"role": "user", "content": ""}, ASK],
         None, f"It rains.\n\n{QUESTION}", ()),
        ([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": None},
          {"role": "assistant", "content": "", "refusal": None, "tool_calls": []}, ASK],
         None, QUESTION, (Message("user", "Hi"), Message("assistant", ""))),
        ([{"role": "assistant", "content": [{"type": "output_text", "text": "Welcome!"}]},
          {"role": "user", "content": [{"type": "input_text", "text": QUESTION}]}],
         None, QUESTION, (Message("user", ""), Message("assistant", "Welcome!"))),
        ([{"role": "user", "content": PARTS}], None, "The code is 44\n17 boats. Which code?", ()),
        ([{"role": "system", "content": PARTS}, ASK], "The code is 44\n17 boats. Which code?", QUESTION, ()),
        ([ASK, {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm."}, *PARTS]}, ASK],
         None, QUESTION,
         (Message("user", QUESTION), Message("assistant", "The code is 44\n17 boats. Which code?"))),
    ],
)  # fmt: skip
def test_messages(
    messages: list[Any], own_prompt: str | None, question: str, history: tuple[Message, ...]
) -> None:
    wanted = request(messages=messages)
    assert (wanted.question, wanted.options.get("history", ())) == (question, history)
    assert wanted.options.get("system_prompt") == own_prompt
    assert wanted.names.get("system_prompt") == (own_prompt and "messages")


def test_a_format_leaves_no_room_for_a_thought() -> None:
    assert request().may_think
    assert not request(response_format={"type": "json_object"}).may_think

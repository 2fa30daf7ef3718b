"""Tools that a model may call: their definitions, how a chat template writes a call, and the calls in an answer."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tandem.errors import QueryError

MAX_TOOLS, MAX_NAME = 128, 128
"""Tools of one query, as OpenAI has it, and characters of a name."""
JSON_SPACE: Any = {"whitespace_pattern": r" ?|\n {0,12}"}
"""Where a grammar's JSON allows any white space: none, a space, or a new line and its indentation, for llguidance. A
small model would go on with white space without an end."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """What a model wants to have done."""

    name: str
    arguments: str  # a JSON object
    id: str = ""  # by which a result names its call


@dataclass(frozen=True, slots=True)
class CallFormat:
    """How a chat template writes a call: `begin`, a JSON object with a name and arguments, `end`."""

    begin: str  # such as "<tool_call>\n"; empty where the object is all
    end: str
    name: str  # the key of the name
    arguments: str  # the key of the arguments
    tokens: Mapping[str, int] = field(default_factory=dict)  # of the vocabulary, which begin and end hold


def format_of(described: Mapping[str, Any]) -> CallFormat | None:
    """How a party's model writes calls, by what it reported; None: its template takes no tools."""
    calls = described.get("calls")
    return calls and CallFormat(**calls)


def read_tools(tools: Any) -> str:
    """Definitions in OpenAI's form as a template gets them: JSON, without what no model was trained with.

    Each is {"type": "function", "function": {"name", "description", "parameters"}}, the last being a JSON schema; the
    latter two may be missing. Empty: none. Raises QueryError.
    """
    if not isinstance(tools, Sequence) or isinstance(tools, str) or len(tools) > MAX_TOOLS:
        raise _wrong(f"tools must be a list of at most {MAX_TOOLS} tools, but it is {tools!r:.100}")
    read = [_read_tool(number, tool) for number, tool in enumerate(tools)]
    names = [tool["function"]["name"] for tool in read]
    if twice := {name for name in names if names.count(name) > 1}:
        raise _wrong(f"tools names {min(twice)!r:.60} more than once")
    try:
        return json.dumps(read, ensure_ascii=False) if read else ""
    except (TypeError, ValueError, RecursionError):
        raise _wrong("tools must be JSON, but a tool holds other values, or is nested without end") from None


def _read_tool(number: int, tool: Any) -> dict[str, Any]:
    function = tool.get("function") if isinstance(tool, Mapping) and tool.get("type") == "function" else None
    if not isinstance(function, Mapping):
        raise _wrong(
            f'A tool is {{"type": "function", "function": object}}, but tools[{number}] is {tool!r:.100}'
        )
    name, description = function.get("name"), function.get("description") or ""
    parameters = function.get("parameters") or {"type": "object", "properties": {}}
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME or not name.isprintable():
        raise _wrong(
            f"tools[{number}] must have a name of at most {MAX_NAME} characters, but it is {name!r:.60}"
        )
    if not isinstance(description, str) or not isinstance(parameters, Mapping):
        raise _wrong(f"tools[{number}] must have a text as description and a JSON schema as parameters")
    about = {"name": name, "description": description, "parameters": dict(parameters)}
    return {"type": "function", "function": about}


def _wrong(problem: str) -> QueryError:
    return QueryError(f"{problem}; correct it, or leave the tools out.", option="tools")


def names_of(tools: str) -> tuple[str, ...]:
    """The names of tools of `read_tools`."""
    return tuple(tool["function"]["name"] for tool in json.loads(tools or "[]"))


def read_calls(calls: Any, option: str) -> tuple[ToolCall, ...]:
    """Calls of an earlier answer in OpenAI's form. Raises QueryError, which names the option.

    Each is {"id": text, "function": {"name": text, "arguments": a JSON object, or that as text}}.
    """
    read = [_read_call(call) for call in calls] if isinstance(calls, list | tuple) else [None]
    if None in read:
        form = '{"id": text, "function": {"name": text, "arguments": a JSON object}}'
        raise QueryError(
            f"Calls of tools are a list of {form}, but this is {calls!r:.100}; correct it.", option=option
        )
    return tuple(call for call in read if call)


def _read_call(call: Any) -> ToolCall | None:
    function = call.get("function") if isinstance(call, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    arguments = as_arguments(function.get("arguments")) if isinstance(function, Mapping) else None
    if not isinstance(name, str) or arguments is None:
        return None
    return ToolCall(name, arguments, str(call.get("id") or ""))


def as_arguments(arguments: Any) -> str | None:
    """A JSON object as text; none are an empty one. None: this is something else, or has NaN or half a character."""
    try:
        value = json.loads(arguments or "{}") if isinstance(arguments, str) else arguments or {}
        written = json.dumps(value, ensure_ascii=False, allow_nan=False)
        written.encode()
    except (ValueError, TypeError, RecursionError):
        return None
    return written if isinstance(value, dict) else None


# ---- Calls in an answer ------------------------------------------------------------------------------------


_BETWEEN = " \t\r\n;,"
"""Between calls where nothing else marks them: Llama's models write "; "."""


class CallReader:
    """Separates the calls of tools in an answer from its text, piece by piece.

    What only looks like a call, or calls a tool that there is none of, stays text.
    """

    def __init__(self, form: CallFormat | None, names: Collection[str], *, is_single: bool = False) -> None:
        """form: of the model; None: it calls nothing. names: of the tools. is_single: one call ends the answer."""
        self._form = form if names else None
        self._begin, self._end = (form.begin.strip(), form.end.strip()) if form else ("", "")
        self._names = names
        self._is_single, self._is_over = is_single, False
        self._held = ""  # may be the beginning of a call
        self._object = ObjectEnd()  # of what follows the mark
        self._is_start = True  # nothing but calls came so far

    def push(self, text: str, *, is_last: bool = False) -> tuple[str, list[ToolCall]]:
        """Take a piece of text; returns what may be shown of it now, and the calls that are complete."""
        if self._form is None:
            return text, []
        self._held += text
        shown, calls = "", list[ToolCall]()
        while self._held and not self._is_over:
            before, rest = self._find_begin(is_last)
            shown += before
            if rest is None:
                break
            call, after = self._read(rest, is_last)
            if after is None:
                break
            if call is None:
                shown, self._is_start = shown + self._held[: len(self._held) - len(after)], False
            else:
                calls.append(call)
                self._is_over = self._is_single
            self._held, self._object = after, ObjectEnd()
        return shown, calls

    def _find_begin(self, is_last: bool) -> tuple[str, str | None]:
        """Take the text before a call out of what is held; and what follows its mark, None if there is none."""
        if not self._begin:
            rest = self._held.lstrip(_BETWEEN) if self._is_start else ""
            if rest.startswith("{"):
                return "", rest
            if self._is_start and not rest and not is_last:
                return "", None
            self._is_start = False
            shown, self._held = self._held, ""
            return shown, None
        before, begin, rest = self._held.partition(self._begin)
        num_held = 0 if begin or is_last else overlap(before, self._begin)
        self._held = begin + rest if begin else before[len(before) - num_held :]
        return before[: len(before) - num_held], rest if begin else None

    def _read(self, rest: str, is_last: bool) -> tuple[ToolCall | None, str | None]:
        """The call that `rest` begins with, None if it is none, and what follows; None twice while that is open."""
        body = rest.lstrip()
        if not body.startswith("{"):
            return None, rest if body else "" if is_last else None
        size = self._object.find(body)
        if size is None:
            return None, "" if is_last else None
        after = body[size:].lstrip() if self._end else body[size:]
        if not is_last and self._end.startswith(after) and after != self._end:
            return None, None
        call = self._as_call(body[:size])
        if call and self._begin.endswith("[") and after.startswith(","):  # calls are a list
            return call, self._begin + after[1:]
        return call, after.removeprefix(self._end)

    def _as_call(self, written: str) -> ToolCall | None:
        assert self._form is not None
        try:
            value = json.loads(written, strict=False)  # models write line breaks into texts as they are
        except (ValueError, RecursionError):
            return None
        if not isinstance(value, dict) or str(value.get(self._form.name)) not in self._names:
            return None
        arguments = as_arguments(value.get(self._form.arguments))
        if arguments is None:
            return None
        return ToolCall(str(value[self._form.name]), arguments, f"call_{secrets.token_hex(12)}")


_OF_OBJECT, _OF_TEXT = re.compile(r'["{}\[\]]'), re.compile(r'\\.|"', re.DOTALL)
"""What decides where a JSON object ends: the brackets, and the ends of the texts in it."""


class ObjectEnd:
    """Finds where a JSON object ends that comes piece by piece, and reads each piece once."""

    def __init__(self) -> None:
        self._place = self._depth = 0
        self._is_text = False

    def find(self, text: str) -> int | None:
        """The length of the object that a text begins with; None: it is not complete. text: that before, and more."""
        if self._place and not self._depth:
            return self._place
        while match := (_OF_TEXT if self._is_text else _OF_OBJECT).search(text, self._place):
            self._place = match.end()
            if self._is_text or match.group() == '"':
                self._is_text ^= match.group() == '"'
                continue
            self._depth += 1 if match.group() in "{[" else -1
            if not self._depth:
                return self._place
        is_escape = self._is_text and text.endswith("\\", self._place)  # of what comes next
        self._place = len(text) - is_escape
        return None


def overlap(text: str, marker: str) -> int:
    """Characters at the end of a text with which the marker begins."""
    return next((size for size in range(len(marker) - 1, 0, -1) if text.endswith(marker[:size])), 0)


def split_calls(text: str, form: CallFormat | None, names: Collection[str]) -> tuple[str, list[ToolCall]]:
    """A whole answer without its calls, and these. form and names: as of `CallReader`."""
    shown, calls = CallReader(form, names).push(text, is_last=True)
    return shown.strip(), calls


# ---- Answers that must call a tool -------------------------------------------------------------------------


def grammar_of_calls(
    form: CallFormat,
    tools: str,
    *,
    only: str | None = None,
    is_required: bool = True,
    is_single: bool = False,
    is_strict: bool = False,
    schema: Mapping[str, Any] | None = None,
) -> dict[str, str]:
    """The grammar of an answer whose calls follow the tools' schemas, in Lark's form as llguidance has it.

    tools: of `read_tools`. only: the name of the one tool that may be called. is_required: whether the answer is calls
    and nothing else; otherwise it may be any text, with calls after it, or JSON of the schema, if there is one, instead
    of calls. is_single: one call at most. is_strict: what llguidance does not know of a tool's schema is an error.
    """
    functions = [tool["function"] for tool in json.loads(tools) if only in (None, tool["function"]["name"])]
    names = " | ".join(f"tool_{number}" for number in range(len(functions)))
    rest = f"({names}) {_literal(form.end, form.tokens)}"
    more = "" if is_single or not form.begin else ' ("\\n" call)*'
    rules = [f"call: {_literal(form.begin, form.tokens)} {rest}"]
    space = {"whitespace_pattern": " ?", "lenient": not is_strict}  # on one line, as templates write it
    for number, each in enumerate(functions):
        name = json.dumps(each["name"], ensure_ascii=False)
        parts = ["{", json.dumps(form.name), ":", name, ",", json.dumps(form.arguments), ":"]
        rules.append(rf"tool_{number}: /{' ?'.join(map(_regex, parts))} ?/ arguments_{number} / ?\}}/")
        rules.append(f"arguments_{number}: {_json(_schema(each['parameters']), space)}")
    start, begin = f"call{more}", form.begin.strip()
    if not is_required and schema is not None:
        start = f"json | {start}"
        rules.append(f"json: {_json(schema)}")
    elif not is_required and not begin:
        start = f"TEXT | {start}"
        rules.append(r"TEXT: /([^{ \t\n](.|\n)*)?/")
    elif not is_required and begin in form.tokens:  # which no text holds
        start = f"TEXT ({start})?"
        rules.append("TEXT: /(.|\\n)*/")
    elif not is_required:
        start = f"TEXT | opened {rest}{more}"
        rules.append(f"opened[suffix={_literal(form.begin, {})}]: /(.|\\n)*/")
        rules.append(f"TEXT: /(.|\\n)*/ & ~/(.|\\n)*{_regex(begin)}(.|\\n)*/")
    return {"lark": "\n".join([f"start: {start}", *rules])}


def _json(schema: Mapping[str, Any], space: Any = JSON_SPACE) -> str:
    return f"%json {json.dumps({'x-guidance': space, **schema})}"


def _schema(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Of the arguments of a call: an object, without any that the tool does not name, unless it says so."""
    has_more = {"$ref", "allOf", "anyOf", "oneOf"} & set(parameters)
    closed = {"additionalProperties": False} if "properties" in parameters and not has_more else {}
    return {**closed, **parameters, "type": "object"}


def _regex(text: str) -> str:
    """That matches a text, within slashes."""
    return re.escape(text).replace("/", r"\/")


def _literal(text: str, tokens: Mapping[str, int]) -> str:
    """A text with these tokens."""
    parts = re.split(f"({'|'.join(map(re.escape, tokens)) or '(?!)'})", text)
    texts = {part: json.dumps(part, ensure_ascii=False) for part in parts}
    return " ".join(f"<[{tokens[part]}]>" if part in tokens else texts[part] for part in parts if part)

"""Grammars that ask for as much time and memory as their writer could think of, from a seed.

What they attack: numbers, counted repetitions, products of alternatives, intersections and complements, long literals,
recursion, depth and ambiguity.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

Value = dict[str, Any]
Draw = random.Random


def hostile_grammars(count: int, seed: int = 0) -> list[tuple[str, Value]]:
    """So many grammars, each after its kind; all kinds in turn."""
    draw, kinds = Draw(seed), list(_KINDS.items())
    return [(kind, make(draw)) for kind, make in (kinds[number % len(kinds)] for number in range(count))]


# ---- numbers -------------------------------------------------------------------------------------------------


def _multiples(draw: Draw) -> Value:
    step = draw.choice([19_999_999, draw.randrange(10**4, 10**9) | 1, round(draw.random(), 7), 1e-9])
    schema: Value = {"type": "number" if step < 1 else "integer", "multipleOf": step}
    if draw.random() < 0.5:
        schema |= {"minimum": -draw.randrange(10**12), "maximum": draw.randrange(10**12)}
    return draw.choice([schema, {"type": "array", "items": schema}])


def _several_multiples(draw: Draw) -> Value:
    steps = [draw.randrange(101, 9_999) | 1 for _ in range(draw.randrange(2, 6))]
    return {"allOf": [{"type": "integer", "multipleOf": step} for step in steps]}


def _bounds(draw: Draw) -> Value:
    digits = draw.choice([12, 15, 18, 300])
    low, high = sorted(draw.randrange(10 ** (digits - 1), 10**digits) for _ in range(2))
    whole = {"type": "integer", "minimum": low, "maximum": high}
    real = {"type": "number", "exclusiveMinimum": low / 10**9, "maximum": high / 10 ** draw.randrange(9)}
    return draw.choice(
        [whole, real, {"anyOf": [{**whole, "maximum": high + number} for number in range(200)]}]
    )


# ---- repetitions ---------------------------------------------------------------------------------------------


def _lengths(draw: Draw) -> Value:
    most = 10 ** draw.randrange(4, 8)
    text = {"type": "string", "minLength": draw.randrange(most), "maxLength": most}
    items = {"type": "array", "minItems": most // 2, "maxItems": most, "items": text}
    return draw.choice([text, items, {"type": "array", "items": items, "minItems": 1000}])


def _counted(draw: Draw) -> str:
    expression = draw.choice(["a", "[a-z]", ".", r"\p{L}", "(a|ab|abc)", "(a?b?c?)"])
    for _ in range(draw.randrange(1, 5)):
        low = draw.randrange(3)
        most = low + 10 ** draw.randrange(1, 6)
        expression = f"({expression}{draw.choice(['', 'b', '|c'])}){{{low},{most}}}"
    return expression


def _backwards(draw: Draw) -> str:
    """What an automaton that goes forwards needs 2 to the n states for."""
    most = draw.choice([12, 24, 300])
    parts = [
        f"(.*{letter}.{{{draw.randrange(8, most)}}})" for letter in draw.sample("abcde", draw.randrange(1, 4))
    ]
    return "".join(parts)


def _ambiguous(draw: Draw) -> str:
    return draw.choice(
        [
            "(a|b|ab)*c{1000}",
            f"(a?){{{draw.randrange(100, 5000)}}}a{{{draw.randrange(100, 5000)}}}",
            "((x+x+)+y)+" * draw.randrange(1, 40),
            "|".join(f"(a{{{draw.randrange(1, 300)}}})*" for _ in range(draw.randrange(2, 30))),
            f"(.*,){{{draw.randrange(10, 2000)}}}.*",
            r"(\p{L}{1,200}\p{N}{1,200}){1,200}",
            "(?=" * 20 + _counted(draw) + ")" * 20,
            "(" * (depth := draw.choice([50, 120, 5_000])) + "a" + draw.choice([")", ")*", "|b)"]) * depth,
        ]
    )


# ---- schemas -------------------------------------------------------------------------------------------------


def _products(draw: Draw) -> Value:
    """Alternatives of alternatives, which share what they consist of."""
    depth, names = draw.randrange(5, 40), "abcd"[: draw.randrange(2, 5)]
    definitions: Value = {f"d{depth}": {"type": "string"}}
    for level in range(depth):
        below = {"$ref": f"#/$defs/d{level + 1}"}
        branches = [{"type": "object", "properties": {name: below, "rest": below}} for name in names]
        definitions[f"d{level}"] = {"anyOf": [*branches, below]}
    return {"$ref": "#/$defs/d0", "$defs": definitions}


def _intersections(draw: Draw) -> Value:
    """What has to be multiplied out."""
    width = draw.randrange(2, 5)

    def branch(number: int, which: int) -> Value:
        name = f"p{number}"
        return {"type": "object", "properties": {name: {"enum": [which]}}, "required": [name]}

    several = draw.choice(["anyOf", "anyOf", "anyOf", "oneOf"])
    rows = [[branch(number, which) for which in range(width)] for number in range(draw.randrange(3, 14))]
    return {"allOf": [{several: row} for row in rows]}


def _patterns_at_once(draw: Draw) -> Value:
    patterns = [draw.choice([_backwards, _counted])(draw) for _ in range(draw.randrange(2, 5))]
    return {"allOf": [{"type": "string", "pattern": pattern} for pattern in patterns]}


def _pattern_properties(draw: Draw) -> Value:
    values = [_several_multiples(draw), _lengths(draw), _patterns_at_once(draw)]
    return {
        "type": "object",
        "patternProperties": {
            f"^{letter}{_counted(draw)}$": value for letter, value in zip("xyz", values, strict=True)
        },
        "minProperties": draw.randrange(500),
    }


def _long(draw: Draw) -> Value:
    words = ["".join(draw.choices('abc \\"é', k=draw.randrange(1, 60))) for _ in range(1_000)]
    return draw.choice(
        [{"enum": words}, {"const": "".join(words)}, {"enum": [{"v": word} for word in words[:500]]}]
    )


def _many_properties(draw: Draw) -> Value:
    names = [f"property_{number}_{draw.randrange(10**6)}" for number in range(draw.choice([200, 800]))]
    each = draw.choice([{"type": "string", "format": "date-time"}, {"type": ["string", "null", "number"]}])
    return {"properties": dict.fromkeys(names, each), "additionalProperties": draw.random() < 0.5}


def _recursion(draw: Draw) -> Value:
    loops = {
        "a": {"$ref": "#/$defs/b"},
        "b": {"allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/c"}]},
        "c": {
            "anyOf": [
                {"$ref": "#/$defs/d"},
                {"type": "array", "items": {"$ref": "#/$defs/c"}, "minItems": 900},
            ]
        },
        "d": {"properties": {name: {"$ref": f"#/$defs/{name}"} for name in "cd"}, "required": ["d"]},
    }
    return {"$defs": loops, "properties": {"x": {"$ref": f"#/$defs/{draw.choice('abccdd')}"}}}


def _deep(draw: Draw) -> Value:
    schema = _bounds(draw)
    for _ in range(draw.choice([8, 30, 60, 400])):
        schema = draw.choice([{"type": "array", "items": schema}, {"anyOf": [schema, {"type": "null"}]}])
    return schema


def _formats(draw: Draw) -> Value:
    name = draw.choice(["date-time", "duration", "email", "hostname", "ipv6", "uri"])
    schema = {"type": "string", "format": name, "maxLength": draw.randrange(100, 20_000)}
    return schema | draw.choice([{}, {"pattern": _counted(draw)}, {"pattern": "^" + _backwards(draw)}])


# ---- Lark ----------------------------------------------------------------------------------------------------


def _lark_ambiguous(draw: Draw) -> str:
    lengths = range(2, draw.randrange(3, 9))
    return draw.choice(
        [
            'start: s\ns: s s s | s s | A | \nA: "a" | "aa"',
            "start: s\ns: " + " | ".join(" ".join(["s"] * length) for length in lengths) + ' | "a" |',
            "start: r0\n"
            + "".join(f"r{n}: r{n + 1} r{n + 1} | r{n + 1}\n" for n in range(60))
            + 'r60: "a" |',
            "start: (x | y | z)*\nx: /[a-z]*/\ny: /[a-m]*/ x?\nz: y z? | x y",
        ]
    )


def _lark_terminals(draw: Draw) -> str:
    most = 10 ** draw.randrange(2, 6)
    return draw.choice(
        [
            f'start: T\nT: (/[a-z]{{1,5}}/ | "abc")~1..{most}',
            f'start: (a b?)~{most // 2}..{most}\na: T\nT: "x"~1..{most}\nb: /y+/',
            f"start: T\nT: /{_backwards(draw)}/ & ~/{_backwards(draw)}/",
            "start: T\nT: " + " & ".join(f"/{_backwards(draw)}/" for _ in range(4)),
            "start: T\nT: " + " | ".join(f'"{draw.getrandbits(256):x}"' for _ in range(800)),
        ]
    )


def _lark_rules(draw: Draw) -> str:
    count = draw.choice([100, 500, 1_500])

    def some() -> str:
        return f"r{draw.randrange(count)}"

    depth = draw.choice([10, 30, 8_000])
    nested = "(" * depth + '"a"' + draw.choice([")", ")*", ")?"]) * depth
    rules = [f'r{n}: "{n}" {some()} | {some()} {some()} | "e"' for n in range(count)]
    return draw.choice(["\n".join(["start: r0", *rules])] * 2 + [f"start: {nested}"])


def _lark_json(draw: Draw) -> str:
    schemas = [draw.choice([_multiples, _intersections, _lengths])(draw) for _ in range(3)]
    rules = [f"j{number}: %json {json.dumps(schema)}" for number, schema in enumerate(schemas)]
    return "\n".join(["start: j0 | j1 | j2", *rules])


def _as(kind: str, make: Callable[[Draw], Any]) -> Callable[[Draw], Value]:
    return lambda draw: {kind: make(draw)}


_KINDS: dict[str, Callable[[Draw], Value]] = {
    "multipleOf": _as("json_schema", _multiples),
    "several multipleOf": _as("json_schema", _several_multiples),
    "bounds": _as("json_schema", _bounds),
    "lengths": _as("json_schema", _lengths),
    "products": _as("json_schema", _products),
    "intersections": _as("json_schema", _intersections),
    "patterns at once": _as("json_schema", _patterns_at_once),
    "patternProperties": _as("json_schema", _pattern_properties),
    "long literals": _as("json_schema", _long),
    "many properties": _as("json_schema", _many_properties),
    "recursion": _as("json_schema", _recursion),
    "depth": _as("json_schema", _deep),
    "formats": _as("json_schema", _formats),
    "regex: counted": _as("regex", _counted),
    "regex: backwards": _as("regex", _backwards),
    "regex: ambiguous": _as("regex", _ambiguous),
    "lark: ambiguous": _as("lark", _lark_ambiguous),
    "lark: terminals": _as("lark", _lark_terminals),
    "lark: rules": _as("lark", _lark_rules),
    "lark: json": _as("lark", _lark_json),
}

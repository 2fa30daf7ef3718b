"""JSON schemas as llguidance knows them.

Of what it does not know, `lenient` leaves out: unknown formats, which are annotations, and keywords. Here a part of
that is first said otherwise: what then may be written is right, though not always all that would be.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import permutations
from typing import Any

MAX_DISTINCT = 4
"""Values of which arrays without repetition are listed."""
_NAMED = {"properties", "patternProperties", "$defs", "definitions"}
_DATA = {"const", "enum", "default", "examples"}
"""Keywords that hold schemas by name, and those that hold values."""
_EVALUATING = {"$ref", "allOf", "anyOf", "oneOf", "if", "dependentSchemas", "contains"}
"""Keywords that may know of properties and items, too."""


def simplify(schema: Any, root: Any = None) -> Any:
    """The schema by keywords that llguidance knows, as far as they say it. root: where its references begin."""
    if isinstance(schema, list):
        return [simplify(each, root) for each in schema]
    if not isinstance(schema, dict):
        return schema
    root = schema if root is None else root
    known = dict(schema)
    for name in known.keys() - _DATA:
        if name in _NAMED and isinstance(known[name], dict):
            known[name] = {key: simplify(each, root) for key, each in known[name].items()}
        else:
            known[name] = simplify(known[name], root)
    if not known.keys() & _EVALUATING:
        for name, same in (("unevaluatedProperties", "additionalProperties"), ("unevaluatedItems", "items")):
            if name in known:
                known.setdefault(same, known[name])
    if "contains" in known and not known.keys() & {"prefixItems", "minContains", "maxContains"}:
        known["prefixItems"] = [{"allOf": [known.get("items", True), known["contains"]]}]
        known["minItems"] = max(1, known.get("minItems", 1))
    elif known.get("uniqueItems") is True and known.get("type") == "array":
        known = _list_arrays(known, root) or known
    pattern = known.get("pattern")
    parts = split_pattern(pattern) if isinstance(pattern, str) else [pattern]
    if parts != [pattern]:
        del known["pattern"]
        known["allOf"] = [*known.get("allOf", []), *({"pattern": part} for part in parts)]
    return known


def _list_arrays(schema: Mapping[str, Any], root: Any) -> dict[str, Any] | None:
    """A schema of all arrays without repetition, where there are few."""
    items = schema.get("items")
    if isinstance(items, dict) and str(items.get("$ref")).startswith("#/$defs/"):
        items = root.get("$defs", {}).get(items["$ref"].removeprefix("#/$defs/"))
    if not isinstance(items, dict) or "prefixItems" in schema:
        return None
    values = items.get("enum", [False, True] if items.get("type") == "boolean" else [])
    if not 0 < len(values) <= MAX_DISTINCT:
        return None
    sizes = range(schema.get("minItems", 0), min(len(values), schema.get("maxItems", len(values))) + 1)
    return {"enum": [list(array) for size in sizes for array in permutations(values, size)]}


# ---- regular expressions ---------------------------------------------------------------------------------------

_TOKEN = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|.", re.DOTALL)
_LOOK = re.compile(r"\(\?<?[=!]")
_CLASS = r"(?:\[(?P<no>\^?)(?P<of>(?:\\.|[^\]\\])*)\]|(?P<one>[\w-]|\\[^BbZ1-9]))"
_OF_ONE_CLASS = re.compile(rf"(?P<before>\^?|\.\*){_CLASS}(?P<after>(?:[*+]\$)?)")
_BEHIND = re.compile(rf"\(\?<!{_CLASS}\)\$$")


def split_pattern(pattern: str) -> list[str]:
    """Expressions without look-around; a text that all of them match is one that the pattern matches, but where it
    looks around within, or refers back, of which nothing is left."""
    if not _LOOK.search(pattern) and not re.search(r"\\[bBZ1-9]", pattern):
        return [pattern]
    rest, parts = pattern.removeprefix("^"), list[str]()
    is_anchored = rest != pattern or rest.startswith(("(?=", "(?!"))
    while is_anchored and rest.startswith(("(?=", "(?!")):
        end = _end_of_group(rest, 0)
        inner = rest[3 : end - 1]
        parts += [f"^(?:{inner})"] if rest[2] == "=" else _complement(inner)
        rest = rest[end:]
    if found := _BEHIND.search(rest):
        parts.append(f"^(?:.*{_other(found)})?$")
    parts.append(f"^{rest}" if is_anchored else rest)
    return [bare for part in parts if not re.search(r"\\[1-9]", bare := _without_looks(part))]


def _end_of_group(expression: str, start: int) -> int:
    depth = 0
    for token in _TOKEN.finditer(expression, start):
        depth += {"(": 1, ")": -1}.get(token[0], 0)
        if not depth:
            return token.end()
    return len(expression)


def _without_looks(expression: str) -> str:
    kept, place = "", 0
    while token := _TOKEN.match(expression, place):
        if _LOOK.match(expression, place):
            place = _end_of_group(expression, place)
        else:
            kept += {r"\b": "", r"\B": "", r"\Z": "$"}.get(token[0], token[0])
            place = token.end()
    return kept


def _complement(expression: str) -> list[str]:
    """The expression of texts that do not begin as this one says; none where it is not known."""
    found = _OF_ONE_CLASS.fullmatch(expression)
    if found is None or (found["before"] == ".*" and found["after"]):
        return []
    if found["after"]:
        return [_other(found)]
    return [f"^{_other(found)}*$" if found["before"] == ".*" else f"^(?:{_other(found)}.*)?$"]


def _other(found: re.Match[str]) -> str:
    """The class of all characters that are not of the class that was found."""
    return f"[{'' if found['no'] else '^'}{found['of'] or found['one']}]"

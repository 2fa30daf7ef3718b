"""Do answers follow their JSON schema, are they exactly those of the loop without drafts, and what does a mask cost?

Asks the questions about the household with schemas of several kinds (records, lists, nested objects, enumerations,
patterns, numbers with bounds), in mode dual with default settings, half of them at temperature 0 and half at 1. Each
answer is checked by another library (`jsonschema`). A part of them is compared with the draft-free loop, which applies
the same masks. Another part is asked again without a grammar, for the time per token. With `--calls` each
schema is that of a tool's argument, and the answer must call the tool, in the tests' chat template that takes tools.

Prediction: all answers valid, whatever the model; 0 that differ from the loop. A mask takes 10 to 500 microseconds,
under 3 % of a pass.

Expected run time: 15 minutes for 200 answers on one core (`--count`, `--compared`); `--smoke` a minute with the toys.
Exit code 1 if an answer is invalid or differs.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import jsonschema

from benchmarks._common import finish, new_parser, summary
from benchmarks.answer_exactness import reference_of
from tandem import Config, Tandem
from tandem.corpora import SMOLLM2
from tandem.engine.shaping import Shaper
from tandem.tools import CallFormat, format_of, grammar_of_calls, read_tools, split_calls
from tandem.topology import PARTIES
from tandem_lab.quality.memoized import local_pair
from tandem_lab.quality.questions import question_texts
from tests.tool_templates import HERMES

MAX_TOKENS = 200
TEXT = {"type": "string", "maxLength": 30}


def record(**properties: Any) -> dict[str, Any]:
    """A schema of an object with exactly these properties."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


SCHEMAS: dict[str, dict[str, Any]] = {
    "answer": record(answer=TEXT, sure={"type": "boolean"}),
    "person": record(name=TEXT, age={"type": "integer", "minimum": 0, "maximum": 120}),
    "list": record(items={"type": "array", "items": TEXT, "minItems": 1, "maxItems": 3}),
    "nested": record(
        place=record(city=TEXT, country=TEXT), note={"type": ["string", "null"], "maxLength": 20}
    ),
    "choice": record(kind={"enum": ["fact", "opinion", "unknown"]}, text=TEXT),
    "pattern": record(date={"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"}),
    "number": record(value={"type": "number", "minimum": -1000, "maximum": 1000}, unit=TEXT),
    "either": {"anyOf": [record(yes={"const": True}), record(no={"const": True}, reason=TEXT)]},
}


@contextmanager
def timed_masks(times_us: list[float]) -> Iterator[None]:
    """Adds what each application of a query's wishes took, at either party."""
    shape = Shaper.shape

    def timed(self: Shaper, *arguments: Any) -> Any:
        start_s = time.perf_counter()
        result = shape(self, *arguments)
        times_us.append(1e6 * (time.perf_counter() - start_s))
        return result

    Shaper.shape = timed  # type: ignore[method-assign]
    try:
        yield
    finally:
        Shaper.shape = shape  # type: ignore[method-assign]


def calling(tandem: Tandem, name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Options of a query that must call a tool once; arguments are an object, so the schema is that of one of them."""
    tools = [{"type": "function", "function": {"name": name, "parameters": record(value=schema)}}]
    grammar = grammar_of_calls(call_format(tandem), read_tools(tools), is_single=True)
    return {"tools": tools, "grammar": grammar}


def call_format(tandem: Tandem) -> CallFormat:
    """Of the device's template."""
    form = format_of(tandem.described[PARTIES[0]])
    assert form is not None  # it takes tools
    return form


def read_answer(tandem: Tandem, name: str, text: str, *, has_calls: bool) -> Any:
    """The JSON of an answer, or that of its call. Raises ValueError where there is none."""
    if not has_calls:
        return json.loads(text)
    rest, calls = split_calls(text, call_format(tandem), [name])
    if rest or len(calls) != 1:
        raise ValueError(f"{len(calls)} calls beside {rest!r}")
    return json.loads(calls[0].arguments)["value"]


def main() -> int:
    """Ask, check, compare and time; 1 if an answer is invalid or differs."""
    parser = new_parser(__doc__)
    parser.add_argument("--count", type=int, default=200, help="answers (default: 200)")
    parser.add_argument("--compared", type=int, default=24, help="of them, with the loop without drafts")
    parser.add_argument("--model", default=SMOLLM2)
    parser.add_argument("--calls", action="store_true", help="answers are calls of a tool with the schema")
    parser.add_argument("--smoke", action="store_true", help="8 answers of the toys, all compared")
    options = parser.parse_args()
    if options.smoke:
        options.count, options.compared, options.model = 8, 8, "bundled"
    settings = [f'device.model="{options.model}"', f'cloud.model="{options.model}"']
    if options.calls:
        options.compared = 0
        template = Path(tempfile.mkdtemp()) / "tools.jinja"
        template.write_text(HERMES, "utf-8")
        settings += [f'{party}.template="{template}"' for party in PARTIES]
    config = Config.load(None, [*settings, "link.on_peer_loss=wait"])
    questions, draw, wanted = question_texts(None, config), random.Random(3), reference_of(config)
    vocab_size = local_pair(config).engines[PARTIES[0]].vocab_size
    print("prediction: 0 invalid, 0 that differ from the loop; masks under 3 % of a pass", flush=True)
    invalid: list[dict[str, Any]] = []
    cut, different, times_us, per_token_ms = 0, 0, list[float](), {True: list[float](), False: list[float]()}
    with Tandem.launch(config, runtime="inline") as tandem, timed_masks(times_us):
        for number in range(options.count):
            name, schema = list(SCHEMAS.items())[number % len(SCHEMAS)]
            asked: dict[str, Any] = {
                "question": draw.choice(questions),
                "seed": number,
                "temperature": float(number // len(SCHEMAS) % 2),
                "max_new_tokens": MAX_TOKENS,
                "grammar": {"json_schema": schema},
            }
            if options.calls:
                asked |= calling(tandem, name, schema)
            answer = tandem.query(**asked, mode="dual")
            cut += answer.reason != "eos"
            try:
                jsonschema.validate(read_answer(tandem, name, answer.text, has_calls=options.calls), schema)
            except (ValueError, jsonschema.ValidationError) as error:
                invalid.append(
                    {"schema": name, "text": answer.text, "reason": answer.reason, "error": str(error)[:80]}
                )
            if number < options.compared:
                looped = wanted(**asked | {"grammar": json.dumps(asked["grammar"])}, vocab_size=vocab_size)
                different += list(answer.token_ids) != looped
                for is_plain in (False, True):
                    again = {**asked, "max_new_tokens": 24} | ({"grammar": None} if is_plain else {})
                    tokens = tandem.query(**again, mode="dual").tokens
                    if len(tokens) > 8:
                        taken_s = tokens[-1].committed_s - tokens[0].committed_s
                        per_token_ms[is_plain].append(1e3 * taken_s / (len(tokens) - 1))
            if number % 20 == 19:
                print(f"{number + 1} answers, {len(invalid)} invalid, {different} different", flush=True)
    result = {
        "answers": options.count,
        "invalid": len(invalid),
        "cut_at_the_limit": cut,
        "compared": min(options.compared, options.count),
        "different": different,
        "mask_us": summary(times_us),
        "ms_per_token": {
            "with a grammar": summary(per_token_ms[False] or [0.0]),
            "without": summary(per_token_ms[True] or [0.0]),
        },
    }
    for each in invalid[:10]:
        print(each)
    finish(result | {"model": options.model})
    return int(bool(invalid or different))


if __name__ == "__main__":
    sys.exit(main())

"""Do answers follow their JSON schema, are they exactly those of the loop without drafts, and what does a grammar cost?

Asks the questions about the household with schemas of several kinds (records, lists, nested objects, enumerations,
patterns, numbers with bounds), in mode dual with default settings, half of them at temperature 0 and half at 1. Each
answer is checked by another library (`jsonschema`). A part of them is compared with the draft-free loop, which applies
the same masks. Another part is asked again without a grammar, for the time per token.

Prediction: all answers valid, whatever the model; 0 that differ from the loop. A mask takes 10 to 500 microseconds,
under 3 % of a pass.

With `--hostile 200` instead: so many grammars that ask for as much time and memory as they can
(`tests/hostile_grammars.py`), while other answers are written, in turn with as many ordinary ones; `--at-once` of them
together. Measured are the pauses between the tokens of the other answers, and memory. Prediction: no pause is 100 ms
longer than the longest beside ordinary grammars; neither this process nor one that follows a grammar takes more than
200 MB.

Expected run time: 15 minutes for 200 answers on one core (`--count`, `--compared`), 15 minutes for 200 hostile
grammars; `--smoke` a minute with the toys. Exit code 1 if an answer is invalid or differs, or what is predicted of
hostile grammars does not hold.
"""

from __future__ import annotations

import json
import os
import random
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import jsonschema

from benchmarks._common import finish, new_parser, summary
from benchmarks.answer_exactness import reference_of
from tandem import Config, QueryError, Tandem, TokenEvent
from tandem.corpora import SMOLLM2
from tandem.engine.shaping import Shaper
from tandem.topology import PARTIES
from tandem_lab.quality.memoized import local_pair
from tandem_lab.quality.questions import question_texts
from tests.hostile_grammars import hostile_grammars
from tests.unit.engine.followers import followers

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


# ---- grammars that cost as much as they can ------------------------------------------------------------------

MB = 1_000_000
HOSTILE_TOKENS = 40


class Others:
    """Answers that others are being given: one after the other, in a thread, and the pauses between their tokens."""

    def __init__(self, tandem: Tandem, questions: list[str]) -> None:
        self._tandem, self._questions = tandem, questions
        self._is_over = threading.Event()
        self.pauses: list[tuple[float, float]] = []  # when it ended, and how long it was
        self._thread = threading.Thread(target=self._ask)

    def __enter__(self) -> Others:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _ask(self) -> None:
        draw = random.Random(1)
        while not self._is_over.is_set():
            last_s = 0.0
            options: dict[str, Any] = {
                "temperature": 1.0,
                "seed": draw.getrandbits(32),
                "max_new_tokens": MAX_TOKENS,
            }
            for event in self._tandem.stream(draw.choice(self._questions), mode="dual", **options):
                now_s = time.monotonic()
                if last_s and isinstance(event, TokenEvent):
                    self.pauses.append((now_s, now_s - last_s))
                last_s = now_s if isinstance(event, TokenEvent) else last_s
                if self._is_over.is_set():
                    break

    def pauses_ms(self, since_s: float, until_s: float) -> list[float]:
        """Those that ended in this time."""
        return [1e3 * pause_s for end_s, pause_s in list(self.pauses) if since_s <= end_s < until_s]


class Memory:
    """The largest growth of this process, and the most that one which follows a grammar has for itself alone."""

    def __init__(self) -> None:
        self.start = self.most = resident_bytes()
        self.most_of_follower = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._is_over.wait(0.1):
            self.most = max(self.most, resident_bytes())
            self.most_of_follower = max([self.most_of_follower, *map(private_bytes, followers())])


def resident_bytes() -> int:
    """Of this process."""
    return int(Path("/proc/self/statm").read_text("utf-8").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def private_bytes(pid: int) -> int:
    """What a process does not share with others."""
    try:
        shown = Path(f"/proc/{pid}/smaps_rollup").read_text("utf-8")
    except OSError:  # it has ended
        return 0
    return 1024 * sum(int(kb) for kb in re.findall(r"Private_\w+: +(\d+) kB", shown))


def ask_for(tandem: Tandem, question: str, grammar: Any, seed: int) -> str:
    """What becomes of a query with this grammar."""
    options: dict[str, Any] = {"temperature": 1.0, "seed": seed, "max_new_tokens": HOSTILE_TOKENS}
    try:
        return str(tandem.query(question, grammar=grammar, mode="dual", timeout_s=60, **options).reason)
    except QueryError as error:
        return f"{error.code}: {' '.join(str(error).split('The grammar of the answer ')[-1].split()[:4])}"


def measure_hostile(
    config: Config, questions: list[str], count: int, at_once: int
) -> tuple[dict[str, Any], bool]:
    """Hostile and ordinary grammars in turn beside other answers: what was seen, and whether a prediction failed."""
    schemas, draw = cycle(SCHEMAS.values()), random.Random(7)
    pauses_ms: dict[str, list[float]] = {"ordinary": [], "hostile": []}
    outcomes, longest_ms = Counter[str](), dict[str, float]()
    with (
        Tandem.launch(config, runtime="inline") as tandem,
        Others(tandem, questions) as others,
        ThreadPoolExecutor(at_once) as pool,
    ):

        def ask(name: str, grammars: Sequence[Any]) -> list[str]:
            since_s = time.monotonic()
            asked = [(draw.choice(questions), grammar, draw.getrandbits(32)) for grammar in grammars]
            ends = list(pool.map(lambda each: ask_for(tandem, *each), asked))
            seen = others.pauses_ms(since_s, time.monotonic())
            pauses_ms[name] += seen
            return ends

        for _ in range(8):  # until caches are full
            ask("ordinary", [{"json_schema": next(schemas)} for _ in range(at_once)])
        pauses_ms["ordinary"].clear()
        with Memory() as memory:
            hostile = hostile_grammars(count)
            for number in range(0, count, at_once):
                several, num_before = hostile[number : number + at_once], len(pauses_ms["hostile"])
                outcomes.update(ask("hostile", [grammar for _, grammar in several]))
                longest = max(pauses_ms["hostile"][num_before:], default=0.0)
                longest_ms[several[0][0]] = max(longest_ms.get(several[0][0], 0.0), longest)
                ask("ordinary", [{"json_schema": next(schemas)} for _ in several])
                if number // 20 != (number + at_once) // 20:
                    print(
                        f"{number + at_once}: { ({name: max(seen) for name, seen in pauses_ms.items()}) }",
                        flush=True,
                    )
    result = {
        "outcomes": outcomes,
        "pauses_ms": {
            name: {**summary(seen), "p99": sorted(seen)[int(0.99 * len(seen))], "max": max(seen)}
            for name, seen in pauses_ms.items()
        },
        "longest_pause_ms_by_kind": longest_ms,
        "process_grew_mb": (memory.most - memory.start) / MB,
        "largest_follower_mb": memory.most_of_follower / MB,
    }
    is_slow = max(pauses_ms["hostile"]) > max(pauses_ms["ordinary"]) + 100
    return result, is_slow or max(memory.most - memory.start, memory.most_of_follower) > 200 * MB


def main() -> int:
    """Ask, check, compare and time; 1 if an answer is invalid or differs, or hostile grammars cost too much."""
    parser = new_parser(__doc__)
    parser.add_argument("--count", type=int, default=200, help="answers (default: 200)")
    parser.add_argument("--compared", type=int, default=24, help="of them, with the loop without drafts")
    parser.add_argument("--model", default=SMOLLM2)
    parser.add_argument("--hostile", type=int, default=0, help="hostile grammars, instead of all else")
    parser.add_argument("--at-once", type=int, default=1, help="of them")
    parser.add_argument(
        "--smoke", action="store_true", help="8 answers of the toys, all compared; 20 hostile grammars"
    )
    options = parser.parse_args()
    if options.smoke:
        options.count, options.compared, options.model = 8, 8, "bundled"
        options.hostile = min(options.hostile, 20)
    settings = [f'device.model="{options.model}"', f'cloud.model="{options.model}"']
    config = Config.load(None, [*settings, "link.on_peer_loss=wait"])
    questions, draw, wanted = question_texts(None, config), random.Random(3), reference_of(config)
    vocab_size = local_pair(config).engines[PARTIES[0]].vocab_size
    if options.hostile:
        print(
            "prediction: no pause 100 ms longer than beside ordinary grammars; no process over 200 MB",
            flush=True,
        )
        seen, is_over = measure_hostile(config, questions, options.hostile, options.at_once)
        finish(seen | {"grammars": options.hostile, "at_once": options.at_once, "model": options.model})
        return int(is_over)
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
            answer = tandem.query(**asked, mode="dual")
            cut += answer.reason != "eos"
            try:
                jsonschema.validate(json.loads(answer.text), schema)
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

"""How much sooner does the second turn of a conversation begin if the first one's caches are kept?

A device and a cloud in one process, with the bundled models and documents, answer a question and a follow-up, which
finds the same documents again. Measured: the time to the first token of the second answer, and each party's prefill,
with the rows of the first turn (`turns_max_bytes` as set by default) and with all of it computed again, in turn. Both
find the documents' own caches in their store, so what is saved are the first question and its answer, once for each
document. Both answers are the same.

Prediction, printed first: tokens that are not computed again x the time that the model takes for one more token of a
row, measured here on prompts of two lengths. It is compared with the processor's time for the whole second answer,
which other programs do not lengthen, and with what the parties' prefills took.

Expected run time: 2 minutes on an idle core; `--smoke` 30 s.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._common import finish, new_parser, summary
from tandem import Answer, Config, SourcesEvent, Tandem
from tandem.actors.loading import load_engine
from tandem.engine.prompt import Prompt
from tandem.events import DoneEvent, collect
from tandem.topology import PARTIES
from tandem_lab.training.bundle import read_bundled_questions

LENGTHS, ROWS, REPEATS = (32, 96), 4, 9
WAYS = {"reused": 1 << 27, "computed": 0}
"""Bytes for earlier turns."""


def token_s() -> float:
    """The processor's seconds for one more token of one row of a prompt: the slope between LENGTHS."""
    engine = load_engine(Config().device)
    times: dict[int, list[float]] = {length: [] for length in LENGTHS}
    for number in range(REPEATS):
        for length in LENGTHS:
            rows = tuple((row + 3,) for row in range(ROWS))
            prompt = Prompt(rows, tuple(range(5, 5 + length)), tuple(range(ROWS)), (), ())
            engine.sessions["s"] = engine.make_session(prompt, 0, is_stored=False)
            start_s = time.process_time()
            engine.next_logits("s", [])
            if number:  # the first one warms up
                times[length].append(time.process_time() - start_s)
            engine.close("s")
    short, long = (median(times[length]) for length in LENGTHS)
    return (long - short) / (ROWS * (LENGTHS[1] - LENGTHS[0]))


def launch(max_bytes: int) -> Tandem:
    """A pair that keeps so much of earlier turns, in one process."""
    changes = [
        f"{party}.{name}" for party in PARTIES for name in (f"turns_max_bytes={max_bytes}", "kv_store=memory")
    ]
    return Tandem.launch(Config.load(None, [*changes, "link.on_peer_loss=wait"]), runtime="inline")


def reused_tokens(tandem: Tandem) -> dict[str, float]:
    """Tokens that each party's decoder did not compute again, so far."""
    actors = {actor["name"]: actor["extra"] for actor in tandem.status()["actors"]}
    return {party: actors[f"{party}/decoder"]["turn_tokens"] for party in PARTIES}


def ask(tandem: Tandem, question: str, **options: Any) -> tuple[Answer, dict[str, float]]:
    """The answer, and what it took in seconds: first token, each party's prefill, and the processor until its end."""
    start_s = time.process_time()
    events = list(tandem.stream(question, seed=0, **options))
    processor_s = time.process_time() - start_s
    prefill_s = {event.party: event.prefill_s for event in events if isinstance(event, SourcesEvent)}
    assert isinstance(events[-1], DoneEvent)
    first_token_s = events[-1].statistics.first_token_s
    return collect(events, 0), {"first token": first_token_s, "processor": processor_s, **prefill_s}


def converse(tandem: Tandem, question: str) -> tuple[Answer, dict[str, float], dict[str, float]]:
    """The second answer, what it took, and the tokens that each party reused for it."""
    answer, _ = ask(tandem, question)
    history = [{"role": "user", "content": question}, {"role": "assistant", "content": answer.text}]
    before = reused_tokens(tandem)
    second, seconds = ask(tandem, f"Once more, please: {question}", history=history)
    after = reused_tokens(tandem)
    return second, seconds, {party: after[party] - before[party] for party in PARTIES}


def main() -> None:
    """Prediction, both ways in turn, what was saved."""
    parser = new_parser(__doc__)
    parser.add_argument("--smoke", action="store_true", help="3 conversations instead of 40")
    questions = [asked.question for asked in read_bundled_questions()][
        : 3 if parser.parse_args().smoke else 40
    ]
    cost_s = token_s()
    print(f"prediction: {1e6 * cost_s:.0f} us for each token of a row that is not computed again", flush=True)
    pairs = {way: launch(max_bytes) for way, max_bytes in WAYS.items()}
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    saved: list[dict[str, float]] = []
    try:
        for pair in pairs.values():
            converse(pair, "Who are you?")
        for question in questions:
            answers = {}
            for way, pair in pairs.items():
                answers[way], seconds, reused = converse(pair, question)
                found[way].append(seconds)
                if way == "reused":
                    saved.append(reused)
            assert answers["reused"].token_ids == answers["computed"].token_ids
    finally:
        for pair in pairs.values():
            pair.close()
    _report(found, saved, cost_s)


def _report(found: dict[str, list[dict[str, float]]], saved: list[dict[str, float]], cost_s: float) -> None:
    rows: dict[str, Any] = {}
    for what in found["reused"][0]:
        both = {way: summary([1e3 * seconds[what] for seconds in found[way]]) for way in WAYS}
        differences = [
            1e3 * (computed[what] - reused[what])
            for computed, reused in zip(found["computed"], found["reused"], strict=True)
        ]
        rows[what] = both | {"saved": summary(differences)}
        name = f"prefill, {what}" if what in PARTIES else what
        times = "  ".join(
            f"{way} {each['p50']:6.1f} [{each['p25']:.1f}, {each['p75']:.1f}]" for way, each in both.items()
        )
        print(f"{name:16} {times}  saved {rows[what]['saved']['p50']:6.1f} ms", flush=True)
    num_tokens = {party: median(reused[party] for reused in saved) for party in PARTIES}
    num_tokens["processor"] = median(sum(reused.values()) for reused in saved)
    for what, count in num_tokens.items():
        predicted_ms = 1e3 * count * cost_s
        share = rows[what]["saved"]["p50"] / predicted_ms if predicted_ms else float("nan")
        rows[what] |= {"reused_tokens": count, "predicted_ms": predicted_ms}
        print(f"{what:16} {count:.0f} tokens: predicted {predicted_ms:.1f} ms, measured {share:.0%} of it")
    finish({"benchmark": "second_turn", "token_us": 1e6 * cost_s, "times_ms": rows})


if __name__ == "__main__":
    main()

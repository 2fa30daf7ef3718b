"""Which placement writes an answer fastest over a slow link, live, and does the simulator say so beforehand?

DRAGON Figure 8's question, asked of the running system: two Ray nodes on one machine, every frame between the sides
delayed in the process, decode times padded to at least 60 ms on the device and 25 ms in the cloud, so that both
sides, which share the cores, have the pace of other hardware. Time per token is (t_last - t_first) / (n - 1), summed
over the questions of a run. Runs go through all placements in turn.

Prediction: the same questions through the virtual-clock driver, with the same model, floors and delays; printed before
the measurement. Target: the live median within 10 % of it; mirror, then greedy, then the better of device and cloud,
none behind the next by more than the larger interquartile range or 3 %.

Also: how far the profiler's predictions were from what was then seen (decode time, round trip), with the floors and
without them.

Expected run time: 11 minutes for both round trips; `--smoke` 1 minute.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import isnan
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._common import bundled_pair, finish, new_parser, summary
from tandem import Config, Tandem
from tandem.client.request import spec_of
from tandem.events import EstimateEvent, Event, TokenEvent
from tandem.topology import PARTIES, Party
from tandem_lab.baselines.client import Baselines, launch
from tandem_lab.baselines.experiments import Experiments, Treatment
from tandem_lab.simulation.link import Link
from tandem_lab.simulation.specs import change_spec
from tandem_lab.training.bundle import read_bundled_questions

PLACEMENTS = ("mirror", "greedy", "device", "cloud", "random")
FLOORS_S = {Party.DEVICE: 0.060, Party.CLOUD: 0.025}
ORDER = "mirror <= greedy <= better of device and cloud"


@dataclass(frozen=True)
class Setting:
    """One loop: a placement, or the token-wise baseline."""

    name: str

    @property
    def options(self) -> dict[str, Any]:
        """For `Tandem.stream` and for a spec."""
        if self.name == "token-wise":
            return {"placement": "device", "max_window": 1}
        return {"placement": "greedy" if self.is_random else self.name, "max_window": 16}

    @property
    def is_random(self) -> bool:
        """Whether each step's aggregator is drawn."""
        return self.name == "random"

    @property
    def treatment(self) -> Treatment:
        """For the laboratory's actors and for a spec."""
        return Treatment(random_placement=self.is_random)


SETTINGS = (*map(Setting, PLACEMENTS), Setting("token-wise"))


def pace(answers: Sequence[Sequence[Event]]) -> float:
    """Seconds per token over several answers: sum of (t_last - t_first) over sum of (n - 1)."""
    spans = [[event.committed_s for event in events if isinstance(event, TokenEvent)] for events in answers]
    return sum(times[-1] - times[0] for times in spans) / sum(len(times) - 1 for times in spans)


def token_ids(events: Sequence[Event]) -> list[int]:
    """What was committed."""
    return [event.token for event in events if isinstance(event, TokenEvent)]


def predicted(config: Config, questions: Sequence[str], rtt_s: float, temperature: float) -> dict[str, float]:
    """Seconds per token of each setting under the virtual clock, with the same model, documents, floors and delay."""
    pair = bundled_pair(config)
    base = change_spec(spec_of(config), on_peer_loss="wait", temperature=temperature)
    found = {}
    for setting in SETTINGS:
        outcomes = [
            pair.answer(
                setting.treatment.apply_to(replace(base, query=question, seed=seed, **setting.options)),
                link=Link(delay_s=rtt_s / 2, is_in_order=True),
                decode_s=lambda party, rng: FLOORS_S[party],
            )[1].events
            for seed, question in enumerate(questions)
        ]
        found[setting.name] = pace(outcomes)
    return found


def measured(
    rag: Tandem, questions: Sequence[str], num_runs: int, temperature: float
) -> tuple[dict[str, list[float]], dict[str, list[Sequence[Event]]]]:
    """Seconds per token of each run of each setting, and all their events. The same seeds everywhere."""
    paces: dict[str, list[float]] = {setting.name: [] for setting in SETTINGS}
    events: dict[str, list[Sequence[Event]]] = {setting.name: [] for setting in SETTINGS}
    baselines = Baselines(rag)
    for run in range(num_runs + 1):
        for setting in SETTINGS:
            baselines.treat(dict.fromkeys(PARTIES, setting.treatment))
            answers = [
                list(rag.stream(question, seed=seed, temperature=temperature, **setting.options))
                for seed, question in enumerate(questions)
            ]
            if run > 0:  # the first warms up
                paces[setting.name].append(pace(answers))
                events[setting.name] += answers
    return paces, events


def same_everywhere(events: dict[str, list[Sequence[Event]]], num_questions: int) -> bool:
    """Whether every run of every setting committed the same tokens."""
    first = [token_ids(answer) for answer in events["token-wise"][:num_questions]]
    return all(
        token_ids(answer) == first[number % num_questions]
        for answers in events.values()
        for number, answer in enumerate(answers)
    )


def prediction_errors(answers: Iterator[Sequence[Event]]) -> dict[str, dict[str, float]]:
    """Relative error of the profiler's last estimate before each step against what that step then showed."""
    errors: dict[str, list[float]] = {"device_decode_s": [], "cloud_decode_s": [], "rtt_s": []}
    for events in answers:
        estimate: EstimateEvent | None = None
        for event in events:
            if isinstance(event, EstimateEvent):
                estimate = event
            elif isinstance(event, TokenEvent) and estimate is not None:
                for name, found in errors.items():
                    seen, guess = getattr(event, name), getattr(estimate, name)
                    if not (isnan(seen) or isnan(guess)):
                        found.append(abs(guess - seen) / seen)
    return {name: summary(found) for name, found in errors.items() if found}


def in_order(rows: dict[str, dict[str, float]]) -> dict[str, bool]:
    """Whether each of mirror, greedy, better fixed side is at most 3 % (or the larger IQR) behind the next."""
    better = min(("device", "cloud"), key=lambda name: rows[name]["p50"])

    def holds(first: str, second: str) -> bool:
        spread = max(rows[name]["p75"] - rows[name]["p25"] for name in (first, second))
        allowed = max(spread, 0.03 * rows[second]["p50"])
        return rows[first]["p50"] <= rows[second]["p50"] + allowed

    return {"mirror <= greedy": holds("mirror", "greedy"), f"greedy <= {better}": holds("greedy", better)}


def at_rtt(rtt_s: float, questions: Sequence[str], num_runs: int, temperature: float) -> dict[str, Any]:
    """Predict, measure and compare at one round trip."""
    config = Config.load(None, ["link.on_peer_loss=wait"])
    experiments = Experiments(extra_delay_s=rtt_s / 2, min_decode_time_s=FLOORS_S)
    wanted = predicted(config, questions, rtt_s, temperature)
    print(f"\nRTT {rtt_s * 1e3:.0f} ms, temperature {temperature:g}; predicted ms/token: ", end="")
    print(", ".join(f"{name} {1e3 * value:.1f}" for name, value in wanted.items()), flush=True)
    with launch(config, experiments) as rag:
        paces, events = measured(rag, questions, num_runs, temperature)
    rows = {name: summary([1e3 * value for value in values]) for name, values in paces.items()}
    for name, row in rows.items():
        answers = events[name]
        counts = [
            event.statistics for answer in answers for event in answer[-1:] if hasattr(event, "statistics")
        ]
        num_tokens = sum(count.num_tokens for count in counts)
        row |= {
            "predicted": 1e3 * wanted[name],
            "share_of_prediction": row["p50"] / (1e3 * wanted[name]),
            "device_acceptance": sum(count.num_device_accepted for count in counts) / num_tokens,
            "cloud_acceptance": sum(count.num_cloud_accepted for count in counts) / num_tokens,
            "bytes_up": sum(count.sent_bytes for count in counts) / num_tokens,
            "bytes_down": sum(count.received_bytes for count in counts) / num_tokens,
        }
        print(
            f"  {name:10}  p50 {row['p50']:6.1f} ms/token  [{row['p25']:.1f}, {row['p75']:.1f}]"
            f"  {row['share_of_prediction']:6.1%} of prediction"
            f"  accepted: device {row['device_acceptance']:.0%} cloud {row['cloud_acceptance']:.0%}"
            f"  bytes/token {row['bytes_up']:.0f} up {row['bytes_down']:.0f} down",
            flush=True,
        )
    checks = in_order(rows) | {"same tokens everywhere": same_everywhere(events, len(questions))}
    print("  " + ", ".join(f"{name}: {'yes' if holds else 'NO'}" for name, holds in checks.items()))
    errors = prediction_errors(answer for name in PLACEMENTS for answer in events[name])
    _show_errors(errors)
    return {"rows": rows, "checks": checks, "prediction_errors": errors}


def without_floors(questions: Sequence[str], num_runs: int) -> dict[str, Any]:
    """The profiler's errors where decode times are the model's own, on cores that both sides share."""
    config = Config.load(None, ["link.on_peer_loss=wait"])
    with launch(config, Experiments(extra_delay_s=0.05)) as rag:
        answers = [
            list(rag.stream(question, seed=seed, placement="greedy"))
            for _ in range(num_runs + 1)
            for seed, question in enumerate(questions)
        ]
    errors = prediction_errors(iter(answers[len(questions) :]))
    print("\nwithout floors, RTT 100 ms, greedy:")
    _show_errors(errors)
    return errors


def _show_errors(errors: dict[str, dict[str, float]]) -> None:
    print(
        "  profiler's relative error: "
        + ", ".join(f"{name} p50 {row['p50']:.1%} p95 {row['p95']:.1%}" for name, row in errors.items()),
        flush=True,
    )


def main() -> None:
    """Measure at 100 and 300 ms."""
    parser = new_parser(__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--questions", type=int, default=4)
    parser.add_argument(
        "--rtt", type=float, nargs="*", default=(0.1, 0.3), help="seconds; none: no floors only"
    )
    parser.add_argument("--temperature", type=float, nargs="+", default=(0.0,))
    parser.add_argument("--smoke", action="store_true", help="one run of one question at 100 ms")
    arguments = parser.parse_args()
    if arguments.smoke:
        arguments.runs, arguments.questions, arguments.rtt = 1, 1, (0.1,)
    questions = [question.question for question in read_bundled_questions()][: arguments.questions]
    print(f"targets: {ORDER}; live within 10 % of the prediction")
    result: dict[str, Any] = {"floors_s": {party.value: floor_s for party, floor_s in FLOORS_S.items()}}
    for rtt_s in arguments.rtt:
        for temperature in arguments.temperature:
            result[f"rtt {rtt_s:g} s, T {temperature:g}"] = at_rtt(
                rtt_s, questions, arguments.runs, temperature
            )
    if not arguments.smoke:
        result["without floors"] = without_floors(questions, arguments.runs)
    finish(result)


if __name__ == "__main__":
    main()

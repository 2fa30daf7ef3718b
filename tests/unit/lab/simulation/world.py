"""Random cases in the world of `tandem_lab.simulation.world`. Knows nothing of what a test asserts, but for `agree`."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeVar

from tandem.modes import SessionSpec
from tandem.topology import PARTIES
from tandem_lab.simulation import specs
from tandem_lab.simulation.link import Link
from tandem_lab.simulation.oracle import has_oracle
from tandem_lab.simulation.scenario import Fault, Scenario, expected_answer, make_chain_scenario
from tandem_lab.simulation.specs import change_spec
from tandem_lab.simulation.virtual import Outcome, VirtualRun
from tandem_lab.simulation.watched import WatchedRun
from tandem_lab.simulation.world import (
    CODEC,
    EOS,
    NEVER,
    VOCAB,
    World,
    codec_for,
    distribution,
    number,
    stop_rule,
)

__all__ = ["CODEC", "EOS", "NEVER", "VOCAB", "World", "distribution", "stop_rule"]

R = TypeVar("R", bound=VirtualRun)
W = TypeVar("W", bound=WatchedRun)
PLACEMENTS = ("device", "cloud", "greedy", "mirror", "random")


@dataclass(frozen=True)
class Case:
    """A query and a link."""

    spec: SessionSpec
    link: Link
    mean_decode_s: float = 0.03

    def run(self, limit_s: float = 300.0, prepare: Callable[[VirtualRun], Any] = lambda run: None) -> Outcome:
        """Run it; `prepare` may plant faults before the clock starts."""
        run = self.make()
        prepare(run)
        return run.run(limit_s)

    def make(
        self,
        decode_s: Callable[[Any, random.Random], float] | None = None,
        *,
        kind: type[R] = VirtualRun,  # type: ignore[assignment]
        first_end: int = 0,
    ) -> R:
        """decode_s: time of each forward; None: drawn around the mean. first_end: nothing but the length ends an answer
        of so many tokens."""
        spec = self.spec
        codec = codec_for(spec)
        return kind(
            spec,
            {party: World(spec.seed, party, first_end=first_end, codec=codec) for party in PARTIES},
            codec,
            finished=stop_rule(spec.sampling.max_new_tokens, first_end),
            link=self.link,
            decode_s=decode_s or (lambda party, rng: rng.expovariate(1 / self.mean_decode_s)),
            seed=spec.seed,
        )

    def having(self, **changes: Any) -> Case:
        """The same with other values in the spec."""
        return replace(self, spec=specs.change_spec(self.spec, **changes))

    def over(self, **changes: Any) -> Case:
        """The same over another link."""
        return replace(self, link=Link(**changes))


def make_spec(seed: int, **changes: Any) -> SessionSpec:
    """A query whose every dial is drawn from the seed."""
    rng = random.Random(seed)
    values: dict[str, Any] = {
        "draft_rule": rng.choice(["coupled", "coupled", "algorithm1"]),
        "temperature": rng.choice([0.0, 0.7, 1.0]),
        "max_new_tokens": rng.choice([1, 4, 10, 16]),
        "device_documents": rng.choice([0, 2, 2]),
        "cloud_documents": rng.choice([0, 3, 3]),
        "question_weight": rng.choice([0.0, 1.0, 1.0, 0.5]),
        "evidence_weight": rng.choice([0.0, 1.0, 1.0]),
        "evidence_memory": rng.choice([0.5, 1.0]),
        "max_window": rng.randint(1, 16),
    }
    if changes.get("placement") == "mirror" and changes.get("draft_rule") is None:
        values["draft_rule"] = "coupled"  # it needs them
    fixed = {"session": seed + 1, "seed": seed, "eos_token_ids": (EOS,), "on_peer_loss": "wait"}
    return specs.vary_layouts(specs.make_spec(**{**fixed, **values, **changes}), seed)


def make_case(seed: int, placement: str, **changes: Any) -> Case:
    """That query over a link that delays, reorders, repeats, drops and may be cut for a while."""
    rng = random.Random(number(seed, placement))
    link = Link(
        delay_s=rng.choice([0.0, 0.02, 0.15]),
        jitter_s=rng.choice([0.0, 0.05, 0.3]),
        drop=rng.choice([0.0, 0.1, 0.2]),
        duplicate=rng.choice([0.0, 0.1]),
        cut_s=rng.choice([None, None, (0.3, 2.5)]),
    )
    return Case(make_spec(seed, placement=placement, **changes), link)


@lru_cache(maxsize=1000)
def synchronous(spec: SessionSpec) -> tuple[int, ...]:
    """What every run must give: the draft-free loop, or for Algorithm 1 the token-wise loop over a perfect link."""
    if has_oracle(spec):
        scenario = Scenario(seed=spec.seed, spec=spec, link=Link(), first_end=0, model_s={})
        return tuple(expected_answer(scenario))
    outcome = Case(change_spec(spec, max_window=1, placement="device"), Link()).run()
    return agree(outcome)


def agree(outcome: Outcome) -> tuple[int, ...]:
    """The committed tokens, which must be the same on both sides and in the events."""
    assert outcome.done is not None, f"hung at {outcome.tokens}"
    assert outcome.done.reason in ("eos", "stop", "length"), outcome.done
    device, cloud = (tuple(outcome.tokens[party]) for party in PARTIES)
    assert device == cloud
    assert [event.token for event in outcome.events if hasattr(event, "token")] == list(device)
    return device


# ---- modes whose drafter has no vote ---------------------------------------------------------------------------------


def calm(seed: int, num_workers: int, **changes: Any) -> Scenario:
    """A scenario in which nothing is planted, asked where the drafter is. pass_s: time of each pass; changes: of the
    scenario, or else of the spec."""
    scenario = make_chain_scenario(seed, num_workers)
    changes.setdefault("home", "")
    values: dict[str, Any] = {
        "faults": (), "cancel_s": None, "is_rounding": False, "restarts": 0.0, "first_end": NEVER
    }  # fmt: skip
    values |= {key: changes.pop(key) for key in ("drafter", "faults") if key in changes}
    if "pass_s" in changes:
        values["model_s"] = dict.fromkeys(scenario.model_s, changes.pop("pass_s"))
    if "delay_s" in changes:
        values |= {"link": Link(delay_s=changes.pop("delay_s"), is_in_order=True), "frames": {}}
    return replace(scenario, spec=change_spec(scenario.spec, **changes), **values)


def cut(party: str, after_s: float, seconds: float) -> tuple[Fault, ...]:
    """Nothing passes between that party and the others for a while."""
    return (Fault(kind="cut", party=party, after_s=after_s, seconds=seconds),)


def played(scenario: Scenario, run_class: type[W] = WatchedRun) -> W:  # type: ignore[assignment]
    """The whole run, whose answer is that of the draft-free loop."""
    run = run_class(scenario)
    run.run()
    run.check_end()
    return run

"""How long proposals are while the link changes: the policies along one trace, in the model of pacings."""

from __future__ import annotations

from math import inf

from tandem.papers.qs import DoubleDqn, LastAccepted
from tandem.scheduler.lengths import MAX_LENGTH, BestLength, FixedLength, LengthPolicy
from tandem_lab.netlab.bundled import bundled
from tandem_lab.netlab.schedule import LinkSchedule
from tandem_lab.simulation.conditions import Conditions, Timing
from tandem_lab.simulation.pacing import draw_accepted, play_answer

TRACE = "walk"
ACCEPTANCE, NUM_TOKENS = 0.85, 2200


def play_policies(
    trace: LinkSchedule | None = None, num_tokens: int = NUM_TOKENS, seed: int = 7
) -> dict[str, Timing]:
    """An answer under `stop_and_wait` with each policy, by its name. trace: None is TRACE of the bundled ones."""
    link = trace or bundled(TRACE)

    def conditions_at(now_s: float) -> Conditions:
        shape = link.value_at(now_s)
        return Conditions(rtt_s=shape.rtt_s, bits_per_s=shape.rate_bits_per_s or inf)

    policies: dict[str, LengthPolicy] = {
        "computed from estimates": BestLength(),
        "QS's network, without the drafter's probabilities": DoubleDqn(MAX_LENGTH),
        "QS's heuristic": LastAccepted(MAX_LENGTH),
        "always 5": FixedLength(5),
    }
    return {
        name: play_answer(conditions_at, "stop_and_wait", policy, draw_accepted(ACCEPTANCE, seed), num_tokens)
        for name, policy in policies.items()
    }

"""Floating point that differs between hosts, planted: under mirror the two aggregators decide one step differently."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from tandem.events import TokenEvent
from tandem.messages import VerifyResult
from tandem.protocol.routes import Send
from tandem.protocol.session import Session
from tandem.topology import PARTIES, Party
from tandem_lab.simulation.link import Link
from tandem_lab.simulation.specs import change_spec
from tandem_lab.simulation.virtual import VirtualRun
from tests.unit.lab.simulation.world import VOCAB, Case, make_spec, synchronous


class _Slip:
    """An aggregator host whose decision of one step names another token."""

    def __init__(self, host: Any, step: int, shift: int = 1) -> None:
        self.host, self.step, self.shift = host, step, shift
        self.sessions = host.sessions
        self.num_slips = 0

    def receive(self, message: Any) -> list[Send]:
        return [self._slip(send) for send in self.host.receive(message)]

    def _slip(self, send: Send) -> Send:
        decision = send.message
        is_decided = isinstance(decision, VerifyResult) and bool(decision.tokens)
        if not is_decided or decision.step != self.step or self.num_slips:
            return send
        self.num_slips += 1
        target = (decision.tokens[0] + self.shift) % VOCAB
        return Send(send.to, replace(decision, tokens=(target,), accepted=(0, 0)))


def slipping(case: Case, party: Party, step: int, shift: int = 1) -> tuple[VirtualRun, _Slip, list[Session]]:
    """A run with one slip on `side`, and the device's session, kept for its counters."""
    run = case.make()
    slip = _Slip(run.parties[party].aggregator, step, shift)
    run.parties[party].aggregator = slip  # type: ignore[assignment]
    device: list[Session] = []
    run.at(1e-9, lambda: device.append(run.parties[Party.DEVICE].queue.sessions[case.spec.session]))
    return run, slip, device


@pytest.mark.parametrize("party", PARTIES)
@pytest.mark.parametrize("jitter_s", [0.0, 0.1])
def test_a_planted_divergence_is_detected_counted_and_healed(party: Party, jitter_s: float) -> None:
    """At any step, the last included: both sides end equal, with what the device had committed."""
    num_planted = num_at_the_end = 0
    for seed in range(60):
        spec = make_spec(seed, placement="mirror", max_new_tokens=10)
        step = random.Random(seed).randrange(10)
        case = Case(spec, Link(delay_s=0.02, jitter_s=jitter_s))
        run, slip, device = slipping(case, party, step)
        outcome = run.run(100)
        assert outcome.done is not None
        assert outcome.done.reason in ("eos", "stop", "length")
        tokens = [event.token for event in outcome.events if isinstance(event, TokenEvent)]
        assert outcome.tokens[Party.DEVICE] == outcome.tokens[Party.CLOUD] == tokens, (case, step)
        assert not any(run.open_sessions(each) for each in PARTIES)
        assert outcome.ended_s < 10
        statistics = device[0].statistics
        assert statistics.num_divergences == statistics.num_resyncs == slip.num_slips, (case, step)
        if party is Party.CLOUD:
            assert tuple(tokens) == synchronous(change_spec(spec, placement="device"))
        num_planted += slip.num_slips
        num_at_the_end += bool(slip.num_slips) and step == len(tokens) - 1
    assert num_planted > 25
    assert num_at_the_end >= 3

"""What each system should take for a token, before anybody measures: the virtual clock, Eq. (9), and plain sums.

Systems in which both sides decide every token run through the virtual-clock driver, with the real models and documents,
and with decode floors and delay in place of a clock. Knows nothing of Ray.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from math import nan
from typing import TYPE_CHECKING, Protocol

from tandem.client.request import spec_of
from tandem.config.schema import Config
from tandem.events import TokenEvent
from tandem.modes.spec import SessionSpec
from tandem.scheduler.greedy import speedup
from tandem.topology import PARTIES, Party
from tandem_lab.latency.records import Setting
from tandem_lab.latency.systems import MIRROR, TOKEN_WISE, System
from tandem_lab.numbers import ratio
from tandem_lab.simulation.link import Link
from tandem_lab.simulation.specs import change_spec
from tandem_lab.simulation.virtual import Outcome

if TYPE_CHECKING:
    from tandem_lab.quality.local import LocalPair


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What one system should show. nan: nothing is said."""

    token_s: float
    least_s: float = nan  # a token of mirror, on which nothing but causality bears
    acceptance: dict[str, float] = field(default_factory=dict)  # by side
    forwards_per_token: dict[str, float] = field(default_factory=dict)
    also: dict[str, float] = field(default_factory=dict)  # further quantities, by name


class Predicts(Protocol):
    """Says what should come out of a benchmark, before anybody measures."""

    def reference(self, setting: Setting) -> tuple[tuple[int, ...], ...]:
        """The tokens of each question without a link, coupled drafts."""

    def predict(self, system: System, setting: Setting) -> Prediction:
        """For one system."""


class Predictor:
    """Predictions for a few questions."""

    def __init__(self, pair: Callable[[], LocalPair], config: Config, questions: Sequence[str]) -> None:
        """pair: called once, at the first prediction that needs a model."""
        self._pair, self._config, self._questions = cache(pair), config, questions
        self._references: dict[tuple[float, int], tuple[tuple[int, ...], ...]] = {}

    def reference(self, setting: Setting) -> tuple[tuple[int, ...], ...]:
        """The tokens of each question by the synchronous loop over a link without latency, coupled drafts."""
        key = (setting.temperature, setting.max_new_tokens)
        if key not in self._references:
            at_once = replace(setting, rtt_s=0.0)
            self._references[key] = tuple(
                tuple(token.token for token in tokens_of(outcome))
                for outcome in self._answers(TOKEN_WISE, at_once)
            )
        return self._references[key]

    def predict(self, system: System, setting: Setting) -> Prediction:
        """For one system; nothing where decode times are the machine's own."""
        if setting.floors_s is None:
            return Prediction(token_s=nan)
        if system.kind == "together":
            outcomes = list(self._answers(system, setting))
            least_s = _least_s(outcomes, setting) if system is MIRROR else nan
            return replace(_observed(outcomes), least_s=least_s)
        device_s, cloud_s = setting.floors_s
        if system.kind == "sequences":
            lengths = [len(tokens) for tokens in self.reference(setting)]
            return Prediction(token_s=sequence_wise_s(lengths, device_s, cloud_s, setting.rtt_s))
        return Prediction(token_s=cloud_s if system.options["only"] is Party.CLOUD else device_s)

    def _answers(self, system: System, setting: Setting) -> Iterator[Outcome]:
        floors_s = setting.floors_s or (0.01, 0.01)
        decode_s = dict(zip(PARTIES, floors_s, strict=True))
        for number, question in enumerate(self._questions):
            yield self._pair().answer(
                self._spec(system, setting, question, number),
                link=Link(delay_s=setting.rtt_s / 2, is_in_order=True),
                decode_s=lambda party, rng: decode_s[party],
            )[1]

    def _spec(self, system: System, setting: Setting, question: str, number: int) -> SessionSpec:
        spec = change_spec(
            spec_of(self._config),
            query=question,
            seed=number,
            temperature=setting.temperature,
            max_new_tokens=setting.max_new_tokens,
            on_peer_loss="wait",
            **system.options,
        )
        return system.treatment.apply_to(spec)


def tokens_of(outcome: Outcome) -> list[TokenEvent]:
    """What was committed."""
    return [event for event in outcome.events if isinstance(event, TokenEvent)]


def sequence_wise_s(lengths: Sequence[int], device_s: float, cloud_s: float, rtt_s: float) -> float:
    """Seconds a token of sequence-wise synchronisation if both sides write answers of these lengths: the device writes
    its own while the cloud's is written and crosses.
    """
    spans_s = [max((n - 1) * device_s, n * cloud_s + rtt_s - device_s) for n in lengths]
    return sum(spans_s) / sum(n - 1 for n in lengths)


def eq9(system: System, prediction: Prediction, setting: Setting) -> float:
    """Eq. (9)'s speed-up over the token-wise loop of a system whose aggregator stays where it is; nan for another."""
    placement = system.options.get("placement")
    if not system.is_speculative or setting.floors_s is None or placement not in PARTIES:
        return nan
    decode_s = dict(zip(PARTIES, setting.floors_s, strict=True))
    own = Party(placement)
    return speedup(decode_s[own], decode_s[own.other], prediction.acceptance[own.other], setting.rtt_s)


def least_span_s(
    accepted: Sequence[Mapping[Party, bool]], decode_s: Mapping[Party, float], rtt_s: float
) -> float:
    """From the first to the last token of one answer on the device, at the soonest, where both parties decide and each
    drafts a single line.

    accepted: of each step, whose draft was committed. A party whose draft was not can draft the next token only when
    the peer's distribution has crossed; one whose draft was committed need not wait, whatever it knows.
    """
    drafted_s = {Party.DEVICE: 0.0, Party.CLOUD: rtt_s / 2}  # the query crosses as well
    committed_s = [rtt_s]
    for step in accepted[:-1]:
        known_s = {party: max(drafted_s[party], drafted_s[party.other] + rtt_s / 2) for party in PARTIES}
        drafted_s = {
            party: (drafted_s[party] if step[party] else known_s[party]) + decode_s[party]
            for party in PARTIES
        }
        seen_s = max(drafted_s[Party.DEVICE], drafted_s[Party.CLOUD] + rtt_s / 2)
        committed_s.append(max(committed_s[-1], seen_s))
    return committed_s[-1] - committed_s[0]


def _least_s(outcomes: Sequence[Outcome], setting: Setting) -> float:
    decode_s = dict(zip(PARTIES, setting.floors_s or (0.0, 0.0), strict=True))
    answers = [tokens_of(outcome) for outcome in outcomes]
    spans_s = (
        least_span_s(
            [{Party.DEVICE: t.device_accepted, Party.CLOUD: t.cloud_accepted} for t in tokens],
            decode_s,
            setting.rtt_s,
        )
        for tokens in answers
    )
    return ratio(sum(spans_s), sum(map(len, answers)) - len(answers))


def _observed(outcomes: Sequence[Outcome]) -> Prediction:
    answers = [tokens_of(outcome) for outcome in outcomes]
    num_tokens = sum(map(len, answers))
    gaps = num_tokens - len(answers)
    spans_s = sum(tokens[-1].committed_s - tokens[0].committed_s for tokens in answers)
    accepted = {
        Party.DEVICE: sum(token.device_accepted for tokens in answers for token in tokens),
        Party.CLOUD: sum(token.cloud_accepted for tokens in answers for token in tokens),
    }
    return Prediction(
        token_s=spans_s / gaps if gaps else nan,
        acceptance={party: count / num_tokens for party, count in accepted.items()},
        forwards_per_token={
            party: sum(outcome.num_forwards[party] for outcome in outcomes) / num_tokens for party in PARTIES
        },
    )

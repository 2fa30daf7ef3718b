"""The suites `latency` and `ttft`: DRAGON's Figures 6 and 7, what each system should take, and what was promised.

Predictions are the virtual clock, Eq. (9), and plain sums: systems in which both sides decide every token run through
the virtual-clock driver, with the real models and documents, and with decode floors and delay in place of a clock.
Thresholds are Tandem's own, or DRAGON's where a sentence says so. A promise whose condition is not met is reported
without a verdict or left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import product
from math import isfinite, nan
from statistics import fmean
from typing import TYPE_CHECKING

from tandem.client.request import spec_of
from tandem.config.schema import Config
from tandem.events import TokenEvent
from tandem.modes import SessionSpec
from tandem.scheduler import speedup
from tandem.topology import PARTIES, Party
from tandem_lab.bench import plots
from tandem_lab.bench.plan import CellPlan, informative_at
from tandem_lab.bench.records import Cell, Models, Prediction, Setting
from tandem_lab.bench.suite import (
    FIRST,
    PACE,
    PREDICTED,
    WRONG,
    Axes,
    Check,
    Column,
    Predicts,
    Row,
    Suite,
    exactness,
    ms,
    shown,
    value,
)
from tandem_lab.bench.systems import BY_NAME, CLOUD_ONLY, DEVICE_ONLY, DUAL, MIRROR, TOKEN_WISE, System
from tandem_lab.numbers import ratio
from tandem_lab.simulation.link import Link
from tandem_lab.simulation.specs import change_spec
from tandem_lab.simulation.virtual import Outcome

if TYPE_CHECKING:
    from tandem_lab.quality.local import LocalPair


FLOORS_S = (0.060, 0.025)
"""Least decode times, device and cloud: what stands for slower hardware where both share one machine."""
TTFT_TOKENS = 2
"""Longest answer of the suite `ttft`: two tokens are the least that has a pace."""


# ---- What each system should take --------------------------------------------------------------------------------


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
                tuple(token.token for token in outcome.of(TokenEvent))
                for outcome in self._answers(TOKEN_WISE, at_once)
            )
        return self._references[key]

    def predict(self, system: System, setting: Setting) -> Prediction:
        """For one system; nothing where decode times are the machine's own."""
        if setting.floors_s is None:
            return Prediction(token_s=nan)
        if system.kind == "together":
            outcomes = list(self._answers(system, setting))
            found = _observed(outcomes)
            speedup = eq9(system, found, setting)
            also = {"Eq. (9), times the token-wise loop": speedup} if isfinite(speedup) else {}
            if system is MIRROR:
                also["ms per token at the soonest"] = 1e3 * _least_s(outcomes, setting)
            return replace(found, also=also)
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
    answers = [outcome.of(TokenEvent) for outcome in outcomes]
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
    answers = [outcome.of(TokenEvent) for outcome in outcomes]
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
        forwards={
            party: sum(outcome.num_forwards[party] for outcome in outcomes) / num_tokens for party in PARTIES
        },
    )


def _predictor(config: Config, questions: Sequence[str]) -> Predicts:
    from tandem_lab.quality.memoized import local_pair

    return Predictor(partial(local_pair, config), config, questions)


# ---- What must hold ----------------------------------------------------------------------------------------------


TOKENS = "the tokens of the synchronous run without latency"
OVERHEAD_AT_0, OVERHEAD_AT_100_MS, HALF_OVERHEAD_AT_300_MS = 1.10, 1.25, 1.40
"""Time per token over that of the device alone, at most; the last where half of the drafts are accepted."""
HALF_ACCEPTANCE = (0.4, 0.6)
"""What counts as half of the drafts, both parties' together."""
PAPERS_REDUCTION, MIRRORS_REDUCTION = 0.424, 0.65
"""Time per token below that of DRDG/TW at 300 ms, at least. The first is DRAGON 7.3's, measured up to 300 ms."""
PAPERS_ACCEPTANCE, MIRRORS_ACCEPTANCE = 0.55, 0.60
"""Of the cloud's drafts, from which on these are asked for."""
TTFT_FACTOR, TTFT_MARGIN_S = 1.05, 0.010
"""Time to first token over the later of both sides alone, at most."""
FORWARDS, FORWARDS_ACCEPTANCE = 2.0, 0.8
SOCKET_BYTES = 350.0
"""On the link: a token and direction with `socket`, a message both ways with `ray`."""


def checks(cell: Cell, rows: Mapping[str, Row]) -> list[Check]:
    """All promises for one setting.

    Where answers are as short as a benchmark of the first token asks for, nothing is said per token.
    """
    if cell.setting.max_new_tokens <= TTFT_TOKENS:
        return [*exactness(rows, TOKENS), *_time_to_first(cell, rows)]
    has_floors = cell.setting.floors_s is not None
    found = [*exactness(rows, TOKENS), *_time_to_first(cell, rows), *_forwards(rows)]
    found += [*_bytes(cell, rows), *_half_accepted(cell, rows)]
    if DEVICE_ONLY.name in rows:
        found += _against_device(cell, rows, is_asked_for=has_floors)
    if TOKEN_WISE.name in rows and cell.setting.rtt_s >= 0.3:
        found += _against_token_wise(rows, is_asked_for=has_floors)
    return found


def _against_device(cell: Cell, rows: Mapping[str, Row], *, is_asked_for: bool) -> Iterator[Check]:
    base_s = rows[DEVICE_ONLY.name].token_s
    for name, row in rows.items():
        limit = _overhead_limit(cell.setting, name)
        if limit is None or not base_s > 0:
            continue
        ratio = row.token_s / base_s
        yield Check(
            promise=f"{name} takes at most {limit:g} x the device alone",
            numbers=f"{1e3 * row.token_s:.1f} / {1e3 * base_s:.1f} ms per token = {ratio:.2f}",
            holds=ratio <= limit if is_asked_for else None,
        )


def _overhead_limit(setting: Setting, name: str) -> float | None:
    """At 0 for every coupled placement that is meant to be fast, at 100 ms for mirror; where half of the drafts are
    accepted, at 300 ms for mirror alone.
    """
    system, rtt_s = BY_NAME[name], setting.rtt_s
    if setting.models == "half":
        return HALF_OVERHEAD_AT_300_MS if rtt_s == 0.3 and name == MIRROR.name else None
    if rtt_s == 0 and system.is_speculative and system.is_seed_deterministic and not name.endswith("/random"):
        return OVERHEAD_AT_0
    return OVERHEAD_AT_100_MS if rtt_s == 0.1 and name == MIRROR.name else None


def _half_accepted(cell: Cell, rows: Mapping[str, Row]) -> Iterator[Check]:
    """Whether the case of half of the drafts accepted is one."""
    row = rows.get(MIRROR.name)
    if cell.setting.models != "half" or row is None:
        return
    low, high = HALF_ACCEPTANCE
    share = fmean(row.accepted[party] for party in PARTIES)
    yield Check(
        promise=f"{MIRROR.name} accepts {low:g} to {high:g} of all drafts",
        numbers=f"{share:.2f} (device {row.accepted[Party.DEVICE]:.2f}, cloud {row.accepted[Party.CLOUD]:.2f})",
        holds=low <= share <= high,
    )


def _against_token_wise(rows: Mapping[str, Row], *, is_asked_for: bool) -> Iterator[Check]:
    base_s = rows[TOKEN_WISE.name].token_s
    for name, row in rows.items():
        if not BY_NAME[name].is_speculative:
            continue
        alpha = row.accepted[Party.CLOUD]
        wanted, from_alpha = PAPERS_REDUCTION, PAPERS_ACCEPTANCE
        if name == MIRROR.name and alpha >= MIRRORS_ACCEPTANCE:
            wanted, from_alpha = MIRRORS_REDUCTION, MIRRORS_ACCEPTANCE
        reduction = 1 - row.token_s / base_s
        yield Check(
            promise=f"{name} is at least {wanted:.1%} below DRDG/TW where the cloud's acceptance is {from_alpha:g}",
            numbers=f"{1e3 * row.token_s:.1f} / {1e3 * base_s:.1f} ms per token: {reduction:.1%} below, "
            f"acceptance {alpha:.2f}" + _sequence_wise(row, rows),
            holds=reduction >= wanted if is_asked_for and alpha >= from_alpha else None,
        )


def _sequence_wise(row: Row, rows: Mapping[str, Row]) -> str:
    found = ""
    for name in ("DRDG/SW-dense", "DRDG/SW"):
        if name in rows:
            share = row.token_s / rows[name].token_s - 1
            found += f"; {abs(share):.1%} {'above' if share > 0 else 'below'} {name}"
    return found


def _time_to_first(cell: Cell, rows: Mapping[str, Row]) -> Iterator[Check]:
    if not {DEVICE_ONLY.name, CLOUD_ONLY.name, MIRROR.name} <= rows.keys():
        return
    device_s, cloud_s, own_s = (rows[each.name].first_s for each in (DEVICE_ONLY, CLOUD_ONLY, MIRROR))
    limit_s = TTFT_FACTOR * max(device_s, cell.setting.rtt_s + cloud_s) + TTFT_MARGIN_S
    yield Check(
        promise=f"{MIRROR.name} has its first token within {TTFT_FACTOR:g} x max(device alone, RTT + cloud alone) "
        f"+ {1e3 * TTFT_MARGIN_S:g} ms",
        numbers=f"{1e3 * own_s:.0f} ms, limit {1e3 * limit_s:.0f} ms (device {1e3 * device_s:.0f}, "
        f"cloud {1e3 * cloud_s:.0f})",
        holds=own_s <= limit_s,
    )
    texts = rows.get("DRCG/Text")
    if texts is not None:
        yield Check(
            promise=f"{MIRROR.name} has its first token before {texts.system}",
            numbers=f"{1e3 * own_s:.0f} against {1e3 * texts.first_s:.0f} ms, {texts.first_s / own_s:.1f} times",
            holds=own_s < texts.first_s,
        )


def _forwards(rows: Mapping[str, Row]) -> Iterator[Check]:
    for name, row in rows.items():
        if not BY_NAME[name].is_speculative:
            continue
        for party in PARTIES:
            count, alpha = row.forwards[party], row.accepted[party]
            predicted = row.prediction.forwards.get(party, nan)
            beside = f", simulated {predicted:.2f}" if isfinite(predicted) else ""
            yield Check(
                promise=f"{name}, {party}: at most {FORWARDS:g} forwards per token where its acceptance is "
                f"{FORWARDS_ACCEPTANCE:g}",
                numbers=f"{count:.2f} at {alpha:.2f}{beside}",
                holds=count <= FORWARDS if alpha >= FORWARDS_ACCEPTANCE else None,
            )


def _bytes(cell: Cell, rows: Mapping[str, Row]) -> Iterator[Check]:
    row = rows.get(MIRROR.name)
    if row is None or not all(isfinite(row.data_bytes(party)) for party in PARTIES):
        return
    is_asked_for = cell.setting.temperature == 0 and cell.setting.models == "configured"
    for party in PARTIES:
        value = row.data_bytes(party)
        yield Check(
            promise=f"{MIRROR.name} puts at most {SOCKET_BYTES:g} bytes per token on the data connection "
            f"from the {party}",
            numbers=f"{value:.0f}, in frames of {row.bytes_per_frame[party]:.0f} bytes",
            holds=value <= SOCKET_BYTES if is_asked_for else None,
        )


# ---- The suites --------------------------------------------------------------------------------------------------


def _beside(
    other: System, form: str, of: Callable[[float], float]
) -> Callable[[Row, Mapping[str, Row], Cell], str]:
    """A time per token over that of another system. of: what is shown of the ratio."""

    def text(row: Row, rows: Mapping[str, Row], cell: Cell) -> str:
        return shown(of(row.token_s / rows[other.name].token_s), form) if other.name in rows else "-"

    return text


def _pair(
    title: str, width: int, form: str, of: Callable[[Row], Mapping[str, float]], factor: float = 1.0
) -> Column:
    """Of device and cloud."""

    def text(row: Row, rows: Mapping[str, Row], cell: Cell) -> str:
        return "/".join(shown(factor * of(row).get(party, nan), form) for party in PARTIES)

    return Column(title, width, text)


def _wire(title: str, port: str) -> Column:
    return _pair(
        title, 11, ".0f", lambda row: {name: ports.get(port, nan) for name, ports in row.wire_bytes.items()}
    )


TIMES = (
    PACE,
    Column(
        "p25-p75",
        13,
        lambda row, rows, cell: f"{ms(row.token_s_p25)}-{ms(row.token_s_p75)}" if row.num_runs > 1 else "-",
    ),
    PREDICTED,
    Column("/device", 7, _beside(DEVICE_ONLY, ".2f", lambda ratio: ratio)),
    Column("vs TW", 6, _beside(TOKEN_WISE, "+.0%", lambda ratio: ratio - 1)),
    FIRST,
    value("tok/s", 5, ".1f", lambda row: row.tokens_per_s),
    value("waited", 6, ".1f", lambda row: 1e3 * row.waited_s),
    WRONG,
)
COSTS = (
    _pair("accepted", 9, ".2f", lambda row: row.accepted),
    _pair("expected", 9, ".2f", lambda row: row.expected),
    _pair("forwards", 9, ".2f", lambda row: row.forwards),
    _pair("lost ms", 9, ".1f", lambda row: row.lost_s, 1e3),
    _pair("CPU ms", 9, ".0f", lambda row: row.cpu_s, 1e3),
    _pair("frames B", 11, ".0f", lambda row: row.frame_bytes),
    _wire("data B", "data"),
    _wire("ray B", "ray"),
    value("share", 5, ".0%", lambda row: row.frame_share),
)
LEGEND = """\
Pairs are device/cloud. All but TTFT is per token. ms/token: after the tokens of the first verdict, median of runs and
quartiles. /device, vs TW: beside CRCG/device and DRDG/TW. waited: for the link, beyond what the slower decoder takes.
wrong: tokens that are not those of the synchronous run without latency. CRCG/cloud is timed at the cloud.
accepted: share of the drafts that were committed; expected: by the draft rule's formula. forwards: of each decoder.
lost: decode time of drafts that were thrown away. frames: bytes of Tandem's frames by sender; of DRCG and DRDG/SW what
was sent instead. data, ray: bytes on the link by sender, headers and acknowledgements included, on the data connection
and on all of Ray's. share: of the frames in both."""

LINK = Axes(rates=(None,), workers=(0,), slow=(1.0,), floors=(FLOORS_S,))
AXES: dict[Models, Axes] = {
    "configured": replace(LINK, rtts_s=(0.0, 0.05, 0.1, 0.2, 0.3), temperatures=(0.0, 1.0)),
    "half": replace(
        LINK,
        rtts_s=(0.0, 0.1, 0.3),
        temperatures=(1.0,),
        systems=("CRCG/device", "Tandem/mirror", "Tandem/device", "Tandem/greedy"),
    ),
}
ENDS_S = (0.0, 0.3)
EVERYWHERE = (DEVICE_ONLY, CLOUD_ONLY, TOKEN_WISE, MIRROR, BY_NAME["Tandem/device"])
"""At round trips between these ends, where not all systems are measured."""


def full_cells(suite: Suite) -> tuple[CellPlan, ...]:
    """The grid of the documentation: five round trips, two temperatures, with and without floors; with whole answers
    also the case of half of the drafts accepted.
    """
    basis = AXES["configured"]

    def cell(
        systems: Sequence[System], rtt_s: float, temperature: float, floors_s: tuple[float, float] | None
    ) -> CellPlan:
        setting = Setting(
            floors_s=floors_s, rtt_s=rtt_s, temperature=temperature, max_new_tokens=suite.max_new_tokens
        )
        return CellPlan(setting=setting, systems=informative_at(systems, temperature))

    with_floors = (
        cell(DUAL if rtt_s in ENDS_S else EVERYWHERE, rtt_s, temperature, FLOORS_S)
        for rtt_s, temperature in product(basis.rtts_s, basis.temperatures)
    )
    without = (cell(EVERYWHERE[:4], rtt_s, 0.0, None) for rtt_s in ENDS_S)
    half = () if suite.max_new_tokens <= TTFT_TOKENS else suite.cells(Axes(models="half"), (), is_smoke=False)
    return (*with_floors, *without, *half)


LATENCY = Suite(
    name="latency",
    page="docs/explanation/systems.md",
    systems=DUAL,
    warm_up=MIRROR,
    axes=AXES,
    smoke=Axes(
        rtts_s=(0.1,),
        temperatures=(0.0,),
        systems=("CRCG/device", "CRCG/cloud", "DRCG/Text", "DRDG/TW", "Tandem/mirror"),
    ),
    max_new_tokens=48,
    runs=5,
    takes=frozenset({"temperature", "deployment", "models"}),
    configure=lambda config: config,
    predict=_predictor,
    tables=(TIMES, COSTS),
    legend=LEGEND,
    checks=checks,
    draw=plots.plot_latency,
    pictures=("latency.png", "ttft.png"),
    full=full_cells,
)
TTFT = replace(LATENCY, name="ttft", max_new_tokens=TTFT_TOKENS)
"""Time to the first token."""

"""The suite `speculative`: the device drafts for the cloud, for a cloud that streams or is asked for each token.

Predictions are the real models' acceptance in the simulated protocol. The draft-free loop of `tandem.modes.reference`
gives the tokens that every system with coupled drafts must commit, and along them the device's model says at which
steps its token is the same. `tandem_lab.simulation.timed` plays such an answer with the times of the benchmark; nothing
is predicted of the rejection rule. Document weights stay as they begin (`weights.evidence = 0`), as in the clusters
measured. Tandem's own time is in it as two constants, so the two baselines without a delay, which they come from, prove
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from math import inf, nan
from statistics import fmean, median
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tandem.aggregation.coupling import coupled_draw
from tandem.aggregation.distributions import Distribution, restrict
from tandem.config.extensions import CodecConfig
from tandem.config.files import PRESETS
from tandem.config.schema import Config
from tandem.engine.drafter import mix_rows, row_probabilities
from tandem.engine.tokenizer import StopRule
from tandem.modes.reference import solo
from tandem.modes.reference_shaping import Forecast
from tandem.topology import PARTIES, Party
from tandem_lab.bench import plots
from tandem_lab.bench.records import Cell, Prediction, Setting
from tandem_lab.bench.suite import (
    FIRST,
    OFF,
    PACE,
    PREDICTED,
    WRONG,
    Axes,
    Check,
    Predicts,
    Row,
    Suite,
    agreement,
    both,
    exactness,
    forwards,
    ms,
    told,
    value,
)
from tandem_lab.bench.systems import ASKED, SPECULATIVE, STREAMED, System
from tandem_lab.simulation.timed import Times, Timing, pace_s, play_timed

if TYPE_CHECKING:
    from tandem_lab.quality.local import LocalPair

HEADER_BYTES = 66
"""Of a frame on the wire, besides its own: TCP, IP and Ethernet."""
FORWARD_S, HOP_S = 0.0018, 0.0025 / 3
"""What Tandem adds to a forward, and to a message between two actors, of which a frame's way from one decoder to the
other has three: on two cores without a delay the streamed cloud takes 28.8 ms per token where a pass takes 27, and one
that is asked for each takes 34."""


@dataclass(frozen=True, slots=True)
class Path:
    """One answer of the cloud, and how the device's model would have drafted along it."""

    tokens: tuple[int, ...]
    accepted: tuple[bool, ...]  # the device's token is the cloud's


class Predictor:
    """Predictions for a few questions."""

    def __init__(self, pair: Callable[[], LocalPair], config: Config, questions: Sequence[str]) -> None:
        """pair: called once, at the first prediction."""
        self._pair, self._config, self._questions = cache(pair), config, questions
        self._paths: dict[tuple[float, int], list[Path]] = {}

    def reference(self, setting: Setting) -> tuple[tuple[int, ...], ...]:
        """The cloud's own answer to each question; its number is its seed."""
        return tuple(path.tokens for path in self._follow(setting))

    def predict(self, system: System, setting: Setting) -> Prediction:
        """For one system; nothing where decode times are the machine's own, or drafts are not coupled."""
        if setting.floors_s is None or system.options.get("draft_rule") == "rejection":
            return Prediction(token_s=nan)
        device_s, cloud_s = setting.floors_s
        if system.kind == "alone":
            return Prediction(token_s=device_s)
        times = Times(
            passes_s={Party.DEVICE: device_s + FORWARD_S, Party.CLOUD: cloud_s + FORWARD_S},
            rtt_s=setting.rtt_s,
            bits_per_s=setting.bits_per_s or inf,
            header_bytes=HEADER_BYTES,
            hop_s=HOP_S,
        )
        paths = self._follow(setting)
        timings = [play_timed(system.options, times, path.accepted) for path in paths]
        num_tokens = sum(len(path.tokens) for path in paths)

        def per_token(counts: Callable[[Timing], Mapping[str, int]]) -> dict[str, float]:
            return {
                party: sum(counts(timing).get(party, 0) for timing in timings) / num_tokens
                for party in PARTIES
            }

        num_bytes = per_token(lambda timing: timing.num_bytes)
        return Prediction(
            token_s=pace_s([timing.committed_s for timing in timings]),
            acceptance={Party.DEVICE: sum(timing.num_accepted for timing in timings) / num_tokens},
            forwards=per_token(lambda timing: timing.num_passes),
            also={
                "acceptance": fmean(is_right for path in paths for is_right in path.accepted),
                "first_s": median(timing.committed_s[0] for timing in timings),
                "up_bytes": num_bytes[Party.DEVICE],
                "down_bytes": num_bytes[Party.CLOUD],
            },
        )

    def _follow(self, setting: Setting) -> list[Path]:
        key = (setting.temperature, setting.max_new_tokens)
        if key not in self._paths:
            self._paths[key] = [
                self._path(question, number, *key) for number, question in enumerate(self._questions)
            ]
        return self._paths[key]

    def _path(self, question: str, seed: int, temperature: float, max_new_tokens: int) -> Path:
        pair = self._pair()
        parties = {party: _Reader(pair, party, self._config, question, max_new_tokens) for party in PARTIES}

        @cache
        def dense(party: Party, tokens: tuple[int, ...]) -> NDArray[np.float64]:
            return parties[party].dense(tokens, temperature)

        stop = StopRule(
            tuple(pair.engines[Party.CLOUD].eos_token_ids),
            max_new_tokens=max_new_tokens,
            ends_loops=not temperature,
        ).find_reason
        tokens = solo(
            lambda so_far: Forecast(dense(Party.CLOUD, tuple(so_far)).tolist()),
            lambda so_far: stop(so_far) is not None,
            seed if temperature else None,
        )
        prefixes = [tuple(tokens[:step]) for step in range(len(tokens))]
        drafts = [dense(Party.DEVICE, prefix) for prefix in prefixes]
        own = [
            _choose(draft, seed, step) if temperature else int(np.argmax(draft))
            for step, draft in enumerate(drafts)
        ]
        return Path(
            tokens=tuple(tokens),
            accepted=tuple(one == other for one, other in zip(own, tokens, strict=True)),
        )


class _Reader:
    """One party's model with its documents for one question."""

    def __init__(
        self, pair: LocalPair, party: Party, config: Config, question: str, max_new_tokens: int
    ) -> None:
        count = config.party(party).num_documents
        hits = pair.retrievers[party].search(question, count) if count else []
        texts = [hit.document.page_content for hit in hits]
        self._engine, self._key = pair.engines[party], f"{party} {question} {max_new_tokens}"
        kept = self._engine.open(self._key, question, texts, max_new_tokens).documents
        scores = [hits[row].score for row in kept] if kept else [0.0]
        self._log_weights = [config.score_scale * score for score in scores]
        self._sampling = config.sampling

    def dense(self, tokens: Sequence[int], temperature: float) -> NDArray[np.float64]:
        """The next token's distribution, [vocab]."""
        logits = self._engine.next_logits(self._key, tokens)
        return restrict(mix_rows(row_probabilities(logits, temperature), self._log_weights), self._sampling)


def _choose(dense: NDArray[np.float64], seed: int, step: int) -> int:
    return coupled_draw(Distribution(np.arange(dense.size), dense), seed=seed, step=step)


def _predictor(config: Config, questions: Sequence[str]) -> Predicts:
    from tandem_lab.quality.memoized import local_pair

    return Predictor(partial(local_pair, config), config, questions)


# ---- What must hold ----------------------------------------------------------------------------------------------


SPEED_ACCEPTANCE = 0.85
"""Steps at which the device's token is the cloud's, from which share on the speed-ups below are asked for."""
SPEEDUPS = {0.1: 2.0, 0.3: 3.0}
"""By round trip in seconds: time per token of asking for each, over that of the pipelined device, at least."""
GOES_ON, AGREEMENT = 1.05, 0.10
"""Time per token over that of the streamed cloud, at most; and deviation from the prediction."""


def checks(cell: Cell, rows: Mapping[str, Row]) -> Iterator[Check]:
    """All promises for one setting."""
    yield from exactness(rows, "the cloud's own tokens")
    asked, pipelined, streamed = (rows.get(name) for name in (ASKED.name, "pipelined", STREAMED.name))
    wanted = SPEEDUPS.get(cell.setting.rtt_s)
    if wanted is not None and asked and pipelined and cell.setting.bits_per_s is None:
        speedup, share = asked.token_s / pipelined.token_s, pipelined.prediction.also.get("acceptance", nan)
        yield Check(
            promise=f"pipelined is {wanted:g} x as fast as asking for each token where {SPEED_ACCEPTANCE:g} are "
            "accepted",
            numbers=f"{ms(asked.token_s)} / {ms(pipelined.token_s)} ms per token = {speedup:.2f}, "
            f"the device's token is the cloud's at {share:.2f} of the steps",
            holds=speedup >= wanted if share >= SPEED_ACCEPTANCE else None,
        )
    own = rows.get("cloud_goes_on")
    if streamed and own:
        times = own.token_s / streamed.token_s
        yield Check(
            promise=f"cloud_goes_on takes at most {GOES_ON:g} x the streamed cloud",
            numbers=f"{ms(own.token_s)} / {ms(streamed.token_s)} ms per token = {times:.2f}",
            holds=times <= GOES_ON,
        )
    yield from agreement(rows, AGREEMENT)


# ---- The suite ---------------------------------------------------------------------------------------------------


COLUMNS = (
    PACE,
    PREDICTED,
    OFF,
    FIRST,
    told("least", 6, ".0f", "first_s", 1e3),
    value("accepted", 8, ".2f", lambda row: row.accepted.get("device", 0.0)),
    forwards("passes", "cloud"),
    forwards("drafts", "device"),
    both("up B", ".0f", lambda row: row.data_bytes("device"), lambda told: told.also.get("up_bytes", nan)),
    both("down B", ".0f", lambda row: row.data_bytes("cloud"), lambda told: told.also.get("down_bytes", nan)),
    WRONG,
)
LEGEND = """\
Measured/predicted; all but TTFT is per token. ms/token: after the tokens of the first frame, median of runs.
least: the predicted first token, without retrieval and prefill. accepted: share of the committed tokens that were
proposed. passes: forwards of the cloud; drafts: of the device. up, down: bytes on the data connection by sender, with
headers; measured also with acknowledgements. wrong: tokens that are not those of the cloud alone with the same seed."""
FLOORS_S = (0.015, 0.027)
AXES = Axes(
    rtts_s=(0.0, 0.05, 0.1, 0.3),
    rates=(1e4, 1e5, 1e6, None),
    temperatures=(0.0, 0.6, 1.0),
    floors=(FLOORS_S,),
    workers=(0,),
    slow=(1.0,),
)


def configure(config: Config) -> Config:
    """The settings of the clusters: distributions by K-SQS with K = 16 unless another codec is named, QS's heuristic
    loaded, document weights that stay as they begin, so that nothing but the mode takes time.
    """
    is_default = config.codec == CodecConfig()
    codec = CodecConfig(name="k_sqs", parameters={"index": "paper"}) if is_default else config.codec
    return replace(
        config,
        codec=codec,
        decoding=replace(config.decoding, length_policy=PRESETS["qs"]["decoding"]["length_policy"]),
        weights=replace(config.weights, question=0.0, evidence=0.0),
    )


SUITE = Suite(
    name="speculative",
    page="docs/explanation/speculative.md",
    systems=SPECULATIVE,
    warm_up=STREAMED,
    axes={"close": AXES, "configured": AXES},
    smoke=Axes(rtts_s=(0.1,), rates=(None,), temperatures=(1.0,)),
    max_new_tokens=48,
    runs=3,
    takes=frozenset({"rate", "temperature", "deployment", "models"}),
    configure=configure,
    predict=_predictor,
    tables=(COLUMNS,),
    legend=LEGEND,
    checks=checks,
    draw=plots.plot_throughput,
    pictures=("throughput.png",),
)

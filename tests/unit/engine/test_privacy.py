"""The privacy knob: the clip keeps its bound, the accountant counts, and private noise is private.

Laws of all that is sent, by which the theorem is checked, are in `tests/laws/test_law_private.py`.
"""

from __future__ import annotations

import json
import math
import os
import random
import stat
import subprocess
import sys
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tandem.actors.decoder import make_drafter
from tandem.aggregation.rules import Step
from tandem.codecs import RaceLists, TopP
from tandem.codecs.votes import read_vote
from tandem.config.parties import PartyConfig, WorkerConfig
from tandem.config.schema import Config, DecodingConfig, SamplingParams
from tandem.engine import privacy as module
from tandem.engine.drafter import Drafter, DraftPlace, TokenDrafter, TokenVoter, mix_rows, row_probabilities
from tandem.engine.privacy import Ledger, Privacy, Spent, clip, divergence, make_privacy
from tandem.errors import ConfigError
from tandem.topology import Party
from tandem_lab.simulation.specs import make_spec

Floats = NDArray[np.float64]
Clip = Callable[[Floats, Floats, float], Floats]
ROUNDING = 1e-9


def renormalised(mixed: Floats, bare: Floats, bound: float) -> Floats:
    """A mutant: what is left after the cut is scaled to sum 1, by which it leaves the bound again."""
    cut = np.clip(mixed, math.exp(-bound) * bare, math.exp(bound) * bare)
    return np.asarray(cut / cut.sum())


def from_above(mixed: Floats, bare: Floats, bound: float) -> Floats:
    """A mutant: tokens that the documents make improbable are not raised."""
    cut = np.minimum(mixed, math.exp(bound) * bare)
    return np.asarray(cut + (1 - cut.sum()) * bare)


def unclipped(mixed: Floats, bare: Floats, bound: float) -> Floats:
    """The control."""
    return mixed


MUTANTS = pytest.mark.parametrize("mutant", [renormalised, from_above, unclipped])


# ---- the clip ------------------------------------------------------------------------------------------------------


def laws(size: int) -> st.SearchStrategy[Floats]:
    """Distributions over so many tokens, sharp and flat ones, with zeros."""
    weights = st.lists(st.floats(0.0, 1.0) | st.floats(0.0, 1e-6), min_size=size, max_size=size)
    rounded = weights.map(lambda raw: np.where(np.array(raw) < 1e-40, 0.0, raw))  # as float32 does
    return rounded.filter(np.any).map(lambda raw: raw / raw.sum())


pairs = st.integers(1, 8).flatmap(lambda size: st.tuples(laws(size), laws(size)))


@given(pairs, st.floats(0.0, 50.0))
def test_the_clip_is_a_distribution_within_the_bound(pair: tuple[Floats, Floats], bound: float) -> None:
    mixed, bare = pair
    clipped = clip(mixed, bare, bound)
    assert math.isclose(clipped.sum(), 1.0, rel_tol=1e-9)
    assert (clipped <= math.exp(bound) * bare * (1 + ROUNDING)).all()
    assert (clipped >= math.exp(-bound) * bare * (1 - ROUNDING)).all()


@given(pairs, st.floats(0.01, 5.0), st.floats(0.0, 1.0))
def test_what_is_within_the_bound_is_not_changed(
    pair: tuple[Floats, Floats], bound: float, share: float
) -> None:
    mixed, bare = pair
    within = clip(mixed, bare, bound)
    np.testing.assert_allclose(clip(within, bare, bound), within, rtol=1e-9)
    near = bare * (1 - share) + share * within  # convex, like the set of what is within
    np.testing.assert_allclose(clip(near, bare, bound), near, rtol=1e-9)


@given(pairs, st.floats(0.0, 6.0))
def test_a_step_costs_at_most_what_the_bound_says(pair: tuple[Floats, Floats], bound: float) -> None:
    """D_2 of two laws within e^c is at most log(2 cosh c - 1): the second moment is largest at the two edges."""
    mixed, bare = pair
    cost = divergence(clip(mixed, bare, bound), bare)
    assert 0.0 <= cost <= math.log(2 * math.cosh(bound) - 1) + 1e-9


def test_divergence_takes_the_worse_direction_and_an_impossible_token_is_infinite() -> None:
    a, b = np.array([0.5, 0.5]), np.array([0.9, 0.1])
    assert divergence(a, b) == divergence(b, a) == math.log(0.25 / 0.9 + 0.25 / 0.1)
    assert divergence(a, a) == 0.0
    assert divergence(np.array([1.0, 0.0]), a) == divergence(a, np.array([1.0, 0.0])) == math.inf


# ---- votes ---------------------------------------------------------------------------------------------------------

VOCAB, ROWS = 3, 3
BOUND = 0.7
OPTIONS = [{}, {"top_k": 2}, {"min_p": 0.3}]


def logits_after(tokens: tuple[int, ...]) -> NDArray[np.float32]:
    """Of two documents and of the bare row, which differ much. [rows, vocab]"""
    rng = np.random.default_rng([7, *tokens])
    return np.asarray(3 * rng.standard_normal((ROWS, VOCAB)), dtype=np.float32)


def drafter_of(privacy: Privacy | None, **options: float) -> Drafter:
    sampling = SamplingParams(temperature=0.8, **options)  # type: ignore[arg-type]
    return Drafter(RaceLists(), sampling, "coupled", VOCAB, privacy)


WEIGHTS = (0.4, -0.3, 5.0)
"""The last is the bare row's, which must not count in the mixture."""


def bare_after(tokens: tuple[int, ...], **options: float) -> Floats:
    plain = drafter_of(None, **options)
    return plain.distribution(logits_after(tokens)[-1:], (0.0,))


def check_votes(**options: float) -> None:
    """As a peer reads them in full: within the bound, after temperature, options, mixture of rows and float32."""
    protected = drafter_of(Privacy(BOUND, lambda nats: True), **options)
    for tokens in product(range(VOCAB), repeat=2):
        payload = protected.draft(
            logits_after(tokens), WEIGHTS, DraftPlace(seed=0, step=0, party=Party.DEVICE)
        ).payload
        vote, bare = np.asarray(read_vote(payload, VOCAB), np.float64), bare_after(tokens, **options)
        assert ((vote > 0) == (bare > 0)).all()
        ratios = vote[bare > 0] / vote.sum() / bare[bare > 0]
        assert np.abs(np.log(ratios)).max() <= BOUND + 1e-5


@pytest.mark.parametrize("options", OPTIONS)
def test_no_vote_says_more_than_the_bound_allows(options: dict[str, float]) -> None:
    check_votes(**options)


@MUTANTS
def test_a_vote_by_a_clip_that_leaves_the_bound_is_found(
    mutant: Clip, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "clip", mutant)
    with pytest.raises(AssertionError):
        check_votes()


def test_a_bound_below_which_nothing_lies_leaves_the_documents_mixture() -> None:
    """And that is of the rows with documents alone."""
    drafter = drafter_of(Privacy(50.0, lambda nats: True))
    for seed in range(9):
        logits = logits_after((seed,))
        expected = mix_rows(row_probabilities(logits[:2], 0.8), WEIGHTS[:2])
        np.testing.assert_allclose(drafter.distribution(logits, WEIGHTS), expected, rtol=1e-6)


def test_without_documents_it_is_the_bare_row() -> None:
    drafter = drafter_of(Privacy(BOUND, lambda nats: nats < 1e-12))
    np.testing.assert_allclose(
        drafter.distribution(logits_after((1,))[-1:], WEIGHTS[-1:]), bare_after((1,)), rtol=1e-12
    )


# ---- the accountant --------------------------------------------------------------------------------------------------


def test_there_is_one_sum_whatever_indexes_are_called(tmp_path: Path) -> None:
    path = tmp_path / "new" / "privacy.json"
    first, second, other = (Ledger(path, name=name) for name in ("notes", "notes-moved", "letters"))
    assert first.spent() == Spent(0.0, 0)
    assert all(ledger.spend(0.25) for ledger in (first, second, other, first))
    assert first.spent() == second.spent() == other.spent() == Ledger(path).spent() == Spent(1.0, 4)
    assert json.loads(path.read_text()) == {"spent": {"notes": [1.0, 4]}}  # where it began
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.unlink()  # the user starts again
    assert first.spent() == Spent(0.0, 0)


def test_counts_of_earlier_versions_are_added_up(tmp_path: Path) -> None:
    """They kept one for each path of an index, beside the secret of their noise."""
    path = tmp_path / "privacy.json"
    path.touch(0o600)
    path.write_text(json.dumps({"key": "00" * 32, "spent": {"/notes": [1.5, 3], "/moved": [0.75, 2]}}))
    ledger = Ledger(path, 3.0, name="/again")
    assert ledger.spent() == Spent(2.25, 5)
    assert [ledger.spend(nats) for nats in (0.5, 0.5)] == [True, False]
    assert json.loads(path.read_text()) == {"spent": {"/notes": [2.75, 6]}}


SPENDER = """
import sys
from pathlib import Path
from tandem.engine.privacy import Ledger
ledger = Ledger(Path(sys.argv[1]), 3.0)
print(sum(ledger.spend(0.0625) for _ in range(40)))
"""


def test_processes_that_spend_at_once_never_exceed_the_budget(tmp_path: Path) -> None:
    path = tmp_path / "privacy.json"
    command = [sys.executable, "-c", SPENDER, str(path)]
    spenders = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    granted = [int(spender.communicate()[0]) for spender in spenders]
    assert sum(granted) == 48
    assert Ledger(path).spent() == Spent(3.0, 48)


def test_what_is_spent_is_on_the_disk_before_a_token_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """File and folder are flushed, in this order, so that no power failure gives it back."""
    flushed: list[str] = []

    def flush(descriptor: int) -> None:
        flushed.append(os.readlink(f"/proc/self/fd/{descriptor}"))

    monkeypatch.setattr(os, "fsync", flush)
    assert Ledger(tmp_path / "privacy.json").spend(0.5)
    file, folder = map(Path, flushed)
    assert (file.parent, folder) == (tmp_path, tmp_path)


@pytest.mark.parametrize("nats", [math.inf, math.nan])
@pytest.mark.parametrize("budget", [0.0, 1.0])
def test_what_cannot_be_counted_is_not_drawn(tmp_path: Path, nats: float, budget: float) -> None:
    ledger = Ledger(tmp_path / "privacy.json", budget)
    assert not ledger.spend(nats)
    assert ledger.spent() == Spent()


def test_a_ledger_that_cannot_be_written_draws_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "privacy.json"
    assert Ledger(path).spend(0.5)

    def refuse(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(ConfigError, match=r"privacy\.json cannot be written \(No space left on device\)"):
        Ledger(path).spend(0.5)
    assert Ledger(path).spent() == Spent(0.5, 1)


def test_a_budget_that_falls_short_is_said_once_and_cheaper_tokens_still_count(tmp_path: Path) -> None:
    told: list[str] = []
    ledger = Ledger(tmp_path / "privacy.json", 1.0, told.append)
    assert [ledger.spend(nats) for nats in (0.75, 0.5, 0.25, 0.125, 0.0)] == [True, False, True, False, True]
    assert told == [
        "The privacy budget of 1 nats has 0.25 left, too little for a token: what does not fit is drawn without the "
        f"documents. Raise privacy_budget, or delete {tmp_path / 'privacy.json'} to start the count again."
    ]
    assert ledger.spent() == Spent(1.0, 3)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{}",
        "[]",
        '{"spent": 3}',
        '{"spent": {"notes": 3}}',
        '{"spent": {"notes": [-1, 2]}}',
        '{"spent": {"notes": [NaN, 2]}}',
        '{"spent": {"notes": [Infinity, 2]}}',
        '{"spent": {"notes": [1.5, 2]}',
    ],
)
def test_a_malformed_ledger_is_an_error_and_no_new_beginning(tmp_path: Path, content: str) -> None:
    path = tmp_path / "privacy.json"
    path.touch(0o600)
    path.write_text(content)
    with pytest.raises(
        ConfigError, match=r"is malformed \(.*\); restore it, or delete it to start the count again"
    ):
        Ledger(path).spend(0.1)
    assert path.read_text() == content


# ---- the noise -------------------------------------------------------------------------------------------------------

FLAT = (6,)
"""After which no token is nearly certain."""
SEED = 11
KINDS = pytest.mark.parametrize("kind", [TokenDrafter, TokenVoter])


def make_kind(kind: type[TokenDrafter], privacy: Privacy) -> TokenDrafter:
    sampling = SamplingParams(temperature=0.8)
    return kind(TopP(0.9), sampling, "coupled", VOCAB, sends_drafts=False, privacy=privacy)


def draw(drafter: TokenDrafter, logits: NDArray[np.float32], prefix: int = 0) -> int:
    """A token after a prefix, in the place of one seed, which the peer knows."""
    place = DraftPlace(seed=SEED, step=2, party=Party.DEVICE, lineage=(b"root", prefix.to_bytes(8)))
    return drafter.draft(logits, WEIGHTS, place).token  # type: ignore[return-value]


def private(number: int) -> Privacy:
    """With noise that follows from a number."""
    rng = random.Random(number)
    return Privacy(BOUND, lambda nats: True, lambda: rng.getrandbits(64))


def check_law(tokens: Sequence[int], law: Floats) -> None:
    expected = len(tokens) * law
    statistic = float(((np.bincount(tokens, minlength=VOCAB) - expected) ** 2 / expected).sum())
    freedom = VOCAB - 1
    assert statistic < freedom + 2 * math.sqrt(21 * freedom) + 42  # Laurent and Massart 2000, x = 21


def test_no_noise_comes_twice() -> None:
    """Not in a session, nor in another one of the same query."""
    privacies = [Privacy(BOUND, lambda nats: True) for _ in range(9)]
    assert len({privacy.seed() for privacy in privacies for _ in range(999)}) == 9 * 999


def check_repeats(kind: type[TokenDrafter], after: NDArray[np.float32]) -> None:
    """One draw for a prefix, which is counted once; others are drawn from what there is by then, the bare row, since
    the budget has ended."""
    spent: list[float] = []

    def spend(nats: float) -> bool:
        spent.append(nats)
        return len(spent) <= 300

    drafter = make_kind(kind, Privacy(BOUND, spend))
    first = [draw(drafter, logits_after(FLAT), prefix) for prefix in range(300)]
    assert [draw(drafter, after, prefix) for prefix in range(300)] == first
    assert len(spent) == 300
    bare = drafter_of(None).distribution(after[-1:], (0.0,))
    check_law([draw(drafter, after, prefix) for prefix in range(300, 600)], bare)
    assert len(spent) == 600


@KINDS
@pytest.mark.parametrize("change", ["the budget ends", "the documents change"])
def test_a_draw_is_repeated_whatever_it_would_be_drawn_from_now(
    kind: type[TokenDrafter], change: str
) -> None:
    check_repeats(kind, logits_after(FLAT if change == "the budget ends" else (5,)))


class Forgetful(TokenDrafter):
    """A mutant that draws after a prefix as if it had never seen it."""

    def draft(
        self, logits: Any, log_weights: Sequence[float], place: DraftPlace, prefix: Sequence[int] = ()
    ) -> Step:
        unseen = place._replace(lineage=(*place.lineage, os.urandom(8)))
        return super().draft(logits, log_weights, unseen, prefix)


def test_a_drafter_that_forgets_what_it_drew_is_found() -> None:
    with pytest.raises(AssertionError):
        check_repeats(Forgetful, logits_after(FLAT))


# ---- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", ["device.privacy", "device.privacy_budget"])
@pytest.mark.parametrize("value", ["-1", "nan", "inf"])
def test_a_bound_or_budget_that_is_none_is_refused(setting: str, value: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{setting} must be .* \(got {value}\)"):
        Config.load(None, [f"{setting}={value}"])


def test_a_worker_has_a_bound_of_its_own_and_the_server_none() -> None:
    workers = {name: WorkerConfig(index=name, privacy=bound) for name, bound in (("ada", 1.0), ("ben", 0.0))}
    federated = DecodingConfig(mode="federated")
    config = Config(decoding=federated, workers=workers)
    assert [config.party(name).privacy for name in ("ada", "ben", "server")] == [1.0, 0.0, 0.0]
    assert config.seen_by("ben").party("ada").privacy == 0.0
    with pytest.raises(
        ConfigError, match=r"settings server\.privacy and privacy_budget are for a device or worker"
    ):
        Config(decoding=federated, workers=workers, server=PartyConfig(privacy=1.0, num_documents=0))
    with pytest.raises(ConfigError, match=r"ada\.privacy_budget is 1, but ada\.privacy is 0"):
        Config(decoding=federated, workers=workers | {"ada": WorkerConfig(index="ada", privacy_budget=1.0)})


def test_no_budget_is_promised_at_temperature_0() -> None:
    party = PartyConfig(privacy=1.0, privacy_budget=3.0)
    with pytest.raises(ConfigError, match=r"budget \(3 nats\) needs a temperature above 0"):
        make_privacy(party, 0.0, print)


def test_at_temperature_0_nothing_is_counted() -> None:
    drafter = Drafter(
        RaceLists(), SamplingParams(temperature=0.0), "coupled", VOCAB, Privacy(BOUND, pytest.fail)
    )
    bare = bare_after((1,))
    drafter.draft(logits_after((1,)), WEIGHTS, DraftPlace(seed=1, step=0, party=Party.DEVICE))
    assert drafter.dense is not None
    assert bare.size == drafter.dense.size


@pytest.mark.parametrize(
    "changes",
    [
        {"draft_rule": "algorithm1", "placement": "device"},
        {"mode": "speculative", "draft_rule": "rejection"},
        {"race_depth": 0},
    ],
)
def test_distributions_that_a_codec_cuts_are_refused(changes: dict[str, object]) -> None:
    spec = make_spec(**{"temperature": 1.0, "race_depth": 8, **changes})
    with pytest.raises(ConfigError, match="a codec cuts its distributions off"):
        make_drafter(TopP(0.9), spec, Party.DEVICE, private(1))
    make_drafter(TopP(0.9), spec, Party.DEVICE)
    for mode in ("dual", "speculative"):
        make_drafter(TopP(0.9), make_spec(temperature=1.0, race_depth=8, mode=mode), Party.DEVICE, private(1))
    lottery = make_spec(temperature=1.0, race_depth=8, draft_rule="lottery")
    assert type(make_drafter(TopP(0.9), lottery, Party.DEVICE, private(1))) is TokenDrafter


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({}, 'draft_rule "coupled", or asked for log probabilities'),
        ({"placement": "mirror"}, 'draft_rule "coupled", or asked for log probabilities'),
        ({"num_logprobs": 3}, 'draft_rule "coupled", or asked for log probabilities'),
        ({"num_logprobs": 0, "only": "device"}, 'draft_rule "coupled", or asked for log probabilities'),
        ({"mode": "speculative", "num_logprobs": 0}, 'draft_rule "coupled", or asked for log probabilities'),
        ({"mode": "speculative"}, None),
        ({"draft_rule": "lottery"}, None),
        ({"draft_rule": "lottery", "placement": "mirror"}, None),
        ({"only": "device"}, None),
    ],
)
def test_a_budget_is_refused_where_more_than_draws_is_shown(
    changes: dict[str, object], problem: str | None
) -> None:
    spec = make_spec(**{"temperature": 1.0, "race_depth": 8, **changes})
    budgeted = Privacy(1.0, lambda nats: True, has_budget=True)
    make_drafter(TopP(0.9), spec, Party.DEVICE, private(1))
    if problem is None:
        make_drafter(TopP(0.9), spec, Party.DEVICE, budgeted)
        return
    with pytest.raises(
        ConfigError, match=f"holds where nothing but drawn tokens crosses, but with {problem}"
    ):
        make_drafter(TopP(0.9), spec, Party.DEVICE, budgeted)

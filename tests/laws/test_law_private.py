"""What a party with private documents sends tells of them no more than is promised (docs/explanation/privacy.md).

Exact: the log ratio of the probabilities of everything that is sent, over pairs of documents, through coordinator,
decoder, drafter and accountant, while the peer takes back, forges and asks again, and processes restart. Mutants, among
them the rules of earlier versions, are found by the same checks.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tandem.aggregation.document_weights import DocumentWeights, log_weight
from tandem.aggregation.rules import Step
from tandem.engine import drafter as drafting
from tandem.engine import privacy
from tandem.messages import DecoderFailed, DecoderReady, RetrieveFailed
from tandem.protocol import decoding
from tandem.protocol.routes import Send
from tests.laws.private_runs import ABSENT, PAIRS, PLACES, Differs, compare, law_of, make_life, number

ROUNDING = 1e-6
"""Of float32, per draw."""
NUM_PAIRS, NUM_LAWS = 80, 6
"""At every change."""
FINDING = 3
"""A life, one of those, whose laws find an accountant that counts too little."""


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    """The party says which frames it refuses."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


# ---- (3) and (4): what one path can show ---------------------------------------------------------------------------


def check_pairs(seeds: Sequence[int], folder: Path) -> tuple[dict[tuple[str, str], float], Counter[str]]:
    """The largest log ratio as a share of its bound, by place and pair, and what happened. Raises AssertionError beyond
    a bound."""
    largest, happened = dict[tuple[str, str], float](), Counter[str]()
    for seed in seeds:
        life = make_life(seed)
        compared = compare(life, folder)
        bound = compared.num_draws * life.log_bound
        assert compared.log_ratio <= bound + compared.num_draws * ROUNDING, (seed, compared, bound)
        happened += compared.happened
        kind = life.place, life.pair
        share = compared.log_ratio / bound if bound else 0.0
        largest[kind] = max(largest.get(kind, 0.0), share)
    return largest, happened


@pytest.mark.parametrize("count", [NUM_PAIRS, pytest.param(10_000, marks=pytest.mark.nightly("many pairs"))])
def test_nothing_that_is_sent_is_more_probable_than_the_bound_allows(count: int, tmp_path: Path) -> None:
    largest, happened = check_pairs(range(count), tmp_path)
    assert {place for place, _ in largest} == set(PLACES)
    assert {pair for _, pair in largest} == set(PAIRS)
    assert max(largest.values()) > 0.4  # the lives are such that the bound matters
    kinds = ("restart", "decoder restarts", "parallel", "interruption", "resync", "budget ends")
    assert all(happened[kind] > 0 for kind in kinds)


# ---- (2) and (4): the laws of all that may be sent -----------------------------------------------------------------

Law = Mapping[tuple[bytes, ...], float]


def check_events(first: Law, second: Law, power: int, nats: float) -> None:
    """first(A)^power <= e^nats second(A) for every event A: of those of one size, the worst holds what is more probable
    under the first by the largest factor."""
    ordered = sorted(first, key=lambda sent: second.get(sent, 0.0) / first[sent])
    mass = np.cumsum([first[sent] for sent in ordered])
    other = np.cumsum([second.get(sent, 0.0) for sent in ordered])
    assert (mass**power <= math.exp(nats) * other * (1 + ROUNDING)).all()


def check_laws(seeds: Sequence[int], folder: Path) -> float:
    """The largest divergence as a share of its budget. Raises AssertionError beyond it."""
    largest = 0.0
    for seed in seeds:
        life = make_life(seed, is_small=True)
        laws = [law_of(life, side, folder) for side in range(2)]
        assert [sum(law.values()) for law in laws] == pytest.approx([1.0, 1.0])
        for first, second in (laws, laws[::-1]):
            if not first.keys() <= second.keys():
                raise Differs(f"life {seed} sends what it never sends with other documents")
            if life.budget and life.pair in ABSENT:
                nats = math.log(sum(mass**2 / second[sent] for sent, mass in first.items()))
                assert nats <= life.budget + ROUNDING, (seed, nats, life.budget)
                check_events(first, second, 2, life.budget)
                largest = max(largest, nats / life.budget)
            elif life.budget:
                check_events(first, second, 4, 3 * life.budget)
    return largest


@pytest.mark.parametrize("count", [NUM_LAWS, pytest.param(300, marks=pytest.mark.nightly("many lives"))])
def test_all_that_is_sent_stays_within_the_budget(count: int, tmp_path: Path) -> None:
    assert check_laws(range(count), tmp_path) > 0.2


# ---- mutants -------------------------------------------------------------------------------------------------------


def with_noise(patch: pytest.MonkeyPatch, noise: Callable[[Any, np.ndarray], int]) -> None:
    """Noise that follows the place of a draft and its distribution; nothing is kept."""

    class Mutant:
        def draft(self, *arguments: Any, **options: Any) -> Step:
            self._drawn = dict[bytes, Step]()
            return super().draft(*arguments, **options)  # type: ignore[misc]

        def _seed(self, place: drafting.DraftPlace) -> int:
            return noise(place, self.dense)  # type: ignore[attr-defined]

    for name in ("TokenDrafter", "TokenVoter"):
        patch.setattr(drafting, name, type(name, (Mutant, getattr(drafting, name)), {}))


def as_it_was(patch: pytest.MonkeyPatch) -> None:
    """One noise for a prefix, whatever is drawn from there."""
    with_noise(patch, lambda place, dense: number("secret", place.seed, place.lineage[-1]))


def by_law(patch: pytest.MonkeyPatch) -> None:
    """One noise for a prefix and a distribution: the same draw comes again, another one is independent."""
    with_noise(patch, lambda place, dense: number("secret", place.lineage[-1], dense.tobytes()))


def by_seed(patch: pytest.MonkeyPatch) -> None:
    """The query's noise."""
    with_noise(patch, lambda place, dense: place.seed)


def unclipped(patch: pytest.MonkeyPatch) -> None:
    """No bound."""
    patch.setattr(privacy, "clip", lambda mixed, bare, bound: (mixed + 1e-9 * bare) / (1 + 1e-9))


def all_weights(patch: pytest.MonkeyPatch) -> None:
    """The weight that is sent is that of all rows."""
    patch.setattr(DocumentWeights, "public_log_weight", lambda weights, log_weights: log_weight(log_weights))


def refused_aloud(patch: pytest.MonkeyPatch) -> None:
    """A search that fails ends the query, for the peer, too."""
    received = decoding.DecodingSession.receive

    def receive(session: decoding.DecodingSession, message: Any) -> list[Send]:
        if isinstance(message, RetrieveFailed):
            return [
                Send("draft_queue", DecoderFailed(session=message.session, reason="", fault=message.fault))
            ]
        return received(session, message)

    patch.setattr(decoding.DecodingSession, "receive", receive)


def with_times(patch: pytest.MonkeyPatch) -> None:
    """What a worker says of its documents has the time that it took to find them."""
    finished = decoding.DecodingSession.finish_prefill

    def finish(session: decoding.DecodingSession, prefill_us: int, *arguments: Any) -> list[Send]:
        sends = finished(session, prefill_us, *arguments)
        return [
            replace(
                send,
                message=replace(send.message, sources=replace(send.message.sources, prefill_us=prefill_us)),
            )
            if isinstance(send.message, DecoderReady)
            else send
            for send in sends
        ]

    patch.setattr(decoding.DecodingSession, "finish_prefill", finish)


def test_fresh_noise_would_do_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the proof says: nothing is kept, as after a restart. The mutants below fail for the noise they have."""
    numbers = itertools.count()
    with_noise(monkeypatch, lambda place, dense: next(numbers))
    check_pairs(range(NUM_PAIRS // 2), tmp_path)


PAIR_MUTANTS = [as_it_was, by_law, by_seed, unclipped, all_weights, refused_aloud, with_times]


@pytest.mark.parametrize("mutant", PAIR_MUTANTS)
def test_what_says_too_much_is_found(
    mutant: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        check_pairs(range(NUM_PAIRS), tmp_path)


class ByPlace(privacy.Ledger):
    """A mutant: what was said is counted by where the documents lie."""

    def __init__(self, path: Path, budget: float = 0.0, warn: Any = print, name: str = "") -> None:
        super().__init__(path.with_name(f"{name.strip('/')}-{path.name}") if name else path, budget, warn)


class Forgetful(privacy.Ledger):
    """A mutant: each process begins a count of its own."""

    def __init__(self, path: Path, budget: float = 0.0, warn: Any = print, name: str = "") -> None:
        path.unlink(missing_ok=True)
        super().__init__(path, budget, warn, name)


class Late(privacy.Ledger):
    """A mutant: it stops when the budget is exceeded, and not before."""

    def spend(self, nats: float) -> bool:
        return self.spent().nats <= self._budget and privacy.Ledger(self._path).spend(nats)


@pytest.mark.parametrize("mutant", [ByPlace, Forgetful, Late])
def test_an_accountant_that_counts_too_little_is_found(
    mutant: type[privacy.Ledger], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = privacy.Ledger
    monkeypatch.setattr(privacy, "Ledger", lambda path, *rest: mutant(path, *rest) if rest else made(path))
    with pytest.raises(AssertionError):
        check_laws([FINDING], tmp_path)

"""The offline stage on the bundled model, with a clock that the test turns."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from tandem.aggregation.rules import draft_rule
from tandem.codecs import TopP
from tandem.config.sampling import SamplingParams
from tandem.corpora import WEIGHTS
from tandem.engine.drafter import Drafter
from tandem.engine.engine import Engine
from tandem.errors import TandemError
from tandem.plugins.papers.measure import QUERY, dummy_documents, measure, measure_drafting, row_tokens
from tandem.profiler.profiles import OfflineProfile
from tandem.topology import Party

SLOPE_S, INTERCEPT_S = 2e-5, 0.003
GREEDY = Drafter(TopP(0.8), SamplingParams(temperature=0.0), "coupled")


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine.load(str(WEIGHTS), num_threads=1)


class Clock:
    """Stands still but for what each draft takes; outliers: numbers of drafts that take ten times as long."""

    def __init__(self, engine: Engine, prompt_tokens: int, outliers: tuple[int, ...] = ()) -> None:
        self.now_s = 0.0
        self.contexts: list[int] = []
        self._prompt_tokens = prompt_tokens
        self._outliers = outliers
        self._draft = measure_drafting(GREEDY, Party.DEVICE)

    def __call__(self) -> float:
        return self.now_s

    def draft(self, logits: Any, step: int) -> int:
        context = self._prompt_tokens + step
        took_s = SLOPE_S * context + INTERCEPT_S
        self.now_s += took_s * (10 if len(self.contexts) in self._outliers else 1)
        self.contexts.append(context)
        return self._draft(logits, step)


def prompt_tokens(engine: Engine, documents: list[str]) -> int:
    opened = engine.open("count", QUERY, documents, 1)
    engine.close("count")
    return max(opened.num_prompt_tokens)


def profile(engine: Engine, clock: Clock, **changes: Any) -> OfflineProfile:
    options = {"num_documents": 2, "chunk_tokens": 20, "max_new": 8, "limit": 60, "runs": 3} | changes
    return measure(engine, draft=clock.draft, clock=clock, **options)


@pytest.fixture(scope="module")
def start(engine: Engine) -> int:
    return prompt_tokens(engine, dummy_documents(engine, 2, 20, 0))


def test_the_line_is_recovered_and_outliers_of_one_run_do_not_count(engine: Engine, start: int) -> None:
    warm_up = 1 + 8
    seen: list[tuple[int, int]] = []
    clock = Clock(engine, start, outliers=(warm_up + 4, warm_up + 9))
    found = profile(engine, clock, progress=lambda done, total: seen.append((done, total)))
    steps = 60 - start
    assert found.lengths == tuple(range(start + 1, 61))
    assert (found.prompt_tokens, found.rows, found.runs) == (start, 2, 3)
    assert found.line.slope == pytest.approx(SLOPE_S, rel=1e-9)
    assert found.line.k_c == pytest.approx(INTERCEPT_S, rel=1e-9)
    assert found.line.start == start
    assert found.residual_s == pytest.approx(0, abs=1e-12)
    assert found.r_squared == pytest.approx(1)
    assert seen == [(done, 3 * steps) for done in range(1, 3 * steps + 1)]
    assert len(clock.contexts) == warm_up + 3 * (1 + steps)
    assert engine.runner.sessions == {}


def test_it_goes_to_the_end_of_the_context(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(engine), "context_length", 64)
    found = profile(engine, Clock(engine, 0), limit=None, runs=1)
    assert found.lengths[-1] == 64
    assert profile(engine, Clock(engine, 0), limit=900, runs=1).lengths[-1] == 64


def test_long_documents_are_cut_as_in_a_session(engine: Engine) -> None:
    found = profile(engine, Clock(engine, 0), chunk_tokens=2000, max_new=6, limit=None, runs=1)
    assert found.rows == 2
    assert 512 - 6 - 30 < found.prompt_tokens <= 512 - 6
    assert found.lengths[-1] == 512


def test_without_documents_there_is_one_row(engine: Engine) -> None:
    found = profile(engine, Clock(engine, 0), num_documents=0, limit=30, runs=1)
    assert found.rows == 1
    assert found.prompt_tokens == prompt_tokens(engine, [])


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"limit": 10}, "at least 2 tokens, but the context ends at 10 and the prompt has"),
        ({"runs": 0}, "at least 1 run, got 0"),
    ],
)
def test_nothing_to_measure(engine: Engine, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(TandemError, match=sentence):
        profile(engine, Clock(engine, 0), **changes)
    assert engine.runner.sessions == {}


def test_an_interruption_closes_the_session(engine: Engine) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        profile(engine, Clock(engine, 0), progress=interrupt)
    assert engine.runner.sessions == {}


def test_dummies_have_the_requested_length_and_differ(engine: Engine) -> None:
    documents = dummy_documents(engine, 4, 100, seed=1)
    assert len(set(documents)) == 4
    bare = prompt_tokens(engine, [""])
    assert all(abs(prompt_tokens(engine, [each]) - bare - 100) <= 3 for each in documents)
    assert documents == dummy_documents(engine, 4, 100, seed=1)
    assert documents != dummy_documents(engine, 4, 100, seed=2)
    assert dummy_documents(engine, 2, 0, seed=1) == ["", ""]


def test_a_batch_is_as_long_as_its_longest_row(engine: Engine) -> None:
    texts = [" word" * n for n in range(1, 101)]
    lengths = [row_tokens(engine, texts, n) for n in (1, 4, 16)]
    assert lengths == sorted(set(lengths))
    most, middle = row_tokens(engine, texts, 10_000), row_tokens(engine, texts, 1)
    assert middle == pytest.approx(most / 2, rel=0.05)
    assert row_tokens(engine, [], 4) == 0


def test_a_draft_is_what_the_decoder_draws(engine: Engine) -> None:
    from tandem.engine.drafter import mix_rows

    codec, rule = TopP(0.8), draft_rule("coupled", 0.7)
    engine.open("one", "Which game?", ["Mira likes games.", "Tom likes chess."], 4)
    logits = engine.next_logits("one", [])
    engine.close("one")
    distribution = codec.decode(codec.encode(mix_rows(logits, [0.0, 0.0], 0.7)))
    drafter = Drafter(codec, SamplingParams(temperature=0.7), "coupled")
    drafted = [measure_drafting(drafter, Party.CLOUD)(logits, step) for step in range(8)]
    assert drafted == [rule.draft(distribution, seed=0, step=step, party=Party.CLOUD) for step in range(8)]


def test_times_that_are_all_alike_have_no_r_squared() -> None:
    found = OfflineProfile(prompt_tokens=1, rows=1, runs=1, lengths=(2, 3, 4), seconds=(0.5, 0.5, 0.5))
    assert found.line.slope == 0
    assert found.r_squared != found.r_squared


def test_a_clock_of_its_own_is_all_it_reads(engine: Engine) -> None:
    ticks = count()
    draft = measure_drafting(GREEDY, Party.DEVICE)
    found = measure(
        engine,
        num_documents=1,
        chunk_tokens=5,
        max_new=4,
        draft=draft,
        clock=lambda: float(next(ticks)),
        limit=24,
        runs=1,
    )
    assert set(found.seconds) == {1.0}

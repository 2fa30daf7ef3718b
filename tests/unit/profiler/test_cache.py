"""Profiles on disk: loaded for exactly the same settings, and never when damaged."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tandem.aggregation.rules import draft_rule
from tandem.codecs import TopP
from tandem.config.schema import PartyConfig, SamplingParams
from tandem.corpora import WEIGHTS
from tandem.engine.drafter import Drafter
from tandem.engine.engine import Engine
from tandem.errors import TandemError
from tandem.plugins.papers.measure import QUERY, dummy_documents, measure, measure_drafting
from tandem.profiler import profiles as cache
from tandem.profiler.profiles import OfflineProfile
from tandem.topology import Party

PARTY = PartyConfig().with_names()
PROFILE = OfflineProfile(prompt_tokens=9, rows=4, runs=3, lengths=(10, 11, 12), seconds=(0.5, 0.625, 0.7))


def saved(folder: Path, party: PartyConfig = PARTY) -> Path:
    return cache.save(cache.stored(cache.profile_key(party), party.model, PROFILE), folder)


def refused(folder: Path, party: PartyConfig = PARTY) -> str:
    """The one sentence for a file that is not used."""
    warnings: list[str] = []
    assert cache.load(cache.profile_key(party), folder, warnings.append) is None
    assert len(warnings) == 1
    assert warnings[0].endswith("; measure again.")
    return warnings[0]


def changed(path: Path, **changes: Any) -> None:
    """Replaces entries of a file; a dotted name goes one level down."""
    value = json.loads(path.read_text())
    for name, new in changes.items():
        section, _, entry = name.partition("__")
        if entry:
            value[section][entry] = new
        else:
            value[section] = new
    path.write_text(json.dumps(value))


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    path = saved(tmp_path)
    assert path == cache.profile_path(cache.profile_key(PARTY), tmp_path)
    assert path.parent == tmp_path / "profiles"
    found = cache.load(cache.profile_key(PARTY), tmp_path, pytest.fail)
    assert found is not None
    assert found.profile == PROFILE
    assert (found.model, found.key) == ("bundled", cache.profile_key(PARTY))
    assert set(found.versions) == {"tandem-rag", "torch", "transformers"}
    assert os.listdir(path.parent) == [path.name]
    assert cache.cached_line(PARTY, tmp_path, pytest.fail) == list(PROFILE.line.to_tuple())


def test_a_model_is_known_by_its_files_and_not_by_its_place(tmp_path: Path) -> None:
    copy = Path(shutil.copytree(WEIGHTS, tmp_path / "copy"))
    assert cache.model_fingerprint(str(copy)) == cache.model_fingerprint(str(WEIGHTS))
    with (copy / "model.safetensors").open("ab") as file:
        file.write(b"more")
    longer = cache.model_fingerprint(str(copy))
    (copy / "config.json").write_text("{}")
    names = [str(WEIGHTS), str(tmp_path / "nothing"), "somebody/a-model-that-is-not-here"]
    prints = {longer, cache.model_fingerprint(str(copy)), *map(cache.model_fingerprint, names)}
    assert len(prints) == 5


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"format": 2}, "format 1"),
        ({"key__num_threads": 7}, "other settings"),
        ({"key": None}, "key: "),
        ({"profile__seconds": [0.5, float("nan"), 0.7]}, "got nan"),
        ({"profile__seconds": [0.5, "0.6", 0.7]}, "profile.seconds.1: Input should be a valid number"),
        ({"profile__lengths": [10, 10.5, 11]}, "profile.lengths.1: Input should be a valid integer"),
        ({"profile__runs": True}, "profile.runs: Input should be a valid integer"),
        ({"profile": {}}, "prompt_tokens"),
        ({"profile": None}, "profile: "),
        ({"versions": 3}, "versions: "),
    ],
)
def test_a_wrong_file_is_not_used(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    changed(saved(tmp_path), **changes)
    assert reason in refused(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000])
def test_a_damaged_file_is_not_used(tmp_path: Path, content: bytes) -> None:
    saved(tmp_path).write_bytes(content)
    assert "was ignored because it is damaged or of another kind" in refused(tmp_path)


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path)
    before = path.read_bytes()

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(
        TandemError, match=r"cannot be written \(No space left on device\); set XDG_CACHE_HOME"
    ):
        saved(tmp_path)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


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
    return max(map(len, opened.document_tokens)) + len(opened.query_tokens)


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


def test_a_draft_is_what_the_decoder_draws(engine: Engine) -> None:
    from tandem.engine.drafter import mix_rows, row_probabilities

    codec, rule = TopP(0.8), draft_rule("coupled", 0.7)
    engine.open("one", "Which game?", ["Mira likes games.", "Tom likes chess."], 4)
    logits = engine.next_logits("one", [])
    engine.close("one")
    distribution = codec.decode(codec.encode(mix_rows(row_probabilities(logits, 0.7), [0.0, 0.0])))
    drafter = Drafter(codec, SamplingParams(temperature=0.7), "coupled")
    drafted = [measure_drafting(drafter, Party.CLOUD)(logits, step) for step in range(8)]
    assert drafted == [rule.draft(distribution, seed=0, step=step, party=Party.CLOUD) for step in range(8)]

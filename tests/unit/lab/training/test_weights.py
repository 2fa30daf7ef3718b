"""The bundled weights: untampered, and able to read made-up words that training never showed.

What is asserted is looser than what the training log shows, since the samples here are few.
"""

import hashlib
import json
from random import Random

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from tandem.corpora import WEIGHTS
from tandem_lab.training.batches import prompt_ids
from tandem_lab.training.names import measure_names
from tandem_lab.training.phrases import DOMAINS
from tandem_lab.training.synthetic import make_name, make_page, make_question, make_title
from tandem_lab.training.train import Reading, measure


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(WEIGHTS / "tokenizer.json"))


@pytest.fixture(scope="module")
def model():
    torch.set_num_threads(1)
    return AutoModelForCausalLM.from_pretrained(WEIGHTS, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def reading(model, tokenizer) -> Reading:
    return measure(model, tokenizer, num_samples=40, seed=101)


def test_checksum():
    digests = json.loads((WEIGHTS / "checksum.json").read_text())
    for name, digest in digests.items():
        assert hashlib.sha256((WEIGHTS / name).read_bytes()).hexdigest() == digest
    assert "model.safetensors" in digests


def test_size_and_stored_precision(model):
    assert 5e5 <= sum(p.numel() for p in model.parameters()) <= 2e6
    assert json.loads((WEIGHTS / "config.json").read_text())["dtype"] == "float16"
    assert (WEIGHTS / "model.safetensors").stat().st_size < 4e6


def test_log_ends_with_the_measurements_of_these_weights(reading):
    last = json.loads((WEIGHTS / "training.jsonl").read_text().splitlines()[-1])
    assert last["title_copied"] >= 0.97
    assert reading.title_copied == pytest.approx(last["title_copied"], abs=0.1)


def test_copies_held_out_titles_from_the_right_page(reading):
    assert reading.title_copied >= 0.92
    assert reading.title_probability >= 0.9


def test_is_flat_at_the_title_where_the_document_names_none_of_that_kind(reading):
    """Flat over 100 first syllables would be 0.01; the right page gives at least 0.9 (above)."""
    assert reading.title_peak_wrong_page <= 0.06
    assert reading.title_peak_note <= 0.04


def test_is_flat_at_the_kind_beside_a_public_page(reading):
    """Flat over eight kinds would be 0.125."""
    assert reading.kind_peak_page <= 0.2


def test_reads_the_kind_from_a_note(reading):
    assert reading.kind_copied >= 0.9  # half of these notes tell of a second person as well


def test_tells_names_apart(model, tokenizer):
    """A reader that sees no names gives every person's kind the same probability, 0.56; luck mixes 0.25 right."""
    names = measure_names(model, tokenizer, num_samples=24, seed=3)
    assert names.own >= 0.9
    assert max(names.other.values()) <= 0.25
    assert names.both["stranger"] >= 0.9
    assert names.mixture >= 0.9


def test_one_page_that_knows_outweighs_seven_that_do_not(model, tokenizer):
    """The mixture's point: uniform weights over a domain's eight pages, and the right title's first token wins."""
    rng, num_right = Random(31), 0
    for _ in range(20):
        domain = rng.choice(DOMAINS)
        titles = {kind: make_title(rng, "heldout") for kind in domain.kinds}
        kind = rng.choice(domain.kinds)
        asked = make_question(rng, make_name(rng, "heldout"), domain, kind, titles[kind])
        before = tokenizer.encode(
            f" {asked.answer.split(titles[kind])[0].rstrip()}", add_special_tokens=False
        ).ids
        target = tokenizer.encode(f" {titles[kind]}", add_special_tokens=False).ids[0]
        pages = [make_page(rng, domain, k, titles[k], 1).text for k in domain.kinds]
        rows = [[*prompt_ids(tokenizer, page, asked.text), *before] for page in pages]
        with torch.inference_mode():
            distributions = [model(torch.tensor([row])).logits[0, -1].softmax(-1).numpy() for row in rows]
        num_right += int(np.mean(distributions, axis=0).argmax()) == target
    assert num_right >= 18

"""The evaluation of names: what an ideal and a careless reader get, and that its words are held out."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace

import pytest
import torch
from tokenizers import Tokenizer

from tandem.corpora import WEIGHTS
from tandem_lab.training.names import RELATIONS, Relation, draw_trial, measure_names, names_like
from tandem_lab.training.phrases import DOMAINS, NOTES
from tandem_lab.training.synthetic import split_of

NUM_SAMPLES = 12


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(WEIGHTS / "tokenizer.json"))


class Rules:
    """Reads with rules what a model reads by attention; `ignores_names`: takes any note for one on the person."""

    def __init__(self, tokenizer: Tokenizer, *, ignores_names: bool) -> None:
        self._tokenizer, self._ignores_names = tokenizer, ignores_names

    def __call__(self, input_ids: torch.Tensor, use_cache: bool) -> SimpleNamespace:
        logits = torch.full((*input_ids.shape, self._tokenizer.get_vocab_size()), -30.0)
        for row, ids in enumerate(input_ids.tolist()):
            text = self._tokenizer.decode([token for token in ids if token > 2])
            for kind in self._kinds(text):
                token = self._tokenizer.encode(f" {kind}", add_special_tokens=False).ids[0]
                logits[row, :, token] = 0.0
        return SimpleNamespace(logits=logits)

    def _kinds(self, text: str) -> list[str]:
        document, _, rest = text.rpartition("Question:")
        name = rest.partition("Answer:")[2].split()[0]
        domain = next(each for each in DOMAINS if f" {each.noun}" in rest or f" {each.plural}" in rest)
        for kind in domain.kinds:
            facts = [
                phrase.format(name=name, kind=kind, noun=domain.noun, plural=domain.plural)
                for phrase in NOTES
            ]
            is_told = any(fact in document for fact in facts)
            if is_told or (self._ignores_names and f" {kind} {domain.noun}" in document):
                return [kind]
        return list(domain.kinds)


def test_an_ideal_reader_is_certain_or_even(tokenizer: Tokenizer) -> None:
    found = measure_names(Rules(tokenizer, ignores_names=False), tokenizer, NUM_SAMPLES)
    assert found.own == found.mixture == pytest.approx(1, abs=1e-3)
    assert found.none == pytest.approx(1 / 8, abs=1e-3)
    for relation in RELATIONS:
        assert found.other[relation] == pytest.approx(1 / 8, abs=1e-3)
        assert found.both[relation] == pytest.approx(1, abs=1e-3)
        assert found.both_other[relation] == pytest.approx(0, abs=1e-3)


def test_a_reader_that_ignores_names_is_found_out(tokenizer: Tokenizer) -> None:
    """The mutant."""
    found = measure_names(Rules(tokenizer, ignores_names=True), tokenizer, NUM_SAMPLES)
    assert found.own == pytest.approx(1, abs=1e-3)
    assert min(found.other.values()) > 0.9
    assert max(found.both.values()) < 0.9


@pytest.mark.parametrize("relation", RELATIONS)
def test_the_other_name_is_held_out_and_shares_what_is_said(relation: Relation) -> None:
    rng = Random(3)
    for _ in range(100):
        trial = draw_trial(rng, relation)
        name, other = trial.name, trial.other
        assert other in names_like(name, relation)
        assert split_of(name) == split_of(other) == "heldout"
        assert (other[:-2] == name[:-2]) == (relation == "same_first")
        assert (other[-2:] == name[-2:]) == (relation == "same_last")
        assert trial.kind != trial.other_kind
        assert {trial.kind, trial.other_kind} <= set(trial.domain.kinds)

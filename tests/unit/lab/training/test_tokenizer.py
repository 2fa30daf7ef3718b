"""The bundled tokenizer: syllables are tokens wherever they stand, and the files are what the script writes."""

import json
from random import Random

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from tandem.corpora import DOCUMENT_TEMPLATE, QUERY_TEMPLATE, WEIGHTS
from tandem_lab.training.synthetic import Split, make_title
from tandem_lab.training.tokenizer import train_tokenizer
from tandem_lab.training.train import Plan


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(WEIGHTS / "tokenizer.json"))


@pytest.mark.nightly("trains the tokenizer again")
def test_files_are_what_the_script_writes(tokenizer):
    assert train_tokenizer(Random(Plan().seed)).to_str() == tokenizer.to_str()


@pytest.mark.parametrize("split", ["train", "heldout"])
@pytest.mark.parametrize("text", ["{}", "{} comes first.", "Take {}.", "We chose {}, at last", "is {}\n"])
def test_a_title_is_the_same_four_tokens_wherever_it_stands(tokenizer, split: Split, text):
    rng = Random(1)
    for _ in range(200):
        title = make_title(rng, split)
        ids = tokenizer.encode(f" {title}", add_special_tokens=False).ids
        assert len(ids) == 4
        assert str(ids)[1:-1] in str(tokenizer.encode(text.format(title), add_special_tokens=False).ids)


def test_auto_tokenizer_loads_it_with_its_special_tokens(tokenizer):
    loaded = AutoTokenizer.from_pretrained(WEIGHTS)
    assert loaded.is_fast
    assert (loaded.bos_token_id, loaded.eos_token_id, loaded.pad_token_id) == (0, 1, 2)
    text = "Mira enjoys puzzle games.\n"
    assert (
        loaded(text, add_special_tokens=False)["input_ids"]
        == tokenizer.encode(text, add_special_tokens=False).ids
    )


def test_template_beside_the_weights_is_that_of_the_package():
    template = json.loads((WEIGHTS / "template.json").read_text())
    assert template == {"document": DOCUMENT_TEMPLATE, "query": QUERY_TEMPLATE}

"""The training script: what counts in the loss, the schedule, and that a (tiny) run leaves everything that loads."""

import json

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from tandem.corpora import WEIGHTS
from tandem_lab.training import train as training
from tandem_lab.training.batches import NOT_COUNTED, Batch
from tandem_lab.training.samples import CORPUS
from tandem_lab.training.train import Plan, Reading, Stage, answer_loss, make_model

TINY = Plan(hidden=32, num_layers=2, num_heads=4, inner=16, num_threads=1, steps_per_measurement=2)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return make_model(Tokenizer.from_file(str(WEIGHTS / "tokenizer.json")), TINY)


NO_TARGETS = torch.zeros(0, 1636)


def _batch(ids: list[int], labels: list[int], num_pad: int = 0) -> Batch:
    return Batch(np.array([ids + [2] * num_pad]), np.array([labels + [NOT_COUNTED] * num_pad]))


def test_loss_is_the_mean_over_labels_that_count(model):
    first, second, both = (
        answer_loss(model, _batch([0, 5, 9], labels), NO_TARGETS).item()
        for labels in ([5, NOT_COUNTED, 3], [NOT_COUNTED, 9, NOT_COUNTED], [5, 9, 3])
    )
    assert both == pytest.approx((2 * first + second) / 3, rel=1e-5)


@pytest.mark.nightly("trains a model")
def test_a_tiny_run_leaves_what_loads_and_a_log_and_a_checksum(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "measure", lambda model, tokenizer: Reading(*[0.0] * 7, 0))
    training.train(TINY, tmp_path, Stage(CORPUS, 4, 2, 1e-3, 1, 1))
    assert AutoModelForCausalLM.from_pretrained(tmp_path).dtype == torch.float16
    log = [json.loads(line) for line in (tmp_path / "training.jsonl").read_text().splitlines()]
    assert [line.get("step") for line in log] == [None, None, 2, 4]
    assert set(json.loads((tmp_path / "checksum.json").read_text())) == {"model.safetensors"}

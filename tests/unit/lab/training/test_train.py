"""The training script: what counts in the loss, the schedule, and that a (tiny) run leaves everything that loads."""

import json

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from tandem.corpora import WEIGHTS
from tandem.distillation.training import learning_rate
from tandem.lab.training import train as training
from tandem.lab.training.batches import Batch
from tandem.lab.training.measure import Reading
from tandem.lab.training.samples import CORPUS
from tandem.lab.training.train import STAGES, Plan, Stage, answer_loss, make_model

TINY = Plan(hidden=16, num_layers=1, num_heads=2, inner=16, num_threads=1, steps_per_measurement=2)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return make_model(Tokenizer.from_file(str(WEIGHTS / "tokenizer.json")), TINY)


def _batch(ids: list[int], weights: list[float], num_pad: int) -> Batch:
    row = np.array([ids + [2] * num_pad])
    labels = np.array([[*ids[1:], 2, *[2] * num_pad]])
    return Batch(row, labels, np.array([weights + [0.0] * num_pad], np.float32))


def test_padding_on_the_right_changes_no_loss(model):
    ids, weights = [0, 5, 9, 14], [0.0, 1.0, 2.0, 0.0]
    short, long = (answer_loss(model, _batch(ids, weights, n)).item() for n in (0, 7))
    assert short == pytest.approx(long, rel=1e-5)


def test_loss_is_the_weighted_mean_over_tokens_that_count(model):
    ids = [0, 5, 9, 14]
    one, two, both = (
        answer_loss(model, _batch(ids, w, 0)).item()
        for w in ([0, 1.0, 0, 0], [0, 0, 1.0, 0], [0, 1.0, 3.0, 0])
    )
    assert both == pytest.approx((one + 3 * two) / 4, rel=1e-5)


def test_rate_warms_up_and_falls_to_a_twentieth():
    stage = STAGES[0]
    rates = [learning_rate(step, training.schedule_of(stage)) for step in range(stage.num_steps)]
    assert max(rates) == pytest.approx(stage.peak_rate)
    assert rates[0] == pytest.approx(stage.peak_rate / stage.num_warmup_steps)
    assert rates[-1] == pytest.approx(stage.peak_rate / 20, rel=0.01)


def test_filler_grows_over_the_first_stage():
    filler = [training.max_filler(step, STAGES[0]) for step in range(STAGES[0].num_steps)]
    assert filler == sorted(filler)
    assert (filler[0], filler[-1]) == (1, 3)


def test_a_tiny_run_leaves_what_loads_and_a_log_and_a_checksum(tmp_path, monkeypatch):
    stage = Stage(CORPUS, 2, 2, 1e-3, 1, 1.0, ((1.0, 1),))
    monkeypatch.setattr(training, "STAGES", (stage, stage))
    monkeypatch.setattr(training, "measure", lambda model, tokenizer: Reading(*[0.0] * 7, 0))
    training.train(TINY, tmp_path)
    assert AutoModelForCausalLM.from_pretrained(tmp_path).dtype == torch.float16
    log = [json.loads(line) for line in (tmp_path / "training.jsonl").read_text().splitlines()]
    assert [(line.get("stage"), line.get("step")) for line in log] == [
        (None, None),
        (1, None),
        (1, 2),
        (2, None),
        (2, 2),
    ]
    assert set(json.loads((tmp_path / "checksum.json").read_text())) == {"model.safetensors"}

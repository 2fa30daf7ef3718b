"""What can be wrong with a model is said in one sentence, with the value seen and the remedy."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tandem.engine import loading
from tandem.engine.engine import Engine
from tandem.errors import GenerationError

Save = Callable[..., Path]


def sentence(model: Path | str, **options: str) -> str:
    with pytest.raises(GenerationError) as raised:
        Engine.load(str(model), **options)
    assert (
        raised.value.__suppress_context__ or raised.value.__context__ is None
    )  # no traceback from deep inside
    text = str(raised.value)
    assert "\n" not in text
    assert text.endswith(".")
    return text


def test_missing_directory(tmp_path: Path) -> None:
    assert sentence(tmp_path / "nowhere") == (
        f"A model is a directory or a hub id, {str(tmp_path / 'nowhere')!r} is neither: "
        "there is no such directory; correct the path."
    )


def test_a_file_and_an_empty_directory(copied: Path, tmp_path: Path) -> None:
    assert "it is a file; correct the path" in sentence(copied / "config.json")
    (tmp_path / "empty").mkdir()
    assert "holds a config.json" in sentence(tmp_path / "empty")


def test_unknown_hub_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    text = sentence("nobody/no-such-model")
    assert text.startswith("The tokenizer of 'nobody/no-such-model' cannot be loaded: ")
    assert text.endswith("or can be.")


@pytest.mark.parametrize("family", ["llama", "opt"])
def test_model_without_tokenizer(save_model: Save, family: str) -> None:
    """For OPT transformers invents an empty one."""
    text = sentence(save_model(family, tokenizer=False))
    assert text.startswith("A model needs its tokenizer beside it")
    assert text.endswith("save the tokenizer into the same directory.")


def test_no_fast_tokenizer(save_model: Save, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoTokenizer

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda *_, **__: object())
    assert "Tandem needs a fast tokenizer (tokenizer.json)" in sentence(save_model("llama"))


def test_damaged_weights_and_missing_weights(copied: Path) -> None:
    from safetensors.torch import load_file, save_file

    path = copied / "model.safetensors"
    weights = load_file(path)
    weights.pop("model.layers.1.mlp.up_proj.weight")
    save_file(weights, path, metadata={"format": "pt"})
    assert "lacks 1 (model.layers.1.mlp.up_proj.weight, ...)" in sentence(copied)
    path.write_bytes(path.read_bytes()[:500])
    assert "The language model of" in sentence(copied)
    path.unlink()
    assert "The language model of" in sentence(copied)


def test_damaged_configuration(copied: Path) -> None:
    (copied / "config.json").write_text("{")
    assert "cannot be loaded" in sentence(copied)


def test_tokenizer_larger_than_the_model(save_model: Save) -> None:
    assert "they reach 299 and the model has 200 outputs" in sentence(save_model("llama", 200))


def test_device_and_dtype(save_model: Save) -> None:
    assert "'tpu9' cannot be used here; set it to 'cpu'" in sentence(save_model("llama"), device="tpu9")
    assert "not in 'int3'" in sentence(save_model("llama"), dtype="int3")


def test_template_beside_the_model_is_used(copied: Path) -> None:
    (copied / "template.json").write_text(json.dumps({"document": "{document}\n", "query": "Q: {query}"}))
    engine = Engine.load(str(copied))
    assert engine._prompts._template.query == "Q: {query}"


def test_state_space_models_are_refused() -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model("mamba", vocab_size=32, hidden_size=16, num_hidden_layers=2, state_size=4)
    with pytest.raises(GenerationError, match="must be able to crop the cache"):
        loading.check_cache(AutoModelForCausalLM.from_config(config))


def test_progress_bars_are_left_as_they_were(save_model: Save, capfd: pytest.CaptureFixture[str]) -> None:
    from transformers.utils import logging

    before = logging.is_progress_bar_enabled()
    Engine.load(str(save_model("llama")))
    assert logging.is_progress_bar_enabled() == before
    assert "Loading weights" not in capfd.readouterr().err


def test_tokenizer_json_is_complete(save_model: Save) -> None:
    engine = Engine.load(str(save_model("llama")))
    assert Tokenizer.from_str(engine.tokenizer_json).get_vocab_size() == 300

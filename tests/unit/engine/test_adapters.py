"""A folder of an adapter stands for its base with other weights; what can be wrong is said in one sentence."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("peft", reason="peft is not installed (extra [train])")

from tandem.engine.engine import Engine
from tandem.errors import GenerationError
from tandem.plugins.torch.model import load_model

Adapt = Callable[..., Path]


@pytest.fixture
def adapt(tmp_path: Path) -> Adapt:
    """adapt(base, seed) -> folder of an adapter of random weights, as peft writes it."""
    from peft import LoraConfig, get_peft_model

    def save(base: Path, seed: int = 3, name: str = "adapter") -> Path:
        torch.manual_seed(seed)
        model = load_model(str(base), device="cpu", dtype="float32")
        config = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
        get_peft_model(model, config).save_pretrained(tmp_path / name)
        return tmp_path / name

    return save


def set_base(adapter: Path, base: Any) -> None:
    file = adapter / "adapter_config.json"
    file.write_text(
        json.dumps({**json.loads(file.read_text("utf-8")), "base_model_name_or_path": base}), "utf-8"
    )


def sentence(folder: Path) -> str:
    with pytest.raises(GenerationError) as raised:
        Engine.load(str(folder))
    assert "\n" not in str(raised.value)
    return str(raised.value)


def logits(engine: Engine) -> torch.Tensor:
    with torch.no_grad():
        computed: torch.Tensor = engine.runner.model(torch.arange(4, 12)[None]).logits
    return computed


def test_it_is_its_base_with_the_adapter_merged(copied: Path, adapt: Adapt) -> None:
    from peft import PeftModel

    folder = adapt(copied)
    engine, base = Engine.load(str(folder)), Engine.load(str(copied))
    expected = PeftModel.from_pretrained(load_model(str(copied), device="cpu", dtype="float32"), str(folder))
    with torch.no_grad():
        reference = expected(torch.arange(4, 12)[None]).logits
    assert torch.allclose(logits(engine), reference, atol=1e-5)
    assert not torch.allclose(logits(engine), logits(base), atol=1e-3)
    assert type(engine.runner.model) is type(base.runner.model), "nothing of peft is left in it"


def test_an_adapter_of_another_base(save_model: Callable[..., Path], copied: Path, adapt: Adapt) -> None:
    """Of one with other names or sizes, and of one with more layers."""
    folder = adapt(copied)
    shallow = copied.parent / "shallow"
    shutil.copytree(copied, shallow)
    config = json.loads((shallow / "config.json").read_text("utf-8"))
    (shallow / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 2}), "utf-8")
    for other in (save_model("opt"), save_model("gpt-neox"), shallow):
        set_base(folder, str(other))
        said = sentence(folder)
        assert said.startswith(f"The adapter {str(folder)!r} does not fit the base model that it names: "), (
            said
        )
        assert said.endswith("to the model that it was trained on.")


def test_a_kind_that_cannot_be_merged(copied: Path, tmp_path: Path) -> None:
    from peft import PromptTuningConfig, get_peft_model

    model = load_model(str(copied), device="cpu", dtype="float32")
    get_peft_model(model, PromptTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM")).save_pretrained(
        tmp_path / "prompts"
    )
    assert "(PROMPT_TUNING) cannot be merged into weights; use one of LoRA's kind." in sentence(
        tmp_path / "prompts"
    )


def test_without_peft(copied: Path, adapt: Adapt, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = adapt(copied)
    monkeypatch.setitem(sys.modules, "peft", None)
    said = sentence(folder)
    assert "is an adapter, which is read with the package peft; run" in said
    assert "[train]" in said

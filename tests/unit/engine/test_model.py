"""Models and adapters of PyTorch: what can be wrong is said in one sentence, with the value seen and the remedy."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tandem.engine.engine import Engine
from tandem.errors import GenerationError
from tandem.plugins.torch import model as models
from tandem.plugins.torch.model import load_model

Save = Callable[..., Path]


def sentence(model: Path | str, **options: str | int) -> str:
    with pytest.raises(GenerationError) as raised:
        Engine.load(str(model), **options)
    assert (
        raised.value.__suppress_context__ or raised.value.__context__ is None
    )  # no traceback from deep inside
    text = str(raised.value)
    assert "\n" not in text
    assert text.endswith(".")
    return text


@pytest.mark.parametrize("family", ["llama", "opt"])
def test_model_without_tokenizer(save_model: Save, family: str) -> None:
    """For OPT transformers invents an empty one."""
    text = sentence(save_model(family, tokenizer=False))
    assert "has no tokenizer (" in text
    assert text.endswith("save the tokenizer into the model's directory.")


def test_damaged_weights_and_missing_weights(copied: Path) -> None:
    path = copied / "model.safetensors"
    weights = load_file(path)
    weights.pop("model.layers.1.mlp.up_proj.weight")
    save_file(weights, path, metadata={"format": "pt"})
    assert "lacks 1 of its model's weights (model.layers.1.mlp.up_proj.weight, ...)" in sentence(copied)
    path.write_bytes(path.read_bytes()[:500])
    assert "is no whole safetensors file" in sentence(copied)
    path.unlink()
    assert "has a config.json but no weights" in sentence(copied)


def test_device_threads_and_dtype(save_model: Save) -> None:
    assert "'tpu9' cannot be used here; set it to 'cpu'" in sentence(save_model("llama"), device="tpu9")
    assert "num_threads is 0" in sentence(save_model("llama"), num_threads=0)
    assert "Unknown precision 'int3'; set the dtype to one of bfloat16, float16, float32." in sentence(
        save_model("llama"), dtype="int3"
    )


def test_state_space_models_are_refused() -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model("mamba", vocab_size=32, hidden_size=16, num_hidden_layers=2, state_size=4)
    with pytest.raises(
        GenerationError, match=r"The cache of MambaForCausalLM cannot be rolled back.*\bGGUF file"
    ):
        models.check_cache(AutoModelForCausalLM.from_config(config))


def test_layers_that_read_the_cache_of_others_are_used(tmp_path: Path, save_model: Save) -> None:
    """As Gemma 3n, whose last layers have no cache: one token at a time, rolled back with the same bits."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        "gemma3n_text", vocab_size=320, vocab_size_per_layer_input=320, hidden_size=32, intermediate_size=[64] * 4,
        hidden_size_per_layer_input=8, num_hidden_layers=4, num_kv_shared_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, laurel_rank=4, altup_num_inputs=2, activation_sparsity_pattern=[0.0] * 4,
        layer_types=["sliding_attention", "full_attention"] * 2, pad_token_id=0,
    )  # fmt: skip
    folder = Path(shutil.copytree(save_model("llama"), tmp_path / "model"))
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    engine = Engine.load(str(folder), num_threads=1)
    assert "one token of one query at a time" in engine.fallback
    engine.open("s", "Mira?", ["puzzle games", "Cor."], 8)
    before = engine.next_logits("s", (30, 31, 32))
    engine.next_logits("s", (30, 40))
    assert torch.equal(engine.next_logits("s", (30, 31, 32)), before)


# ---- fingerprints --------------------------------------------------------------------------------------------


def load(path: Path, **options: str) -> Engine:
    return Engine.load(str(path), num_threads=1, **options)


def test_equal_for_copies_elsewhere_and_different_for_one_changed_bit(
    save_model: Save, copied: Path, tmp_path: Path
) -> None:
    original = load(save_model("llama"))
    assert load(copied).runner.weights_fingerprint == original.runner.weights_fingerprint
    assert load(copied).runner.computing_fingerprint == original.runner.computing_fingerprint
    changed = Path(shutil.copytree(copied, tmp_path / "changed"))
    weights = load_file(changed / "model.safetensors")
    weights["model.norm.weight"].view(torch.int32)[3] ^= 1  # same shape, size, configuration
    save_file(weights, changed / "model.safetensors", metadata={"format": "pt"})
    assert load(changed).runner.weights_fingerprint != original.runner.weights_fingerprint


# ---- a folder of an adapter stands for its base with other weights -------------------------------------------


Adapt = Callable[..., Path]


@pytest.fixture
def adapt(tmp_path: Path) -> Adapt:
    """adapt(base, prompts=False) -> folder of an adapter of random weights, as peft writes it. prompts: of a kind that
    cannot be merged."""
    peft = pytest.importorskip("peft", reason="peft is not installed (extra [train])")

    def save(base: Path, *, prompts: bool = False) -> Path:
        torch.manual_seed(3)
        config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
        if prompts:
            config = peft.PromptTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM")
        model = peft.get_peft_model(load_model(str(base), device="cpu", dtype="float32"), config)
        model.save_pretrained(tmp_path / "adapter")
        return tmp_path / "adapter"

    return save


def logits(engine: Engine) -> torch.Tensor:
    with torch.no_grad():
        computed: torch.Tensor = engine.runner.model(torch.arange(4, 12)[None]).logits
    return computed


def test_it_is_its_base_with_the_adapter_merged(copied: Path, adapt: Adapt) -> None:
    folder = adapt(copied)
    from peft import PeftModel

    engine, base = Engine.load(str(folder)), Engine.load(str(copied))
    expected = PeftModel.from_pretrained(load_model(str(copied), device="cpu", dtype="float32"), str(folder))
    with torch.no_grad():
        reference = expected(torch.arange(4, 12)[None]).logits
    assert torch.allclose(logits(engine), reference, atol=1e-5)
    assert not torch.allclose(logits(engine), logits(base), atol=1e-3)
    assert type(engine.runner.model) is type(base.runner.model), "nothing of peft is left in it"


def test_an_adapter_of_another_base(save_model: Save, copied: Path, adapt: Adapt) -> None:
    """Of one with other names or sizes, and of one with more layers."""
    folder = adapt(copied)
    file = folder / "adapter_config.json"
    named = json.loads(file.read_text("utf-8"))
    shallow = copied.parent / "shallow"
    shutil.copytree(copied, shallow)
    config = json.loads((shallow / "config.json").read_text("utf-8"))
    (shallow / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 2}), "utf-8")
    for other in (save_model("opt"), save_model("gpt-neox"), shallow):
        file.write_text(json.dumps({**named, "base_model_name_or_path": str(other)}), "utf-8")
        said = sentence(folder)
        assert said.startswith(f"The adapter {str(folder)!r} does not fit the base model that it names: ")
        assert said.endswith("to the model that it was trained on.")


def test_a_kind_that_cannot_be_merged(copied: Path, adapt: Adapt) -> None:
    said = sentence(adapt(copied, prompts=True))
    assert "(PROMPT_TUNING) cannot be merged into weights; use one of LoRA's kind." in said


def test_without_peft(copied: Path, adapt: Adapt, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = adapt(copied)
    monkeypatch.setitem(sys.modules, "peft", None)
    said = sentence(folder)
    assert "is an adapter, which is read with the package peft; run" in said
    assert "[train]" in said

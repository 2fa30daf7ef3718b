"""Fingerprints: equal for two loads, different for whatever could change a cache."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tandem.engine.engine import Engine

Save = Callable[..., Path]


def load(path: Path, **options: str) -> Engine:
    return Engine.load(str(path), num_threads=1, **options)


def test_equal_for_copies_elsewhere_and_different_for_one_changed_bit(
    save_model: Save, copied: Path, tmp_path: Path
) -> None:
    original = load(save_model("llama"))
    assert load(copied).weights_fingerprint == original.weights_fingerprint
    assert load(copied).computing_fingerprint == original.computing_fingerprint
    changed = Path(shutil.copytree(copied, tmp_path / "changed"))
    weights = load_file(changed / "model.safetensors")
    weights["model.norm.weight"].view(torch.int32)[3] ^= 1  # same shape, size, configuration
    save_file(weights, changed / "model.safetensors", metadata={"format": "pt"})
    assert load(changed).weights_fingerprint != original.weights_fingerprint


def test_the_configuration_the_precision_and_the_threads_count(save_model: Save, copied: Path) -> None:
    original = load(save_model("llama"))
    assert load(copied, dtype="bfloat16").weights_fingerprint != original.weights_fingerprint
    config = copied / "config.json"
    assert "10000.0" in config.read_text()
    config.write_text(config.read_text().replace("10000.0", "20000.0"))  # of the rotary embedding
    assert load(copied).weights_fingerprint != original.weights_fingerprint
    one = original.computing_fingerprint
    torch.set_num_threads(2)
    try:
        assert original.computing_fingerprint != one
    finally:
        torch.set_num_threads(1)
    assert original.computing_fingerprint == one

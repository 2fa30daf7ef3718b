"""A real chat model, SmolLM2-135M-Instruct, in one process: both parties share its weights and end at one token."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem import Tandem
from tandem.config.schema import Config
from tandem.corpora import can_load_smollm2
from tandem.errors import SMOLLM2_PACKAGE, install_model_line
from tandem.topology import PARTIES

pytestmark = pytest.mark.skipif(
    not can_load_smollm2(), reason=f"smollm2 is not installed; {install_model_line(SMOLLM2_PACKAGE)}"
)
NOTE = "The key of the shed hangs behind the kitchen door."


@pytest.mark.slow("a real chat model of 135 million parameters answers")
@pytest.mark.parametrize(
    ("engine", "package", "loading", "loaded"),
    [
        ("llama", "xllamacpp", "98 MB, with llama.cpp", "97 MB of Q4_1"),
        pytest.param(
            *("torch", "accelerate", "538 MB of float32", "538 MB of float32"),
            marks=pytest.mark.nightly("half a minute; toys are computed by PyTorch at every change"),
        ),
    ],
)
def test_both_parties_share_its_weights_and_end_at_one_token(
    tmp_path: Path, engine: str, package: str, loading: str, loaded: str
) -> None:
    pytest.importorskip(package, reason=f"the package {package} is not installed")
    from tandem.plugins.embedders import Embedder
    from tandem.retrieval import build_index

    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "shed.md").write_text(NOTE, "utf-8")
    build_index(tmp_path / "notes", tmp_path / "index", Embedder.load("auto"))
    overrides = [
        f'{party}.{name}="{value}"'
        for party in PARTIES
        for name, value in (("model", "smollm2"), ("engine", engine))
    ]
    config = Config.load(
        None,
        [*overrides, "cloud.num_documents=0", f"device.index={tmp_path / 'index'}", "device.num_documents=1"],
    )
    lines: list[str] = []
    with Tandem.launch(config, runtime="inline", progress=lines.append) as tandem:
        answer = tandem.query("Where is the key of the shed?", seed=1)
        alone = tandem.query("Where is the key of the shed?", seed=1, only="device")
        short = tandem.query("Where is the key of the shed?", seed=1, mode="dual", max_new_tokens=4)
    models = [line for line in lines if line.startswith("models: ")]
    assert models[0] == f"models: loading for device smollm2, {loading}"
    assert models[1].startswith(f"models: device smollm2, {loaded}, after ")
    assert not any("137" in line for line in lines)
    assert "shed" in answer.text  # it says what the key has to do with it, not always where it is
    assert answer.reason == "eos"
    assert answer.statistics.degraded_from is None
    assert (answer.token_ids, answer.statistics.sent_bytes) == (alone.token_ids, 0)
    assert answer.notes == alone.notes
    assert (short.reason, len(short.tokens)) == ("length", 4)
    assert short.statistics.sent_bytes > 0

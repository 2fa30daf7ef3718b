"""Ray actors whose models llama.cpp computes at the device and PyTorch in the cloud: the answers of one process."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tandem.client.tandem import Tandem
from tandem.config.schema import Config
from tandem.errors import QueryError
from tests.cluster.conftest import process_of
from tests.tiny_gguf import write_gguf

pytestmark = pytest.mark.nightly("a cluster of its own, with llama.cpp")
QUESTIONS = ("Where is the spare key?", "Who feeds the cat on Sundays?", "What is the code?")
DRAWN: dict[str, Any] = {"temperature": 1.0, "max_new_tokens": 40, "timeout_s": 120.0}


@pytest.fixture(scope="module")
def overrides(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    file = write_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf")
    return (
        *(f'{party}.model="{file}"' for party in ("device", "cloud")),
        *(f'{party}.index="bundled"' for party in ("device", "cloud")),
        'device.engine="llama"',
        'cloud.engine="torch"',
        'device.template="plain"',
        'cloud.template="plain"',
    )


def test_answers_are_those_of_one_process(rag: Tandem, overrides: tuple[str, ...]) -> None:
    described = rag.status()["parties"]
    assert described["device"]["engine"].startswith("llama.cpp ")
    assert described["cloud"]["engine"].startswith("PyTorch ")
    config = Config.load(None, ("link.on_peer_loss=wait", *overrides))
    with Tandem.launch(config, runtime="inline") as alone:
        for mode in ("dual", "speculative"):
            for seed, question in enumerate(QUESTIONS):
                asked = {"seed": seed, "mode": mode, **DRAWN}
                assert rag.query(question, **asked).token_ids == alone.query(question, **asked).token_ids


def test_the_device_s_decoder_imports_no_torch(rag: Tandem) -> None:
    mapped = Path(f"/proc/{process_of(rag, 'device/decoder').pid}/maps").read_text()
    assert "xllamacpp" in mapped
    assert "libtorch" not in mapped


def test_a_crash_within_the_library_is_a_lost_decoder(rag: Tandem, killed: None) -> None:
    process_of(rag, "device/decoder").send_signal(signal.SIGABRT)
    with pytest.raises(QueryError, match=r"The device's decoder has stopped|lost device/decoder"):
        rag.query(QUESTIONS[0], seed=1, **DRAWN)

"""Clients that people have already: LangChain's ChatOpenAI, LlamaIndex's OpenAI-like client, and the command `llm`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tandem import Tandem
from tests.server.running import QUESTION, Served


@pytest.fixture(scope="module")
def text(tandem: Tandem) -> str:
    return tandem.query(QUESTION, seed=5).text


def test_llm_command(served: Served, text: str, tmp_path: Path) -> None:
    pytest.importorskip("llm")
    models = f"""
- model_id: tandem
  model_name: tandem
  api_base: "{served.url}/v1"
  supports_schema: true
"""
    (tmp_path / "extra-openai-models.yaml").write_text(models, "utf-8")
    # The schema allows more tokens than that, without an end.
    schema = ["--schema", "stars int", "-o", "max_tokens", "16"]
    command = [sys.executable, *("-m", "llm", "-m", "tandem", "-o", "seed", "5", "--key", "none")]
    for flags in (["-s", "Be brief.", "-o", "top_p", "0.9"], schema):
        done = subprocess.run(
            [*command, *flags, QUESTION],
            # Its plugin for SmolLM2 needs llama.cpp, which is not installed: Tandem only reads the model's file.
            env=os.environ | {"LLM_USER_PATH": str(tmp_path), "LLM_LOAD_PLUGINS": ""},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        if flags is schema:
            assert done.stdout.replace(" ", "").startswith('{"stars":'), done.stderr
        else:
            assert done.stdout.strip() == text, done.stderr

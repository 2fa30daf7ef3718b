"""`tandem init`: from a folder of documents to an answer."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, BadParameter, Option

from tandem.cli.options import CONFIG_NAME
from tandem.cli.output import emit
from tandem.config.files import HEADER
from tandem.corpora import AUTO, LLAMA_PACKAGE, NAMED_MODELS, SMOLLM2, can_load_smollm2
from tandem.errors import (
    SMOLLM2_PACKAGE,
    ConfigError,
    TandemError,
    find_close,
    install_line,
    install_model_line,
)
from tandem.topology import Party

if TYPE_CHECKING:
    from tandem.config.schema import Config


INDEXES = ".tandem"
"""Folder of the indexes, next to the settings; hidden, so that no build reads it."""


@dataclass(frozen=True, slots=True)
class ModelPair:
    """Models of both parties, of one family: a small one on the device, a larger one in the cloud."""

    device: str
    cloud: str
    num_bytes: int
    """Memory of both together, as bfloat16; about as much is downloaded."""
    dtype: str = "bfloat16"


SMOLLM2_PAIR = ModelPair(SMOLLM2, SMOLLM2, 540_000_000, "float32")
"""Needs no hub."""
HUB_PAIRS = (
    ModelPair("HuggingFaceTB/SmolLM2-135M-Instruct", "HuggingFaceTB/SmolLM2-360M-Instruct", 1_000_000_000),
    ModelPair("Qwen/Qwen2.5-0.5B-Instruct", "Qwen/Qwen2.5-1.5B-Instruct", 4_100_000_000),
    ModelPair("Qwen/Qwen2.5-1.5B-Instruct", "Qwen/Qwen2.5-3B-Instruct", 9_300_000_000),
    ModelPair("Qwen/Qwen2.5-1.5B-Instruct", "Qwen/Qwen2.5-7B-Instruct", 18_400_000_000),
)
"""Pairs on the hub that share a vocabulary, smallest first."""
RESERVED_BYTES = 2_000_000_000
"""Memory for the processes themselves, the embedder and the caches."""


def init(
    folder: Annotated[str, Argument(metavar="FOLDER", help="the device's documents", show_default=False)],
    cloud: Annotated[
        str | None, Option(metavar="FOLDER", help="the cloud's documents (default: the cloud has none)")
    ] = None,
    model: Annotated[
        str | None,
        Option(
            metavar="MODEL",
            help="a folder, a GGUF file, a hub id or a name, for both parties (default: smollm2 where it is installed; "
            "on a terminal it asks)",
        ),
    ] = None,
    question: Annotated[
        str | None,
        Option("--ask", metavar="QUESTION", help="the first question (on a terminal it asks for one)"),
    ] = None,
    settings_only: Annotated[
        bool, Option("--settings-only", help="write the settings; index and ask nothing")
    ] = False,
    force: Annotated[bool, Option("--force", help=f"overwrite a {CONFIG_NAME} that is there")] = False,
) -> int:
    """Write a tandem.toml for a folder of documents, index them, and ask a first question.

    The file goes into the current folder, where every command finds it, and the indexes next to it. Every setting is in
    it with its meaning; those that keep their default are comments. Nothing is downloaded unless you choose a model
    from the hub.
    """
    folders = {Party.DEVICE: _existing(folder)}
    if cloud is not None:
        folders[Party.CLOUD] = _existing(cloud)
    if settings_only and question is not None:
        raise BadParameter("--ask needs an index, so it goes without --settings-only")
    if Path(CONFIG_NAME).exists() and not force:
        raise ConfigError(
            f"{Path(CONFIG_NAME).absolute()} is there already; edit it, or write it again with --force."
        )
    pair = _choose_pair() if model is None else ModelPair(_model(model), _model(model), 0, "float32")
    text = render(folders, pair)
    if not settings_only:
        _index(folders, text)
    _write(CONFIG_NAME, text, "w" if force else "x")  # the choice took time
    emit(f"Wrote {CONFIG_NAME}.")
    if settings_only:
        _print_next([*(_index_line(party, path) for party, path in folders.items()), *_later(pair)])
        return 0
    if question is None and pair is not None and is_interactive():
        question = (
            typer.prompt("Your first question (empty: none)", default="", show_default=False).strip() or None
        )
    if question is None:
        _print_next(_later(pair))
        return 0
    from tandem.cli.ask import ask

    try:
        return ask(question=question, runtime="inline")
    except TandemError:
        Path(CONFIG_NAME).unlink()  # the same command is to work once the cause is mended
        raise


def _index(folders: dict[Party, Path], text: str) -> None:
    """Index the folders with these settings, which are kept only if that works; what an earlier try left is replaced.
    Raises TandemError."""
    from tandem.cli.index import index

    tried = f"{CONFIG_NAME}.new"
    _write(tried, text, "w")
    try:
        for party, path in folders.items():
            index(party=party, path=str(path), replace=True, config_file=tried)
    finally:
        Path(tried).unlink()


def _write(name: str, text: str, mode: str) -> None:
    """Write a file of this folder. Raises ConfigError."""
    try:
        with Path(name).open(mode, encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ConfigError(f"{Path(name).absolute()} cannot be written ({error.strerror}).") from None


def propose(available_bytes: int) -> list[ModelPair]:
    """The pairs that this machine could run, the one that is proposed first. available_bytes: of memory."""
    from tandem.engine.places import is_cached, is_offline

    here = [SMOLLM2_PAIR] if can_load_smollm2() else []
    hub = [
        pair
        for pair in HUB_PAIRS
        if find_spec("torch") is not None
        and pair.num_bytes + RESERVED_BYTES <= available_bytes
        and (not is_offline() or all(is_cached(name, "config.json") for name in (pair.device, pair.cloud)))
    ]
    return here + hub


def _choose_pair() -> ModelPair | None:
    """The pair that a person chooses, or the one that needs no download; None: there is none."""
    from tandem.plugins.setup.doctor import available_bytes

    pairs = propose(available_bytes())
    if is_interactive() and set(pairs) - {SMOLLM2_PAIR}:
        emit("Models for device and cloud, in the memory of this machine:")
        for number, pair in enumerate(pairs, 1):
            download = "" if pair is SMOLLM2_PAIR else ", downloaded from the hub unless it is there"
            size = f"{pair.num_bytes / 1e9:.1f} GB as {pair.dtype}"
            if pair is SMOLLM2_PAIR and find_spec(LLAMA_PACKAGE) is not None:
                size = "0.1 GB, quantised"
            emit(f"  {number}  {pair.device} and {pair.cloud}: {size}{download}")
        number = int(typer.prompt("Which", default=1, type=int))
        return pairs[min(max(number, 1), len(pairs)) - 1]
    return SMOLLM2_PAIR if SMOLLM2_PAIR in pairs else None


def is_interactive() -> bool:
    """Whether a person is there to be asked."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def render(folders: dict[Party, Path], pair: ModelPair | None) -> str:
    """The file for these folders and these models. pair: None keeps the default."""
    lines = [HEADER, "# Made by tandem init. These make the indexes, and bring them up to date:"]
    lines += ["# " + _index_line(party, path).replace("\n", "?") for party, path in folders.items()]
    return "\n".join([*lines, "", _settings(folders, pair).to_toml(only_changed=True)])


def _later(pair: ModelPair | None) -> list[str]:
    """The commands that make use of file and indexes."""
    lines = ["tandem doctor", 'tandem search device "QUESTION"', 'tandem ask "QUESTION"']
    if pair is None:
        needed = f"{install_line('llama')} && {install_model_line(SMOLLM2_PACKAGE)}"
        note = f"or edit {CONFIG_NAME}: device.model and cloud.model (the bundled toy cannot read your documents)"
        return [f"{needed}  # a small chat model", note, *lines]
    return lines


def _print_next(lines: list[str]) -> None:
    emit("Next:", *(f"  {line}" for line in lines), sep="\n")


def _index_line(party: Party, path: Path) -> str:
    return f"tandem index {party} {shlex.quote(str(path))}"


def _settings(folders: dict[Party, Path], pair: ModelPair | None) -> Config:
    from tandem.config.files import replace_settings
    from tandem.config.schema import Config

    values: dict[str, dict[str, Any]] = {
        party: {"index": f"{INDEXES}/{party}"} if party in folders else {"num_documents": 0}
        for party in Party
    }
    if pair is not None:
        models: dict[str, str] = {Party.DEVICE: pair.device, Party.CLOUD: pair.cloud}
        values = {
            party: {"model": models[party], "dtype": pair.dtype, **own} for party, own in values.items()
        }
    if Party.CLOUD not in folders:
        values["cluster"] = {"runtime": "inline"}  # one device needs no processes beside the one that asks
    return replace_settings(Config(), values)


def _existing(text: str) -> Path:
    """A file or folder, made absolute. Raises ConfigError with the nearest name where there is none."""
    path = Path(os.path.abspath(Path(text).expanduser()))
    if path.exists():
        return path
    names = sorted(entry.name for entry in path.parent.iterdir()) if path.parent.is_dir() else []
    close = find_close(path.name, names)
    hint = f"did you mean {close}?" if close else "check its path."
    raise ConfigError(f"The documents must be a file or a folder, but {path} does not exist; {hint}")


def _model(text: str) -> str:
    """A folder or file as the settings name it, a hub id, or a name. Raises GenerationError where it is none."""
    from tandem.engine.places import check_directory, expand

    if text in (AUTO, *NAMED_MODELS):
        return text
    check_directory(expand(text))
    is_path = Path(text).expanduser().exists() and not text.startswith((".", "/", "~"))
    return f"./{text}" if is_path else text

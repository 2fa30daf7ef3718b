"""`tandem init`: from a folder of documents to an answer."""

from __future__ import annotations

import math
import os
import shlex
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import psutil
import typer
from typer import Argument, BadParameter, Option

from tandem import plugins
from tandem.cli.options import CONFIG_NAME
from tandem.cli.output import emit
from tandem.config.files import HEADER
from tandem.config.parties import PartyConfig
from tandem.corpora import AUTO, NAMED_MODELS, SMOLLM2, can_load_smollm2, model_path
from tandem.engine.places import check_file, is_offline
from tandem.errors import (
    SMOLLM2_PACKAGE,
    ConfigError,
    TandemError,
    find_close,
    install_line,
    install_model_line,
)
from tandem.plugins.setup.doctor import available_bytes, judge_size
from tandem.topology import Party

if TYPE_CHECKING:
    from tandem.config.schema import Config


INDEXES = ".tandem"
"""Folder of the indexes, next to the settings; hidden, so that no build reads it."""


RESERVED_BYTES = 1_000_000_000
"""Memory for the process itself, the embedder and the caches."""
PROMPT_TOKENS, ANSWER_TOKENS = 500, 40
"""Of an answer: two documents with the question, and what is written."""
TRIED_TOKENS = 4
PATIENCE_S = 60.0
"""The longest that an answer may take of a model that nobody chose."""
CACHING_S, SAMPLED_S = 20.0, 1.0
"""The longest that caches of all passages may take to compute at once; after how long that is judged."""
MAX_CACHED = 2_000
"""Passages of which nobody asks how long that takes."""
MAX_LISTED = 6
HUB_MODELS = (
    ("Qwen2.5-0.5B-Instruct", "q4_k_m", 490_000_000, "Apache-2.0"),
    ("Qwen2.5-1.5B-Instruct", "q4_k_m", 1_120_000_000, "Apache-2.0"),
    ("Qwen2.5-3B-Instruct", "q4_k_m", 2_100_000_000, "Qwen Research, no commercial use"),
    ("Qwen2.5-7B-Instruct", "q3_k_m", 3_810_000_000, "Apache-2.0"),
)
"""One family, whose models can answer together, smallest first: name, quantisation, bytes of the file, licence."""


class _TooLongError(Exception):
    """Caches of all passages take longer than `CACHING_S`. seconds: how long; 0: they are too many to try."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model of this machine."""

    name: str  # in the settings
    num_bytes: int  # on disk, and about as much in memory
    num_parameters: int
    answer_s: float = math.nan
    """What a first answer from two documents takes here, as measured; nan: it was not."""

    def __str__(self) -> str:
        """One line for people."""
        pace = "" if math.isnan(self.answer_s) else f", about {max(1, round(self.answer_s))} s per answer"
        judgement = judge_size(self.num_parameters)
        return f"{self.name}: {self.num_bytes / 1e9:.1f} GB{pace}{judgement and f'; {judgement}'}"


def init(
    folder: Annotated[str, Argument(metavar="FOLDER", help="the device's documents", show_default=False)],
    cloud: Annotated[
        str | None, Option(metavar="FOLDER", help="the cloud's documents (default: the cloud has none)")
    ] = None,
    model: Annotated[
        str | None,
        Option(
            metavar="MODEL",
            help="a GGUF file, a folder (of several files the best), a hub id or a name, for both parties (default: "
            "the best of Ollama's store, ~/models and smollm2 that fits the memory; on a terminal it asks)",
        ),
    ] = None,
    embedder: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help='what finds documents, as retrieval.embedder (default: "multilingual" where files are not in English '
            "and it is installed)",
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
    from tandem.cli.index import choose_embedder

    model = choose_model(model)
    text = render(folders, model, embedder or choose_embedder(folders.values()))
    if not settings_only:
        _index(folders, text)
    _write(CONFIG_NAME, text, "w" if force else "x")  # the choice took time
    emit(f"Wrote {CONFIG_NAME}.")
    if settings_only:
        _print_next([*(_index_line(party, path) for party, path in folders.items()), *_later(model)])
        return 0
    later = [*(_compute_caches() if model is not None and Party.CLOUD not in folders else []), *_later(model)]
    if question is None and model is not None and is_interactive():
        question = (
            typer.prompt("Your first question (empty: none)", default="", show_default=False).strip() or None
        )
    if question is None:
        _print_next(later)
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


def _compute_caches() -> list[str]:
    """Compute the caches of all passages of the device now, if that takes a moment; else the command that does it."""
    from tandem.cli.index import compute_caches
    from tandem.cli.output import StageLog
    from tandem.config.schema import Config
    from tandem.retrieval.store import read_manifest

    began_s = 0.0

    def follow(done: int, total: int) -> None:
        nonlocal began_s
        began_s = began_s if done else time.perf_counter()
        took_s = time.perf_counter() - began_s
        if took_s >= SAMPLED_S and took_s * total > CACHING_S * done:
            raise _TooLongError(took_s * total / max(1, done))

    try:
        config = Config.load(CONFIG_NAME)
        if read_manifest(Path(config.device.index)).count > MAX_CACHED:
            raise _TooLongError(0.0)  # before a model is loaded
        compute_caches(config, Party.DEVICE, StageLog(), follow)
    except _TooLongError as error:
        about = f"about {error.seconds:.0f} s; " if error.seconds >= 1 else ""
        return [f"tandem index device --precompute-kv  # caches: {about}then answers begin sooner"]
    except TandemError:
        pass  # which the first question says
    return []


def _write(name: str, text: str, mode: str) -> None:
    """Write a file of this folder. Raises ConfigError."""
    try:
        with Path(name).open(mode, encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ConfigError(f"{Path(name).absolute()} cannot be written ({error.strerror}).") from None


def choose_model(named: str | None) -> str | None:
    """The model as the settings name it: what was named, or of the files in a named folder, or else of those on this
    machine, the one that a person chooses, or the best; None: there is none. Raises GenerationError."""
    folder = named if named is not None and _holds_several(named) else ""
    if named is not None and not folder:
        return _model(named)
    found = find_candidates(available_bytes(), folder)
    chosen = _ask_for_one(found) if is_interactive() else _find_best(found)
    return None if chosen is None else _model(chosen.name)


def _ask_for_one(found: list[Candidate]) -> Candidate | None:
    """The one that a person chooses. found: the largest first."""
    listed = [each for candidate in found[:MAX_LISTED] if (each := measure(candidate))]
    lines = [f"  {number}  {each}" for number, each in enumerate(listed, 1)]
    emit("Models on this machine:", *lines or ["  none that fits its memory"], sep="\n")
    _print_hub(listed)
    if len(listed) < 2:
        return listed[0] if listed else None
    number = int(typer.prompt("Which", default=1, type=int))
    return listed[min(max(number, 1), len(listed)) - 1]


def _find_best(found: list[Candidate]) -> Candidate | None:
    """The first that answers within `PATIENCE_S`, or else the last one; says which. found: the largest first."""
    measured = filter(None, map(measure, found))
    best = None
    for best in measured:
        if best.answer_s <= PATIENCE_S:
            break
    if best is not None:
        emit(f"Model {best}")
        if judge_size(best.num_parameters):
            _print_hub([best])
    return best


def _holds_several(model: str) -> bool:
    place = Path(model).expanduser()
    return place.is_dir() and not (place / "config.json").exists() and len(list(place.glob("*.gguf"))) > 1


def find_candidates(free_bytes: int, folder: str = "") -> list[Candidate]:
    """Models that this machine has and whose memory it has, the largest first. folder: look only there."""
    formats = [plugins.find("model_format", name) for name in plugins.names("model_format")]
    files = {name: file for each in formats for name, file in each.list_models(folder).items()}
    if not folder and can_load_smollm2():
        files[SMOLLM2] = check_file(model_path(SMOLLM2))
    found = [Candidate(name, file.num_bytes, file.num_parameters) for name, file in files.items()]
    fitting = [
        each for each in found if each.num_bytes + RESERVED_BYTES <= free_bytes or each.name == SMOLLM2
    ]
    return sorted(fitting, key=lambda each: (-each.num_parameters, -each.num_bytes))


def measure(candidate: Candidate) -> Candidate | None:
    """The candidate with the time of an answer, from a block of tokens and some single ones, which takes about a
    second; None where it cannot be loaded."""
    from tandem.actors.loading import load_engine

    try:
        engine = load_engine(PartyConfig(model=candidate.name, num_threads=count_threads()))
    except TandemError as error:
        emit(f"  {candidate.name}: {error}", to_stderr=True)
        return None
    prompt = engine.open("try", "What is it?", [], TRIED_TOKENS + 1)
    moments = [time.perf_counter()]
    for count in range(TRIED_TOKENS + 1):
        engine.next_logits("try", prompt.query_tokens[:count])
        moments.append(time.perf_counter())
    engine.close("try")
    num_tokens = len(prompt.document_tokens[0]) + len(prompt.query_tokens)
    block_s = (moments[1] - moments[0]) / num_tokens
    token_s = 2 * (moments[-1] - moments[1]) / TRIED_TOKENS  # a row for each document
    return replace(candidate, answer_s=PROMPT_TOKENS * block_s + ANSWER_TOKENS * token_s)


def _print_hub(found: list[Candidate]) -> None:
    """Name the models of the hub that are larger than what is here, fit the memory, and how they are fetched."""
    if is_offline():
        return
    largest = max((each.num_bytes for each in found), default=0)
    lines = [
        f"  hf download Qwen/{name}-GGUF {name.lower()}-{kind}.gguf --local-dir ~/models"
        f"  # {num_bytes / 1e9:.1f} GB; {licence}"
        for name, kind, num_bytes, licence in HUB_MODELS
        if largest < num_bytes <= available_bytes() - RESERVED_BYTES
    ]
    if lines:
        emit("Better ones, from Hugging Face; then run this again:", *lines, sep="\n")


def count_threads() -> int:
    """Threads of a model: half of the cores, as the process itself and whoever sits there need some."""
    return max(1, (psutil.cpu_count(logical=False) or 2) // 2)


def is_interactive() -> bool:
    """Whether a person is there to be asked."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def render(folders: dict[Party, Path], model: str | None, embedder: str = "auto") -> str:
    """The file for these folders, this model and this embedder. model: None keeps the default."""
    lines = [HEADER, "# Made by tandem init. These make the indexes, and bring them up to date:"]
    lines += ["# " + _index_line(party, path).replace("\n", "?") for party, path in folders.items()]
    return "\n".join([*lines, "", _settings(folders, model, embedder).to_toml(only_changed=True)])


def _later(model: str | None) -> list[str]:
    """The commands that make use of file and indexes."""
    lines = ["tandem doctor", 'tandem search device "QUESTION"', 'tandem ask "QUESTION"']
    if model is None:
        needed = f"{install_line('llama')} && {install_model_line(SMOLLM2_PACKAGE)}"
        note = f"or edit {CONFIG_NAME}: device.model and cloud.model (the bundled toy cannot read your documents)"
        return [f"{needed}  # a small chat model", note, *lines]
    return lines


def _print_next(lines: list[str]) -> None:
    emit("Next:", *(f"  {line}" for line in lines), sep="\n")


def _index_line(party: Party, path: Path) -> str:
    return f"tandem index {party} {shlex.quote(str(path))}"


def _settings(folders: dict[Party, Path], model: str | None, embedder: str) -> Config:
    from tandem.config.files import replace_settings
    from tandem.config.schema import Config

    values: dict[str, dict[str, Any]] = {
        party: {"index": f"{INDEXES}/{party}", "watch": True} if party in folders else {"num_documents": 0}
        for party in Party
    }
    if model is not None:
        own = {"model": model, "num_threads": count_threads()}
        values = {party: {**own, **values[party]} for party in Party}
    if Party.CLOUD not in folders:
        values["cluster"] = {"runtime": "inline"}  # one device needs no processes beside the one that asks
    return replace_settings(Config(), {**values, "retrieval": {"embedder": embedder}})


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

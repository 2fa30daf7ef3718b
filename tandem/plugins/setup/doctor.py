"""`tandem doctor`: what this machine has, what it lacks, and what to do about it.

A table of looks: each is at one thing, says what it found or raises Trouble, and leaves nothing behind. What the
settings name (models, indexes, the embedder) is looked at by its files, and small language models by running them;
nothing is downloaded. `--settings` prints the settings in force instead.
"""

from __future__ import annotations

import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from resource import RLIMIT_NOFILE, getrlimit
from tempfile import TemporaryFile, gettempdir
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import psutil
from typer import BadParameter, Option

from tandem import plugins
from tandem.actors.loading import check_model, describe_conversion, describe_load, engine_key
from tandem.cli.ask import toy_problem
from tandem.cli.options import MODELS, AsJson, SettingsOptions, with_options
from tandem.cli.output import emit, print_json
from tandem.config.files import HEADER
from tandem.corpora import TOYS
from tandem.engine.places import base_of, check_file, count_bytes, expand, file_of, is_cached
from tandem.errors import DISTRIBUTION, MINILM_PACKAGE, TandemError, install_line, install_model_line
from tandem.system.paths import data_folder, state_folder
from tandem.system.processes import count_cores
from tandem.topology import PARTIES, Party

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from tandem.config.schema import Config, PartyConfig

GIB = 1 << 30
OPTIONAL = ("xllamacpp", "ray", "torch")
"""Packages of extras that compute models or start processes."""
RUNNING_EXTRAS = ("embedders", "llama", "offline", "ray", "server", "torch")
MAX_FOLDER_CHARS = 40  # a Unix socket's path has at most 107, and Ray's are long
MAX_WEIGHT_BYTES = GIB
"""Larger models are not loaded to try the engine."""
SMALL_PARAMETERS = 400_000_000
"""Chat models below it misread more than half of what is found for them (docs/how-to/models.md)."""
RUN_ONCE = "run it once with access to the hub"
INSTALL_AGAIN = "install Tandem again"

Status = Literal["ok", "weak", "missing"]


@dataclass(frozen=True, slots=True)
class Check:
    """One look and its finding."""

    name: str
    status: Status
    """missing: Tandem cannot run; weak: slow, or not for every purpose."""
    finding: str
    remedy: str = ""  # empty where all is well, or where the finding says it

    def __str__(self) -> str:
        line = f"{self.status:<8} {self.name:<16} {self.finding}"
        return f"{line}\n{'':<9}{'':<16} remedy: {self.remedy}" if self.remedy else line


class Trouble(Exception):
    """A look's finding is not as it should be."""

    def __init__(self, finding: str, remedy: str = "", status: Status = "missing") -> None:
        super().__init__(finding)
        self.finding, self.remedy, self.status = finding, remedy, status


def expect(is_well: bool, finding: str, remedy: str, status: Status = "weak") -> str:
    """The finding. Raises Trouble unless all is well."""
    if is_well:
        return finding
    raise Trouble(finding, remedy, status)


def check(name: str, look: Callable[[], str]) -> Check:
    """Look, and make a row of it."""
    try:
        return Check(name, "ok", look())
    except Trouble as trouble:
        return Check(name, trouble.status, trouble.finding, trouble.remedy)
    except TandemError as error:
        return Check(name, "missing", str(error))


@with_options(*MODELS)
def doctor(
    as_json: AsJson = False,
    show_settings: Annotated[
        bool, Option("--settings", help="print the settings in force as TOML, each with its meaning, instead")
    ] = False,
    *,
    settings: SettingsOptions,
) -> int:
    """Say what is missing on this machine, and the remedy.

    Exit code 1 if something essential is missing.
    """
    if show_settings and as_json:
        raise BadParameter("--settings prints TOML, so it goes without --json")
    config = settings.load()
    if show_settings:
        emit(HEADER, config.to_toml(), sep="\n\n", end="")
        return 0
    checks = []
    for each in all_checks(config):
        checks.append(each)
        if not as_json:
            emit(each)
    is_well = not any(each.status == "missing" for each in checks)
    if as_json:
        print_json({"is_well": is_well, "checks": checks})
    else:
        emit(
            "\nTandem can run here."
            if is_well
            else "\nTandem cannot run here yet: see what is missing above."
        )
    return int(not is_well)


def all_checks(config: Config) -> Iterator[Check]:
    """Every check, in the order in which one would set up a machine."""
    yield (installed := check("packages", packages))
    has_ray = find_spec("ray") is not None
    yield from (check(amount.name, amount.look) for amount in (*AMOUNTS, *(FOR_RAY if has_ray else ())))
    if has_ray:
        yield check("sockets", sockets)
    yield check("data folder", lambda: writable(data_folder()))
    yield check("state folder", lambda: writable(state_folder()))
    if installed.status != "missing":
        yield check("embedder", lambda: embedder(config.retrieval.embedder))
        if config.weights.scorer != "embedder":
            remedy = f"{RUN_ONCE}, or set weights.scorer to a folder"
            yield check("scorer", partial(_from_hub, config.weights.scorer, "config.json", remedy))
        yield from check_models(config)
    for party in (Party.DEVICE,) if config.is_alone else PARTIES:
        yield check(f"{party} caches", partial(stored_caches, party, config))
    if problem := toy_problem(config):
        yield Check("bundled model", "weak", *problem)


def check_models(config: Config) -> Iterator[Check]:
    """Model, prompt, engine and index of each party, and whether both can answer together. Engines with equal settings
    are tried once."""
    facts, tried = dict[Party, ModelFacts](), dict[object, Check]()
    parties = (Party.DEVICE,) if config.is_alone else PARTIES
    for party in parties:
        own = config.party(party)
        yield (model := check(f"{party} model", partial(language_model, own)))
        if model.status == "ok":
            yield check(f"{party} prompt", partial(prompt, party, own, facts))
            key = engine_key(own)
            tried[key] = tried.get(key) or check("engine", partial(engine, own))
            yield replace(tried[key], name=f"{party} engine")
        yield check(f"{party} index", partial(index, party, own))
    if len(facts) == len(PARTIES):
        yield check("vocabulary", partial(vocabularies, *facts.values()))
        yield check("templates", partial(templates, *facts.values()))


# ---- the machine ---------------------------------------------------------------------------------------------


def packages() -> str:
    """Every package that Tandem depends on, in a version that it accepts, and of those that extras bring, the ones
    that are here."""
    from packaging.requirements import Requirement

    try:
        requirements = [Requirement(text) for text in metadata.requires(DISTRIBUTION) or []]
    except metadata.PackageNotFoundError:
        finding = f"{DISTRIBUTION} itself is not installed, so they are unknown"
        raise Trouble(finding, "pip install -e .", "weak") from None

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
        raise Trouble("; ".join(problems), install_line("all" if find_spec("torch") else "everyday"))
    optional = ", ".join(f"{name} {_version(name) or 'not installed'}" for name in OPTIONAL)
    return f"all {len(needed)}, with Python {platform.python_version()}; {optional}"


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def judge_size(num_parameters: int) -> str:
    """What to expect of a chat model by its size; "" of one that is large enough."""
    return "" if num_parameters >= SMALL_PARAMETERS else "small: it finds, but often misreads"


def available_bytes() -> int:
    """Free memory, within the limit of the control group if there is one."""
    free: int = psutil.virtual_memory().available
    group = Path("/sys/fs/cgroup")
    try:
        limit, used = ((group / f"memory.{name}").read_text().strip() for name in ("max", "current"))
        return free if limit == "max" else min(free, int(limit) - int(used))
    except (OSError, ValueError):
        return free


class Amount(NamedTuple):
    """Something of which a machine should have enough."""

    name: str
    read: Callable[[], float]
    least: float
    finding: str
    """With {} where the amount is."""
    remedy: str

    def look(self) -> str:
        """How much there is."""
        amount = self.read()
        return expect(amount >= self.least, self.finding.format(amount), self.remedy)


def free_gib(folder: str) -> float:
    """Free space of a folder's disk; 0 where there is none."""
    return shutil.disk_usage(folder).free / GIB if Path(folder).is_dir() else 0.0


AMOUNTS = (
    Amount("cores", count_cores, 2, "{}", "run the two parties on two machines"),
    # Two models, the embedder and Ray's own processes.
    Amount("memory", lambda: available_bytes() / GIB, 3, "{:.1f} GiB free", "free 3 GiB"),
)
FOR_RAY = (
    # Ray's object store; Tandem keeps nothing large in it.
    Amount(
        "/dev/shm", lambda: free_gib("/dev/shm"), 0.25, "{:.1f} GiB free", "in a container: --shm-size=1g"
    ),
    # A node opens some thousand when it is busy; no limit is -1.
    Amount("open files", lambda: getrlimit(RLIMIT_NOFILE)[0] % (1 << 64), 4096, "{}", "ulimit -n 4096"),
    Amount(
        "temporary", lambda: free_gib(gettempdir()), 1, "{:.1f} GiB free", "free 1 GiB there, or set TMPDIR"
    ),
)


def sockets() -> str:
    """Whether the paths of Ray's sockets can be as long as they are."""
    folder = gettempdir()
    return expect(
        len(folder) <= MAX_FOLDER_CHARS, folder, "set TMPDIR to a short path such as /tmp", "missing"
    )


def writable(folder: Path) -> str:
    """Whether a folder, or the nearest one above it that is there, can be written to."""
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        with TemporaryFile(dir=nearest):
            return str(folder)
    except OSError as error:
        remedy = f"correct the permissions of {nearest}"
        raise Trouble(f"{folder} cannot be written ({error.strerror})", remedy) from None


# ---- what the settings name ----------------------------------------------------------------------------------


def language_model(config: PartyConfig) -> str:
    """The language model of a party: a folder, a file, or in the hub's cache."""
    from tandem.corpora import model_path

    check_model(config)
    path = expand(model_path(config.model))
    if file_of(path) is None and not Path(path).is_dir():
        return _from_hub(path, "config.json", f"{RUN_ONCE}, or give a local path")
    conversion = "; converted at its first use" if describe_conversion(config) else ""
    return describe_load(config) + conversion + judge(path, config)


def judge(path: str, config: PartyConfig) -> str:
    """The end of a sentence on a model by its parameters; nothing on a toy, of which its name says all."""
    file = check_file(base_of(path))
    num_parameters = file.num_parameters if file else (count_bytes(path, "float32") or 0) // 4
    if config.model in TOYS or not num_parameters:
        return ""
    judgement = judge_size(num_parameters) or "which read most of what is found"
    return f"; {num_parameters / 1e9:.2g} B parameters, {judgement}"


def index(party: Party, config: PartyConfig) -> str:
    """The index of a party: there, and whole."""
    from tandem.corpora import CORPORA
    from tandem.retrieval.store import verify_index

    if config.num_documents == 0:
        return "not used: the party retrieves no documents"
    if config.index in CORPORA:
        folder = CORPORA[config.index] / party
        if not folder.is_dir() or not any(folder.iterdir()):
            raise Trouble(f"the documents that come with Tandem, {folder}, are not there", INSTALL_AGAIN)
        return f"{config.index}; made at first use"
    if plugin := plugins.split("store", config.index):
        return _plugged(config.index, plugin[1])
    try:
        manifest = verify_index(Path(config.index))
    except (TandemError, OSError) as error:
        raise Trouble(str(error).rstrip("."), f"tandem index {party} PATH --out {config.index}") from None
    return f"{config.index}, {manifest.count} chunks, {manifest.factory}"


def embedder(name: str) -> str:
    """The embedding model: in a folder, in a package, or in the hub's cache."""
    from tandem.config import schema
    from tandem.retrieval import embedding

    if plugin := plugins.split("embedder", name):
        return _plugged(name, plugin[1])
    is_multilingual = name == schema.MULTILINGUAL
    remedy = install_line(name) if is_multilingual else install_model_line(MINILM_PACKAGE)
    try:
        place = embedding.resolve(name)
    except TandemError as error:
        raise Trouble(str(error).rstrip("."), remedy) from None
    if place in (embedding.offline_folder(), embedding.multilingual_folder()):
        package = embedding.MULTILINGUAL_PACKAGE if is_multilingual else MINILM_PACKAGE
        return f"package {package} {_version(package) or '(version unknown)'}"
    return _from_hub(place, "modules.json", f"{remedy}, or {RUN_ONCE}")


def _from_hub(place: str, file: str, remedy: str) -> str:
    """A model in a folder, or in the hub's cache, which has this file."""
    if (Path(place) / file).is_file():
        return place
    if is_cached(place, file):
        return f"{place}, from the hub's cache"
    raise Trouble(f"{place} is not in the hub's cache", remedy, "weak")


def _plugged(where: str, address: str) -> str:
    """A store or embedder of a plugin from the user's function, whose module is not imported here."""
    if not plugins.ADDRESS.fullmatch(address):
        remedy = f"write {where.partition(':')[0]}:MODULE:FUNCTION"
        raise Trouble(f"{where} does not name a function of a module", remedy)
    top = address.partition(":")[0].partition(".")[0]
    if top in sys.modules or find_spec(top) is not None:
        return f"{where}; opened by the party's own node"
    remedy = "install it on the party's node, or put it on PYTHONPATH there"
    raise Trouble(f"{where}: there is no module {top} on this machine", remedy, "weak")


def stored_caches(party: Party, config: Config) -> str:
    """The folder for a party's caches of documents; without it they are computed for each question."""
    from tandem.retrieval.retriever import kv_folder

    own, folder = config.party(party), kv_folder(party, config)
    if own.kv_store != "disk":
        return {"memory": "in memory", "off": "off"}[own.kv_store]
    try:
        writable(folder)
    except Trouble as trouble:
        remedy = f'{trouble.remedy}, or set {party}.kv_store = "memory"'
        raise Trouble(trouble.finding, remedy, "weak") from None
    return str(folder)


# ---- whether the models of both parties can answer together, without their weights ----------------------------


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The facts of one party's model, read without its weights."""

    tokenizer: Tokenizer
    name: str  # of the tokenizer, in words
    template: str
    context_length: int | None


def prompt(party: Party, config: PartyConfig, facts: dict[Party, ModelFacts]) -> str:
    """The tokenizer and template of a party. facts: receives them."""
    own = facts[party] = load_facts(config)
    context = "any length" if own.context_length is None else f"{own.context_length:,} tokens"
    return f"{own.name}; context of {context}; template: {own.template}"


def load_facts(party: PartyConfig) -> ModelFacts:
    """Read what a party's settings name. Raises GenerationError."""
    from tandem.corpora import model_path
    from tandem.engine.places import context_length, load_config, load_tokenizer
    from tandem.engine.prompt import PromptBuilder
    from tandem.engine.template import find_template
    from tandem.engine.tokenizer import describe_tokenizer

    path = expand(model_path(party.model))
    tokenizer, wrapper = load_tokenizer(path, is_local=True)
    template = find_template(party.template, base_of(path), wrapper, party.system_prompt)
    PromptBuilder(tokenizer, template, (), None)  # which refuses a template that cannot be split
    if (file := check_file(base_of(path))) is not None:
        length = file.context_length
    else:
        length = context_length(load_config(path, is_local=True))
    return ModelFacts(tokenizer, describe_tokenizer(tokenizer, wrapper), template.describe(), length)


def vocabularies(device: ModelFacts, cloud: ModelFacts) -> str:
    """Whether tokens mean the same on both sides."""
    from tandem.engine.tokenizer import Detokenizer, find_difference, find_extra

    if difference := find_difference(device.tokenizer, cloud.tokenizer, PARTIES):
        tokenizers = (device.tokenizer, cloud.tokenizer)
        spelled = [map(Detokenizer(each).spell, each.get_vocab().values()) for each in tokenizers]
        one, other = ({bytes(token.utf8) for token in tokens if token.utf8} for tokens in spelled)
        return (
            f"device: {device.name}; cloud: {cloud.name}: {difference}; answers are of {len(one | other):,} pieces of "
            f"text, of which both have {len(one & other):,}, and each model reads what the other writes"
        )
    extra = find_extra(device.tokenizer, cloud.tokenizer, PARTIES)
    return f"{extra}; answers are of the tokens that both have" if extra else "the same on both sides"


def templates(device: ModelFacts, cloud: ModelFacts) -> str:
    """Whether both models are led to answers of one form."""
    if device.template == cloud.template:
        return "of one kind on both sides"
    kinds = f"device: {device.template}; cloud: {cloud.template}"
    remedy = "unless you mean it, set device.template and cloud.template alike"
    raise Trouble(f"{kinds}: the models are led to answers of different forms", remedy, "weak")


# ---- whether the engine computes many queries in one pass, tried on small models -------------------------------


def engine(party: PartyConfig) -> str:
    """Load a party's model and try its batches."""
    from tandem.actors.loading import engine_name, load_engine
    from tandem.corpora import model_path

    dtype = "" if engine_name(party) == "llama" else party.dtype  # llama.cpp computes a file as it is
    num_bytes = count_bytes(expand(model_path(party.model)), dtype)
    if num_bytes is None or num_bytes > MAX_WEIGHT_BYTES:
        size = "in the hub's cache" if num_bytes is None else f"{num_bytes / GIB:.1f} GiB"
        return f"not tried here, since its weights are {size}; `tandem status` shows it once the party is up"
    loaded = load_engine(party)
    about = loaded.describe()
    batches = loaded.fallback.rstrip(".") or "computes many queries in one pass (self-check passed)"
    finding = f"{about['engine']}, {about['dtype']}; {batches}"
    return expect(not loaded.fallback, finding, "for many at once try another dtype, quantisation or model")

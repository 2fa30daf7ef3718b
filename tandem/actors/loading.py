"""Loads what the settings of a party name: its model, the store of its documents' caches, its retriever.

Everything heavy is imported when it is called.
"""

from __future__ import annotations

import gc
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

from tandem.config.schema import Config, PartyConfig
from tandem.corpora import model_path
from tandem.errors import GenerationError, explain_missing

if TYPE_CHECKING:
    from tandem.engine.engine import Engine
    from tandem.engine.kv import DiskStore
    from tandem.retrieval.embedding import TextEmbedder
    from tandem.retrieval.retriever import Scorer

T = TypeVar("T")

PATIENCE_S = 30.0
"""How long another build waits for the process that watches."""
_ONE_AT_A_TIME = Lock()


@contextmanager
def _loading() -> Iterator[None]:
    """Import and load a model alone: PyTorch and transformers change settings of the whole process meanwhile.

    The garbage collector rests: an import makes many objects that stay, and searching them takes a fifth of its time.
    """
    with _ONE_AT_A_TIME:
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if was_enabled:
                gc.enable()


def check_model(party: PartyConfig) -> None:
    """Raise GenerationError if a path is no directory of a model, or its template is damaged; nothing is loaded."""
    from tandem.engine.places import base_of, check_directory, expand
    from tandem.engine.template import check_files

    path = expand(model_path(party.model))
    check_directory(path)
    check_files(party.template, base_of(path))


def engine_name(party: PartyConfig) -> str:
    """The engine that computes a party's model: "torch", "llama" or that of a package. Raises GenerationError."""
    from tandem.engine.places import expand, name_engine

    return name_engine(party.engine, expand(model_path(party.model)), party.torch_device)


def _engine_options(party: PartyConfig) -> dict[str, Any]:
    """What the computed bits depend on besides the model, as `Engine.load` takes it."""
    return {
        "engine": party.engine,
        "template": party.template,
        "system_prompt": party.system_prompt,
        "device": party.torch_device,
        "dtype": party.dtype,
        "gpu_layers": party.gpu_layers,
        "cache_type": party.cache_type,
        "library": party.engine_library,
    }


def engine_key(party: PartyConfig) -> tuple[object, ...]:
    """Equal for parties whose engines compute the same, on one machine."""
    return (party.model, *_engine_options(party).values())


def describe_conversion(party: PartyConfig) -> str:
    """One sentence where loading a party's model has to convert it first; "" where not. Raises GenerationError."""
    from tandem.engine.places import describe_conversion, expand

    return describe_conversion(engine_name(party), expand(model_path(party.model)), party.dtype)


def describe_load(party: PartyConfig) -> str:
    """Which model a party loads, in what precision, and how much of it, where its files are here."""
    from tandem.corpora import describe_model
    from tandem.engine.places import count_bytes, expand

    path, name = expand(model_path(party.model)), describe_model(party.model)
    if engine_name(party) == "llama":
        return f"{name}, {(count_bytes(path) or 0) / 1e6:.0f} MB, with llama.cpp"
    num_bytes = count_bytes(path, party.dtype)
    size = f"{num_bytes / 1e6:.0f} MB of " if num_bytes else ""
    return f"{name}, {size}{party.dtype}"


def load_engine(party: PartyConfig, *, num_threads: int | None = None) -> Engine:
    """The model of a party, without a store. num_threads: default is the setting. Raises GenerationError."""
    with _loading(), explain_missing(f"The model {party.model!r}", GenerationError):
        from tandem.engine.engine import Engine

        return Engine.load(
            model_path(party.model),
            num_threads=num_threads or party.num_threads,
            shares_weights=True,
            **_engine_options(party),
        )


def open_engine(party: PartyConfig, kv_folder: Path, warn: Callable[[str], object]) -> Engine:
    """The model of a party with its store of documents' caches. Raises GenerationError.

    warn: receives a sentence about each thing that the store leaves unused.
    """
    engine = load_engine(party)
    engine.turns.max_bytes = party.turns_max_bytes
    if party.kv_store == "disk":
        engine.caches.store = open_disk_store(party, engine, kv_folder, warn)
    else:
        from tandem.engine.kv import MemoryStore

        engine.caches.store = None if party.kv_store == "off" else MemoryStore(party.kv_max_bytes)
    return engine


def open_disk_store(
    party: PartyConfig, engine: Engine, kv_folder: Path, warn: Callable[[str], object]
) -> DiskStore:
    """The store on disk for the engine of a party."""
    from tandem.engine.kv import DiskStore

    return DiskStore(kv_folder, engine.cache_fingerprint, party.kv_max_bytes, warn, engine.runner.form)


def drop_stale_caches(config: Config, party: str, index: Path) -> None:
    """Remove a party's stored caches if its index changed since: some may belong to documents that it lost."""
    from tandem.retrieval.retriever import kv_folder
    from tandem.retrieval.store import modified_ns

    folder = kv_folder(party, config)
    if folder.exists() and folder.stat().st_mtime_ns < modified_ns(index):
        shutil.rmtree(folder, ignore_errors=True)  # which does not disturb those that read it


def patiently(directory: Path, work: Callable[[], T]) -> T:
    """What `work` on an index returns, which may have to wait for the process that watches it. Raises IndexBusyError
    where it waits too long, or another one builds."""
    from tandem.retrieval import store

    for _ in range(int(PATIENCE_S / store.BUSY_S)):
        try:
            return work()
        except store.IndexBusyError:
            if store.watched_since(directory) is None:
                raise
            time.sleep(store.BUSY_S)
    return work()


def load_embedder(config: Config, *, num_threads: int | None = None) -> TextEmbedder:
    """Load the embedder. Raises RetrievalError."""
    with _loading():
        from tandem.retrieval import embedding

        return embedding.load_embedder(config.retrieval.embedder, num_threads=num_threads)


def load_embedder_and_scorer(
    config: Config, *, num_threads: int | None = None
) -> tuple[TextEmbedder, Scorer | None]:
    """Load the embedder and the scoring model; no scorer where the embedder does both. Raises RetrievalError."""
    embedder = load_embedder(config, num_threads=num_threads)
    with _loading():
        from tandem.retrieval.retriever import load_scorer

        return embedder, load_scorer(config.weights.scorer, num_threads=num_threads)

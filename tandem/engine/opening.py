"""Opens one side's engine and the store of its documents' caches, as the settings say.

Knows nothing of indexes or actors: the store's folder comes as an argument.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tandem.config import PartyConfig
from tandem.corpora import model_path
from tandem.engine.engine import Engine
from tandem.engine.prefix_files import PrefixFiles
from tandem.engine.prefixes import MemoryPrefixes


def open_engine(party: PartyConfig, kv_folder: Path, warn: Callable[[str], object]) -> Engine:
    """The model of a side with its store. warn: is told in one sentence what the store leaves unused.

    Raises GenerationError.
    """
    engine = load_engine(party)
    if party.kv_store == "disk":
        files = open_files(party, engine, kv_folder, warn)
        if files.is_of_another_model():
            warn(
                f"The key-value store {kv_folder} was made by another model, precision, number of threads or "
                "version of PyTorch, and is not used; make it anew with `tandem index --kv`, or let documents be "
                "computed at their first use."
            )
        engine.prefixes.store = files
    elif party.kv_store == "memory":
        engine.prefixes.store = MemoryPrefixes(party.kv_max_bytes)
    return engine


def load_engine(party: PartyConfig) -> Engine:
    """The model of a side without a store. Raises GenerationError."""
    return Engine.load(
        model_path(party.model), device=party.torch_device, dtype=party.dtype, num_threads=party.num_threads
    )


def open_files(
    party: PartyConfig, engine: Engine, kv_folder: Path, warn: Callable[[str], object]
) -> PrefixFiles:
    """The store on disk for the engine of a side."""
    return PrefixFiles(kv_folder, engine.computing_fingerprint, party.kv_max_bytes, warn)

"""Opens one side's engine and the store of its documents' caches, as the settings say.

Knows nothing of indexes or actors: the store's folder comes as an argument.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tandem.config import SideConfig
from tandem.generation.engine import Engine
from tandem.generation.prefix_files import PrefixFiles
from tandem.generation.prefixes import MemoryPrefixes
from tandem.reader import model_path


def open_engine(side: SideConfig, kv_folder: Path, warn: Callable[[str], object]) -> Engine:
    """The model of a side with its store. warn: is told in one sentence what the store leaves unused.

    Raises GenerationError.
    """
    engine = load_engine(side)
    if side.kv_store == "disk":
        files = open_files(side, engine, kv_folder, warn)
        if files.is_of_another_model():
            warn(
                f"The key-value store {kv_folder} was made by another model, precision, number of threads or "
                "version of PyTorch, and is not used; make it anew with `tandem index --kv`, or let documents be "
                "computed at their first use."
            )
        engine.prefixes.store = files
    elif side.kv_store == "memory":
        engine.prefixes.store = MemoryPrefixes(side.kv_max_bytes)
    return engine


def load_engine(side: SideConfig) -> Engine:
    """The model of a side without a store. Raises GenerationError."""
    return Engine.load(
        model_path(side.model), device=side.torch_device, dtype=side.dtype, num_threads=side.num_threads
    )


def open_files(
    side: SideConfig, engine: Engine, kv_folder: Path, warn: Callable[[str], object]
) -> PrefixFiles:
    """The store on disk for the engine of a side."""
    return PrefixFiles(kv_folder, engine.computing_fingerprint, side.kv_max_bytes, warn)

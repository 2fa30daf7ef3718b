"""What `tandem doctor` finds out about the engine: whether it computes many queries in one pass on this machine.

That is tried on the model itself, so small models are loaded; for large ones `tandem status` shows it once they run.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tandem.cli.checks import GIB, Check, ok, refused, weak
from tandem.corpora import model_path
from tandem.engine import gguf
from tandem.engine.places import expand_home
from tandem.errors import GenerationError
from tandem.topology import Party

if TYPE_CHECKING:
    from tandem.config.schema import Config, PartyConfig

MAX_WEIGHT_BYTES = GIB
"""Larger models are not loaded for the check."""
BATCHED = "computes many queries in one pass (self-check passed)"
NOT_LOADED = "not tried here, since its weights are {}; `tandem status` shows it once the party is up"


def check_engines(config: Config, present: tuple[Party, ...]) -> list[Check]:
    """The self-check of each party's engine whose model is on this machine; equal settings are tried once."""
    found: dict[object, Check] = {}
    results = []
    for party in present:
        settings = config.party(party)
        name = f"{party} engine"
        key = (settings.model, settings.torch_device, settings.dtype, settings.template)
        if key not in found:
            found[key] = check_engine(name, settings)
        check = found[key]
        results.append(Check(name=name, status=check.status, found=check.found, remedy=check.remedy))
    return results


def check_engine(name: str, party: PartyConfig) -> Check:
    """Load a party's model and try its batches."""
    path = expand_home(model_path(party.model))
    file = gguf.find_file(path)
    if file is None and not Path(path).is_dir():
        return ok(name, NOT_LOADED.format("in the hub's cache"))
    if file is not None:
        num_bytes = gguf.check(file).memory_bytes(party.dtype)
    else:
        weights = (file for kind in ("safetensors", "bin") for file in Path(path).glob(f"*.{kind}"))
        num_bytes = sum(file.stat().st_size for file in weights)
    if num_bytes > MAX_WEIGHT_BYTES:
        return ok(name, NOT_LOADED.format(f"{num_bytes / GIB:.1f} GiB"))
    from tandem.actors.loading import load_engine

    try:
        engine = load_engine(party)
    except GenerationError as error:
        return refused(name, error)
    if engine.fallback:
        problem = engine.fallback.partition("; ")[0]
        return weak(name, problem, "nothing for right answers; for many at once try another dtype or model")
    return ok(name, BATCHED)

"""Offline profiles on disk: one JSON file per model, machine, torch device, precision, threads and batch size.

A file that is damaged or has another key is never used. Reads the model's configuration and the sizes of its weights,
but does not load it.
"""

from __future__ import annotations

import json
import os
import platform
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tandem.config.schema import PartyConfig
from tandem.corpora import model_path
from tandem.errors import TandemError
from tandem.profiler.offline import OfflineProfile

FORMAT = 1
PACKAGES = ("tandem-rag", "torch", "transformers")
WEIGHT_FILES = ("*.safetensors", "*.bin")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileKey:
    """Everything that makes two profiles comparable. Two checkpoints of one shape take the same time."""

    model: str  # fingerprint, see `model_fingerprint`
    machine: str  # processor, cores, graphics card
    torch_device: str
    dtype: str
    num_threads: int
    num_documents: int  # batch rows; 0 is one row without a document


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredProfile:
    """A profile and what it was measured for."""

    key: ProfileKey
    model: str  # as the settings name it
    versions: dict[str, str]
    profile: OfflineProfile


def profile_key(party: PartyConfig) -> ProfileKey:
    """The key of one party's settings on this machine."""
    return ProfileKey(
        model=model_fingerprint(model_path(party.model)),
        machine=machine(party.torch_device),
        torch_device=party.torch_device,
        dtype=party.dtype,
        num_threads=party.num_threads,
        num_documents=party.num_documents,
    )


def model_fingerprint(model: str) -> str:
    """Hash of config.json and of the names and sizes of the weight files: what speed depends on, without reading them.

    Moving or copying the directory does not change it. A hub model that is not downloaded has only its name.
    """
    directory = _directory(model)
    if directory is None:
        return _digest(f"name {model}")
    try:
        config = (directory / "config.json").read_bytes()
        files = sorted(
            (path.name, path.stat().st_size) for pattern in WEIGHT_FILES for path in directory.glob(pattern)
        )
    except OSError:
        return _digest(f"name {model}")  # loading the model reports what is wrong
    return _digest(f"{sha256(config).hexdigest()} {files}")


def machine(torch_device: str) -> str:
    """Processor and cores of this machine, and its graphics card if the model runs there."""
    name = f"{processor_name()}, {os.cpu_count()} cores"
    return f"{name}, {_graphics_card(torch_device)}" if torch_device.startswith("cuda") else name


def profile_path(key: ProfileKey, folder: Path) -> Path:
    """The file of a profile in Tandem's cache `folder`."""
    return folder / "profiles" / f"{_digest(json.dumps(asdict(key), sort_keys=True))}.json"


def stored(key: ProfileKey, model: str, profile: OfflineProfile) -> StoredProfile:
    """A profile and what it was measured for. model: as the settings name it."""
    return StoredProfile(key=key, model=model, versions=_versions(), profile=profile)


def save(value: StoredProfile, folder: Path) -> Path:
    """Write a profile atomically, so that a reader sees either the old file or the new one. Raises TandemError."""
    path = profile_path(value.key, folder)
    text = json.dumps({"format": FORMAT, **_values(value)}, indent=1)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, delete=False) as file:
            try:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
                os.replace(file.name, path)
            except BaseException:
                os.unlink(file.name)
                raise
    except OSError as error:
        raise TandemError(
            f"The profile folder {path.parent} cannot be written ({error.strerror}); "
            "set XDG_CACHE_HOME to a writable folder."
        ) from None
    return path


def load(key: ProfileKey, folder: Path, warn: Callable[[str], object]) -> StoredProfile | None:
    """The profile of `key`, or None; `warn` receives one sentence about a file that cannot be used."""
    path = profile_path(key, folder)
    try:
        return _read(json.loads(path.read_text("utf-8")), key)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, RecursionError, TandemError) as error:
        reason = str(error).partition(";")[0].strip().rstrip(".") or type(error).__name__
        warn(
            f"The profile {path} was ignored because it is damaged or of another kind ({reason}); measure again."
        )
        return None


def cached_line(party: PartyConfig, folder: Path, warn: Callable[[str], object]) -> list[float]:
    """[k_a, k_b, k_c, start] of the profile of one party's settings on this machine; [] if there is none."""
    profile = load(profile_key(party), folder, warn)
    return [] if profile is None else list(profile.profile.line.to_tuple())


def _read(value: Any, key: ProfileKey) -> StoredProfile:
    """A checked profile from parsed JSON. Raises ValueError, TypeError, KeyError or TandemError."""
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise ValueError(f"it does not say format {FORMAT}")
    if value["key"] != asdict(key):
        raise ValueError("it was measured with other settings")
    numbers = value["profile"]
    counts = {name: _int(numbers[name]) for name in ("prompt_tokens", "rows", "runs")}
    profile = OfflineProfile(
        **counts,
        lengths=tuple(map(_int, numbers["lengths"])),
        seconds=tuple(map(_float, numbers["seconds"])),
    )
    _ = profile.line  # raises where the points allow none
    versions = {str(name): str(text) for name, text in dict(value["versions"]).items()}
    return StoredProfile(key=key, model=str(value["model"]), versions=versions, profile=profile)


def _values(value: StoredProfile) -> dict[str, Any]:
    """A profile for JSON, without the line, which follows from the points."""
    return {
        "key": asdict(value.key),
        "model": value.model,
        "versions": value.versions,
        "profile": asdict(value.profile),
    }


def _directory(model: str) -> Path | None:
    """Where a model's files are; None for a hub model that is not on this machine."""
    path = Path(model).expanduser()
    if path.is_dir():
        return path
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        config = try_to_load_from_cache(model, "config.json")
    except HFValidationError:  # a path that is no directory
        return None
    return Path(config).parent if isinstance(config, str) else None


def processor_name() -> str:
    """What this machine calls its processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _graphics_card(torch_device: str) -> str:
    import torch

    try:
        return str(torch.cuda.get_device_name(torch_device))
    except (RuntimeError, AssertionError, ValueError):
        return "no graphics card"  # loading the model reports what is wrong


def _versions() -> dict[str, str]:
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "unknown"
    return versions


def _int(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"expected a count, got {value!r}")
    return value


def _float(value: Any) -> float:
    if type(value) not in (int, float):
        raise ValueError(f"expected a number, got {value!r}")
    return float(value)


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:16]

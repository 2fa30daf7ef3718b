"""Profiles of the offline stage: how long one party's model takes per token, over the length of its context, and the
file that keeps one for a machine and its settings. `tandem model profile` measures them (DRAGON 5.2).
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from math import fsum, nan, sqrt
from pathlib import Path
from typing import Annotated

from annotated_types import Ge
from pydantic import TypeAdapter, ValidationError

from tandem.config.schema import PartyConfig
from tandem.corpora import model_path
from tandem.engine.places import expand, name_engine
from tandem.errors import TandemError
from tandem.profiler.estimates import DecodeLine
from tandem.system.paths import write_whole

Count = Annotated[int, Ge(0)]


@dataclass(frozen=True, kw_only=True)
class OfflineProfile:
    """Measured decode times, and the line fitted to them."""

    prompt_tokens: Count  # M: the longest row before decoding began
    rows: Count  # batch size
    runs: Count  # times the whole context was decoded
    lengths: tuple[Count, ...]  # [steps]: context length t of each step, the token fed included
    seconds: tuple[float, ...]  # [steps]: median over runs of the time of that step

    @cached_property
    def line(self) -> DecodeLine:
        """The least-squares line. Raises TandemError if the measurements do not determine one."""
        return DecodeLine.fit(self.lengths, self.seconds, start=self.prompt_tokens)

    @property
    def residual_s(self) -> float:
        """Root mean square distance of the steps from the line, in seconds."""
        return sqrt(self._squares(self.line.predict) / len(self.seconds))

    @property
    def r_squared(self) -> float:
        """Share of the variance that the line explains; nan if all steps took the same time."""
        mean_s = fsum(self.seconds) / len(self.seconds)
        total = self._squares(lambda _t: mean_s)
        return 1 - self._squares(self.line.predict) / total if total else nan

    def _squares(self, predict: Callable[[float], float]) -> float:
        return fsum((c - predict(t)) ** 2 for t, c in zip(self.lengths, self.seconds, strict=True))


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
    engine: str = "torch"
    """And what concerns it alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredProfile:
    """A profile and what it was measured for. The line is not stored: it follows from the points."""

    key: ProfileKey
    model: str  # as the settings name it
    versions: dict[str, str]
    profile: OfflineProfile
    format: int = FORMAT


_STORED = TypeAdapter(StoredProfile)


def profile_key(party: PartyConfig) -> ProfileKey:
    """The key of one party's settings on this machine."""
    name = name_engine(party.engine, expand(model_path(party.model)), party.torch_device)
    return ProfileKey(
        model=model_fingerprint(model_path(party.model)),
        machine=machine(party.torch_device),
        torch_device=party.torch_device,
        dtype=party.dtype,
        num_threads=party.num_threads,
        num_documents=party.num_documents,
        engine=name if name == "torch" else f"{name} {party.gpu_layers} {party.cache_type}",
    )


def model_fingerprint(model: str) -> str:
    """Hash of config.json and of the names and sizes of the weight files: what speed depends on, without reading them.

    Moving or copying the directory does not change it. A GGUF file has its name and size, a hub model that is not
    downloaded only its name.
    """
    if (file := Path(model).expanduser()).is_file():
        return _digest(f"file {file.name} {file.stat().st_size}")
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
    text = json.dumps(asdict(value), indent=1)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text.encode())
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
        return _read(path.read_bytes(), key)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TandemError) as error:
        reason = str(error).strip().rstrip(".") or type(error).__name__
        warn(
            f"The profile {path} was ignored because it is damaged or of another kind ({reason}); measure again."
        )
        return None


def cached_line(party: PartyConfig, folder: Path, warn: Callable[[str], object]) -> list[float]:
    """[k_a, k_b, k_c, start] of the profile of one party's settings on this machine; [] if there is none."""
    profile = load(profile_key(party), folder, warn)
    return [] if profile is None else list(profile.profile.line.to_tuple())


def _read(text: bytes, key: ProfileKey) -> StoredProfile:
    """A checked profile from JSON. Raises ValueError or TandemError."""
    try:
        value = _STORED.validate_json(text, strict=True)
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]
        raise ValueError(f"{'.'.join(map(str, wrong['loc']))}: {wrong['msg']}".removeprefix(": ")) from None
    if value.format != FORMAT:
        raise ValueError(f"it does not say format {FORMAT}")
    if value.key != key:
        raise ValueError("it was measured with other settings")
    _ = value.profile.line  # raises where the points allow none
    return value


def _directory(model: str) -> Path | None:
    """The folder of a model's files; None for a hub model that is not on this machine."""
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
    """The name of this machine's processor."""
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


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:16]

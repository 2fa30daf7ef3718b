"""The profiler's offline stage: how long one party's model takes per token, over the length of its context.

A session of dummy documents is decoded to the end of the context several times, and a line is fitted to the decode
times (DRAGON 5.2). Works on a loaded engine with the caller's clock.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from math import ceil, fsum, nan, sqrt
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from annotated_types import Ge
from pydantic import TypeAdapter, ValidationError

from tandem.config.schema import PartyConfig
from tandem.corpora import model_path
from tandem.engine.places import expand, name_engine
from tandem.errors import TandemError
from tandem.profiler.estimates import DecodeLine
from tandem.system.paths import write_whole
from tandem.topology import Party

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from tandem.engine.drafter import Drafter
    from tandem.engine.engine import Engine


QUERY = "What is it?"
"""Every row ends with a question; the paper's dummy rows have none, so it is short."""

NUM_WARM_UP = 8
"""Tokens decoded before the first that counts."""

LONGEST = 2048
"""Default limit for models with a longer context, or without one, in tokens."""

DraftToken = Callable[[Any, int], int]
"""(logits [rows, vocab], step) -> token: what a decoder does after each forward pass."""


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


def measure(
    engine: Engine,
    *,
    num_documents: int,
    chunk_tokens: int,
    max_new: int,
    draft: DraftToken,
    clock: Callable[[], float],
    limit: int | None = None,
    runs: int = 3,
    progress: Callable[[int, int], None] = lambda done, total: None,
    seed: int = 0,
) -> OfflineProfile:
    """Decode token by token from dummy documents to the full context, `runs` times; DRAGON 5.2, offline stage.

    num_documents: rows; 0 is one row without a document. chunk_tokens: length of a dummy document. max_new: room
    reserved for an answer, as in a real session; documents too long for that are cut. clock: monotonic seconds. limit:
    context length to stop at, if below the model's (default: LONGEST). progress: called with (tokens decoded, tokens in
    total). Raises TandemError if fewer than two tokens fit.
    """
    if runs < 1:
        raise TandemError(f"A profile needs at least 1 run, got {runs}; raise runs.")
    documents = dummy_documents(engine, num_documents, chunk_tokens, seed)
    prompt_tokens, rows = _measure_prompt(engine, documents, max_new)
    steps = _end(engine, limit) - prompt_tokens
    if steps < 2:
        raise TandemError(
            f"A profile needs at least 2 tokens, but the context ends at {prompt_tokens + steps} and the prompt "
            f"has {prompt_tokens}; raise the limit or use a model with a longer context."
        )
    _run(engine, documents, min(NUM_WARM_UP, steps), draft, clock, lambda: None)
    reporter = _Counter(progress, runs * steps)
    times = [_run(engine, documents, steps, draft, clock, reporter) for _ in range(runs)]
    return OfflineProfile(
        prompt_tokens=prompt_tokens,
        rows=rows,
        runs=runs,
        lengths=tuple(range(prompt_tokens + 1, prompt_tokens + steps + 1)),
        seconds=tuple(median(step) for step in zip(*times, strict=True)),
    )


def measure_drafting(drafter: Drafter, party: Party) -> DraftToken:
    """The decoder's work after each forward pass, so that a profile times a whole draft."""

    def draft(logits: Any, step: int) -> int:
        return drafter.draft(logits, [0.0] * logits.shape[0], seed=0, step=step, party=party).token

    return draft


def row_tokens(engine: Engine, texts: Sequence[str], num_documents: int) -> int:
    """Expected length in tokens of a batch of `num_documents` chunks drawn from `texts`.

    A batch is as long as its longest row, which on average has rank n / (n + 1) among n.
    """
    tokenizer = _tokenizer(engine)
    lengths = sorted(len(tokenizer.encode(text, add_special_tokens=False).ids) for text in texts)
    rank = ceil(len(lengths) * num_documents / (num_documents + 1))
    return lengths[max(0, rank - 1)] if lengths else 0


def dummy_documents(engine: Engine, count: int, num_tokens: int, seed: int) -> list[str]:
    """`count` texts of random tokens, each of about `num_tokens`: a cut token may merge with its neighbour."""
    tokenizer, rng = _tokenizer(engine), np.random.default_rng(seed)
    return [_dummy(engine, tokenizer, num_tokens, rng) for _ in range(count)]


def _dummy(engine: Engine, tokenizer: Tokenizer, num_tokens: int, rng: np.random.Generator) -> str:
    text = ""
    for _ in range(64):  # special tokens have no text, so one round may be too short
        encoding = tokenizer.encode(text, add_special_tokens=False)
        if len(encoding.ids) >= num_tokens:
            return text[: encoding.offsets[num_tokens - 1][1]] if num_tokens else ""
        text += engine.text([int(token) for token in rng.integers(engine.vocab_size, size=num_tokens)])
    return text


def _tokenizer(engine: Engine) -> Tokenizer:
    from tokenizers import Tokenizer

    return Tokenizer.from_str(engine.tokenizer_json)


def _measure_prompt(engine: Engine, documents: Sequence[str], max_new: int) -> tuple[int, int]:
    """Length of the longest row, in tokens, and number of rows."""
    opened = engine.open("profile", QUERY, documents, max_new)
    engine.close("profile")
    return max(opened.num_prompt_tokens), opened.num_rows


def _end(engine: Engine, limit: int | None) -> int:
    """The context length to decode to."""
    wanted = LONGEST if limit is None else limit
    return wanted if engine.context_length is None else min(wanted, engine.context_length)


class _Counter:
    def __init__(self, progress: Callable[[int, int], None], total: int) -> None:
        self._progress, self._total = progress, total
        self._done = 0

    def __call__(self) -> None:
        self._done += 1
        self._progress(self._done, self._total)


def _run(
    engine: Engine,
    documents: Sequence[str],
    steps: int,
    draft: DraftToken,
    clock: Callable[[], float],
    on_step: Callable[[], None],
) -> list[float]:
    """Seconds of each of `steps` drafts after the first, which comes with the prefill."""
    engine.open("profile", QUERY, documents, steps)
    seconds = []
    try:
        tokens = [draft(engine.next_logits("profile", []), 0)]
        for step in range(1, steps + 1):
            started_s = clock()
            tokens.append(draft(engine.next_logits("profile", tokens, is_stale=_never), step))
            seconds.append(clock() - started_s)
            on_step()
    finally:
        engine.close("profile")
    return seconds


def _never() -> bool:
    """The real decoder checks before each layer whether the pass is still wanted, so this is timed too."""
    return False


# ---- Offline profiles on disk ------------------------------------------------------------------------------


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

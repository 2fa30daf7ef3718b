"""`tandem profile`: how long a side's model takes for a token on this machine, measured once and kept."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tandem.cli.bar import Bar
from tandem.cli.terminal import Progress, plural, print_json, settings
from tandem.config import LANGCHAIN, Config
from tandem.errors import TandemError
from tandem.topology import PARTIES, Party

if TYPE_CHECKING:
    from tandem.engine.engine import Engine
    from tandem.profiler.cache import StoredProfile

DEFAULT_RUNS = 3
MAX_TEXTS = 500
"""Chunks of an index that are looked at for their length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One side's profile and where it is kept."""

    stored: StoredProfile
    path: Path
    is_cached: bool


def run(args: Namespace) -> int:
    """Measures what is not measured yet and prints the lines. Raises TandemError."""
    progress = Progress(is_quiet=args.json)
    config = settings(args, (), progress)
    plot = _plot_target(args.plot)
    parties = PARTIES if args.party == "both" else (Party(args.party),)
    results = {party: _profile(party, config, args, progress) for party in parties}
    if plot is not None:
        from tandem.cli.profile_plot import draw

        draw({party: each.stored for party, each in results.items()}, plot)
    if args.json:
        print_json({str(party): _plain(each) for party, each in results.items()})
        return 0
    for party, each in results.items():
        _print(party, each)
    if plot is not None:
        print(f"Plot: {plot}")
    return 0


def _profile(party: Party, config: Config, args: Namespace, progress: Progress) -> Result:
    """From the cache, or measured now and put there."""
    from tandem.paths import cache_folder
    from tandem.profiler import cache

    settings_of_party, folder = config.party(party), cache_folder()
    key = cache.profile_key(settings_of_party)
    warn = partial(_warn, progress)
    found = None if args.again else cache.load(key, folder, warn)
    if found is not None and _reaches(found, args):
        return Result(stored=found, path=cache.profile_path(key, folder), is_cached=True)
    engine = _engine(party, config, progress)
    profile = _measured(engine, party, config, args, progress)
    # A hub model that was downloaded just now has another fingerprint than before.
    stored = cache.stored(cache.profile_key(settings_of_party), settings_of_party.model, profile)
    return Result(stored=stored, path=cache.save(stored, folder), is_cached=False)


def _reaches(found: StoredProfile, args: Namespace) -> bool:
    """Whether a cached profile is no smaller than what the command line asks for, if it does ask."""
    profile = found.profile
    is_long = args.limit is None or profile.lengths[-1] >= args.limit
    return is_long and (args.runs is None or profile.runs >= args.runs)


def _engine(party: Party, config: Config, progress: Progress) -> Engine:
    from tandem.loading import load_engine

    chosen = config.party(party)
    progress(f"{party}: loading {chosen.model} on {chosen.torch_device}, {chosen.dtype}")
    return load_engine(chosen)


def _measured(engine: Engine, party: Party, config: Config, args: Namespace, progress: Progress) -> Any:
    from tandem.codecs import codec_of
    from tandem.engine.drafter import Drafter
    from tandem.profiler import offline

    sampling = config.sampling
    num_documents = config.party(party).num_documents
    chunk_tokens = offline.row_tokens(engine, _texts(party, config), num_documents)
    progress(f"{party}: {plural(num_documents, 'dummy document')} of {chunk_tokens} tokens")
    drafter = Drafter(codec_of(config.codec), sampling, config.decoding.draft_rule)
    return offline.measure(
        engine,
        num_documents=num_documents,
        chunk_tokens=chunk_tokens,
        max_new=sampling.max_new_tokens,
        draft=offline.measure_drafting(drafter, party),
        clock=time.perf_counter,
        limit=args.limit,
        runs=args.runs or DEFAULT_RUNS,
        progress=Bar(party, is_quiet=args.json),
    )


def _texts(party: Party, config: Config) -> Sequence[str]:
    """Chunks of a side's index, for their length."""
    from tandem.retrieval import Index, load_path, split
    from tandem.retrieval.factory import BUNDLED

    where = config.party(party).index
    if where == "bundled":  # its files are its chunks, and need no embedder
        lengths = config.retrieval
        chunks = split(load_path(BUNDLED / party).documents, lengths.chunk_chars, lengths.chunk_overlap)
        return [each.page_content for each in chunks[:MAX_TEXTS]]
    if where.startswith(LANGCHAIN):
        raise TandemError(
            f"A profile takes the length of documents from an index, but {where} is a vector store; profile with "
            f"--set {party}.index=bundled."
        )
    index = Index.open(Path(where))
    stride = max(1, len(index) // MAX_TEXTS)
    return [index.document(row).page_content for row in range(0, len(index), stride)]


def _plot_target(text: str | None) -> Path | None:
    """Where the plot goes, checked before anything takes its time."""
    if text is None:
        return None
    from tandem.cli.profile_plot import check_target

    path = Path(text).expanduser().absolute()
    check_target(path)
    return path


def _print(party: Party, result: Result) -> None:
    stored, profile = result.stored, result.stored.profile
    line, key = profile.line, result.stored.key
    print(
        f"{party:<8} {line.predict(line.start) * 1e3:.2f} ms a token after a prompt of {line.start:.0f} tokens, "
        f"{line.slope * 1e6:+.2f} ms for each 1000 more"
    )
    fit = f"residual {profile.residual_s * 1e3:.2f} ms, R\u00b2 {profile.r_squared:.2f}"
    print(f"         {fit}; {plural(len(profile.lengths), 'token')} x {plural(profile.runs, 'run')}")
    how = f"{key.torch_device}, {key.dtype}, {plural(key.num_threads, 'thread')}"
    print(f"         {stored.model}, {plural(profile.rows, 'row')}, {how}, {key.machine}")
    if line.slope < 0:
        print(
            "         the line falls, so this machine was busy or the context too short; measure with --again"
        )
    where = f"was measured before, in {result.path}; --again measures anew"
    print(f"         {where if result.is_cached else f'kept in {result.path}'}")


def _plain(result: Result) -> dict[str, Any]:
    stored, profile = result.stored, result.stored.profile
    line = profile.line
    return {
        "line": asdict(line),
        "start_s": line.predict(line.start),
        "slope_s": line.slope,
        "residual_s": profile.residual_s,
        "r_squared": profile.r_squared,
        "model": stored.model,
        "key": asdict(stored.key),
        "versions": stored.versions,
        **asdict(profile),
        "path": str(result.path),
        "is_cached": result.is_cached,
    }


def _warn(progress: Progress, sentence: str) -> None:
    progress(f"cache: {sentence}")

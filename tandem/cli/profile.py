"""`tandem profile`: how long a party's model takes per token on this machine, measured once and kept."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tandem.cli.options import AsJson, ConfigFile, Overrides, load_settings, parse_count, with_models
from tandem.cli.output import StageLog, plural, print_json, progress_bar
from tandem.errors import TandemError
from tandem.topology import PARTIES, Party

if TYPE_CHECKING:
    from tandem.config.schema import Config
    from tandem.engine.engine import Engine
    from tandem.profiler.offline import StoredProfile

DEFAULT_RUNS = 3
MAX_TEXTS = 500
"""Chunks of an index that are looked at for their length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One party's profile and where it is kept."""

    stored: StoredProfile
    path: Path
    is_cached: bool


def parse_parties(text: str) -> str:
    """The name of a party, or "both". Raises a usage error."""
    if text not in {*PARTIES, "both"}:
        raise typer.BadParameter(f"must be device, cloud or both (got {text!r})")
    return text


Parties = Annotated[
    str,
    typer.Argument(
        metavar="PARTY",
        parser=parse_parties,
        help="device, cloud or both, one after the other (default: both)",
        show_default=False,
    ),
]
Runs = Annotated[
    int | None,
    typer.Option(metavar="N", parser=parse_count, help="take medians over N runs (default: 3)"),
]
Limit = Annotated[
    int | None,
    typer.Option(
        metavar="TOKENS",
        parser=parse_count,
        help="context length to stop at (default: the model's, at most 2048)",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="measure even if there is a cached profile")]
Plot = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="draw points and lines, as png, pdf or svg (needs matplotlib)"),
]


@with_models
def profile(
    name: Parties = "both",
    runs: Runs = None,
    limit: Limit = None,
    force: Force = False,
    plot: Plot = None,
    as_json: AsJson = False,
    config_file: ConfigFile = None,
    overrides: Overrides = None,
) -> int:
    """Measure how long a party's model takes per token on this machine."""
    log = StageLog(is_quiet=as_json)
    config = load_settings(config_file, overrides, log=log)
    target = _plot_target(plot)
    results = {}
    for party in PARTIES if name == "both" else (Party(name),):
        cached = None if force else _find_cached(party, config, log, runs, limit)
        results[party] = cached or _measure(party, config, log, runs, limit, is_quiet=as_json)
    if target is not None:
        from tandem.cli.profile_plot import draw

        draw({party: result.stored for party, result in results.items()}, target)
    if as_json:
        print_json({str(party): _as_dict(result) for party, result in results.items()})
        return 0
    for party, result in results.items():
        _print(party, result)
    if target is not None:
        print(f"Plot: {target}")
    return 0


def _find_cached(
    party: Party, config: Config, log: StageLog, runs: int | None, limit: int | None
) -> Result | None:
    """The cached profile, unless the command line asks for a longer one or for more runs."""
    from tandem.profiler import offline
    from tandem.system.paths import cache_folder

    key, folder = offline.profile_key(config.party(party)), cache_folder()
    stored = offline.load(key, folder, lambda sentence: log(f"cache: {sentence}"))
    if stored is None or stored.profile.lengths[-1] < (limit or 0) or stored.profile.runs < (runs or 0):
        return None
    return Result(stored=stored, path=offline.profile_path(key, folder), is_cached=True)


def _measure(
    party: Party,
    config: Config,
    log: StageLog,
    runs: int | None,
    limit: int | None,
    *,
    is_quiet: bool,
) -> Result:
    """Measures and keeps a profile. Raises TandemError."""
    from tandem.client.request import spec_of
    from tandem.codecs import codec_of
    from tandem.engine.drafter import Drafter
    from tandem.profiler import offline
    from tandem.system.paths import cache_folder

    own, sampling = config.party(party), config.sampling
    engine = _load_engine(party, config, log)
    chunk_tokens = offline.row_tokens(engine, _texts(party, config), own.num_documents)
    log(f"{party}: {plural(own.num_documents, 'dummy document')} of {chunk_tokens} tokens")
    codec = spec_of(config).rules.codec_of_votes(codec_of(config.codec))
    drafter = Drafter(codec, sampling, config.decoding.draft_rule, engine.vocab_size)
    with progress_bar(party, is_quiet=is_quiet) as advance:
        measured = offline.measure(
            engine,
            num_documents=own.num_documents,
            chunk_tokens=chunk_tokens,
            max_new=sampling.max_new_tokens,
            draft=offline.measure_drafting(drafter, party),
            clock=time.perf_counter,
            limit=limit,
            runs=runs or DEFAULT_RUNS,
            progress=advance,
        )
    # A hub model that was downloaded just now has another fingerprint than before.
    stored = offline.stored(offline.profile_key(own), own.model, measured)
    return Result(stored=stored, path=offline.save(stored, cache_folder()), is_cached=False)


def _load_engine(party: Party, config: Config, log: StageLog) -> Engine:
    from tandem.actors.loading import load_engine

    own = config.party(party)
    log(f"{party}: loading {own.model} on {own.torch_device}, {own.dtype}")
    return load_engine(own)


def _texts(party: Party, config: Config) -> Sequence[str]:
    """Chunks of a party's index, for their length."""
    from tandem.config.schema import LANGCHAIN
    from tandem.corpora import CORPORA
    from tandem.retrieval import Index, load_path, split

    where = config.party(party).index
    if where in CORPORA:  # its files are its chunks, and need no embedder
        lengths = config.retrieval
        chunks = split(
            load_path(CORPORA[where] / party).documents, lengths.chunk_chars, lengths.chunk_overlap
        )
        return [chunk.page_content for chunk in chunks[:MAX_TEXTS]]
    if where.startswith(LANGCHAIN):
        raise TandemError(
            f"A profile takes the length of documents from an index, but {where} is a vector store; profile with "
            f"--set {party}.index=bundled."
        )
    index = Index.open(Path(where))
    stride = max(1, len(index) // MAX_TEXTS)
    return [index.document(row).page_content for row in range(0, len(index), stride)]


def _plot_target(file: str | None) -> Path | None:
    """Where the plot goes, checked before anything takes its time."""
    if file is None:
        return None
    from tandem.cli.profile_plot import check_target

    path = Path(file).expanduser().absolute()
    check_target(path)
    return path


def _print(party: Party, result: Result) -> None:
    stored, profile = result.stored, result.stored.profile
    line, key = profile.line, result.stored.key
    print(
        f"{party:<8} {line.predict(line.start) * 1e3:.2f} ms per token after a prompt of {line.start:.0f} tokens, "
        f"{line.slope * 1e6:+.2f} ms per 1000 more"
    )
    fit = f"residual {profile.residual_s * 1e3:.2f} ms, R\u00b2 {profile.r_squared:.2f}"
    print(f"         {fit}; {plural(len(profile.lengths), 'token')} x {plural(profile.runs, 'run')}")
    setup = f"{key.torch_device}, {key.dtype}, {plural(key.num_threads, 'thread')}"
    print(f"         {stored.model}, {plural(profile.rows, 'row')}, {setup}, {key.machine}")
    if line.slope < 0:
        print(
            "         the line falls: this machine was busy or the context too short; measure again with --force"
        )
    origin = f"cached in {result.path}; measure again with --force"
    print(f"         {origin if result.is_cached else f'kept in {result.path}'}")


def _as_dict(result: Result) -> dict[str, Any]:
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

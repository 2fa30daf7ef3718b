"""`tandem index`: from one party's files to the index that this party searches, and the caches of its chunks."""

from __future__ import annotations

import os
import secrets
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tandem.cli.options import AsJson, ConfigFile, Overrides, PartyArgument, load_settings
from tandem.cli.output import StageLog, plural, print_json, progress_bar, warn
from tandem.errors import ConfigError
from tandem.paths import index_folder
from tandem.topology import Party

if TYPE_CHECKING:
    from tandem.config import Config
    from tandem.engine.precompute import PrecomputeReport
    from tandem.retrieval import BuildReport

ID_KEY_BYTES = 32

SourcePath = Annotated[
    str,
    typer.Argument(metavar="PATH", help="a file or a folder (txt, md, html, pdf, jsonl)", show_default=False),
]
Out = Annotated[
    str | None, typer.Option(metavar="DIR", help="where the index goes (default: one folder per party)")
]
Factory = Annotated[
    str | None,
    typer.Option(metavar="F", help="FAISS factory string, such as HNSW32 (default: by size)"),
]
PrecomputeKv = Annotated[
    bool, typer.Option("--precompute-kv", help="compute the caches of all chunks now, not when first used")
]


def index(
    party: PartyArgument,
    path: SourcePath,
    out: Out = None,
    factory: Factory = None,
    precompute_kv: PrecomputeKv = False,
    as_json: AsJson = False,
    config_file: ConfigFile = None,
    overrides: Overrides = None,
) -> int:
    """Index one party's documents (txt, md, html, pdf, jsonl).

    If it fails, the index that was there is kept.
    """
    folder = Path(out).expanduser().absolute() if out else index_folder(party)
    log = StageLog(is_quiet=as_json)
    extra = [f"retrieval.factory={factory}"] if factory else []
    config = load_settings(config_file, overrides, [*extra, f"{party}.index={folder}"], log)
    if precompute_kv:
        _check_store(config, party)
    report = _build(Path(path).expanduser(), folder, config, log)
    caches = None
    if precompute_kv:
        caches = _compute_caches(config, party, log, is_quiet=as_json)
    else:
        _drop_stale_caches(config, party, folder)
    if as_json:
        values = {"kv": asdict(caches)} if caches else {}
        print_json({"party": party, "directory": str(folder), **asdict(report), **values})
        return 0
    _print_report(report, party, folder)
    if caches:
        _print_caches(caches)
    return 0


def _build(source: Path, out: Path, config: Config, log: StageLog) -> BuildReport:
    """Raises TandemError; a missing source before the embedder takes its time."""
    from tandem.retrieval import build_index, load_path
    from tandem.retrieval.factory import load_embedder

    if not source.exists():
        load_path(source)
    threads = len(os.sched_getaffinity(0))
    log("embedder: loading")
    embedder = load_embedder(config.retrieval.embedder, num_threads=threads)
    log(f"embedder: {embedder.name}")
    return build_index(
        source,
        out,
        embedder,
        factory=config.retrieval.factory,
        chunk_chars=config.retrieval.chunk_chars,
        overlap=config.retrieval.chunk_overlap,
        id_key=secrets.token_bytes(ID_KEY_BYTES),  # an existing index keeps its own
        num_threads=threads,
        progress=lambda done, total: log(f"chunks: {done} of {total}"),
    )


def _print_report(report: BuildReport, party: Party, out: Path) -> None:
    for problem in report.problems:
        warn(problem)
    summary = f"{plural(report.num_files, 'file')}, {plural(report.num_chunks, 'chunk')}"
    if report.problems:
        summary += f", {plural(len(report.problems), 'problem')}"
    action = "Unchanged" if report.is_unchanged else "Indexed"
    print(f"{action}: {summary} in {out} ({report.manifest.factory}, {report.manifest.embedder})")
    changes = f"{report.num_added} added, {report.num_replaced} replaced, {report.num_deleted} deleted"
    embedded = plural(report.num_embedded, "text")
    print(f"Chunks: {changes}, {report.num_unchanged} unchanged; {embedded} embedded")
    print(f"Use it: tandem ask --set {party}.index={out} QUESTION")
    print(f'or permanently, in tandem.toml: {party}.index = "{out}"')


# ---- caches of chunks ----------------------------------------------------------------------------------------


def _check_store(config: Config, party: Party) -> None:
    """Raises ConfigError if there is no store to fill."""
    kind = config.party(party).kv_store
    if kind != "disk":
        raise ConfigError(
            f'Caches are precomputed for a store on disk, but {party}.kv_store is "{kind}"; '
            'set it to "disk", or omit --precompute-kv.'
        )


def _compute_caches(config: Config, party: Party, log: StageLog, *, is_quiet: bool) -> PrecomputeReport:
    """Of all chunks in the party's index. Raises TandemError."""
    from tandem.engine.precompute import precompute
    from tandem.loading import load_engine, open_disk_store
    from tandem.retrieval import Index
    from tandem.retrieval.factory import kv_folder

    own = config.party(party)
    log(f"model: loading {own.model}")
    engine = load_engine(own)
    store = open_disk_store(own, engine, kv_folder(party, config), warn)
    chunks = Index.open(Path(own.index))
    with progress_bar("caches", is_quiet=is_quiet) as advance:
        return precompute(engine, store, len(chunks), lambda row: chunks.document(row).page_content, advance)


def _drop_stale_caches(config: Config, party: Party, out: Path) -> None:
    """If the index changed since its caches were computed: some belong to documents that it no longer holds."""
    from tandem.retrieval.factory import kv_folder
    from tandem.retrieval.store import modified_ns

    kv = kv_folder(party, config)
    if kv.exists() and kv.stat().st_mtime_ns < modified_ns(out):
        from tandem.engine.kv_disk import remove_store

        remove_store(kv)


def _print_caches(report: PrecomputeReport) -> None:
    counts = f"{plural(report.num_computed, 'chunk')} computed, {report.num_present} already there"
    print(f"Caches: {counts}; {report.num_bytes / 1e6:.1f} MB")
    if report.num_too_long:
        _warn_left_out(
            report.num_too_long,
            "exceeds the model's context",
            "exceed the model's context",
            "retrieval.chunk_chars",
        )
    if report.num_left_out:
        _warn_left_out(
            report.num_left_out,
            "does not fit into the store or on its disk",
            "do not fit into the store or on its disk",
            "kv_max_bytes, or free space",
        )


def _warn_left_out(count: int, one: str, several: str, remedy: str) -> None:
    reason = one if count == 1 else several
    warn(f"{plural(count, 'chunk')} {reason} and will be computed when used; change {remedy}.")

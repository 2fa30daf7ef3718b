"""`tandem index`: from one side's files to the index that this side searches."""

from __future__ import annotations

import os
import secrets
import sys
from argparse import Namespace
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from tandem.cli.stored import check_store, show_caches, store_caches
from tandem.cli.terminal import Progress, plural, print_json, settings
from tandem.paths import index_folder
from tandem.topology import Party

if TYPE_CHECKING:
    from tandem.retrieval import BuildReport

ID_KEY_BYTES = 32


def run(args: Namespace) -> int:
    """Builds an index and says how to use it. Raises TandemError; the index that was there is then kept."""
    party = Party(args.party)
    out = Path(args.out).expanduser().absolute() if args.out else index_folder(party)
    progress = Progress(is_quiet=args.json)
    check_store(args, party)
    report = _built(args, out, progress)
    stored = store_caches(args, party, out, progress)
    if args.json:
        values = {"kv": asdict(stored)} if stored else {}
        print_json({"party": party, "directory": str(out), **asdict(report), **values})
        return 0
    for problem in report.problems:
        print(f"tandem: {problem}", file=sys.stderr)
    _print_report(report, party, out)
    if stored:
        show_caches(stored)
    return 0


def _built(args: Namespace, out: Path, progress: Progress) -> BuildReport:
    config = settings(args, [f"retrieval.factory={args.factory}"] if args.factory else [], progress)
    from tandem.retrieval import build_index, load_path
    from tandem.retrieval.factory import load_embedder

    source = Path(args.path).expanduser()
    if not source.exists():
        load_path(source)  # says what is wrong, before the embedder takes its time
    threads = len(os.sched_getaffinity(0))
    progress("embedder: loading")
    embedder = load_embedder(config.retrieval.embedder, num_threads=threads)
    progress(f"embedder: {embedder.name}")
    return build_index(
        source,
        out,
        embedder,
        factory=config.retrieval.factory,
        chunk_chars=config.retrieval.chunk_chars,
        overlap=config.retrieval.chunk_overlap,
        id_key=secrets.token_bytes(ID_KEY_BYTES),  # an index that is there keeps its own
        num_threads=threads,
        progress=lambda done, total: progress(f"chunks: {done} of {total}"),
    )


def _print_report(report: BuildReport, party: Party, out: Path) -> None:
    what = f"{plural(report.num_files, 'file')}, {plural(report.num_chunks, 'chunk')}"
    if report.problems:
        what += f", {plural(len(report.problems), 'problem')}"
    done = "Unchanged" if report.is_unchanged else "Indexed"
    print(f"{done}: {what} in {out} ({report.manifest.factory}, {report.manifest.embedder})")
    changes = f"{report.num_added} added, {report.num_replaced} replaced, {report.num_deleted} deleted"
    embedded = plural(report.num_embedded, "text")
    print(f"Chunks: {changes}, {report.num_unchanged} unchanged; {embedded} embedded")
    print(f"Use it: tandem ask --set {party}.index={out} QUESTION")
    print(f'or for good, in tandem.toml: {party}.index = "{out}"')

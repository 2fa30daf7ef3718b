"""The part of `tandem index` after the index: the caches of its chunks, computed ahead or dropped."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from tandem.cli.bar import Bar
from tandem.cli.terminal import Progress, plural, settings
from tandem.config import Config
from tandem.errors import ConfigError
from tandem.retrieval.factory import kv_folder
from tandem.topology import Party

if TYPE_CHECKING:
    from tandem.engine.precompute import PrecomputeReport


def check_store(args: Namespace, party: Party) -> None:
    """Raises ConfigError if --kv has no store to fill."""
    kind = settings(args).party(party).kv_store
    if args.kv and kind != "disk":
        raise ConfigError(
            f'Caches are computed ahead for a store on disk, but {party}.kv_store is "{kind}"; '
            'set it to "disk", or leave --kv out.'
        )


def store_caches(args: Namespace, party: Party, out: Path, progress: Progress) -> PrecomputeReport | None:
    """With --kv the caches of all chunks of the index in `out`; else those of an index that changed since are
    dropped, for some show documents that it no longer holds. Raises TandemError.
    """
    config = settings(args, [f"{party}.index={out}"])
    if args.kv:
        return _computed(config, party, progress, is_quiet=args.json)
    from tandem.retrieval.store import modified_ns

    kv = kv_folder(party, config)
    if kv.exists() and kv.stat().st_mtime_ns < modified_ns(out):
        from tandem.engine.kv_disk import remove_store

        remove_store(kv)
    return None


def show_caches(report: PrecomputeReport) -> None:
    """As the command prints it."""
    what = f"{plural(report.num_computed, 'chunk')} computed, {report.num_present} there before"
    print(f"Caches: {what}; {report.num_bytes / 1e6:.1f} MB")
    if report.num_too_long:
        _say_left_out(report.num_too_long, "longer than the model's context", "retrieval.chunk_chars")
    if report.num_left_out:
        _say_left_out(
            report.num_left_out, "beyond what the store or its disk takes", "kv_max_bytes, or free space"
        )


def _computed(config: Config, party: Party, progress: Progress, *, is_quiet: bool) -> PrecomputeReport:
    own = config.party(party)
    from tandem.engine.precompute import precompute
    from tandem.loading import load_engine, open_disk_store
    from tandem.retrieval import Index

    progress(f"model: loading {own.model}")
    engine = load_engine(own)
    store = open_disk_store(own, engine, kv_folder(party, config), _warn)
    index = Index.open(Path(own.index))
    bar = Bar("caches", is_quiet=is_quiet)
    return precompute(engine, store, len(index), lambda row: index.document(row).page_content, bar)


def _say_left_out(count: int, why: str, name: str) -> None:
    _warn(f"{plural(count, 'chunk')} will be computed when used, being {why}; change {name}.")


def _warn(text: str) -> None:
    print(f"tandem: {text}", file=sys.stderr)

"""`tandem lab timeline`: ask a question and write when each token was drafted, sent, awaited and decided."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tandem.cli.ask import Address, Fresh, Only, Question, QuestionArgument, Quiet, exit_code, stream_answer
from tandem.cli.options import (
    ConfigFile,
    Overrides,
    Seed,
    load_settings,
    setting_overrides,
    with_models,
    with_settings,
)
from tandem.cli.output import StageLog, plural
from tandem.cli.transcript import Transcript
from tandem_lab.cli import outputs

TraceFile = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="write a JSON trace for Perfetto (ui.perfetto.dev) or a script"),
]
PlotFile = Annotated[
    str | None, typer.Option(metavar="FILE", help="draw it, as png, pdf or svg (needs matplotlib)")
]


@with_models
@with_settings("sampling")
def timeline(
    question: QuestionArgument,
    trace: TraceFile = None,
    plot: PlotFile = None,
    seed: Seed = None,
    only: Only = None,
    address: Address = None,
    fresh: Fresh = False,
    quiet: Quiet = False,
    config_file: ConfigFile = None,
    overrides: Overrides = None,
    **settings: Any,
) -> int:
    """Ask a question and write when each token was drafted, sent, awaited and decided.

    Of an answer that is cut short, the files show what there is of it.
    """
    if trace is None and plot is None:
        raise typer.BadParameter(
            "`tandem lab timeline` writes files; give --trace FILE, --plot FILE or both."
        )
    trace_path = None if trace is None else outputs.check_file("--trace", trace)
    plot_path = None if plot is None else outputs.check_plot("--plot", plot)
    query = Question.create(question, seed, only, address=address or "", is_fresh=fresh)
    log = StageLog(is_quiet=quiet)
    config = load_settings(config_file, overrides, setting_overrides(settings), log)
    transcript = stream_answer(query, config, log, is_quiet=quiet)
    _write(transcript, trace_path, plot_path, log)
    return exit_code(transcript)


def _write(transcript: Transcript, trace: Path | None, plot: Path | None, log: StageLog) -> None:
    from tandem_lab.timeline import perfetto
    from tandem_lab.timeline.intervals import timeline as build_timeline
    from tandem_lab.timeline.pipeline import plot_pipeline

    intervals = build_timeline(transcript.events, transcript.placement)
    if trace is not None:
        outputs.write_text("--trace", trace, perfetto.to_json(intervals))
        log(f"trace: {trace}, for Perfetto (ui.perfetto.dev) or a script")
    if plot is not None and intervals.steps:
        mode = f"placement {transcript.placement}" if transcript.only is None else f"{transcript.only} alone"
        title = f"{plural(len(intervals.steps), 'token')}, {mode}, seed {transcript.seed}"
        plot_pipeline(intervals, plot, title=title)
        log(f"plot: {plot}")
    elif plot is not None:
        log(f"plot: none, as there is no token; {plot} is not written")

"""`tandem lab timeline`: ask a question and write when each token was drafted, sent, awaited and decided."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tandem.cli.ask import QuestionArgument, exit_code, stream_answer
from tandem.cli.options import Place, Query, Quiet, Settings, with_options
from tandem.cli.output import StageLog, plural
from tandem.cli.transcript import Transcript
from tandem.client.batch import check_question
from tandem_lab.cli import outputs

TraceFile = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="write a JSON trace for Perfetto (ui.perfetto.dev) or a script"),
]
PlotFile = Annotated[
    str | None, typer.Option(metavar="FILE", help="draw it, as png, pdf or svg (needs matplotlib)")
]


@with_options("sampling", models=True)
def timeline(
    question: QuestionArgument,
    *,
    trace: TraceFile = None,
    plot: PlotFile = None,
    query: Query,
    place: Place,
    quiet: Quiet = False,
    settings: Settings,
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
    check_question(question)
    log = StageLog(is_quiet=quiet)
    config = settings.load(log)
    transcript = stream_answer(question, query, place, config, log)
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

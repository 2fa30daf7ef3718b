"""`tandem lab replay`: questions over a link that changes as a trace says, and what became of every token.

Two processes of one command line: the outer one checks everything that a user can get wrong, builds the network
and removes it; the inner one runs in the device's host of it, where Ray's nodes can be reached.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tandem.cli.options import MODELS, AsJson, SettingsOptions, with_options
from tandem.cli.output import StageLog, plural, print_json
from tandem.client.answers import to_plain
from tandem.client.request import spec_of
from tandem.config.schema import Config
from tandem.errors import TandemError
from tandem_lab.cli import outputs
from tandem_lab.netlab import LinkSchedule, NetLab, bundled, bundled_names, read_schedule, tools

if TYPE_CHECKING:
    from tandem_lab.replay.records import Replay

NAMES = ("replay.json", "replay.png")

TraceName = Annotated[
    str,
    typer.Argument(
        metavar="TRACE", help="a bundled one, such as sinusoid-100, or a CSV file", show_default=False
    ),
]
QuestionFile = Annotated[
    str | None,
    typer.Option(
        "--questions",
        metavar="FILE",
        help="one per line, or JSON lines with the field question (default: the bundled ones)",
    ),
]
Out = Annotated[str, typer.Option(metavar="DIR", help="where the files go")]
Within = Annotated[str | None, typer.Option(hidden=True)]  # the network, up already


@with_options(*MODELS, "sampling")
def replay(
    context: typer.Context,
    trace_name: TraceName,
    question_file: QuestionFile = None,
    out: Out = "replay",
    within: Within = None,
    as_json: AsJson = False,
    *,
    settings: SettingsOptions,
) -> int:
    """Ask questions over a link that follows a trace; record every token (as root)."""
    log = StageLog(is_quiet=as_json)
    config = settings.load(log)
    trace, questions = _load_trace(trace_name), _read_questions(question_file, config)
    tools.require()
    for program in ("ping", "taskset"):
        tools.which(program)
    folder = outputs.check_folder("--out", out, NAMES, needs_plots=False)
    if within is not None:
        return play(NetLab(within), config, trace, questions, folder, log, as_json=as_json)
    from tandem_lab.netlab.inside import inside

    lab = NetLab(f"replay-{os.getpid()}")
    log(f"network: {lab.name}, {trace.value_at(0)}")
    return inside(lab, [*context.find_root().obj, "--within", lab.name], trace.value_at(0))


def _load_trace(name: str) -> LinkSchedule:
    """A bundled trace by its name, or a file's."""
    is_file = name not in bundled_names() and (Path(name).exists() or name.endswith(".csv"))
    return read_schedule(Path(name)) if is_file else bundled(name)


def _read_questions(file: str | None, config: Config) -> list[str]:
    from tandem_lab.quality.questions import question_texts

    return question_texts(None if file is None else Path(file), config)


def play(
    lab: NetLab,
    config: Config,
    trace: LinkSchedule,
    questions: list[str],
    folder: Path,
    log: StageLog,
    *,
    as_json: bool,
) -> int:
    """In the device's host. What was seen is written even if it ends early, and before the cluster stops: that may
    take longer than the outer process waits for an end. Raises TandemError.
    """
    from tandem_lab.bench.places import launch
    from tandem_lab.replay.records import Replay
    from tandem_lab.replay.replayer import Replayer
    from tandem_lab.replay.report import as_dict, table

    _load_matplotlib()  # now: its first import on a machine takes long, and an interrupted run has little time
    replay = Replay(trace=trace)
    with launch(lab, config, log) as tandem:
        try:
            Replayer(tandem, lab, replay, log).run(questions)
        finally:
            if replay.asked:
                names = _write(replay, config, folder, log)
                log(f"files: {', '.join(str(folder / name) for name in names)}")
    if as_json:
        print_json(as_dict(replay, config))
    else:
        print("\n".join(table(replay)))
    return 1 if any(question.error for question in replay.asked) else 0


def _load_matplotlib() -> None:
    """Does nothing where it is missing: the record is then written without its picture."""
    with contextlib.suppress(ImportError):
        import matplotlib.font_manager  # noqa: F401 - it lists this machine's fonts once


def _write(replay: Replay, config: Config, folder: Path, log: StageLog) -> list[str]:
    """Writes the record, and the picture where it can be drawn; the names of the files."""
    from tandem_lab.plots import check_matplotlib
    from tandem_lab.replay.plot import plot_replay
    from tandem_lab.replay.report import as_dict

    record, picture = (folder / name for name in NAMES)
    text = json.dumps(to_plain(as_dict(replay, config)), indent=1, ensure_ascii=False)
    outputs.write_text("--out", record, text + "\n")
    try:
        check_matplotlib()
    except TandemError as error:
        log(f"no picture: {error}")
        return [NAMES[0]]
    setup, mode = _setup(replay, config), config.decoding.mode
    plot_replay(replay, picture, title=_title(replay), setup=setup, mode=mode)
    return [*NAMES]


def _title(replay: Replay) -> str:
    """What the picture shows, for a reader who knows nothing of the run."""
    return f"Time per token while the link follows {Path(replay.trace.name).stem}"


def _setup(replay: Replay, config: Config) -> str:
    """How the answers were made."""
    decoding, num_questions = config.decoding, len(replay.asked)
    rule = spec_of(config).rules.draft_rule
    drafts = {"coupled": "coupled drafts", "algorithm1": "Algorithm 1"}.get(rule, rule)
    how = (
        f"placement {decoding.placement}"
        if decoding.mode == "dual"
        else f"{decoding.mode}, pacing {decoding.pacing}"
    )
    return (
        f"{plural(num_questions, 'question')}, {plural(len(replay.tokens()), 'token')}; {how}, {drafts}, "
        f"temperature {config.sampling.temperature:g}"
    )

"""`tandem replay`: questions over a link that changes as a trace says, and what became of every token.

Two processes of one command line: the outer one looks at everything that a person can get wrong, builds the network
and removes it; the inner one runs in the device's host of it, where Ray's nodes can be reached.
"""

from __future__ import annotations

import json
import os
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from tandem.cli import outputs
from tandem.cli.terminal import Progress, plain, print_json, settings
from tandem.config import Config
from tandem.lab.netlab import LinkSchedule, NetLab, bundled, bundled_names, read_schedule, tools

if TYPE_CHECKING:
    from tandem.lab.latency.replay_records import Replay

NAMES = ("replay.json", "timeline.json", "replay.png")


def run(args: Namespace) -> int:
    """Plays a trace. Raises TandemError; of network and cluster nothing is left in any case."""
    progress = Progress(is_quiet=bool(args.json))
    config, trace = settings(args, _overrides(args), progress), _trace(args.trace)
    questions = _questions(args.questions)
    tools.require()
    for program in ("ping", "taskset"):
        tools.which(program)
    folder = outputs.check_folder("--out", args.out, NAMES)
    if args.within is not None:
        return _play(args, NetLab(args.within), config, trace, questions, folder, progress)
    from tandem.lab.netlab.inside import inside

    lab = NetLab(f"replay-{os.getpid()}")
    progress(f"network: {lab.name}, {trace.value_at(0)}")
    return inside(lab, [*_again(args), "--within", lab.name], trace.value_at(0))


def _overrides(args: Namespace) -> list[str]:
    options = {"max_new_tokens": args.max_new_tokens, "temperature": args.temperature}
    return [f"generation.{name}={value}" for name, value in options.items() if value is not None]


def _trace(given: str) -> LinkSchedule:
    """A bundled trace by its name, or a file's."""
    is_file = given not in bundled_names() and (Path(given).exists() or given.endswith(".csv"))
    return read_schedule(Path(given)) if is_file else bundled(given)


def _questions(given: str | None) -> list[str]:
    from tandem.lab.quality.questions import question_texts

    return question_texts(None if given is None else Path(given))


def _again(args: Namespace) -> list[str]:
    """The command line of the inner process."""
    options = {
        "--questions": args.questions,
        "--out": args.out,
        "--max-new-tokens": args.max_new_tokens,
        "--temperature": args.temperature,
        "--config": args.config,
    }
    named = [word for name, value in options.items() if value is not None for word in (name, value)]
    changed = [word for value in args.set for word in ("--set", value)]
    return ["replay", args.trace, *named, *changed, *(["--json"] if args.json else [])]


def _play(
    args: Namespace,
    lab: NetLab,
    config: Config,
    trace: LinkSchedule,
    questions: list[str],
    folder: Path,
    progress: Progress,
) -> int:
    """In the device's host. What was seen is written also if it ends early, and before the cluster stops: that may
    take longer than the outer process waits for an end.
    """
    from tandem.lab.latency.cluster import launch
    from tandem.lab.latency.replay import Replayer
    from tandem.lab.latency.replay_records import Replay
    from tandem.lab.latency.replay_report import as_dict, table

    replay = Replay(trace=trace)
    with launch(lab, config, progress) as tandem:
        try:
            Replayer(tandem, lab, replay, progress).run(questions)
        finally:
            if replay.asked:
                _write(replay, config, folder)
                progress(f"files: {', '.join(str(folder / name) for name in NAMES)}")
    if args.json:
        print_json(as_dict(replay, config))
    else:
        print("\n".join(table(replay)))
    return 1 if any(asked.error for asked in replay.asked) else 0


def _write(replay: Replay, config: Config, folder: Path) -> None:
    from tandem.lab.latency.replay_plot import plot_replay
    from tandem.lab.latency.replay_report import as_dict, merged_trace

    record, timeline, picture = (folder / name for name in NAMES)
    text = json.dumps(plain(as_dict(replay, config)), indent=1, ensure_ascii=False)
    outputs.write_text("--out", record, text + "\n")
    outputs.write_text("--out", timeline, merged_trace(replay, config.generation.placement))
    generation = config.generation
    how = f"{generation.draft_rule}, {generation.placement}, temperature {generation.temperature:g}"
    plot_replay(
        replay, picture, title=f"Trace {Path(replay.trace.name).stem}: {how}, {config.link.data_plane}"
    )

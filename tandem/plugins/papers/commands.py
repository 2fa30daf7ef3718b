"""`tandem model`: the speed of a model on this machine, measured once and kept; a drafter for a target of your own."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Argument, Option

from tandem import plugins
from tandem.cli.options import MAX_SEED, MODELS, AsJson, SettingsOptions, new_app, with_options
from tandem.cli.output import StageLog, emit, plural, print_json, progress_bar
from tandem.client.ask import read_texts
from tandem.errors import TandemError, install_line
from tandem.topology import PARTIES, Party

if TYPE_CHECKING:
    from tandem.config.schema import Config
    from tandem.profiler.estimates import DecodeLine
    from tandem.profiler.profiles import StoredProfile


def _model() -> None:
    """Measure a model on this machine, or make a small one that drafts for it."""


app = new_app(_model)


# ---- `tandem model profile` ---------------------------------------------------------------------------------


DEFAULT_RUNS = 3
MAX_TEXTS = 500
"""Chunks of an index that are looked at for their length."""
PLOT_KINDS = (".png", ".pdf", ".svg")
COLOURS = {Party.DEVICE: ("#0072b2", "o"), Party.CLOUD: ("#d55e00", "^")}  # told apart without colours too
SHOWN = 0.995
"""Share of the points that the vertical axis of a plot must hold; what lies above is counted in the legend."""


@dataclass(frozen=True, slots=True)
class Result:
    """One party's profile and where it is kept."""

    stored: StoredProfile
    path: Path
    is_cached: bool


Parties = Annotated[
    Literal["device", "cloud", "both"],
    Argument(
        metavar="PARTY",
        help="device, cloud or both, one after the other (default: both)",
        show_default=False,
    ),
]
Runs = Annotated[int | None, Option(metavar="N", min=1, help="take medians over N runs (default: 3)")]
Limit = Annotated[
    int | None,
    Option(
        metavar="TOKENS",
        min=1,
        help="context length to stop at (default: the model's, at most 2048)",
    ),
]
Force = Annotated[bool, Option("--force", help="measure even if there is a cached profile")]
Plot = Annotated[
    str | None, Option(metavar="FILE", help="draw points and lines, as png, pdf or svg (needs matplotlib)")
]


@app.command()
@with_options(*MODELS)
def profile(
    name: Parties = "both",
    runs: Runs = None,
    limit: Limit = None,
    force: Force = False,
    plot: Plot = None,
    as_json: AsJson = False,
    *,
    settings: SettingsOptions,
) -> int:
    """Measure how long a party's model takes per token on this machine."""
    log = StageLog(is_quiet=as_json)
    config = settings.load(log)
    target = None if plot is None else _plot_target(plot)
    results = {}
    for party in PARTIES if name == "both" else (Party(name),):
        cached = None if force else _find_cached(party, config, log, runs, limit)
        results[party] = cached or _measure(party, config, log, runs, limit)
    if target is not None:
        draw({party: result.stored for party, result in results.items()}, target)
    if as_json:
        print_json({str(party): _as_dict(result) for party, result in results.items()})
        return 0
    for party, result in results.items():
        _print(party, result)
    if target is not None:
        emit(f"Plot: {target}")
    return 0


def _find_cached(
    party: Party, config: Config, log: StageLog, runs: int | None, limit: int | None
) -> Result | None:
    """The cached profile, unless the command line asks for a longer one or for more runs."""
    from tandem.profiler import profiles
    from tandem.system.paths import cache_folder

    key, folder = profiles.profile_key(config.party(party)), cache_folder()
    stored = profiles.load(key, folder, lambda sentence: log(f"cache: {sentence}"))
    if stored is None or stored.profile.lengths[-1] < (limit or 0) or stored.profile.runs < (runs or 0):
        return None
    return Result(stored, profiles.profile_path(key, folder), is_cached=True)


def _measure(party: Party, config: Config, log: StageLog, runs: int | None, limit: int | None) -> Result:
    from tandem.actors.loading import load_engine
    from tandem.client.request import spec_of
    from tandem.codecs import codec_of
    from tandem.engine.drafter import Drafter
    from tandem.plugins.papers import measure
    from tandem.profiler import profiles
    from tandem.system.paths import cache_folder

    own, sampling = config.party(party), config.sampling
    log(f"{party}: loading {own.model} on {own.torch_device}, {own.dtype}")
    engine = load_engine(own)
    chunk_tokens = measure.row_tokens(engine, _texts(party, config), own.num_documents)
    log(f"{party}: {plural(own.num_documents, 'dummy document')} of {chunk_tokens} tokens")
    rules = spec_of(config).rules
    drafter = Drafter(
        rules.codec_of_votes(codec_of(config.codec)), sampling, rules.drawing_rule, engine.vocab_size
    )
    with progress_bar(party, is_quiet=log.is_quiet) as advance:
        measured = measure.measure(
            engine,
            num_documents=own.num_documents,
            chunk_tokens=chunk_tokens,
            max_new=sampling.max_new_tokens,
            draft=measure.measure_drafting(drafter, party),
            clock=time.perf_counter,
            limit=limit,
            runs=runs or DEFAULT_RUNS,
            progress=advance,
        )
    # A hub model that was downloaded just now has another fingerprint than before.
    stored = profiles.stored(profiles.profile_key(own), own.model, measured)
    return Result(stored, profiles.save(stored, cache_folder()), is_cached=False)


def _texts(party: Party, config: Config) -> Sequence[str]:
    """Chunks of a party's index, for their length. Raises TandemError."""
    from tandem.corpora import CORPORA
    from tandem.retrieval import Index, load_path, split

    where, lengths = config.party(party).index, config.retrieval
    if where in CORPORA:  # its files are its chunks, and need no embedder
        documents = load_path(CORPORA[where] / party).documents
        chunks = split(documents, lengths.chunk_chars, lengths.chunk_overlap)
        return [chunk.page_content for chunk in chunks[:MAX_TEXTS]]
    if plugins.split("store", where):
        raise TandemError(
            f"A profile takes the length of documents from an index, but {where} is a vector store; profile with "
            f"--set {party}.index=bundled."
        )
    index = Index.open(Path(where))
    stride = max(1, len(index) // MAX_TEXTS)
    return [index.document(row).page_content for row in range(0, len(index), stride)]


def _print(party: Party, result: Result) -> None:
    stored, profile, key = result.stored, result.stored.profile, result.stored.key
    setup = f"{key.torch_device}, {key.dtype}, {plural(key.num_threads, 'thread')}"
    fit = f"residual {profile.residual_s * 1e3:.2f} ms, R\u00b2 {profile.r_squared:.2f}"
    lines = [
        _summary(profile.line),
        f"{fit}; {plural(len(profile.lengths), 'token')} x {plural(profile.runs, 'run')}",
        f"{stored.model}, {plural(profile.rows, 'row')}, {setup}, {key.machine}",
    ]
    if profile.line.slope < 0:
        lines.append(
            "the line falls: this machine was busy or the context too short; measure again with --force"
        )
    cached = f"cached in {result.path}; measure again with --force"
    lines.append(cached if result.is_cached else f"kept in {result.path}")
    emit(f"{party:<8}", "\n         ".join(lines))


def _summary(line: DecodeLine) -> str:
    start_ms, more_ms = line.predict(line.start) * 1e3, line.slope * 1e6
    return f"{start_ms:.2f} ms per token after a prompt of {line.start:.0f} tokens, {more_ms:+.2f} ms per 1000 more"


def _as_dict(result: Result) -> dict[str, Any]:
    stored, profile = result.stored, result.stored.profile
    line = profile.line
    return {
        "line": line,
        "start_s": line.predict(line.start),
        "slope_s": line.slope,
        "residual_s": profile.residual_s,
        "r_squared": profile.r_squared,
        "model": stored.model,
        "key": stored.key,
        "versions": stored.versions,
        **asdict(profile),
        "path": str(result.path),
        "is_cached": result.is_cached,
    }


# ---- --plot: measured decode times over context length, and the line of each party ------------------------------


def _plot_target(file: str) -> Path:
    """The path of the plot, checked before anything takes its time. Raises TandemError."""
    path = Path(file).expanduser().absolute()
    if find_spec("matplotlib") is None:
        raise TandemError(
            f"A plot needs matplotlib, which is not installed; run `{install_line('lab')}`, or omit --plot."
        )
    if path.suffix.lower() not in PLOT_KINDS:
        raise TandemError(
            f"A plot is written as one of {', '.join(PLOT_KINDS)} (got {path.name!r}); rename it."
        )
    if not os.access(path.parent, os.W_OK):
        raise TandemError(f"The plot cannot be written into the folder {path.parent}; choose another.")
    return path


def draw(profiles: Mapping[Party, StoredProfile], path: Path) -> None:
    """Writes the picture. Raises TandemError if the file cannot be written."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.2), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    top_ms = max(
        1.25e3 * sorted(stored.profile.seconds)[int(SHOWN * (len(stored.profile.seconds) - 1))]
        for stored in profiles.values()
    )
    for party, stored in profiles.items():
        profile, line = stored.profile, stored.profile.line
        colour, marker = COLOURS[party]
        times_ms = [seconds * 1e3 for seconds in profile.seconds]
        num_above = sum(time_ms > top_ms for time_ms in times_ms)
        above = f" ({plural(num_above, 'point')} above)" if num_above else ""
        label = f"{party}, {plural(profile.rows, 'row')}: median of {plural(profile.runs, 'run')}{above}"
        axes.plot(profile.lengths, times_ms, marker, color=colour, alpha=0.5, ms=3.5, mew=0, label=label)
        ends = [line.start, profile.lengths[-1]]
        times_ms = [line.predict(end) * 1e3 for end in ends]
        axes.plot(ends, times_ms, color=colour, lw=1.8, label=f"line: {_summary(line)}")
    models = " and ".join(dict.fromkeys(Path(stored.model).name for stored in profiles.values()))
    machines = " and ".join(dict.fromkeys(stored.key.machine for stored in profiles.values()))
    axes.set_title(f"Decode time of {models} on {machines}", fontsize=10, loc="left")
    axes.set(xlabel="context length (tokens)", ylabel="time for one token (ms)", ylim=(0, top_ms))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper left", frameon=False, fontsize=9, markerscale=1.6)
    axes.margins(x=0.01)
    try:
        figure.savefig(path)
    except OSError as error:
        raise TandemError(
            f"The plot cannot be written to {path} ({error.strerror}); choose another file."
        ) from None


# ---- `tandem model draft` -----------------------------------------------------------------------------------


Target = Annotated[
    str,
    Option("--from", metavar="MODEL", help="the target: a model's folder, a hub id, or bundled"),
]
Out = Annotated[str, Option(metavar="DIR", help="the drafter's folder, as device.model takes it")]
Text = Annotated[
    list[str] | None,
    Option(
        "--text",
        metavar="PATH",
        help="a file or folder; may be repeated: what is learned, or with --questions what the target reads beside one",
    ),
]
Questions = Annotated[
    str | None,
    Option(metavar="FILE", help="the target answers these questions, and its answers are learned"),
]
Trunk = Annotated[
    str,
    Option(
        metavar="T",
        help="blocks of the target that are copied and frozen: first, last, first+last, or N first ones",
    ),
]
LossOption = Annotated[Literal["kl", "tv"], Option("--loss", metavar="L", help="kl, or tv (total variation)")]
Steps = Annotated[int | None, Option(metavar="N", min=1, help="steps of the optimiser (default: 300)")]
Answers = Annotated[
    int | None,
    Option(metavar="N", min=1, help="answers that the target writes to the questions (default: 400)"),
]
MaxTokens = Annotated[
    int | None,
    Option(metavar="N", min=1, help="length of a row of text, or of an answer (default: 128)"),
]
TrainingSeed = Annotated[
    int | None,
    Option("--seed", metavar="N", min=0, max=MAX_SEED, help="of the training (default: 0)"),
]


@app.command()
def draft(
    target: Target,
    out: Out,
    text: Text = None,
    questions: Questions = None,
    trunk: Trunk = "first",
    loss: LossOption = "kl",
    steps: Steps = None,
    answers: Answers = None,
    max_tokens: MaxTokens = None,
    seed: TrainingSeed = None,
) -> int:
    """Make a drafter, a small model of the device that proposes tokens for the cloud's.

    It has some blocks of the target, frozen, and a head that learns its distributions.
    """
    if not text and questions is None:
        raise TandemError(
            "A drafter learns from text or questions, but neither is named; add --text or --questions."
        )
    log = StageLog()
    texts = _read_texts(text or [], log)
    asked = [] if questions is None else read_texts(questions)
    from tandem.plugins.papers.flexspec.build import Recipe, train_drafter

    recipe = Recipe(
        trunk=trunk,
        loss=loss,
        num_steps=steps or Recipe.num_steps,
        num_answers=answers or Recipe.num_answers,
        max_tokens=max_tokens or Recipe.max_tokens,
        seed=seed or 0,
    )
    with progress_bar("training") as report:
        card = train_drafter(
            target, Path(out), texts=texts, questions=asked, recipe=recipe, progress=log, report=report
        )
    shown = card.acceptance
    emit(
        f"Drafter: {out}, trunk {card.trunk}; on {shown['num_tokens']:.0f} tokens held out {shown['coupled']:.2f} of "
        f"its coupled drafts stand at temperature 1 ({shown['rejection']:.2f} by rejection), "
        f"{shown['greedy']:.2f} at temperature 0."
    )
    emit(
        f"Use it: tandem ask QUESTION --mode speculative --set device.model={out} --set cloud.model={target}"
    )
    return 0


def _read_texts(paths: list[str], log: StageLog) -> list[str]:
    from tandem.retrieval.loaders import load_path

    texts = []
    for path in paths:
        loaded = load_path(Path(path).expanduser())
        for problem in loaded.problems:
            log(f"text: {problem}")
        texts += [document.page_content for document in loaded.documents]
    return texts

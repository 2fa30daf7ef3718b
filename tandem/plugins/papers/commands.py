"""`tandem model`: the speed of a model on this machine, and a drafter for a target model of your own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from typer import Option

from tandem.cli.options import MAX_SEED, new_app
from tandem.cli.output import StageLog, emit, progress_bar
from tandem.client.ask import read_texts
from tandem.errors import TandemError
from tandem.plugins.papers.profile import profile

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


def _model() -> None:
    """Measure a model on this machine, or make a small one that drafts for it."""


app = new_app(_model)
app.command()(profile)


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

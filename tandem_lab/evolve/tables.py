"""The table of `tandem lab evolve`: means and spreads over seeds beside what was predicted, and the judgements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

from tandem_lab.evolve.study import UPDATES, Row
from tandem_lab.numbers import ratio
from tandem_lab.plots import save

PREDICTED: dict[tuple[str, str, str], float] = {
    ("base", "first", "frozen"): 0.86,
    ("base", "last", "frozen"): 0.48,
    ("mild LoRA", "last", "frozen"): 0.24,
    ("mild LoRA", "first", "frozen"): 0.61,
    ("mild LoRA", "first", "self-taught"): 0.64,
    ("mild LoRA", "first", "block adapter"): 0.66,
    ("mild LoRA", "first", "new head"): 0.82,
    ("strong LoRA", "last", "frozen"): 0.09,
    ("strong LoRA", "first", "frozen"): 0.20,
    ("strong LoRA", "first", "self-taught"): 0.46,
    ("strong LoRA", "first", "block adapter"): 0.37,
    ("strong LoRA", "first", "new head"): 0.69,
    ("full fine-tune", "last", "frozen"): 0.09,
    ("full fine-tune", "first", "frozen"): 0.20,
    ("full fine-tune", "first", "self-taught"): 0.54,
    ("full fine-tune", "first", "new head"): 0.69,
}
"""(version, trunk, update) -> coupled acceptance, from a first study of one seed, along reference answers, whose head
was a two-layer perceptron per position."""
KEPT = 0.8
"""The paper's claim, as judged here: a frozen drafter keeps this share of its acceptance at least."""


def judgements(rows: Sequence[Row]) -> list[str]:
    """A sentence on each claim and version: frozen drafters keep their acceptance; self-taught ones win it back."""
    base = {row.seed: row.coupled for row in _of(rows, "base", "first", "frozen")}
    sentences = []
    for version in _versions(rows):
        frozen = {row.seed: row.coupled for row in _of(rows, version, "first", "frozen")}
        if not frozen:
            continue  # of a run that has come to the first row of the version
        kept = [ratio(frozen[seed], base[seed]) for seed in frozen]
        verdict = "holds" if min(kept) >= KEPT else "does not hold"
        sentences.append(
            f"{version}: frozen keeps {_spread(kept)} of its acceptance; that it keeps {KEPT:.2f} {verdict}."
        )
        taught = {row.seed: row.coupled for row in _of(rows, version, "first", "self-taught")}
        low = [seed for seed in frozen if frozen[seed] <= 0.25 and seed in taught]
        if low:
            verdict = "holds" if min(taught[seed] for seed in low) >= 0.35 else "does not hold"
            found = _spread([taught[seed] for seed in low])
            sentences.append(
                f"{version}: where frozen is at most 0.25, self-taught reaches {found}; 0.35 {verdict}."
            )
    return sentences


def text_of(rows: Sequence[Row]) -> str:
    """The table and the judgements."""
    seeds = sorted({row.seed for row in rows})
    return "\n".join([*_lines(rows), "", *judgements(rows), f"Seeds: {', '.join(map(str, seeds))}."])


def _lines(rows: Sequence[Row]) -> Iterator[str]:
    yield (
        f"{'target':15} {'trunk':6} {'update':14} {'bytes':>10} {'coupled':>16} {'predicted':>10} {'raced':>6} "
        f"{'rejection':>10} {'greedy':>7} {'ms/token':>9}"
    )
    for key in dict.fromkeys((row.version, row.trunk, row.update) for row in rows):
        own = _of(rows, *key)
        predicted = f"{PREDICTED[key]:.2f}" if key in PREDICTED else "-"
        yield (
            f"{key[0]:15} {key[1]:6} {key[2]:14} {own[0].update_bytes:10,} "
            f"{_spread([row.coupled for row in own]):>16} {predicted:>10} {fmean(row.raced for row in own):6.2f} "
            f"{fmean(row.rejection for row in own):10.2f} {fmean(row.greedy for row in own):7.2f} "
            f"{1000 * fmean(row.token_s for row in own):9.1f}"
        )


def _spread(values: Sequence[float]) -> str:
    """The mean, and the least and the most of several."""
    mean = f"{fmean(values):.2f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):.2f}-{max(values):.2f})"


def _of(rows: Sequence[Row], version: str, trunk: str, update: str) -> list[Row]:
    return [row for row in rows if (row.version, row.trunk, row.update) == (version, trunk, update)]


def _versions(rows: Sequence[Row]) -> list[str]:
    return [name for name in dict.fromkeys(row.version for row in rows) if name != "base"]


# ---- The picture ----------------------------------------------------------------------------------------------------


COLOURS = dict(zip(UPDATES, ("#000000", "#cc3377", "#0072b2", "#009e73", "#d55e00"), strict=True))


def plot_updates(rows: Sequence[Row], path: Path) -> None:
    """A group of bars for each version of the target, a bar for each update, a dot for each seed.

    Raises TandemError if it cannot be written.
    """
    from matplotlib.figure import Figure

    versions = _versions(rows)
    figure = Figure(figsize=(2.6 * len(versions) + 1.6, 3.6), dpi=120, layout="constrained")
    plot = figure.subplots()
    for place, update in enumerate(UPDATES):
        for number, version in enumerate(versions):
            own = [row for row in rows if (row.version, row.trunk, row.update) == (version, "first", update)]
            if not own:
                continue
            at = number + 0.16 * (place - 2)
            label = update if number == 0 else None
            plot.bar(
                at, fmean(row.coupled for row in own), 0.14, color=COLOURS[update], alpha=0.7, label=label
            )
            plot.plot([at] * len(own), [row.coupled for row in own], "k.", markersize=3)
            plot.annotate(_size(own[0].update_bytes), (at, 0.01), ha="center", fontsize=6, color="white")
    base = [row.coupled for row in rows if (row.version, row.trunk) == ("base", "first")]
    if base:
        plot.axhline(fmean(base), color="grey", linestyle="--", label="before the target changed")
    plot.set(xticks=range(len(versions)), ylim=(0, 1), ylabel="coupled acceptance at T = 1")
    plot.set_xticklabels(versions)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    save(figure, path)


def _size(num_bytes: int) -> str:
    return (
        "0" if not num_bytes else f"{num_bytes / 1e3:.0f}k" if num_bytes < 1e6 else f"{num_bytes / 1e6:.1f}M"
    )

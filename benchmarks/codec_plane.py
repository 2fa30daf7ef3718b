"""How many bits does a draft cost under each codec, and how often does it stand (SQS and QS, their trade-off)?

A drafter's distributions q and a verifier's p for the same prefixes go through every codec. A draft from the quantised
q' stands with probability sum min(q', p) under the rejection rule; with ids alone, under the coupled rule, as
`coupled_acceptance` says. Bits are those of the payloads, whole bytes; an id takes ceil(log2 V). What a frame adds is
the same for all and not counted.

- `bundled`: the bundled model answers held-out questions; q has the device's documents, p the cloud's.
- `--text FOLDER`: words of WikiText-2 (valid.txt and test.txt); q is an interpolated bigram, p an interpolated 4-gram
  with a cache of the last 400 words. Nothing else in Tandem needs these files.

Temperatures other than 1 are q^(1/T) and p^(1/T), normalised.

Beside the lattice stands the wrong order, sample then quantise: the draft is drawn from q and checked with q'. More
drafts stand, and what is committed is not p: the table has the total variation of the two. `--out` draws the plane.

Prediction (synthetic distributions, 50,257 tokens): ids alone take a seventeenth of the bits of k_sqs with K = 16 at 97
to 102 % of its acceptance; `non_zero` takes at most half of the bits of the papers' lattice index at T = 1 and a fifth
at T <= 0.6; c_sqs in the paper's form needs thousands of bits at T = 1. Sample then quantise commits tokens that
are off by 0.12 at T = 1 and l = 100, and less at lower temperatures.

Expected run time: 2 minutes each; `--smoke` 15 seconds.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np
from numpy.typing import NDArray

from benchmarks._common import finish, new_parser
from tandem.aggregation.distributions import Distribution
from tandem.aggregation.rules import coupled_acceptance
from tandem.codecs import Codec, CodecSession, TopK, TopP
from tandem.codecs.base import MAX_VOCAB
from tandem.papers.lattice import Lattice
from tandem.papers.sqs import CSqs, KSqs
from tandem_lab.plots import save
from tandem_lab.quality.sample_then_quantise import verify

TEMPERATURES = (0.2, 0.4, 0.6, 0.8, 1.0)
Pair = tuple[NDArray[np.float64], NDArray[np.float64]]
CODECS: dict[str, Codec] = {
    "k_sqs 4 paper": KSqs(4, index="paper"),
    "k_sqs 16 paper": KSqs(16, index="paper"),
    "k_sqs 64 paper": KSqs(64, index="paper"),
    "k_sqs 16": KSqs(16),
    "c_sqs paper": CSqs(beta_max=0.0, index="paper"),
    "c_sqs": CSqs(),
    "lattice 24 paper": Lattice(24, "paper"),
    "lattice 24": Lattice(24),
    "lattice 100 paper": Lattice(100, "paper"),
    "lattice 100": Lattice(100),
    "top_k 16": TopK(16),
    "top_k 16 residual": TopK(16, "residual"),
    "top_p 0.8": TopP(0.8),
    "top_p 0.95": TopP(0.95),
}


# ---- distributions -------------------------------------------------------------------------------------------


@dataclass
class Recording:
    """A codec that keeps what it is asked to encode, for each session that it opens."""

    inner: TopP = field(default_factory=lambda: TopP(1.0, MAX_VOCAB))
    opened: list[Recorder] = field(default_factory=list)

    @property
    def max_bytes(self) -> int:
        """As for the codec inside."""
        return self.inner.max_bytes

    def open(self) -> CodecSession:
        """One more session."""
        self.opened.append(Recorder(self.inner))
        return self.opened[-1]

    def decode(self, payload: bytes, vocab_size: int = MAX_VOCAB) -> Distribution:
        """As the codec inside."""
        return self.inner.decode(payload, vocab_size)

    def fingerprint(self) -> str:
        """As the codec inside."""
        return self.inner.fingerprint()


@dataclass
class Recorder:
    """A session that keeps every distribution."""

    inner: TopP
    seen: list[NDArray[np.float64]] = field(default_factory=list)

    def encode(self, dense: NDArray[np.floating]) -> tuple[bytes, CodecSession]:
        """As the codec inside."""
        self.seen.append(np.array(dense, dtype=np.float64))
        return self.inner.encode(dense), self


PLANE_LOOK = {
    "ids": ("#cc3377", "D"),
    "k_sqs": ("#0072b2", "o"),
    "c_sqs": ("#56b4e9", "s"),
    "lattice": ("#009e73", "^"),
    "top_k": ("#e69f00", "v"),
    "top_p": ("#000000", "x"),
}
"""Colour and marker of a codec."""
PLANE_SIZES = {"4": 4.0, "64": 9.0, "24": 5.0, "100": 8.0, "0.8": 5.0, "0.95": 8.0}
"""Size of the marker for a codec's parameter, in points, where it is not 6."""


def plot_plane(rows: Mapping[float, Mapping[str, tuple[float, float]]], path: Path, what: str) -> None:
    """The plane of bits and acceptance, one plot for each temperature. Raises TandemError.

    rows: mean bits of a draft and the probability that it stands, by temperature and scheme; what: the distributions.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.4 * len(rows), 4.6), dpi=120, layout="constrained")
    plots = figure.subplots(1, len(rows), squeeze=False, sharex=True, sharey=True)[0]
    handles: dict[str, Any] = {}
    for plot, (temperature, schemes) in zip(plots, rows.items(), strict=True):
        for name, (bits, acceptance) in schemes.items():
            if bits:
                handles[name] = plot.plot(bits, acceptance, label=name, **_plane_look(name))[0]
            else:
                handles[name] = plot.axhline(acceptance, label=name, color="#777777", lw=0.8, ls=":")
        plot.set_xscale("log")
        plot.set_xlabel("bits per draft")
        plot.set_title(f"T {temperature:g}", fontsize=10, loc="left")
        plot.grid(alpha=0.3)
        plot.spines[["top", "right"]].set_visible(False)
    plots[0].set_ylabel("probability that the draft stands")
    figure.suptitle(what, fontsize=10)
    figure.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=6, frameon=False, fontsize=8
    )
    save(figure, path)


def _plane_look(scheme: str) -> dict[str, Any]:
    """Colour and marker by the codec, size by its parameter, hollow for the variants that send more."""
    family, *parameters = scheme.split()
    color, marker = PLANE_LOOK.get(family, ("#777777", "o"))
    size = (
        8.0
        if family == "ids"
        else next((PLANE_SIZES[each] for each in parameters if each in PLANE_SIZES), 6.0)
    )
    face = "white" if scheme.endswith(("paper", "residual")) else color
    return {"color": color, "marker": marker, "linestyle": "none", "markersize": size, "mfc": face}


def bundled(count: int) -> Iterator[Pair]:
    """(q, p) [vocab] at the steps of answers to held-out questions, drafted by the device, in order."""
    from tandem.config.schema import Config
    from tandem.corpora import WEIGHTS
    from tandem.engine.engine import Engine
    from tandem.retrieval.embedding import Embedder
    from tandem.topology import PARTIES
    from tandem_lab.quality.heldout import heldout_spec, retrievers_of, worlds
    from tandem_lab.quality.local import LocalPair
    from tandem_lab.simulation.specs import change_spec

    engine, embedder = Engine.load(str(WEIGHTS), num_threads=1), Embedder.load("offline", num_threads=1)
    spec = replace(change_spec(heldout_spec(Config()), temperature=1.0), max_window=1, race_depth=0)
    num_made = 0
    for world, questions in worlds(count, 29):
        with tempfile.TemporaryDirectory() as folder:
            retrievers = retrievers_of(world, Path(folder), embedder)
            for question in questions:
                codec = Recording()
                pair = LocalPair(dict.fromkeys(PARTIES, engine), retrievers, codec)
                pair.answer(replace(spec, query=question.text, seed=num_made))
                device, cloud = (each for each in codec.opened if each.seen)
                for both in zip(device.seen, cloud.seen, strict=False):
                    yield both
                    num_made += 1
                    if num_made == count:
                        return


def words(folder: Path, count: int) -> Iterator[Pair]:
    """(q, p) [vocab] at successive words of held-back text."""
    tested, learned = ((folder / f"{name}.txt").read_text("utf-8") for name in ("valid", "test"))
    train = learned.replace("\n", " <eos> ").split()
    ids = {word: number for number, (word, _) in enumerate(Counter(train).most_common())}
    line = np.array([ids[word] for word in train])
    held = [ids.get(word, ids["<unk>"]) for word in tested.replace("\n", " <eos> ").split()]
    single = np.bincount(line, minlength=len(ids)) + 0.5
    single /= single.sum()
    tables = [_followers(line.tolist(), length) for length in (1, 2, 3)]
    for end in range(2000, 2000 + count):
        context = held[:end]
        recent = np.bincount(context[-400:], minlength=len(ids)) / 400
        q = _interpolated(single, tables[0].get(tuple(context[-1:])), 1.0)
        p = _interpolated(0.9 * single + 0.1 * recent, tables[0].get(tuple(context[-1:])), 1.0)
        for length in (2, 3):
            p = _interpolated(p, tables[length - 1].get(tuple(context[-length:])), 1.5)
        yield q, p


def _followers(line: list[int], length: int) -> dict[tuple[int, ...], Counter[int]]:
    found: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
    for end in range(length, len(line)):
        found[tuple(line[end - length : end])][line[end]] += 1
    return found


def _interpolated(
    base: NDArray[np.float64], followers: Counter[int] | None, weight: float
) -> NDArray[np.float64]:
    """Witten-Bell: the less varied the followers, the more they count."""
    if not followers:
        return base
    total, distinct = followers.total(), weight * len(followers)
    out = base * (distinct / (total + distinct))
    out[np.fromiter(followers, int)] += np.fromiter(followers.values(), float) / (total + distinct)
    return np.asarray(out)


# ---- the plane -----------------------------------------------------------------------------------------------


def at_temperature(dense: NDArray[np.float64], temperature: float) -> NDArray[np.float64]:
    """The distribution to the power 1 / T, normalised."""
    powers = (dense / dense.max()) ** (1.0 / temperature)
    return np.asarray(powers / powers.sum())


def measure(pairs: list[Pair], temperature: float) -> dict[str, tuple[float, float]]:
    """Mean (bits, acceptance) of each scheme; codecs with a state see the distributions in order."""
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    sessions = {name: codec.open() for name, codec in CODECS.items()}
    for both in pairs:
        q, p = (at_temperature(each, temperature) for each in both)
        ids = np.arange(q.size)
        found["not quantised"].append((0.0, float(np.minimum(q, p).sum())))
        agreement = coupled_acceptance(Distribution(ids, q), Distribution(ids, p))
        found["ids only, coupled"].append((float((q.size - 1).bit_length()), agreement))
        for name, codec in CODECS.items():
            payload, sessions[name] = sessions[name].encode(q)
            quantised = codec.decode(payload, q.size).dense(q.size)
            found[name].append((8.0 * len(payload), float(np.minimum(quantised, p).sum())))
    return {name: tuple(np.mean(values, axis=0)) for name, values in found.items()}  # type: ignore[misc]


def measure_wrong_order(pairs: list[Pair], temperature: float) -> dict[str, tuple[float, float]]:
    """Mean (acceptance, distance to the target) of sample-then-quantise at each resolution of the lattice."""
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for both in pairs:
        q, p = (at_temperature(each, temperature) for each in both)
        for resolution in (24, 100):
            codec = Lattice(resolution)
            quantised = codec.decode(codec.open().encode(q)[0], q.size).dense(q.size)
            found[f"sample, then lattice {resolution}"].append(verify(q, quantised, p))
    return {name: tuple(np.mean(values, axis=0)) for name, values in found.items()}  # type: ignore[misc]


def table(rows: dict[float, dict[str, tuple[float, float]]]) -> str:
    """Markdown: bits / acceptance."""
    temperatures = sorted(rows)
    lines = [
        "| scheme | " + " | ".join(f"T = {each:g}" for each in temperatures) + " |",
        "|---" * (len(temperatures) + 1) + "|",
    ]
    for name in rows[temperatures[0]]:
        cells = (f"{rows[each][name][0]:.0f} / {rows[each][name][1]:.3f}" for each in temperatures)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Record, measure, print."""
    parser = new_parser(__doc__)
    parser.add_argument("--text", type=Path, help="folder with WikiText-2's valid.txt and test.txt")
    parser.add_argument("--count", type=int, default=400, help="distributions")
    parser.add_argument("--out", type=Path, help="draws the plane into this file (.png, .pdf or .svg)")
    parser.add_argument("--smoke", action="store_true", help="few distributions, two temperatures")
    arguments = parser.parse_args()
    print("prediction: ids alone at least 0.95 of the acceptance of k_sqs 16 for at most a tenth of its bits")
    count, temperatures = (12, (0.6, 1.0)) if arguments.smoke else (arguments.count, TEMPERATURES)
    pairs = list(words(arguments.text, count) if arguments.text else bundled(count))
    print(f"{len(pairs)} pairs of distributions over {pairs[0][0].size} tokens")
    rows = {temperature: measure(pairs, temperature) for temperature in temperatures}
    print(table(rows))
    wrong = {temperature: measure_wrong_order(pairs, temperature) for temperature in temperatures}
    for name in wrong[temperatures[0]]:
        cells = (
            f"T = {each:g}: {wrong[each][name][0]:.3f}, off by {wrong[each][name][1]:.3f}" for each in wrong
        )
        print(f"{name}: " + "; ".join(cells))
    if arguments.out:
        plot_plane(rows, arguments.out, "WikiText-2" if arguments.text else "bundled model")
    result: dict[str, Any] = {"vocab": pairs[0][0].size, "pairs": len(pairs)}
    for temperature, row in rows.items():
        (id_size, id_rate), (size, rate) = row["ids only, coupled"], row["k_sqs 16 paper"]
        print(
            f"T = {temperature:g}: ids alone {id_size / size:.3f} of the bits, {id_rate / rate:.3f} of the acceptance"
        )
        result[f"T={temperature:g}"] = row | wrong[temperature]
    finish(result)


if __name__ == "__main__":
    main()

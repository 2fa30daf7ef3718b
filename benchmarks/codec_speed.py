"""What do codecs and the race over a large vocabulary cost in time?

Targets on two idle cores: coding and decoding the integers of 16 tokens below 0.1 ms together, of 64 below 0.5 ms;
quantising 152 k probabilities below 3 ms; the lazy race over 152 k below 1.5 ms, with the winners of the race that
takes every logarithm; a vote of 50 k from the logits of one document to its list below 1 ms. Processor times, best of
many, so that other work disturbs them least. `--check N` compares N winners.

Expected run time: 1 minute, and 5 for `--check 10000`; `--smoke` 10 seconds.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks._common import finish
from tandem.aggregation.coupling import best_scores, lazy_race, noise, race
from tandem.aggregation.distributions import Distribution
from tandem.aggregation.race_lists import race_list
from tandem.codecs import Codec, CSqs, KSqs, Lattice, TopK, TopP
from tandem.codecs.lattice import point, pop_support, push_support, quantise
from tandem.codecs.race_lists import RaceLists, cut_vote
from tandem.engine.drafter import mix_rows

VOCAB, LARGE = 50_257, 151_936
CODECS: tuple[Codec, ...] = (
    KSqs(16),
    KSqs(16, index="paper"),
    KSqs(64, index="paper"),
    CSqs(),
    Lattice(100),
    Lattice(100, "paper"),
    Lattice(720, "paper"),
    TopK(16),
    TopK(16, "residual"),
    TopP(0.8),
)


def best_ms(function: Callable[[], object], runs: int) -> float:
    """Least processor time."""
    times = []
    for _ in range(runs):
        start_s = time.process_time()
        function()
        times.append(time.process_time() - start_s)
    return round(1e3 * min(times), 4)


def softmax(vocab: int, scale: float) -> NDArray[np.float64]:
    """Of normally distributed logits."""
    logits = np.random.default_rng(0).normal(size=vocab) * scale
    dense = np.exp(logits - logits.max())
    return np.asarray(dense / dense.sum())


def all_logarithms(dense: NDArray[np.float64], step: int) -> int:
    """The race without its shortcut."""
    distribution = Distribution(np.arange(dense.size), dense)
    return race(distribution, noise(5, step, distribution.ids))


def votes(runs: int) -> dict[str, float]:
    """A voter's way from logits to the list that it sends, by the number of its documents."""
    torch.set_num_threads(1)
    result: dict[str, float] = {}
    for rows in (1, 4):
        logits = 4.7 * torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(rows))
        weights = [0.5 * row for row in range(rows)]

        def mix(logits: torch.Tensor = logits, weights: list[float] = weights) -> NDArray[np.float64]:
            return mix_rows(logits, weights, 1.0)

        def vote(mix: Callable[[], NDArray[np.float64]] = mix) -> bytes:
            payload = RaceLists().encode(mix())
            return cut_vote(payload, 8, VOCAB, seed=5, step=1, temperature=1.0)

        result[f"mix {rows} rows of 50 k"] = best_ms(mix, runs)
        result[f"vote of {rows} rows of 50 k, from logits to a list of 8"] = best_ms(vote, runs)
    values = mix().astype(np.float32)
    result["list of 8 of 50 k"] = best_ms(lambda: race_list(values, 8, seed=5, step=1, temperature=1.0), runs)
    return result


def main() -> None:
    """Time everything, compare winners, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", type=int, default=100, help="races to compare")
    parser.add_argument("--smoke", action="store_true")
    arguments = parser.parse_args()
    runs = 5 if arguments.smoke else 60
    result: dict[str, float] = {}
    dense, large = softmax(VOCAB, 4.0), softmax(LARGE, 4.0)
    for kept in (16, 64):
        ids = np.sort(np.argsort(-dense)[:kept])
        found = point(dense, ids, 100)
        number = push_support(0, found, VOCAB)
        encode_ms = best_ms(lambda found=found: push_support(0, found, VOCAB), runs)  # type: ignore[misc]
        decode_ms = best_ms(lambda x=number, k=kept: pop_support(x, VOCAB, k, 100), runs)  # type: ignore[misc]
        result[f"integers of {kept} tokens"] = encode_ms + decode_ms
    for codec in CODECS:
        session = codec.open()
        payload = session.encode(dense)[0]
        result[f"encode {codec.fingerprint()}"] = best_ms(lambda s=session: s.encode(dense), runs)  # type: ignore[misc]
        result[f"decode {codec.fingerprint()}"] = best_ms(
            lambda c=codec, b=payload: c.decode(b, VOCAB),  # type: ignore[misc]
            runs,
        )
    result["quantise 152 k"] = best_ms(lambda: quantise(large, 100), runs)
    result["race 152 k, all logarithms"] = best_ms(lambda: all_logarithms(large, 1), runs)
    result["race 152 k, lazy"] = best_ms(lambda: lazy_race(large, seed=5, step=1), runs)
    result["8 best of 152 k, lazy"] = best_ms(lambda: best_scores(large, 8, seed=5, step=1), runs)
    result |= votes(runs)
    for name, value in result.items():
        print(f"{name:100} {value:8.3f} ms")
    num_checked = 5 if arguments.smoke else arguments.check
    pairs = ((all_logarithms(large, s), lazy_race(large, seed=5, step=s)) for s in range(num_checked))
    result["winners that differ"] = sum(one != other for one, other in pairs)
    print(f"{result['winners that differ']:.0f} of {num_checked} winners differ")
    finish(result)
    if result["winners that differ"]:
        sys.exit("the lazy race has another winner")


if __name__ == "__main__":
    main()

"""What do stored caches of documents save before the first token? DRAGON sections 2.1 and 7.3.

Time from the tokens of a prompt to the logits of its first token, on a random Qwen2 of 25 million parameters with
grouped-query attention, for 1 to 16 documents of 64 to 512 tokens and a question of 16: with every document computed
(prefill), and with the caches in the store on disk, in three states: `warm` (files open, pages in the system's
cache), `opened` (a new process: mapping and checksum besides) and `cold` (pages dropped, so that the disk is read;
set TMPDIR where the temporary folder is in memory).

Prediction, printed first: with stored caches one document more costs its bytes over the memory's bandwidth, twice (they
are set side by side, then the question is appended to them) and once more for each query head of a key-value head
(transformers copies keys and values so, for more than one new token at a time), plus the question's arithmetic; both
rates are measured here. Prefill costs the arithmetic of all its tokens. Target: at 8 documents of 256 tokens stored
caches are at least 3 times as fast.

Expected run time: 7 minutes with one thread on an idle core; `--smoke` 15 s.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np
import torch

from benchmarks._common import axes, finish, new_parser, save, summary
from tandem.engine.kv import DiskStore, DocumentCaches
from tandem.engine.prompt import Prompt
from tandem.engine.session import EngineSession, compute
from tandem.plugins.torch.batch import FORM, BatchModel

VOCAB, CONTEXT, QUERY_TOKENS, BUDGET = 4096, 1024, 16, 1 << 34
SHAPE = {"hidden_size": 512, "intermediate_size": 1408, "num_attention_heads": 8, "num_key_value_heads": 2}
DOCUMENTS, LENGTHS = (1, 2, 4, 8, 16), (64, 128, 256, 512)
AT, TARGET = (8, 256), 3.0
STATES = ("prefill", "warm", "opened", "cold")


def random_model(num_layers: int) -> BatchModel:
    """A Qwen2 with random weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(
        "qwen2",
        vocab_size=VOCAB,
        max_position_embeddings=CONTEXT,
        num_hidden_layers=num_layers,
        tie_word_embeddings=True,
        **SHAPE,
    )
    model = AutoModelForCausalLM.from_config(config).eval()
    return BatchModel(model)


def prompt_of(num_documents: int, num_tokens: int) -> Prompt:
    """Random tokens; the same for the same numbers."""
    draw = Random(num_tokens)
    rows = [[draw.randrange(VOCAB) for _ in range(num_tokens)] for _ in range(num_documents)]
    query = [draw.randrange(VOCAB) for _ in range(QUERY_TOKENS)]
    return Prompt(tuple(map(tuple, rows)), tuple(query), tuple(range(num_documents)), (), ())


class Case:
    """One prompt and a store that holds its documents."""

    def __init__(self, model: BatchModel, prompt: Prompt, folder: Path) -> None:
        self._batch, self._prompt, self._folder = model, prompt, folder
        self._open_store = self._files()
        caches = DocumentCaches()
        caches.store = self._open_store
        self._compute(caches)
        for tokens in prompt.document_tokens:
            self._open_store.get(tokens)
        os.sync()  # only clean pages can be dropped

    def first_token_s(self, state: str) -> float:
        """Seconds to the logits of the first token, in one of STATES."""
        caches = DocumentCaches()
        if state == "cold":
            self._open_store = self._files()  # closes its files: mapped pages are not dropped
            self._drop_pages()
        if state == "warm":  # "cold", which comes before it in turn, closed them
            for tokens in self._prompt.document_tokens:
                self._open_store.get(tokens)
        if state != "prefill":
            caches.store = self._open_store if state == "warm" else self._files()
        start_s = time.perf_counter()
        self._compute(caches)
        elapsed_s = time.perf_counter() - start_s
        assert caches.num_hits == (0 if state == "prefill" else len(self._prompt.document_tokens))
        return elapsed_s

    def _compute(self, caches: DocumentCaches) -> None:
        with torch.inference_mode():
            session = EngineSession(self._prompt.rows(), self._batch, caches, VOCAB)
            session.request((), 1)
            compute(self._batch, [session])

    def _files(self) -> DiskStore:
        return DiskStore(self._folder, "random", BUDGET, print, FORM)

    def _drop_pages(self) -> None:
        for path in self._folder.glob("*/*/*"):
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def measured(model: BatchModel, num_documents: int, num_tokens: int, runs: int) -> dict[str, Any]:
    """Seconds in every state: median and quartiles of `runs`, states in turn, after one turn to warm up."""
    with tempfile.TemporaryDirectory() as folder:
        case = Case(model, prompt_of(num_documents, num_tokens), Path(folder))
        turns = [{state: case.first_token_s(state) for state in STATES} for _ in range(runs + 1)][1:]
    return {state: summary([turn[state] for turn in turns]) for state in STATES}


def bandwidth() -> float:
    """Bytes a second of copying 32 MB to new memory; each is read once and written once."""
    source = torch.ones(1 << 23)
    return source.nbytes / _best_s(source.clone)


def arithmetic_rate(rows: int) -> float:
    """Multiplications and additions a second in a product of the model's shape with so many rows."""
    left, right = torch.randn(rows, SHAPE["hidden_size"]), torch.randn(512, SHAPE["intermediate_size"])
    return 2 * left.numel() * SHAPE["intermediate_size"] / _best_s(lambda: left @ right)


def _best_s(work: Callable[[], object], repeats: int = 15) -> float:
    times = []
    for _ in range(repeats):
        start_s = time.perf_counter()
        work()
        times.append(time.perf_counter() - start_s)
    return median(times)


class Prediction:
    """What one document more should cost."""

    def __init__(self, model: BatchModel) -> None:
        config = model.model.config
        self.bytes_per_token = (
            2 * config.num_hidden_layers * config.num_key_value_heads * 4
            * (config.hidden_size // config.num_attention_heads)
        )  # fmt: skip
        self._num_copies = 2 + config.num_attention_heads // config.num_key_value_heads
        self.num_parameters = sum(each.numel() for each in model.model.parameters())
        self._attention = 4 * config.num_hidden_layers * config.hidden_size
        self._in_layers = self.num_parameters - VOCAB * config.hidden_size
        self._head = 2 * VOCAB * config.hidden_size
        self.bytes_per_s, self.operations_per_s = bandwidth(), arithmetic_rate(8 * QUERY_TOKENS)

    def stored_s(self, num_tokens: int) -> tuple[float, float]:
        """Its bytes over the bandwidth, as often as they are copied, and the question's arithmetic in its row."""
        operations = QUERY_TOKENS * (2 * self._in_layers + self._attention * num_tokens) + self._head
        copied = self._num_copies * num_tokens * self.bytes_per_token
        return copied / self.bytes_per_s, operations / self.operations_per_s

    def prefill_s(self, num_tokens: int) -> float:
        """Its own arithmetic besides; half of the attention is masked."""
        operations = num_tokens * (2 * self._in_layers + self._attention * num_tokens / 2)
        return operations / self.operations_per_s


def slope(documents: Sequence[int], seconds: Sequence[float]) -> float:
    """Seconds per document of the least-squares line."""
    return float(np.polyfit(documents, seconds, 1)[0])


def _show_prediction(prediction: Prediction, lengths: Sequence[int]) -> None:
    print(
        f"prediction: {prediction.num_parameters / 1e6:.1f} million parameters, "
        f"{prediction.bytes_per_token} bytes per token; {prediction.bytes_per_s / 1e9:.1f} GB/s, "
        f"{prediction.operations_per_s / 1e9:.0f} GFLOP/s; at {AT[0]} x {AT[1]} at least {TARGET:g} x"
    )
    for length in lengths:
        copied_s, query_s = prediction.stored_s(length)
        kilobytes = length * prediction.bytes_per_token / 1e3
        print(
            f"  {length:4} tokens: {kilobytes:6.0f} kB a chunk; a document costs {1e3 * (copied_s + query_s):.1f} ms "
            f"stored ({1e3 * copied_s:.1f} bytes, {1e3 * query_s:.1f} question), "
            f"{1e3 * (prediction.prefill_s(length) + query_s):.0f} ms computed"
        )


def _show_cell(num_documents: int, num_tokens: int, found: dict[str, Any]) -> None:
    times = "  ".join(
        f"{state} {1e3 * found[state]['p50']:7.1f}"
        f" [{1e3 * found[state]['p25']:.1f}, {1e3 * found[state]['p75']:.1f}]"
        for state in STATES
    )
    ratio = found["prefill"]["p50"] / found["warm"]["p50"]
    print(f"{num_documents:3} x {num_tokens:3}  {times} ms  {ratio:5.1f} x", flush=True)


def _plot(table: dict[tuple[int, int], Any], documents: Sequence[int], out: Path) -> str:
    figure, (plot,) = axes(1, 4.2)
    lengths = sorted({length for _, length in table})
    colours = ("#0072B2", "#E69F00", "#009E73", "#CC3377", "#56B4E9")
    for length, colour in zip(lengths, colours, strict=False):
        for state, name, style in (("prefill", "prefill", "--"), ("warm", "stored", "-")):
            values = [1e3 * table[count, length][state]["p50"] for count in documents]
            plot.plot(documents, values, style, marker="o", color=colour, label=f"{length} tokens, {name}")
    plot.set(xlabel="documents", ylabel="time to first token (ms)", yscale="log", xscale="log")
    plot.set_xticks(documents, [str(count) for count in documents])
    plot.minorticks_off()
    plot.set_yticks(ticks := [20, 50, 100, 200, 500, 1000, 2000, 5000], [str(each) for each in ticks])
    plot.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    return str(save(figure, out, "stored_prefixes"))


def main() -> None:
    """Prediction, table, slopes."""
    options = new_parser(__doc__)
    options.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "out", help="folder for the plot"
    )
    options.add_argument("--smoke", action="store_true", help="few prompts")
    arguments = options.parse_args()
    torch.set_num_threads(1)
    documents, lengths, runs = ((1, 2, 4), (64, 128), 3) if arguments.smoke else (DOCUMENTS, LENGTHS, 7)
    model = random_model(num_layers=2 if arguments.smoke else 8)
    prediction = Prediction(model)
    _show_prediction(prediction, lengths)
    table: dict[tuple[int, int], Any] = {}
    for length in lengths:
        for count in documents:
            table[count, length] = measured(model, count, length, runs)
            _show_cell(count, length, table[count, length])
    slopes = {}
    for length in lengths:
        found_s = slope(documents, [table[count, length]["warm"]["p50"] for count in documents])
        predicted_s = sum(prediction.stored_s(length))
        slopes[length] = {"measured_s": found_s, "predicted_s": predicted_s}
        print(
            f"{length:4} tokens: {1e3 * found_s:.2f} ms a document stored, {found_s / predicted_s:.0%} of predicted"
        )
    at = AT if AT in table else max(table)
    ratio = table[at]["prefill"]["p50"] / table[at]["warm"]["p50"]
    print(f"at {at[0]} x {at[1]}: {ratio:.1f} x as fast as prefill (target {TARGET:g} x)")
    finish(
        {
            "num_parameters": prediction.num_parameters,
            "bytes_per_token": prediction.bytes_per_token,
            "bytes_per_chunk": {length: length * prediction.bytes_per_token for length in lengths},
            "bytes_per_s": prediction.bytes_per_s,
            "operations_per_s": prediction.operations_per_s,
            "first_token_s": {f"{count}x{length}": found for (count, length), found in table.items()},
            "slopes": slopes,
            "speedup": {"at": at, "measured": ratio, "target": TARGET},
            "plot": _plot(table, documents, arguments.out),
        }
    )


if __name__ == "__main__":
    main()

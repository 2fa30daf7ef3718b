"""Does the perplexity of WikiText-2 fall as documents are added, with a small model trained for the purpose (Figure 5)?

Trains a byte-level BPE and a Llama of about 6 million parameters whose training rows pair documents with a
continuation: passages of the same article, passages of others, several joined, or none, so that it can use what is
retrieved, in a row of its own or joined. Then scores the second halves of the test articles as `tandem lab eval lm`
does, with documents from
- the training text (as in the paper): other articles, so little to gain;
- the first halves of the same test articles: what a reader of the article has seen.
The cloud has the better half of the documents found, the device the other.

Prediction: with the training text every line is flat to within its interval; with the first halves perplexity falls
with the documents, output aggregation of both sides below each side alone, by some per cent only: six million
parameters and some minutes learn to copy names, not to reason. Whether output aggregation is below concatenation is
open; published results go both ways. Reported whichever way it goes.

With `--model smollm2`, or another, nothing is trained, and only the first halves are searched. Prediction for smollm2
with 4 documents of each party: evidence at least 0.02 nats per token below static weights, with joined and bare rows at
least 0.04.

Needs train.txt or valid.txt, and test.txt; `--smoke` without them says so and ends. Expected run time: 40 minutes on
two idle cores, a third of it training; `--smoke` 20 seconds.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._common import finish, new_parser
from tandem.config.schema import Config, PartyConfig, RetrievalConfig
from tandem_lab.baselines.documents import JOINT
from tandem_lab.quality.document_sets import Counts
from tandem_lab.quality.lm import evaluate_text
from tandem_lab.quality.methods import METHODS
from tandem_lab.quality.plot import plot_evaluation
from tandem_lab.quality.result import Result, table, write
from tandem_lab.quality.setup import load

ROOT = Path(__file__).parent.parent
HEADING = re.compile(r"^ = [^=].*[^=] = $", re.MULTILINE)
BOS, EOS = "<bos>", "<eos>"
CONTEXT = 512
WINDOW = 256
DOCUMENT_TOKENS, CONTEXT_TOKENS = 64, 192
NUM_WARM_UP = 40
HELD_BACK = 0.05
"""Share of the training articles that measure the loss during training."""


def articles(text: str) -> list[str]:
    """The articles of a WikiText file, each with its heading."""
    starts = [match.start() for match in HEADING.finditer(text)]
    return [text[a:b].strip() for a, b in zip(starts, [*starts[1:], len(text)], strict=True)]


def halves(article: str) -> tuple[str, str]:
    """Cut at the end of the paragraph nearest to the middle."""
    ends = [match.end() for match in re.finditer(r"\n", article)] or [len(article) // 2]
    middle = min(ends, key=lambda end: abs(end - len(article) / 2))
    return article[:middle], article[middle:]


def train_tokenizer(texts: Sequence[str], vocab_size: int) -> Any:
    """A byte-level BPE with beginning and end marks."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=[BOS, EOS], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=BOS, eos_token=EOS)


def new_model(vocab_size: int, *, is_smoke: bool) -> Any:
    """A Llama with random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    hidden, layers = (64, 2) if is_smoke else (256, 6)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=hidden,
        intermediate_size=11 * hidden // 4,
        num_hidden_layers=layers,
        num_attention_heads=8 if not is_smoke else 4,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=1,
    )
    return LlamaForCausalLM(config)


class Rows:
    """Draws training rows: documents, a blank line, a stretch of an article."""

    def __init__(self, encoded: Sequence[Sequence[int]], joint: Sequence[int]) -> None:
        self._articles = [ids for ids in encoded if len(ids) > WINDOW + 2 * DOCUMENT_TOKENS]
        self._joint = list(joint)

    def draw(self, rng: Random) -> list[int]:
        """One row of at most CONTEXT tokens."""
        ids = rng.choices(self._articles, [len(each) for each in self._articles])[0]
        start = rng.randrange(len(ids) - WINDOW)
        row = [0]
        for _ in range(rng.choice((0, 1, 1, 1, 1, 2, 3))):
            source = ids if rng.random() < 0.7 else rng.choice(self._articles)
            row += self._passage(rng, source, start if source is ids else None) + self._joint
        return [*row, *ids[start : start + WINDOW]][:CONTEXT]

    def _passage(self, rng: Random, ids: Sequence[int], start: int | None) -> list[int]:
        """A document's length of an article that does not touch the stretch itself."""
        while True:
            place = rng.randrange(len(ids) - DOCUMENT_TOKENS)
            if start is None or place + DOCUMENT_TOKENS <= start or place >= start + WINDOW:
                return list(ids[place : place + DOCUMENT_TOKENS])


def loss_of(model: Any, rows: Sequence[Sequence[int]]) -> Any:
    """Mean of -log p over all tokens of rows padded on the right."""
    import torch

    width = max(map(len, rows))
    ids = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])
    labels = torch.tensor([[*row, *[-100] * (width - len(row))] for row in rows])
    return model(input_ids=ids, labels=labels).loss


def train(
    folder: Path, texts: Sequence[str], *, steps: int, is_smoke: bool, say: Callable[[str], Any]
) -> dict[str, Any]:
    """Train tokenizer and model on articles and save both; returns what was done."""
    import torch

    rng = Random(0)
    torch.manual_seed(0)
    wrapper = train_tokenizer(texts, 512 if is_smoke else 4096)
    encoded = [wrapper.encode(text, add_special_tokens=False) for text in texts]
    joint = wrapper.encode(JOINT, add_special_tokens=False)
    num_held = max(1, int(HELD_BACK * len(encoded)))
    rows, held = Rows(encoded[num_held:], joint), Rows(encoded[:num_held] + encoded[:1], joint)
    checks = [held.draw(Random(1)) for _ in range(4 if is_smoke else 32)]
    model = new_model(len(wrapper), is_smoke=is_smoke)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1, betas=(0.9, 0.95))
    started_s, checked = time.monotonic(), math.nan
    for step in range(steps):
        share = step / steps
        rate = 1e-3 * min(1.0, (step + 1) / NUM_WARM_UP) * (0.1 + 0.45 * (1 + math.cos(math.pi * share)))
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = loss_of(model, [rows.draw(rng) for _ in range(2 if is_smoke else 8)])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % max(1, steps // 12) == 0 or step == steps - 1:
            with torch.inference_mode():
                checked = loss_of(model, checks).item()
            say(
                f"step {step:5} loss {loss.item():.3f} held back {checked:.3f} {time.monotonic() - started_s:.0f} s"
            )
    model.save_pretrained(folder)
    wrapper.save_pretrained(folder)
    return {
        "parameters": sum(each.numel() for each in model.parameters()),
        "steps": steps,
        "train_tokens": sum(map(len, encoded)),
        "held_back_loss": checked,
        "train_s": round(time.monotonic() - started_s, 1),
    }


def score(
    model: str, text: str, corpus: Path, arguments: argparse.Namespace, counts: Sequence[Counts]
) -> Result:
    """`tandem lab eval lm` with this model and these documents."""
    party = PartyConfig(model=model, num_threads=arguments.threads)
    config = replace(
        Config(),
        device=party,
        cloud=party,
        retrieval=RetrievalConfig(embedder="offline", chunk_chars=300, chunk_overlap=0),
    ).with_names()
    names = arguments.methods or [name for name in METHODS if not (arguments.smoke and name == "dynamic")]
    return evaluate_text(
        load(config, corpus),
        text,
        {name: METHODS[name] for name in names},
        counts,
        config.weights,
        window=WINDOW,
        document_tokens=DOCUMENT_TOKENS,
        context_tokens=CONTEXT_TOKENS,
        most_windows=2 if arguments.smoke else arguments.windows,
    )


def main() -> None:
    """Train, score twice, print the tables, end with JSON."""
    parser = new_parser(__doc__)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data" / "wikitext-2")
    parser.add_argument(
        "--out", type=Path, default=Path("wikitext"), help="folder of model, tables and plots"
    )
    parser.add_argument("--steps", type=int, default=500, help="of training, 8 rows of 512 tokens each")
    parser.add_argument("--windows", type=int, default=120)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--model", help="score this one, and train none")
    parser.add_argument("--methods", nargs="+", choices=METHODS, help="(default: all)")
    parser.add_argument(
        "--counts", nargs="+", type=int, default=[0, 1, 2, 4, 8, 16], help="documents of each party"
    )
    parser.add_argument("--again", action="store_true", help="train even if there is a model in --out")
    parser.add_argument(
        "--smoke", action="store_true", help="3 steps, 2 windows, a piece of the data, no dynamic weights"
    )
    arguments = parser.parse_args()
    print(
        "prediction: flat with the training text; falls by some per cent with the first halves of the articles"
    )
    train_path = next(
        (p for p in (arguments.data / f"{n}.txt" for n in ("train", "valid")) if p.is_file()), None
    )
    if train_path is None or not (arguments.data / "test.txt").is_file():
        lacking = (
            f"WikiText-2 must be in {arguments.data} (train.txt or valid.txt, and test.txt); pass --data."
        )
        if not arguments.smoke:
            sys.exit(lacking)
        print(lacking)  # so that one may run every benchmark's smoke without the data
        return
    import torch

    torch.set_num_threads(arguments.threads)
    learned = articles(train_path.read_text("utf-8"))
    tested = articles((arguments.data / "test.txt").read_text("utf-8"))
    if arguments.smoke:
        learned, tested = learned[:6], tested[:4]
    out = arguments.out or Path(tempfile.mkdtemp(prefix="wikitext-"))
    print(f"out: {out}")
    model, corpora = arguments.model or str((out / "model").resolve()), out / "corpora"
    corpora.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {"train_text": train_path.name, "model": model}
    if arguments.model is None and (arguments.again or not Path(model, "config.json").is_file()):
        steps = 3 if arguments.smoke else arguments.steps
        result |= train(Path(model), learned, steps=steps, is_smoke=arguments.smoke, say=print)
        Path(model, "training.json").write_text(json.dumps(result))
    texts = {"first halves": "\n\n".join(halves(a)[0] for a in tested)}
    if arguments.model is None:
        texts["training text"] = "\n\n".join(learned)
    scored = "\n\n".join(halves(article)[1] for article in tested)
    counts = [Counts(k, k) for k in ((0, 1, 2) if arguments.smoke else arguments.counts)]
    for name, text in texts.items():
        corpus = corpora / f"{name.replace(' ', '-')}.txt"
        corpus.write_text(text, "utf-8")
        found = score(model, scored, corpus, arguments, counts)
        print(f"documents: {name}\n{table(found)}", flush=True)
        write(found, out / corpus.stem)
        plot_evaluation(found, out / f"{corpus.stem}.png")
        result[name] = found.as_dict()
    finish(result)


if __name__ == "__main__":
    main()

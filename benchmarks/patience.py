"""What do throughput and perplexity become when a step need not wait for the cloud (after CONCORD)?

Continues articles of WikiText-2 greedily over round trips of 50, 100 and 300 ms. Device and cloud have alternate
paragraphs of the first halves of the test articles; the query is the first 32 tokens of a second half, and each party
searches two documents. The systems:

- waiting loop: no draft before the token before is committed (`decoding.max_window = 1`);
- DRAGON: its preset (Liu et al.); Algorithm 1 at temperature 0, nuclei of 0.8, static weights, greedy placement;
- Tandem: the exact answer of both, placements mirror and device; and with `decoding.patience_s` of 20 to 200 ms, where
  the device decides;
- CONCORD (Hu et al., arXiv 2606.15179): the waiting debt of `tandem_lab.baselines.waiting_debt` on the waiting loop,
  and on Tandem's drafts; after a wait in vain of w seconds, w / relief steps are committed without the cloud;
- the device alone, which never waits.

The real model and the protocol's own state machines, over a virtual link: a pass takes what a pass of two rows takes
here (median, or `--pass-ms`), so that rows differ by their rule and not by what else the machine does. Throughput
counts from the question on, whose documents are cached: a prefill takes one pass. Perplexity is of the true
continuation, each step by the mixture of both parties or by the device alone, as the system decided that step of its
own answer; beside it that of the system's own text under the mixture of both. What CONCORD reports as perplexity we do
not know: we could read its abstract alone.

Prediction: Tandem exact is at least 3 times as fast as the waiting loop at 300 ms, and no system that drafts is more
than 1.2 times as fast as it at 50 ms. Patience below the round trip decides nearly all steps alone once the cloud is
behind, so that it is as fast as the device alone and costs perplexity likewise. CONCORD's rule on Tandem's drafts lies
between the two; on the waiting loop it is below Tandem exact in both throughput and perplexity.

`--live` asks the same of a device that has joined its cloud across netem (as `tandem lab bench latency`; needs
root), and plays them in the simulator with the times that were seen. Needs test.txt; `--smoke` without it says so and
ends. Expected run time: 6 minutes of one core; `--live` 3 minutes; `--smoke` 10 s.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np
from tokenizers import Tokenizer

from benchmarks._common import finish, new_parser
from benchmarks.wikitext_perplexity import articles, halves
from tandem.aggregation.document_weights import DocumentWeights
from tandem.client.request import spec_of
from tandem.codecs import RaceLists, codec_of
from tandem.config.schema import Config
from tandem.engine.drafter import Drafter
from tandem.events import TokenEvent
from tandem.messages import RetrieveRequest
from tandem.modes.spec import SessionSpec
from tandem.protocol.decoding import Prefill
from tandem.retrieval.embedding import Embedder
from tandem.retrieval.factory import open_retriever
from tandem.topology import PARTIES, Party
from tandem_lab.baselines.experiments import Experiments
from tandem_lab.baselines.waiting_debt import WaitingDebtRun
from tandem_lab.plots import save
from tandem_lab.quality.aggregation import Floats, evidence_by_step, party_tokens, target_tokens
from tandem_lab.quality.local import LocalPair, LocalParty
from tandem_lab.quality.memoized import MemoizedEngine, MemoizedRetriever
from tandem_lab.quality.setup import load_engines
from tandem_lab.quality.statistics import perplexity, ratio_interval
from tandem_lab.simulation.link import Link
from tandem_lab.simulation.specs import change_spec
from tandem_lab.simulation.virtual import VirtualRun

ROOT = Path(__file__).parent.parent
QUERY_TOKENS = 32
MIN_CHARS = 200
"""Of a paragraph that is a document."""
MIN_HALF_CHARS = 1000
"""Of a second half that is continued."""
HEADER_BYTES = 66
"""TCP, IP and Ethernet."""


@dataclass(frozen=True, slots=True, eq=False)
class System:
    """One way of answering."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)  # of the query
    relief_s: float | None = None  # of CONCORD's rule
    preset: str = ""
    dial: str = ""  # its value, where several systems have the same name


LOOP = {"placement": "device", "max_window": 1}
WAITING, EXACT = System("waiting loop", LOOP), System("Tandem exact", {"placement": "mirror"})
SYSTEMS = (
    WAITING,
    System("DRAGON", preset="dragon"),
    EXACT,
    System("Tandem exact", {"placement": "device"}, dial="device decides"),
    *(System("Tandem, patience", {"patience_s": s}, dial=f"{1e3 * s:g} ms") for s in (0.02, 0.05, 0.1, 0.2)),
    *(System("CONCORD's rule", LOOP, s, dial=f"{1e3 * s:g} ms") for s in (0.01, 0.03, 0.1)),
    *(
        System("CONCORD's rule on Tandem's drafts", {"placement": "device"}, s, dial=f"{1e3 * s:g} ms")
        for s in (0.01, 0.03, 0.1)
    ),
    System("device alone", {"only": Party.DEVICE}),
)
LIVE = (WAITING, EXACT, *(each for each in SYSTEMS if each.options.get("patience_s") == 0.05))


def prepare(data: Path, folder: Path, model: str, count: int) -> tuple[Config, list[str]]:
    """The settings, with an index of each party in `folder`; and the second halves of so many articles."""
    from tandem.retrieval.build import build_index

    found = articles((data / "test.txt").read_text("utf-8"))
    long = [cut for cut in map(halves, found) if len(cut[1]) >= MIN_HALF_CHARS]
    cut = long[:: max(1, len(long) // count)][:count]
    paragraphs = [line for first, _ in cut for line in first.splitlines() if len(line) >= MIN_CHARS]
    embedder = Embedder.load("offline", num_threads=1)
    template = folder / "template.json"
    template.write_text(json.dumps({"document": "{document}\n\n", "query": "{query}"}))
    settings = ["retrieval.embedder=offline", "sampling.temperature=0.0"]
    for number, party in enumerate(PARTIES):
        source, index = folder / f"{party}.txt", folder / party
        source.write_text("\n\n".join(paragraphs[number::2]), "utf-8")
        build_index(source, index, embedder, chunk_chars=300, overlap=0)
        settings += [f"{party}.model={model}", f"{party}.index={index}", f"{party}.template={template}"]
        settings += [f"{party}.kv_store=memory"]
    return Config.load(None, settings), [second for _, second in cut]


def measure_pass(engine: Any, retriever: Any, query: str) -> float:
    """Seconds of one pass of a party's rows, median of 16."""
    documents = [hit.document.page_content for hit in retriever.search(query, 2)]
    engine.open("pass", query, documents, 64)
    tokens, times_s = list[int](), []
    for _ in range(17):
        begun_s = time.perf_counter()
        logits = engine.next_logits("pass", tokens)
        times_s.append(time.perf_counter() - begun_s)
        tokens.append(int(np.asarray(logits)[0].argmax()))
    engine.close("pass")
    return median(times_s[1:])


class Article:
    """One query with models that remember what they computed, whoever asks."""

    def __init__(
        self, config: Config, spec: SessionSpec, loaded: Any, retrievers: Any, dragon: Config
    ) -> None:
        self.spec = spec
        engines: Any = {party: MemoizedEngine(loaded[party]) for party in PARTIES}
        self._engines = engines
        self._pairs = {
            preset: LocalPair(engines, retrievers, codec_of(own.codec))
            for preset, own in (("", config), ("dragon", dragon))
        }
        self._dragon = spec_of(dragon)
        drafter = Drafter(RaceLists(), replace(spec.sampling, temperature=1.0), "coupled", spec.vocab_size)
        self._parties = {
            party: LocalParty(engines[party], retrievers[party], drafter, f"score/{party}")
            for party in PARTIES
        }
        self._rows = {party: self._open(party) for party in PARTIES}
        self._known: dict[Any, Any] = {}

    def _open(self, party: Party) -> tuple[Sequence[float], Sequence[float]]:
        """What the scores and the question say of a party's rows."""
        spec, local = self.spec, self._parties[party]
        number = spec.num_documents(party)
        found = local.retrieve(RetrieveRequest(session=0, query=spec.query, num_documents=number))
        _, question = local.prefill(
            Prefill(
                session=0,
                query=spec.query,
                documents=found.texts,
                max_new_tokens=spec.sampling.max_new_tokens,
                scores_question=True,
            )
        )
        return found.scores, question

    def play(self, system: System, rtt_s: float, pass_s: Mapping[Party, float]) -> Any:
        """A system's answer over a link. pass_s: by party."""
        spec = self.spec
        if system.preset:
            changes = {name: getattr(self._dragon, name) for name in ("question_weight", "evidence_weight")}
            spec = replace(
                spec, decoding=self._dragon.decoding, race_depth=self._dragon.race_depth, **changes
            )
        make_run: Any = VirtualRun
        if system.relief_s is not None:
            make_run = partial(WaitingDebtRun, relief_s=system.relief_s)
        _, outcome = self._pairs[system.preset].answer(
            change_spec(spec, **system.options),
            link=Link(delay_s=rtt_s / 2, is_in_order=True, header_bytes=HEADER_BYTES),
            decode_s=lambda party, rng: pass_s[party],
            make_run=make_run,
        )
        return outcome

    def losses(self, tokens: Sequence[int], *, is_static: bool = False) -> tuple[Floats, Floats]:
        """-log p of each token by the mixture of both, and by the device alone, [tokens] each.

        is_static: with weights by the scores alone, as DRAGON has them.
        """
        key = tuple(tokens), is_static
        if key not in self._known:
            sides = []
            for party in PARTIES:
                scores, question = self._rows[party]
                prior = tuple(self.spec.relevance_scale * score for score in scores)
                told = tuple(self.spec.question_weight * each for each in question)
                evidence = 0.0 if is_static else self.spec.evidence_weight
                rule = DocumentWeights(prior, evidence, self.spec.evidence_memory, told if evidence else ())
                log_p = self._log_p(party, tuple(tokens))
                sides.append(party_tokens(log_p, evidence_by_step(log_p, rule)))
            self._known[key] = -target_tokens(*sides), -sides[0].log_q
        both, alone = self._known[key]
        return both, alone

    def _log_p(self, party: Party, tokens: tuple[int, ...]) -> Floats:
        if (party, tokens) not in self._known:
            rows = [
                self._parties[party].probabilities(tokens[:n])[:, token] for n, token in enumerate(tokens)
            ]
            self._known[party, tokens] = np.log(np.maximum(np.array(rows, np.float64).T, 1e-12))
        return np.asarray(self._known[party, tokens])

    def close(self) -> None:
        """Free the sessions."""
        for party in PARTIES:
            self._engines[party].close_all()


@dataclass(slots=True)
class Cell:
    """What one system showed over one link, by article."""

    times_s: list[float] = field(default_factory=list)  # from the question to the last token
    gaps_s: list[float] = field(default_factory=list)  # from the first token to the last
    alone: list[Sequence[bool]] = field(default_factory=list)  # of each step of the answer
    num_bytes: int = 0
    true: list[Floats] = field(default_factory=list)  # -log p of the true continuation
    own: list[Floats] = field(default_factory=list)  # of the system's own text, by the mixture of both

    def add(self, outcome: Any, article: Article, truth: Sequence[int], *, is_static: bool) -> None:
        """One more answer."""
        tokens = outcome.of(TokenEvent)
        marks = [token.is_alone for token in tokens]
        self.times_s.append(tokens[-1].committed_s)
        self.gaps_s.append(tokens[-1].committed_s - tokens[0].committed_s)
        self.alone.append(marks)
        self.num_bytes += outcome.num_bytes + HEADER_BYTES * outcome.num_frames
        both, alone = article.losses(truth, is_static=is_static)
        mask = np.array((marks + [False] * len(truth))[: len(truth)])
        self.true.append(np.where(mask, alone, both))
        self.own.append(article.losses([token.token for token in tokens])[0])

    def row(self, exact: Cell) -> dict[str, Any]:
        """The numbers of a table's row."""
        num_tokens = sum(map(len, self.alone))
        ratio = ratio_interval(self.true, exact.true) if len(self.true) > 1 else (np.nan,) * 3
        return {
            "tokens_per_s": num_tokens / sum(self.times_s),
            "alone": sum(map(sum, self.alone)) / num_tokens,
            "perplexity": perplexity(self.true),
            "ratio": ratio,
            "own_perplexity": perplexity(self.own),
            "bytes_per_token": self.num_bytes / num_tokens,
            "num_tokens": num_tokens,
        }


def cases(texts: Sequence[str], engine: Any, num_tokens: int) -> Iterator[tuple[str, list[int]]]:
    """Query and true continuation, from the beginning of each text."""
    tokenizer = Tokenizer.from_str(engine.tokenizer_json)
    for text in texts:
        ids = tokenizer.encode(text.strip(), add_special_tokens=False).ids
        yield engine.text(ids[:QUERY_TOKENS]), ids[QUERY_TOKENS : QUERY_TOKENS + num_tokens]


def spec_for(config: Config, engine: Any, query: str, num_tokens: int) -> SessionSpec:
    """A greedy query."""
    spec = replace(spec_of(config), query=query, vocab_size=engine.vocab_size)
    return change_spec(spec, max_new_tokens=num_tokens, temperature=0.0)


def print_row(rtt_s: float, system: System, row: Mapping[str, Any], base: float) -> None:
    """One line of the table. base: tokens per second of the waiting loop."""
    ratio, low, high = row["ratio"]
    print(
        f"| {1e3 * rtt_s:.0f} | {system.name} | {system.dial} | {row['tokens_per_s']:.1f} | "
        f"{row['tokens_per_s'] / base:.2f} | {row['alone']:.2f} | {row['perplexity']:.2f} | "
        f"{ratio:.3f} ({low:.3f} to {high:.3f}) | {row['own_perplexity']:.2f} | {row['bytes_per_token']:.0f} |",
        flush=True,
    )


LOOK: dict[str, dict[str, Any]] = {
    "waiting loop": {"color": "#888888", "marker": "s"},
    "DRAGON": {"color": "#b07aa1", "marker": "D"},
    "Tandem exact": {"color": "#1f5fbf", "marker": "*", "markersize": 13},
    "Tandem, patience": {"color": "#1f5fbf", "marker": "o", "linestyle": "-"},
    "CONCORD's rule": {"color": "#d1661a", "marker": "^", "linestyle": "-"},
    "CONCORD's rule on Tandem's drafts": {"color": "#d1661a", "marker": "v", "linestyle": ":"},
    "device alone": {"color": "black", "marker": "x"},
}


def plot(rows: Mapping[tuple[float, System], Mapping[str, Any]], rtts_s: Sequence[float], path: Path) -> None:
    """Perplexity over throughput, a plot for each round trip."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.4 * len(rtts_s), 3.9), dpi=110, layout="constrained")
    plots = figure.subplots(1, len(rtts_s), squeeze=False, sharey=True)[0]
    for axes, rtt_s in zip(plots, rtts_s, strict=True):
        for name, look in LOOK.items():
            points = [row for (rtt, system), row in rows.items() if rtt == rtt_s and system.name == name]
            x, y = ([row[key] for row in points] for key in ("tokens_per_s", "perplexity"))
            axes.plot(x, y, label=name, **{"linestyle": "none", "markersize": 6, **look})
        axes.set_title(f"{1e3 * rtt_s:.0f} ms", fontsize=10, loc="left")
        axes.set_xlabel("tokens per second")
        axes.set_xlim(left=0)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    plots[0].set_ylabel("perplexity of the true continuation")
    handles, labels = plots[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    save(figure, path)


# ---- live --------------------------------------------------------------------------------------------------------


def ask_live(
    lab: Any, config: Config, queries: Sequence[str], rtts_s: Sequence[float], num_tokens: int, floor_s: float
) -> Any:
    """(round trip, system) -> per query its token events, of a device that has joined its cloud across `lab`.

    floor_s: what a pass takes at least, so that a busy machine does not decide who is late.
    """
    from tandem_lab.bench.places import join_across
    from tandem_lab.netlab import Shape

    seen: dict[Any, list[list[TokenEvent]]] = {}
    floors = Experiments(min_decode_time_s=dict.fromkeys(PARTIES, floor_s) if floor_s else {})
    with join_across(lab, config, floors) as (tandem, _):
        for rtt_s in rtts_s:
            lab.shape(Shape(rtt_s=rtt_s))
            for query in [queries[0], *queries]:  # the first answer warms up
                for system in LIVE:
                    options: Any = {
                        **system.options,
                        "seed": 0,
                        "max_new_tokens": num_tokens,
                        "temperature": 0.0,
                    }
                    events = list(tandem.stream(query, **options))
                    tokens = [event for event in events if isinstance(event, TokenEvent)]
                    seen.setdefault((rtt_s, system), []).append(tokens)
    return {key: answers[1:] for key, answers in seen.items()}


def compare_live(arguments: argparse.Namespace, folder: Path) -> None:
    """Within the device's host: measure, then play the same in the simulator with the times that were seen."""
    from tandem_lab.netlab import NetLab

    config, texts = prepare(arguments.data, folder, arguments.model, arguments.articles)
    loaded: Any = load_engines(config)
    chosen = list(cases(texts, loaded[Party.DEVICE], arguments.tokens))
    rtts_s = [1e-3 * each for each in arguments.rtt]
    queries, floor_s = [query for query, _ in chosen], 1e-3 * arguments.floor_ms
    live = ask_live(NetLab(arguments.within), config, queries, rtts_s, arguments.tokens, floor_s)
    embedder = Embedder.load("offline", num_threads=1)
    retrievers = {party: MemoizedRetriever(open_retriever(party, config, embedder)) for party in PARTIES}
    print(
        "| RTT | system | pass of device, cloud (ms) | live | simulated (ms per token) | alone | simulated |"
    )
    result = {}
    for (rtt_s, system), answers in live.items():
        decode_s: dict[Party, float] = {}
        for party in PARTIES:
            name = f"{party}_decode_s"
            seen_s = [
                getattr(token, name) for tokens in answers for token in tokens if getattr(token, name) > 0
            ]
            decode_s[party] = median(
                seen_s or [decode_s[Party.DEVICE]]
            )  # a cloud that is always late is not seen
        cell, own = Cell(), Cell()
        for (query, truth), tokens in zip(chosen, answers, strict=True):
            spec = spec_for(config, loaded[Party.DEVICE], query, arguments.tokens)
            article = Article(config, spec, loaded, retrievers, Config.load(None, ["preset=dragon"]))
            own.add(article.play(system, rtt_s, decode_s), article, truth, is_static=False)
            cell.gaps_s.append(tokens[-1].committed_s - tokens[0].committed_s)
            cell.alone.append([token.is_alone for token in tokens])
            article.close()
        token_ms = [1e3 * sum(c.gaps_s) / (sum(map(len, c.alone)) - len(c.alone)) for c in (cell, own)]
        alone = [sum(map(sum, c.alone)) / sum(map(len, c.alone)) for c in (cell, own)]
        passes = ", ".join(f"{1e3 * decode_s[party]:.1f}" for party in PARTIES)
        name = f"{system.name} {system.dial}".strip()
        print(
            f"| {1e3 * rtt_s:.0f} | {name} | {passes} | {token_ms[0]:.1f} | {token_ms[1]:.1f} | "
            f"{alone[0]:.2f} | {alone[1]:.2f} |",
            flush=True,
        )
        result[f"{1e3 * rtt_s:.0f} ms, {name}"] = {"ms": token_ms, "alone": alone, "decode_s": decode_s}
    finish({"live": result, "articles": len(chosen)})


def go_live(arguments: argparse.Namespace) -> int:
    """This script again in the device's host of a network of its own."""
    from tandem_lab.netlab import NetLab
    from tandem_lab.netlab.inside import run_inside

    lab = NetLab(f"patience-{os.getpid()}")
    return run_inside(lab, [sys.executable, *sys.argv, "--within", lab.name])


# ---- main --------------------------------------------------------------------------------------------------------


def main() -> None:
    """Prediction, table, picture."""
    parser = new_parser(__doc__)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data" / "wikitext-2")
    parser.add_argument("--model", default="smollm2", help="of both parties (default: smollm2)")
    parser.add_argument("--articles", type=int, default=12, help="of the test set, evenly spread")
    parser.add_argument("--tokens", type=int, default=48, help="of an answer")
    parser.add_argument("--rtt", type=float, nargs="+", default=[50, 100, 300], help="in ms")
    parser.add_argument("--pass-ms", type=float, help="what a pass takes; default: measured first")
    parser.add_argument(
        "--cloud-ms", type=float, help="what one of the cloud takes (default: as one of the device)"
    )
    parser.add_argument("--floor-ms", type=float, default=0.0, help="with --live: what a pass takes at least")
    parser.add_argument("--out", type=Path, help="draws the picture into this file (.png, .pdf or .svg)")
    parser.add_argument(
        "--live", action="store_true", help="compare with a device that has joined across netem"
    )
    parser.add_argument("--within", help=argparse.SUPPRESS)
    parser.add_argument(
        "--smoke", action="store_true", help="two articles, 8 tokens at 100 ms, the bundled model"
    )
    arguments = parser.parse_args()
    if arguments.smoke:
        arguments.articles, arguments.tokens, arguments.rtt, arguments.model = 2, 8, [100], "bundled"
    if not (arguments.data / "test.txt").is_file():
        lacking = f"The file test.txt of WikiText-2 must be in {arguments.data}; pass --data."
        if not arguments.smoke:
            sys.exit(lacking)
        print(lacking)  # so that one may run every benchmark's smoke without the data
        return
    if arguments.live and arguments.within is None:
        sys.exit(go_live(arguments))
    with tempfile.TemporaryDirectory() as folder:
        compare_live(arguments, Path(folder)) if arguments.within else simulate(arguments, Path(folder))


def simulate(arguments: argparse.Namespace, folder: Path) -> None:
    """All systems over all links."""
    config, texts = prepare(arguments.data, folder, arguments.model, arguments.articles)
    dragon = Config.load(None, ["preset=dragon"])
    loaded: Any = load_engines(config)
    engine, embedder = loaded[Party.DEVICE], Embedder.load("offline", num_threads=1)
    retrievers = {party: MemoizedRetriever(open_retriever(party, config, embedder)) for party in PARTIES}
    chosen = list(cases(texts, engine, arguments.tokens))
    measured_s = measure_pass(engine, retrievers[Party.DEVICE], chosen[0][0])
    pass_ms = 1e3 * measured_s if arguments.pass_ms is None else arguments.pass_ms
    cloud_ms = pass_ms if arguments.cloud_ms is None else arguments.cloud_ms
    pass_s = {Party.DEVICE: 1e-3 * pass_ms, Party.CLOUD: 1e-3 * cloud_ms}
    print(
        f"prediction: Tandem exact at least 3 x the waiting loop at 300 ms; a pass takes {pass_ms:.1f} ms "
        f"(measured here: {1e3 * measured_s:.1f}), one of the cloud {cloud_ms:.1f} ms"
    )
    rtts_s = [1e-3 * each for each in arguments.rtt]
    cells = {(rtt_s, system): Cell() for rtt_s in rtts_s for system in SYSTEMS}
    begun_s = time.monotonic()
    for number, (query, truth) in enumerate(chosen):
        spec = spec_for(config, engine, query, arguments.tokens)
        article = Article(config, spec, loaded, retrievers, dragon)
        for (rtt_s, system), cell in cells.items():
            cell.add(article.play(system, rtt_s, pass_s), article, truth, is_static=bool(system.preset))
        article.close()
        print(f"article {number + 1} of {len(chosen)}, {time.monotonic() - begun_s:.0f} s", file=sys.stderr)
    rows = {key: cell.row(cells[key[0], EXACT]) for key, cell in cells.items()}
    print(
        "| RTT (ms) | system | | tokens per second | x waiting loop | without the cloud | perplexity | over exact | "
        "of its own text | bytes per token |\n|" + "---|" * 10
    )
    for (rtt_s, system), row in rows.items():
        print_row(rtt_s, system, row, rows[rtt_s, WAITING]["tokens_per_s"])
    if arguments.out:
        plot(rows, rtts_s, arguments.out)
    named = {
        f"{1e3 * rtt_s:.0f} ms, {system.name} {system.dial}": row for (rtt_s, system), row in rows.items()
    }
    finish({"pass_s": pass_s, "articles": len(chosen), "rows": named})


if __name__ == "__main__":
    main()

"""How fast is an index built and searched, what does it cost, and how many of the true neighbours does it find?

Synthetic unit vectors in clusters (a mixture in 48 dimensions, projected to 384 and blurred), queries from the same
mixture; 10 neighbours. Each kind is built twice, with FAISS called directly and as `tandem index` does it (embedding
apart: the embedder replays the vectors), and searched in turns with FAISS alone, with `Index.search`, which adds exact
cosines, and with `Retriever.search`, which adds the documents themselves (less the time of the embedder). That may cost
5 % or 0.2 ms, whichever is larger. Prediction for the search: the bytes that a kind reads over the memory's bandwidth.
At the end, on paper, what 21 million passages need. (Part "vectors".)

Does search by words find what vectors miss, and the other way round? Recall at 1, 2, 4 and 16 by vectors, by words, by
both, and with a cross-encoder (`--scorer`) on the household questions and on drawn ones with names, numbers and codes
(`_codes.py`), tuned-with and held-out halves apart; offline embedder. Prediction: both find at 4 at least 0.95 of what
the better of the two finds, on either set. (Part "recall".)

Are documents found across languages? XQuAD's questions in English and German over its paragraphs in either language
(`--xquad FOLDER`, with xquad.en.json and xquad.de.json), by vectors and by both, with each of `--embedders`.
Prediction: with the multilingual one, recall at 4 is at least 0.95 in one language and 0.85 across two. (Part
"languages", if asked for.)

What do words cost? 10^5 chunks of words drawn as often as in the household's documents, each with codes of its own;
processor time of a search by both less that by vectors alone, question by question; bytes on disk, rate of indexing
and time to change one file with words and without. Prediction: 10 ms per query at most, a third more disk than texts
and vectors. (Part "words".)

Expected run time: 10 minutes and 9 GiB for 10^6 vectors, 2 minutes without them; recall 2 minutes, words 4; `--smoke`
30 seconds; languages 10 minutes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import multiprocessing
import resource
import statistics
import sys
import tempfile
import time
import timeit
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np
from numpy.typing import NDArray

from benchmarks._codes import draw
from benchmarks._common import finish, new_parser, summary
from tandem.config.parties import SearchBy
from tandem.corpora import HOUSEHOLD
from tandem.plugins.embedders import CrossEncoderScorer, Embedder
from tandem.retrieval import Document, Retriever, TextEmbedder, build_index, update_index, words
from tandem.retrieval import index as kinds
from tandem.retrieval.build import write_index
from tandem.retrieval.index import training_rows, vectors_to_train
from tandem.retrieval.store import NAME
from tandem.topology import PARTIES
from tandem_lab.quality.questions import read_household
from tandem_lab.quality.statistics import wilson

DIMENSION, LATENT, NEIGHBOURS, WARM_UP = 384, 48, 10, 10
PAPER_PASSAGES = 21_000_000
ADD_AT_ONCE = 65_536
ALLOWED_SHARE, ALLOWED_MS = 0.05, 0.2
DEPTHS = (1, 2, 4, 16)
"""Places up to which a hit counts."""
NUM_FAMILIES = 84
PARTS = ("vectors", "recall", "words")
LANGUAGES, LANGUAGE_DEPTHS = ("en", "de"), (1, 4, 8)
SEARCHES: tuple[SearchBy, ...] = ("dense", "words", "hybrid")
TAIL = " a passage of about a hundred words, as long as those of the paper are" * 8

KINDS: dict[str, Callable[[int], str]] = {
    "flat": lambda count: "Flat",
    "ivf": lambda count: f"IVF{kinds.num_lists(count)},Flat",
}


class Replay(TextEmbedder):
    """Gives the vector whose number a text ends in."""

    name, fingerprint, dimension, window = "replay", "r" * 32, DIMENSION, None

    def __init__(self, vectors: NDArray[np.float32]) -> None:
        self._vectors = vectors
        self.took_s = 0.0  # the last call

    def embed(self, texts: Sequence[str], *, is_query: bool = False) -> NDArray[np.float32]:
        """The vectors of those numbers."""
        started_s = time.perf_counter()
        found = np.asarray(self._vectors[[int(text.rpartition(" ")[2]) for text in texts]], np.float32)
        self.took_s = time.perf_counter() - started_s
        return found


def clustered(count: int, centres: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
    """Unit vectors [count, DIMENSION] around centres [c, LATENT]."""
    projection = np.random.default_rng(7).normal(size=(LATENT, DIMENSION)).astype(np.float32) / LATENT**0.5
    vectors = np.empty((count, DIMENSION), np.float32)
    for start in range(0, count, ADD_AT_ONCE):
        number = min(ADD_AT_ONCE, count - start)
        latent = centres[rng.integers(len(centres), size=number)]
        latent = latent + 0.7 * rng.normal(size=latent.shape).astype(np.float32)
        blurred = latent @ projection + 0.1 * rng.normal(size=(number, DIMENSION)).astype(np.float32)
        vectors[start : start + number] = blurred / np.linalg.norm(blurred, axis=1, keepdims=True)
    return vectors


def prepare(folder: Path, size: int, num_queries: int) -> dict[str, Any]:
    """Writes vectors, queries and the true neighbours; measures the memory's bandwidth."""
    import faiss

    rng = np.random.default_rng(size)
    centres = rng.normal(size=(max(1, size // 100), LATENT)).astype(np.float32)
    vectors, queries = clustered(size, centres, rng), clustered(num_queries, centres, rng)
    flat = faiss.IndexFlatIP(DIMENSION)
    flat.add(vectors)
    for name, array in (
        ("vectors", vectors),
        ("queries", queries),
        ("truth", flat.search(queries, NEIGHBOURS)[1]),
    ):
        np.save(folder / f"{name}.npy", array)
    block = np.ones(1 << 26, np.float32)
    return {"bytes_per_s": block.nbytes / min(timeit.repeat(block.max, number=1, repeat=7))}


def build(folder: Path, factory: str) -> dict[str, Any]:
    """Builds with FAISS alone, then as Tandem does."""
    import faiss

    faiss.omp_set_num_threads(1)
    vectors = np.load(folder / "vectors.npy", mmap_mode="r")
    index: Any = faiss.index_factory(DIMENSION, factory, faiss.METRIC_INNER_PRODUCT)
    started_s = time.perf_counter()
    if vectors_to_train(factory):
        index.cp.min_points_per_centroid = 1
        index.train(vectors[training_rows(factory, len(vectors))])
    trained_s = time.perf_counter()
    for start in range(0, len(vectors), ADD_AT_ONCE):
        index.add(np.ascontiguousarray(vectors[start : start + ADD_AT_ONCE], np.float32))
    added_s = time.perf_counter()
    del index
    documents = [
        Document(id=f"{n}", page_content=f"{TAIL} {n}", metadata={"source": f"{n // 100}.txt"})
        for n in range(len(vectors))
    ]
    written_s = time.perf_counter()
    write_index(folder / "index", documents, Replay(vectors), factory)
    return {
        "train_s": trained_s - started_s,
        "add_s": added_s - trained_s,
        "tandem_s": time.perf_counter() - written_s,
        "peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    }


def search(folder: Path) -> dict[str, Any]:
    """Opens the index; searches with FAISS alone and through the retriever, in turns."""
    import faiss

    faiss.omp_set_num_threads(1)
    # Rows of whole cache lines, so that each query begins with one: FAISS at its best.
    queries, truth = np.load(folder / "queries.npy"), np.load(folder / "truth.npy")
    before, started_s = _anonymous_bytes(), time.perf_counter()
    embedder = Replay(queries)
    index = Retriever.open(folder / "index", embedder).index
    retriever = Retriever(index, embedder, search_by="dense")
    open_s = time.perf_counter() - started_s
    plain_index = (
        retriever.index.vector_index.faiss_index
    )  # the same object, so that both find the same caches
    times: dict[str, list[float]] = {"plain": [], "rows": [], "tandem": []}
    found: dict[str, list[list[int]]] = {"plain": [], "rows": [], "tandem": []}

    def plain(number: int) -> list[int]:
        return [int(row) for row in plain_index.search(queries[number : number + 1], NEIGHBOURS)[1][0]]

    def rows_only(number: int) -> list[int]:
        return [int(row) for row in retriever.index.search(queries[number], NEIGHBOURS)[0]]

    def tandem(number: int) -> list[int]:
        return [int(hit.id) for hit in retriever.search(f"query {number}", NEIGHBOURS)]

    calls = [("plain", plain), ("rows", rows_only), ("tandem", tandem)]
    for number in range(-WARM_UP, len(queries)):
        for name, call in calls[number % 3 :] + calls[: number % 3]:
            embedder.took_s = 0.0
            started_s = time.perf_counter()
            rows = call(abs(number))
            if number >= 0:
                times[name].append(1e3 * (time.perf_counter() - started_s - embedder.took_s))
                found[name].append(rows)
    size = len(retriever.index)
    overheads = {
        name: statistics.median(ours - alone for ours, alone in zip(times[name], times["plain"], strict=True))
        for name in ("rows", "tandem")
    }
    return {
        "open_s": open_s,
        "memory_bytes_per_vector": (_anonymous_bytes() - before) / size,
        "disk_bytes_per_vector": sum(path.stat().st_size for path in (folder / "index").iterdir()) / size,
        **{
            f"{name}_ms": {**summary(each), "p99": float(np.quantile(each, 0.99))}
            for name, each in times.items()
        },
        **{f"{name}_recall": _recall(each, truth) for name, each in found.items()},
        "overhead_ms": overheads["tandem"],
        "rows_overhead_ms": overheads["rows"],  # rows and exact cosines, without reading the documents
        "allowed_ms": max(ALLOWED_MS, ALLOWED_SHARE * statistics.median(times["plain"])),
    }


def predicted_bytes(kind: str, size: int) -> float:
    """Bytes that a search reads: of centroids, and of vectors in the lists that are looked at."""
    if kind == "flat":
        return 4.0 * DIMENSION * size
    lists = kinds.num_lists(size)
    return 4.0 * DIMENSION * (lists + size * math.ceil(2 * math.sqrt(lists)) / lists)


def embedding_rate() -> float | None:
    """Passages a second that the offline embedder takes on one thread; None where it is not installed."""
    from tandem.errors import RetrievalError
    from tandem.plugins.embedders import Embedder

    try:
        embedder = Embedder.load("offline", num_threads=1)
    except RetrievalError:
        return None
    texts = [f"{number} {TAIL}" for number in range(64)]
    embedder.embed(texts[:8])
    started_s = time.perf_counter()
    embedder.embed(texts)
    return len(texts) / (time.perf_counter() - started_s)


def on_paper(kind: str, size: int, found: dict[str, Any], rate: float | None) -> dict[str, Any]:
    """What PAPER_PASSAGES need, from what `size` vectors took; the time of training is taken as it is."""
    rest_s = max(found["add_s"], found["tandem_s"] - found["train_s"])
    hours = (found["train_s"] + rest_s * PAPER_PASSAGES / size) / 3600
    paper: dict[str, Any] = {
        "memory_gb": found["memory_bytes_per_vector"] * PAPER_PASSAGES / 1e9,
        "disk_gb": found["disk_bytes_per_vector"] * PAPER_PASSAGES / 1e9,
        "build_h": hours,
        "embedding_h": rate and PAPER_PASSAGES / rate / 3600,
    }
    embedding = f", embedding {paper['embedding_h']:.0f} h on one core" if rate else ""
    print(
        f"on paper, {PAPER_PASSAGES} passages as {kind}: memory {paper['memory_gb']:.1f} GB, "
        f"disk {paper['disk_gb']:.0f} GB, build {hours:.1f} h{embedding}"
    )
    return paper


# ---- recall on questions -------------------------------------------------------------------------------------


def recalls(folder: Path, scorer: str, num_families: int, splits: Sequence[str]) -> dict[str, Any]:
    """Share of questions all of whose documents are among the first k hits of their party, by set, half and search."""
    embedder = Embedder.load("offline", num_threads=1)
    model = CrossEncoderScorer.load(scorer, num_threads=1) if scorer else None
    retrievers: dict[tuple[str, str], dict[str, Retriever]] = {}
    notes, drawn = draw(num_families)
    (folder / "notes").mkdir()
    for name, text in notes.items():
        (folder / "notes" / name).write_text(text, "utf-8")
    sources = {("household", str(party)): HOUSEHOLD / party for party in PARTIES}
    for (kind, party), source in {**sources, ("codes", "device"): folder / "notes"}.items():
        build_index(source, folder / f"{kind}-{party}", embedder)
        index = Retriever.open(folder / f"{kind}-{party}", embedder).index
        rows = {search_by: Retriever(index, embedder, None, search_by) for search_by in SEARCHES}
        retrievers[kind, party] = rows | (
            {"hybrid + scorer": Retriever(index, embedder, model, "hybrid")} if model else {}
        )
    asked = [("household", each.split, each.text, each.sources) for each in read_household("all")]
    asked += [("codes", each.split, each.text, (f"device/{each.source}",)) for each in drawn]
    ranks: dict[str, list[int]] = {}
    for kind, split, text, wanted in asked:
        if split in splits:
            for name in retrievers[kind, "device"]:
                worst = max(
                    _rank(retrievers[kind, each.partition("/")[0]][name], text, each) for each in wanted
                )
                ranks.setdefault(f"{kind}, {split}, {name}", []).append(worst)
    result: dict[str, Any] = {
        "chunks": {" ".join(key): len(each["dense"].index) for key, each in retrievers.items()}
    }
    for row, found in ranks.items():
        shares = {}
        for depth in DEPTHS:
            num_found = sum(rank < depth for rank in found)
            low, high = wilson(num_found, len(found))
            shares[f"recall@{depth}"] = [num_found / len(found), low, high]
        shown = "  ".join(
            f"@{depth} {one:.3f} [{low:.3f}, {high:.3f}]"
            for depth, (one, low, high) in zip(DEPTHS, shares.values(), strict=True)
        )
        print(f"{row:34} n {len(found):4}  {shown}", flush=True)
        result[row] = {"n": len(found), **shares}
    return result


def _rank(retriever: Retriever, question: str, source: str) -> int:
    """The place of the first chunk of a document among the hits, from 0, for the least depth that finds it."""
    for depth in DEPTHS:
        names = [hit.document.metadata["source"] for hit in retriever.search(question, depth)]
        if (name := source.partition("/")[2]) in names:
            return max(names.index(name), 0 if depth == 1 else DEPTHS[DEPTHS.index(depth) - 1])
    return DEPTHS[-1]


# ---- recall across languages -----------------------------------------------------------------------------------


def languages(folder: Path, xquad: Path, embedders: Sequence[str]) -> dict[str, Any]:
    """Share of questions whose paragraph is among the first hits, of all and of the second half of the articles."""
    result: dict[str, Any] = {}
    asked: dict[str, list[tuple[str, str, bool]]] = {language: [] for language in LANGUAGES}
    for language in LANGUAGES:
        articles = json.loads((xquad / f"xquad.{language}.json").read_text("utf-8"))["data"]
        (folder / language).mkdir()
        paragraphs = [
            (2 * place >= len(articles), each)
            for place, article in enumerate(articles)
            for each in article["paragraphs"]
        ]
        for number, (is_late, paragraph) in enumerate(paragraphs):
            name = f"x{number:03}.txt"
            (folder / language / name).write_text(paragraph["context"], "utf-8")
            asked[language] += [(each["question"], name, is_late) for each in paragraph["qas"]]
    for embedder_name in embedders:
        embedder = Embedder.load(embedder_name, num_threads=1)
        for language in LANGUAGES:
            directory = folder / f"{embedder_name}-{language}"
            started_s = time.process_time()
            report = build_index(folder / language, directory, embedder)
            result[f"{embedder_name}, {language}, s per chunk"] = (
                time.process_time() - started_s
            ) / report.num_chunks
            index = Retriever.open(directory, embedder).index
            for search_by, other in itertools.product(("dense", "hybrid"), LANGUAGES):
                retriever = Retriever(index, embedder, None, search_by)
                found = [
                    [_is_found(retriever, text, name, depth) for depth in LANGUAGE_DEPTHS]
                    for text, name, _ in asked[other]
                ]
                late = [each for each, (_, _, is_late) in zip(found, asked[other], strict=True) if is_late]
                row = f"{embedder_name}, {other} over {language}, {search_by}"
                result[row] = {"all": np.mean(found, 0).tolist(), "late": np.mean(late, 0).tolist()}
                print(row, result[row], flush=True)
    return result


def _is_found(retriever: Retriever, question: str, source: str, depth: int) -> bool:
    return any(hit.document.metadata["source"] == source for hit in retriever.search(question, depth))


# ---- what words cost -----------------------------------------------------------------------------------------


def word_costs(folder: Path, size: int, num_queries: int) -> dict[str, Any]:
    """Processor time, bytes and rates with words and without; what else runs on the machine hardly counts."""
    rng = np.random.default_rng(size)
    vectors = clustered(size, rng.normal(size=(max(1, size // 100), LATENT)).astype(np.float32), rng)
    embedder = Replay(vectors)
    corpus = " ".join(
        path.read_text("utf-8") for party in PARTIES for path in (HOUSEHOLD / party).glob("*.md")
    ).split()

    def document(number: int) -> Document:
        drawn = [corpus[place] for place in rng.integers(len(corpus), size=110)]
        text = " ".join(
            [*drawn[:50], f"INV-{number:07}", *drawn[50:], f"+41 44 {number % 1000:03} {number // 1000:03}"]
        )
        return Document(
            id=f"{number}", page_content=f"{text} {number}", metadata={"source": f"{number // 10}.txt"}
        )

    documents = [document(number) for number in range(size)]
    result: dict[str, Any] = {"characters": statistics.mean(len(each.page_content) for each in documents)}
    entries = words.entries
    for name, made in (("without", lambda text: ("", "")), ("with", entries)):
        words.entries = made
        directory = folder / name
        started_s = time.process_time()
        write_index(directory, documents, embedder, "Flat")
        built_s = time.process_time() - started_s
        changed = document(7).model_copy(update={"id": None})
        started_s = time.process_time()
        update_index(directory, embedder, add=[changed])
        result[name] = {
            "chunks_per_s": size / built_s,
            "update_s": time.process_time() - started_s,
            "database_bytes_per_chunk": (directory / NAME).stat().st_size / size,
            "bytes_per_chunk": sum(path.stat().st_size for path in directory.iterdir()) / size,
        }
        print(f"{size:8} {name} words: {result[name]}", flush=True)
    started_s = time.process_time()
    index = Retriever.open(folder / "with", embedder).index
    result["open_s"] = time.process_time() - started_s
    texts = [f"{question.text} {number}" for number, question in enumerate(read_household("tune"))]
    texts += [
        f"who paid INV-{number:07}? {number}" for number in rng.integers(size, size=num_queries).tolist()
    ]
    searches = {name: Retriever(index, embedder, None, name) for name in ("dense", "hybrid")}
    times: dict[str, list[float]] = {name: [] for name in searches}
    for number, text in enumerate(texts[:WARM_UP] + texts):
        for name in list(searches)[:: 1 - 2 * (number % 2)]:
            started_s = time.process_time()
            searches[name].search(text, 4)
            if number >= WARM_UP:
                times[name].append(1e3 * (time.process_time() - started_s))
    added = [ours - alone for ours, alone in zip(times["hybrid"], times["dense"], strict=True)]
    result |= {
        "dense_ms": summary(times["dense"]),
        "hybrid_ms": summary(times["hybrid"]),
        "added_ms": summary(added),
    }
    print(
        f"{size:8} a search: {result['dense_ms']} by vectors, words add {result['added_ms']} ms", flush=True
    )
    return result


def main() -> None:
    """Every part; of the vectors every size and kind, each step in a process of its own."""
    parser = new_parser(__doc__)
    parser.add_argument(
        "--sizes", type=lambda text: int(float(text)), nargs="+", default=[10**4, 10**5, 10**6]
    )
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--queries", type=int, default=300)
    parser.add_argument("--parts", nargs="+", choices=[*PARTS, "languages"], default=PARTS)
    parser.add_argument("--xquad", type=Path, default=Path("xquad"), help="folder of XQuAD's files")
    parser.add_argument("--embedders", nargs="+", default=["offline", "multilingual"], help="for languages")
    parser.add_argument(
        "--splits", nargs="+", choices=["tune", "held-out"], default=["tune"], help="of the questions"
    )
    parser.add_argument("--scorer", default="", help="folder of a cross-encoder, for a row of its own")
    parser.add_argument(
        "--chunks", type=lambda text: int(float(text)), default=10**5, help="for the cost of words"
    )
    parser.add_argument("--smoke", action="store_true", help="3000 vectors, 30 queries, no embedder")
    arguments = parser.parse_args()
    result: dict[str, Any] = {}
    print(
        "prediction: bytes read over bandwidth; search in process costs at most 5 % or 0.2 ms more than FAISS; both "
        "searches find 0.95 of what the better finds; words cost 10 ms and a third more disk"
    )
    if "vectors" in arguments.parts:
        result |= vectors_part(arguments)
    with tempfile.TemporaryDirectory() as name:
        if "recall" in arguments.parts and not arguments.smoke:
            result["recall"] = recalls(Path(name), arguments.scorer, NUM_FAMILIES, arguments.splits)
        if "languages" in arguments.parts:
            result["languages"] = languages(Path(name), arguments.xquad, arguments.embedders)
        if "words" in arguments.parts:
            size, count = (3000, 30) if arguments.smoke else (arguments.chunks, arguments.queries)
            result["words"] = _apart(word_costs, Path(name), size, count)
    finish(result)


def vectors_part(arguments: argparse.Namespace) -> dict[str, Any]:
    """Every size and kind of index of vectors."""
    sizes = [3000] if arguments.smoke else arguments.sizes
    rate = None if arguments.smoke else embedding_rate()
    result: dict[str, Any] = {"embedded_per_s": rate, "sizes": {}}
    for size in sizes:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            base = _apart(prepare, folder, size, 30 if arguments.smoke else arguments.queries)
            for kind in arguments.kinds:
                predicted_ms = 1e3 * predicted_bytes(kind, size) / base["bytes_per_s"]
                print(f"{size:8} {kind:6} predicted {predicted_ms:.2f} ms", flush=True)
                found = _apart(build, folder, KINDS[kind](size)) | _apart(search, folder)
                found["predicted_ms"] = predicted_ms
                _show(size, kind, found)
                result["sizes"].setdefault(size, {})[kind] = found
    largest = result["sizes"][max(sizes)]
    result["on_paper"] = {kind: on_paper(kind, max(sizes), found, rate) for kind, found in largest.items()}
    return result


def _show(size: int, kind: str, found: dict[str, Any]) -> None:
    plain, ours = found["plain_ms"], found["tandem_ms"]
    print(
        f"{size:8} {kind:6} FAISS p50 {plain['p50']:.2f} p99 {plain['p99']:.2f} ms recall@10 "
        f"{found['plain_recall']:.3f}; Tandem p50 {ours['p50']:.2f} p99 {ours['p99']:.2f} ms recall@10 "
        f"{found['tandem_recall']:.3f}; adds {found['overhead_ms']:.3f} "
        f"({found['rows_overhead_ms']:.3f} without documents) of {found['allowed_ms']:.3f} ms allowed"
    )
    print(
        f"{'':15} train {found['train_s']:.1f} s, add {size / found['add_s']:.0f}/s, all of tandem index "
        f"{size / found['tandem_s']:.0f}/s; memory {found['memory_bytes_per_vector']:.0f} and disk "
        f"{found['disk_bytes_per_vector']:.0f} bytes a vector; opened in {found['open_s']:.2f} s; "
        f"peak of the build {found['peak_bytes'] / 2**30:.1f} GiB",
        flush=True,
    )


def _recall(found: list[list[int]], truth: NDArray[np.int64]) -> float:
    """Share of the true neighbours [n, k] that were found."""
    shares = [
        len(set(rows) & set(true.tolist())) / len(true) for rows, true in zip(found, truth, strict=True)
    ]
    return float(np.mean(shares))


def _anonymous_bytes() -> int:
    """Memory of this process that no file backs."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return 1024 * int(line.split()[1])
    return 0


def _apart(step: Callable[..., dict[str, Any]], folder: Path, *arguments: Any) -> dict[str, Any]:
    """Runs a step in a fresh process, so that memory is that of the step alone."""
    process = multiprocessing.get_context("spawn").Process(target=_write, args=(step, folder, *arguments))
    process.start()
    process.join()
    if process.exitcode:
        sys.exit(f"The step {step.__name__} failed; see above.")
    found: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return found


def _write(step: Callable[..., dict[str, Any]], folder: Path, *arguments: Any) -> None:
    (folder / "result.json").write_text(json.dumps(step(folder, *arguments)))


if __name__ == "__main__":
    main()

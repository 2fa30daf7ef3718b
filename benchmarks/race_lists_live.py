"""Are live answers with race lists those of the uncompressed mixture, and how often are lists too short?

Two Ray nodes, bundled models and questions, short answers from few documents, in turn under every placement and at
temperatures 0, 0.7 and 1, each with a seed of its own. Every answer is compared, token for token, with the draft-free
loop over the models' own distributions (`tandem_lab.quality.uncompressed`), which runs in this process. The device's
decisions that needed a longer list, and bytes of frames, are those of its draft queue. As a control, and for its bytes,
every tenth question is also asked with nuclei (the codec of the preset "dragon", coupled drafts).

First a few whole answers under `mirror` with either: bytes on the wire of the connection between the parties, by
the kernel's counters of bytes and segments (`ss`), 66 bytes of headers each, acknowledgements included. What opens a
query is told from what a token costs by answers of one token.

Prediction: 0 answers differ with race lists, some do with nuclei; at least 98 % of the steps are certain at once;
on the wire at most 200 bytes per committed token each way.

Expected run time: 15 minutes for 1,000 answers on two cores; `--smoke` 1 minute.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._common import bundled_pair, finish, new_parser
from tandem import Config, Tandem
from tandem.client.request import spec_of
from tandem.events import Answer
from tandem.topology import Party
from tandem_lab.quality.uncompressed import answer_uncompressed
from tandem_lab.simulation.specs import change_spec
from tandem_lab.training.bundle import read_bundled_questions

SETTINGS = (
    "link.on_peer_loss=wait",
    "sampling.max_new_tokens=24",
    "device.num_documents=2",
    "cloud.num_documents=4",
)
PLACEMENTS = ("mirror", "device", "cloud", "greedy")
TEMPERATURES = (1.0, 0.7, 0.0)
HEADER_BYTES = 66  # Ethernet, IPv4, TCP with timestamps
NUCLEI: dict[str, Any] = {"preset": "dragon", "draft_rule": "coupled"}
NUCLEI_EVERY = 10
SHOW_EVERY = 10
NUM_WIRE, WIRE_TOKENS = 8, 24


def count(answer: Answer, wanted: list[int]) -> Counter[str]:
    """What one answer adds to its row."""
    seen = answer.statistics
    return Counter(
        answers=1,
        different=list(answer.token_ids) != wanted,
        tokens=seen.num_tokens,
        device_accepted=seen.num_device_accepted,
        cloud_accepted=seen.num_cloud_accepted,
        certified=seen.num_certified,
        escalated=seen.num_escalated,
        longer_lists=seen.num_list_requests,
        up_bytes=seen.sent_bytes,
        down_bytes=seen.received_bytes,
    )


def show(name: str, row: Counter[str]) -> dict[str, Any]:
    """Figures per token, printed and returned."""
    tokens = row["tokens"]
    found = {
        "answers": row["answers"],
        "different": row["different"],
        "tokens": tokens,
        "accepted": [round(row[f"{party}_accepted"] / tokens, 3) for party in ("device", "cloud")],
        "decided by the device, at once and with longer lists": [row["certified"], row["escalated"]],
        "longer lists asked for by the device": row["longer_lists"],
        "frame bytes per token": [round(row[f"{way}_bytes"] / tokens, 1) for way in ("up", "down")],
    }
    print(f"{name:20} {found}", flush=True)
    return found


def wire_bytes(rag: Tandem) -> tuple[int, int]:
    """Of the connection between the draft queues so far: from the device, to the device."""
    pids = {actor["name"]: actor["pid"] for actor in rag.status()["actors"]}
    said = subprocess.run(
        ["ss", "-HtinpO", "state", "established"], capture_output=True, text=True, check=True
    )
    ends: dict[str, dict[tuple[str, str], str]] = {}
    for line in said.stdout.replace("[::ffff:", "").replace("]", "").splitlines():
        for party in ("device", "cloud"):
            if f"pid={pids[f'{party}/draft_queue']}," in line:
                source, target = line.split()[2:4]
                ends.setdefault(party, {})[source, target] = line
    (line,) = (line for (source, target), line in ends["device"].items() if (target, source) in ends["cloud"])
    bytes_sent, bytes_received, segs_out, segs_in = (
        int(found[1]) if (found := re.search(rf"\b{name}:(\d+)", line)) else 0
        for name in ("bytes_sent", "bytes_received", "segs_out", "segs_in")
    )
    return bytes_sent + HEADER_BYTES * segs_out, bytes_received + HEADER_BYTES * segs_in


def wire_per_token(rag: Tandem, texts: list[str], codec: dict[str, Any]) -> dict[str, Any]:
    """Bytes on the wire per committed token each way, and of an answer of one token."""
    found: dict[str, Any] = {}
    for temperature in (0.0, 1.0):
        sums: dict[int, Counter[str]] = {1: Counter(), WIRE_TOKENS: Counter()}
        for limit, sent in sums.items():
            for seed, question in enumerate(texts):
                before = wire_bytes(rag)
                options: dict[str, Any] = {"seed": seed, "temperature": temperature, "max_new_tokens": limit}
                answer = rag.query(question, **codec, **options)
                time.sleep(0.2)  # its last words
                up, down = (after - earlier for earlier, after in zip(before, wire_bytes(rag), strict=True))
                sent.update(count(answer, list(answer.token_ids)), up=up, down=down)
        one, whole = sums.values()
        tokens = whole["tokens"] - one["tokens"]
        found[f"T = {temperature:g}"] = {
            "accepted": [
                round(whole[f"{party}_accepted"] / whole["tokens"], 3) for party in ("device", "cloud")
            ],
            "certain at once": round(whole["certified"] / max(1, whole["certified"] + whole["escalated"]), 4),
            "bytes per token": [round((whole[way] - one[way]) / tokens, 1) for way in ("up", "down")],
            "bytes of an answer of one token": [round(one[way] / len(texts)) for way in ("up", "down")],
        }
    return found


def measure(first: int, num_answers: int) -> dict[str, Any]:
    """Ask, compare, count."""
    config = Config.load(None, SETTINGS)
    texts = [one.question for one in read_bundled_questions()]
    pair = bundled_pair(config)
    rows: dict[str, Counter[str]] = {}
    started_s = time.monotonic()
    with Tandem.launch(config) as rag:
        wire = {
            name: wire_per_token(rag, texts[:NUM_WIRE], codec)
            for name, codec in (("race lists", {}), ("nuclei", NUCLEI | {"placement": "mirror"}))
        }
        print(f"on the wire: {wire}", flush=True)
        base = replace(spec_of(config), vocab_size=rag.described[Party.DEVICE]["vocab_size"])
        for number in range(first, first + num_answers):
            question, temperature = texts[number % len(texts)], TEMPERATURES[number % 3]
            placement = PLACEMENTS[number // 3 % 4]
            spec = change_spec(base, query=question, seed=number, temperature=temperature)
            wanted = answer_uncompressed(spec, pair.engines, pair.retrievers)
            options: dict[str, Any] = {"seed": number, "temperature": temperature, "placement": placement}
            answer = rag.query(question, **options)
            row = rows.setdefault(f"race lists, {placement}", Counter())
            row.update(count(answer, wanted))
            if number % NUCLEI_EVERY == 0:
                nuclei = rag.query(question, **NUCLEI, **options)
                rows.setdefault(f"nuclei, {placement}", Counter()).update(count(nuclei, wanted))
            if number % SHOW_EVERY == SHOW_EVERY - 1:
                num_different = sum(row["different"] for name, row in rows.items() if "race" in name)
                print(
                    f"{number + 1 - first} answers, {num_different} differ, {time.monotonic() - started_s:.0f} s",
                    flush=True,
                )
    return {name: show(name, row) for name, row in sorted(rows.items())} | {"wire": wire}


def main() -> None:
    """Measure; fail where an answer with race lists differs."""
    parser = new_parser(__doc__)
    parser.add_argument("--answers", type=int, default=1000)
    parser.add_argument(
        "--first", type=int, default=0, help="seed of the first answer, to go on where a run ended"
    )
    parser.add_argument("--smoke", action="store_true", help="24 answers")
    arguments = parser.parse_args()
    print("prediction: with race lists 0 answers differ; at least 98 % of the steps are certain at once")
    rows = measure(arguments.first, 24 if arguments.smoke else arguments.answers)
    lists = [row for name, row in rows.items() if name.startswith("race lists,")]
    total = {key: sum(row[key] for row in lists) for key in ("answers", "different", "tokens")}
    decided = [row["decided by the device, at once and with longer lists"] for row in lists]
    total |= {"certain at once": sum(one for one, _ in decided), "escalated": sum(two for _, two in decided)}
    finish({"rows": rows, "race lists": total})
    sys.exit(1 if total["different"] else 0)


if __name__ == "__main__":
    main()

"""What do race lists and draws cost as votes of dual mode, beside nuclei of mass 0.8, and do they change an answer?

- answers: bundled questions at temperatures 0 and 1, both parties in one process, placement `mirror` over a virtual
  link of 100 ms round trip. Every answer with race lists is compared with the draft-free loop on the distributions
  before any compression (`tandem_lab.quality.local`).
- synthetic: pairs of similar long-tailed distributions over 50,000 tokens, with lists of fixed and of adapted length,
  winners compared with the race of the full mixture.

Predictions: 0 differences; at most 60 bytes per vote, escalations included; at least 98 % of the steps certain at once
with 8 tokens; of draws 10 bytes per vote. Bytes are those of frames, without TCP and IP. `--smoke` 20 s; everything 25
minutes on an idle core.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np

from benchmarks._common import finish, new_parser, summary
from tandem.aggregation.race_lists import RaceList, decide_race
from tandem.codecs import RaceLists, TopP
from tandem.codecs.votes import cut_vote, read_vote, vote_depth
from tandem.protocol.ballots import ListLength
from tests.unit.aggregation.race_cases import Case

CODEC = RaceLists()
VOCAB = 50_000
LINK_S, JITTER_S, DECODE_S = 0.05, 0.01, (0.01, 0.05)
DEPTHS = (2, 4, 8, 16)


@dataclass
class Bytes:
    """What one party sent."""

    frames: int = 0
    opening: int = 0  # frames that open and measure, once per query
    votes: dict[bytes, int] = field(default_factory=dict)  # payload bytes of each prefix, resent ones once
    longest: dict[bytes, int] = field(default_factory=dict)
    requests: set[bytes] = field(default_factory=set)


def answers(num_questions: int) -> dict[str, Any]:
    """Whole answers of the bundled models."""
    from benchmarks._common import bundled_pair
    from tandem.client.request import spec_of
    from tandem.config.schema import Config
    from tandem.topology import PARTIES
    from tandem_lab.bundled import read_bundled_questions
    from tandem_lab.quality.local import answer_uncompressed
    from tandem_lab.simulation.specs import change_spec

    texts = [one.question for one in read_bundled_questions()]
    pair, found = bundled_pair(Config()), {}
    for name, settings in {
        "top_p": ["codec.name=top_p"],
        **{f"race lists {depth}": [f"codec.parameters={{depth = {depth}}}"] for depth in (4, 8)},
        "lottery": [],
        "lottery, half a share": ["weights.max_peer_share=0.5"],
    }.items():
        rule = "lottery" if name.startswith("lottery") else "coupled"
        config = Config.load(None, settings)
        for temperature in (0.7, 1.0) if rule == "lottery" else (0.0, 0.7, 1.0):
            sent: Counter[str] = Counter()
            for number in range(num_questions):
                spec = change_spec(
                    spec_of(config),
                    query=texts[number % len(texts)],
                    seed=number,
                    temperature=temperature,
                    draft_rule=rule,
                    vocab_size=pair.engines[PARTIES[0]].vocab_size,
                )
                tokens, counts = answer_counted(pair, config, spec, number)
                sent.update(counts)
                if spec.race_depth and number % 2 == 0:
                    sent["compared"] += 1
                    wanted = answer_uncompressed(spec, pair.engines, pair.retrievers)
                    sent["different"] += tokens != wanted
            found[f"{name}, T = {temperature:g}"] = shares_of(sent)
            print(f"{name}, T = {temperature:g}: {found[f'{name}, T = {temperature:g}']}", flush=True)
    return found


def answer_counted(pair: Any, config: Any, spec: Any, seed: int) -> tuple[list[int], Counter[str]]:
    """The tokens of one answer, and what crossed the link."""
    from tandem.codecs import codec_of
    from tandem.messages import LinkFrame, ListRequest, Open, Probe, Sources, Vote, encode
    from tandem.messages.wire import varint_bytes
    from tandem.topology import PARTIES
    from tandem_lab.quality.local import LocalPair
    from tandem_lab.simulation import virtual
    from tandem_lab.simulation.link import Link

    sides = {party: Bytes() for party in PARTIES}

    class Counted(virtual.VirtualRun):
        """Counts what each party sends."""

        def cross(self, party: Any, peer: Any, frame: LinkFrame) -> None:
            side, body, num_bytes = sides[party], frame.body, len(encode(frame))
            if isinstance(body, Open | Probe | Sources):
                side.opening += num_bytes
            else:
                side.frames += num_bytes
            if isinstance(body, Vote) and not body.payloads:  # a draw
                side.votes[body.digest] = varint_bytes(body.tokens[0]) + 4 * len(body.log_weights)
            elif isinstance(body, Vote):
                known, size = side.longest.get(body.digest, -1), vote_depth(body.payloads[0])
                if not spec.race_depth or size > known:
                    side.votes[body.digest] = len(body.payloads[0]) + (
                        side.votes.get(body.digest, 0) if spec.race_depth else 0
                    )
                    side.longest[body.digest] = size
            if isinstance(body, ListRequest):
                side.requests.add(body.digest + bytes([min(255, body.depth)]))
            super().cross(party, peer, frame)

    from tandem_lab.quality import local

    original, local.VirtualRun = local.VirtualRun, Counted  # type: ignore[misc]
    try:
        counted = LocalPair(pair.engines, pair.retrievers, codec_of(config.codec))
        _, outcome = counted.answer(
            spec,
            link=Link(delay_s=LINK_S, jitter_s=JITTER_S),
            decode_s=lambda party, rng: rng.uniform(*DECODE_S),
            seed=seed,
        )
    finally:
        local.VirtualRun = original  # type: ignore[misc]
    tokens = list(outcome.tokens[PARTIES[0]])
    counts = Counter({"answers": 1, "tokens": len(tokens), "milliseconds": round(1000 * outcome.ended_s)})
    for party, side in sides.items():
        counts[f"frame bytes of the {party}"] += side.frames
        counts[f"opening bytes of the {party}"] += side.opening
        counts["votes"] += len(side.votes)
        counts["vote bytes"] += sum(side.votes.values())
        counts[f"requests of the {party}"] += len(side.requests)
    return tokens, counts


def shares_of(sent: Counter[str]) -> dict[str, Any]:
    """Figures per vote and per committed token."""
    requests = {party: sent[f"requests of the {party}"] for party in ("device", "cloud")}
    return {
        "tokens": sent["tokens"],
        "bytes per vote": round(sent["vote bytes"] / sent["votes"], 1),
        "votes per token and party": round(sent["votes"] / sent["tokens"] / 2, 2),
        "frame bytes per token up": round(sent["frame bytes of the device"] / sent["tokens"], 1),
        "frame bytes per token down": round(sent["frame bytes of the cloud"] / sent["tokens"], 1),
        "opening bytes per query": [
            round(sent[f"opening bytes of the {party}"] / sent["answers"]) for party in ("device", "cloud")
        ],
        "ms per token": round(sent["milliseconds"] / sent["tokens"], 1),
        "requests": requests,
        "certain at once": round(1 - sum(requests.values()) / sent["tokens"] / 2, 4),
        "compared": sent["compared"],
        "different": sent["different"],
    }


def synthetic(count: int) -> dict[str, Any]:
    """Two voters that mostly agree, 50,000 tokens; one of them decides and knows its own vote in full."""
    rng, found = np.random.default_rng(1), {}
    for temperature in (0.0, 1.0):
        lists: dict[str, Counter[str]] = {f"K = {depth}": Counter() for depth in DEPTHS}
        lists["adapted from 8"] = Counter()
        adapted, nuclei = ListLength(8), []
        for step in range(count):
            votes = long_tailed(rng)
            share = float(rng.uniform(0.1, 0.9))
            whole = [CODEC.encode(vote) for vote in votes]
            nuclei.append(len(TopP().encode(votes[1])))
            case = Case(votes, [share, 1.0 - share], [1, 1], 7, step, temperature)
            for name, counts in lists.items():
                depth = adapted.take() if "adapted" in name else int(name[4:])
                num_bytes, num_lists, winner = decide(case, whole, depth, VOCAB)
                if "adapted" in name and num_lists > 1:
                    adapted.grow()
                counts.update(
                    {"votes": 1, "bytes": num_bytes, "tokens": depth, "certain": num_lists == 1},
                    wrong=winner != case.winner,
                )
        found[f"T = {temperature:g}"] = {
            name: {
                "certain at once": round(counts["certain"] / count, 4),
                "bytes per vote": round(counts["bytes"] / count, 1),
                "tokens in the first list": round(counts["tokens"] / count, 1),
                "wrong": counts["wrong"],
            }
            for name, counts in lists.items()
        } | {"top_p 0.8, bytes": summary(nuclei) | {"mean": round(float(np.mean(nuclei)), 1)}}
        print(f"synthetic, T = {temperature:g}: {found[f'T = {temperature:g}']}", flush=True)
    return found


def long_tailed(rng: np.random.Generator) -> list[np.ndarray]:
    """p [50,000] of two models that share most of their logits; from nearly certain to nearly flat."""
    scale = float(rng.choice([0.7, 1.0, 1.5, 3.0], p=(0.1, 0.3, 0.4, 0.2)))
    common = -np.log(rng.permutation(VOCAB) + 1.0) + 0.7 * rng.normal(size=VOCAB)
    logits = [scale * (common + 0.4 * rng.normal(size=VOCAB)) for _ in range(2)]
    dense = [np.exp(one - one.max()) for one in logits]
    return [one / one.sum() for one in dense]


def decide(case: Case, whole: list[bytes], depth: int, vocab: int) -> tuple[int, int, int]:
    """(payload bytes, lists sent, winner): the first voter decides, and asks the second for more until it is sure."""
    options: dict[str, Any] = {"seed": case.seed, "step": case.step, "temperature": case.temperature}
    own, num_bytes, num_lists = read_vote(whole[0], vocab), 0, 0
    while True:
        payload = cut_vote(whole[1], depth, vocab, **options)
        num_bytes, num_lists = num_bytes + len(payload), num_lists + 1
        peer = read_vote(payload, vocab)
        outcome = decide_race([own, peer], case.shares, **options)
        if outcome.is_certain:
            return num_bytes, num_lists, outcome.winner
        assert isinstance(peer, RaceList)
        depth = peer.next_depth


CHECKS = {"answers": (answers, 60), "synthetic": (synthetic, 3000)}
SMOKE = {"answers": 2, "synthetic": 20}


def main() -> None:
    """Run, print, fail where a token differs."""
    parser = new_parser(__doc__)
    parser.add_argument("--only", choices=CHECKS)
    parser.add_argument("--count", type=int, help="questions or steps")
    parser.add_argument("--smoke", action="store_true")
    arguments = parser.parse_args()
    print("prediction: no difference, at most 60 bytes per vote, 98 % certain at once with 8 tokens")
    result = {}
    for name, (check, count) in CHECKS.items():
        if arguments.only in (None, name):
            result[name] = check(SMOKE[name] if arguments.smoke else arguments.count or count)
    finish(result)
    text = str(result)
    if any(f"'{word}': {digit}" in text for word in ("wrong", "different") for digit in "123456789"):
        sys.exit("a token differs")


if __name__ == "__main__":
    main()

"""Are answers those of the loop without drafts, token by token, in every mode and deployment?

Modes dual, speculative and federated, with two parties or two and four owners, each in one process and as Ray actors,
the first two also as a device that has joined a served cloud by a link, and dual once more in the simulator over a
virtual link of 100 ms. Dual also in steps, of which every query is compared. The parties may have different engines
(`--engines llama torch`) and different models (`--models small.gguf large.gguf`), of one vocabulary or not. Question,
seed, temperature, draft rule, placement, pacing and longest proposal are drawn at random. What an answer must be is
computed from the same models and documents by `tandem.modes.reference`, which knows nothing of drafts, proposals or a
link.

Prediction: 0 wrong tokens, whatever is drawn. How many answers another seed would have changed is counted, too: what is
certain of itself would be right without any protocol.

Expected run time: with `--model bundled` 25 minutes for 1,000 answers, with smollm2 on an idle machine 40 minutes for
500; `--smoke` a minute. Exit code 1 if a token is wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._common import finish
from tandem import Answer, Config, Tandem
from tandem.client.request import spec_of
from tandem.plugins.embedders import Embedder
from tandem.protocol.log import common_length
from tandem.retrieval.retriever import build_given_index
from tandem.sites.host import Address, served
from tandem.topology import PARTIES, SERVER
from tandem_lab.quality.local import LocalPair, answer_uncompressed, say_in_steps
from tandem_lab.quality.memoized import local_pair
from tandem_lab.quality.questions import question_texts
from tandem_lab.quality.workers import LocalWorkers
from tandem_lab.simulation.link import Link
from tandem_lab.simulation.specs import change_spec

DEPLOYMENTS = ("inline", "joined", "ray", "simulated")
NUM_WORKERS = (2, 4)
TEMPERATURES = (0.0, 0.6, 1.0, 1.5)
PATIENT = ("link.on_peer_loss=wait", "cluster.start_timeout_s=300")
LINK = Link(delay_s=0.05, jitter_s=0.01)
CHOICES: dict[str, dict[str, tuple[Any, ...]]] = {
    "dual": {"placement": ("mirror", "device", "cloud", "greedy"), "max_window": (16, 16, 1)},
    "speculative": {"pacing": ("stop_and_wait", "pipelined", "cloud_goes_on")},
    "federated": {
        "pacing": ("stop_and_wait", "pipelined"),
        "max_proposal": (0, 1, 3, 4, 8, 16),
    },
}
"""What may differ between two runs of one answer, by mode."""
Ask = Callable[[dict[str, Any], dict[str, Any]], Sequence[Any]]
"""The tokens of an answer: its question, seed and temperature, and what was chosen. Of one in steps, what each says."""


@contextlib.contextmanager
def deployed(config: Config, deployment: str) -> Iterator[Ask]:
    """Asks parties that run so."""
    if deployment == "simulated":
        pair = local_pair(config)
        yield lambda asked, chosen: simulate(pair, config, asked, chosen)
        return
    with contextlib.ExitStack() as stack:
        if deployment == "joined":
            keys = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            cloud = stack.enter_context(served(config, Address("127.0.0.1", 0), keys))
            tandem = stack.enter_context(Tandem.join(str(cloud.link_for("device")), config))
        else:
            tandem = stack.enter_context(Tandem.launch(config, runtime=deployment))
        yield lambda asked, chosen: told(tandem.query(**asked, **chosen), config)


def told(answer: Answer, config: Config) -> Sequence[Any]:
    """What of an answer is compared."""
    if config.decoding.steps != "always":
        return answer.token_ids
    return [*(step.text for step in answer.steps), answer.text]


def simulate(pair: LocalPair, config: Config, asked: dict[str, Any], chosen: dict[str, Any]) -> Sequence[int]:
    """The device's tokens, over LINK in virtual time."""
    changes = {"query" if name == "question" else name: value for name, value in (asked | chosen).items()}
    spec = change_spec(spec_of(config), **changes)
    if config.decoding.steps == "always":
        answer, _ = pair.answer_in_steps(spec, always=True, link=LINK, seed=spec.seed)
        return told(answer, config)
    _, outcome = pair.answer(spec, link=LINK, seed=spec.seed)
    return outcome.tokens[PARTIES[0]]


def reference_of(config: Config) -> Callable[..., list[Any]]:
    """The loop without drafts in the mode of `config`, each answer computed once."""
    loop = LocalWorkers(config) if config.decoding.mode == "federated" else None
    pair = local_pair(config) if loop is None else None

    @cache
    def answer(question: str, seed: int, **changes: Any) -> list[Any]:
        if loop is not None:
            return loop.answer(loop.make_spec(question, seed, **changes))
        assert pair is not None
        spec = change_spec(spec_of(config), query=question, seed=seed, **changes)
        if config.decoding.steps == "always":
            return say_in_steps(spec, pair.engines, pair.retrievers)
        return answer_uncompressed(spec, pair.engines, pair.retrievers)

    return answer


def compare(
    config: Config, deployments: Sequence[str], count: int, num_tokens: int, draw: random.Random
) -> Iterator[dict[str, Any]]:
    """Ask the same `count` questions of each deployment, and compare with the loop."""
    questions, mode = question_texts(None, config), config.decoding.mode
    drawn = [
        {
            "question": draw.choice(questions),
            "seed": draw.randrange(2**31),
            "temperature": draw.choice(TEMPERATURES),
            "draft_rule": draw.choice(("auto", "auto", "coupled")),
            "max_new_tokens": num_tokens,
        }
        for _ in range(count)
    ]
    wanted = reference_of(config)
    for deployment in deployments:
        start_s, row = time.monotonic(), {"tokens": 0, "undecided": 0}
        wrong: list[dict[str, Any]] = []
        with deployed(config, deployment) as ask:
            for asked in drawn:
                chosen = {name: draw.choice(values) for name, values in CHOICES[mode].items()}
                got, right = ask(asked, chosen), wanted(**asked)
                row["tokens"] += len(right)
                row["undecided"] += wanted(**(asked | {"seed": asked["seed"] + 1})) != right
                if list(got) != right:
                    wrong.append({"step": common_length(got, right), **asked, **chosen})
        yield {"deployment": deployment, "answers": count, "wrong": wrong, **row} | {
            "s": round(time.monotonic() - start_s)
        }


def cases(
    models: Sequence[str], engines: Sequence[str], deployments: Sequence[str], owners: Sequence[int]
) -> Iterator[tuple[str, Config, list[str]]]:
    """Name, settings and deployments of every case. models, engines: of the parties, or of owners in turn."""

    def computed(name: str, place: int) -> list[str]:
        model, engine = models[place % len(models)], engines[place % len(engines)]
        return [f'{name}.model="{model}"', f'{name}.engine="{engine}"']

    base = [*computed(PARTIES[0], 0), *computed(PARTIES[1], 1), *PATIENT]
    for mode in ("dual", "speculative"):
        where = [name for name in deployments if name != "simulated" or mode == "dual"]
        yield mode, Config.load(None, [*base, f"decoding.mode={mode}", "decoding.steps=never"]), where
    yield "dual, in steps", Config.load(None, [*base, "decoding.steps=always"]), list(deployments)
    embedder = Embedder.load()
    corpus = Config.load(None, base).with_names().device.index
    folders = [build_given_index(party, embedder, corpus) for party in PARTIES]
    for number in owners:
        for weights in ("fixed", "documents"):
            made = [*computed(SERVER, 1), "decoding.mode=federated", *PATIENT]
            for place in range(number):
                name = f"workers.owner-{place + 1}"
                made += [*computed(name, place), f"{name}.index={folders[place % len(folders)]}"]
                made += [f"{name}.weight={place + 1}"] if weights == "fixed" else []
            where = [name for name in deployments if name in ("inline", "ray")]
            yield f"federated, {number} {weights}", Config.load(None, made), where


def main() -> int:
    """Ask every case its share of the answers; 1 if a token of any was wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--models",
        nargs="+",
        default=["smollm2"],
        help="of the device and the cloud, or of owners in turn (default: smollm2)",
    )
    parser.add_argument(
        "--engines", nargs=2, default=["auto", "auto"], help="of the device and the cloud; of owners in turn"
    )
    parser.add_argument("--count", type=int, default=500, help="answers in all, at least (default: 500)")
    parser.add_argument("--tokens", type=int, default=24, help="of the longest answer (default: 24)")
    parser.add_argument("--seed", type=int, default=1, help="of what is drawn (default: 1)")
    parser.add_argument("--deployments", nargs="+", choices=DEPLOYMENTS, default=DEPLOYMENTS)
    parser.add_argument("--owners", nargs="*", type=int, default=NUM_WORKERS, help="numbers of owners")
    parser.add_argument("--only", default="", help="cases whose name has this, such as steps")
    parser.add_argument("--smoke", action="store_true", help="one answer of each case, without Ray")
    options = parser.parse_args()
    deployments = [name for name in options.deployments if not (options.smoke and name == "ray")]
    planned = [
        case
        for case in cases(options.models, options.engines, deployments, options.owners)
        if options.only in case[0]
    ]
    share = 1 if options.smoke else -(-options.count // sum(len(where) for _, _, where in planned))
    print("prediction: 0 wrong answers", flush=True)
    rows = []
    for name, config, where in planned:
        for row in compare(config, where, share, options.tokens, random.Random(f"{options.seed} {name}")):
            rows.append({"case": name} | row)
            print(
                f"{name}, {row['deployment']}: {row['answers']} answers, {row['tokens']} tokens, "
                f"{len(row['wrong'])} wrong answers; another seed changes {row['undecided']}; {row['s']} s",
                flush=True,
            )
    finish({"models": options.models, "engines": options.engines, "rows": rows})
    return int(any(row["wrong"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())

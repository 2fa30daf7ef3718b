"""What does a user of a Ray cluster get when one of its processes is killed in the middle of an answer?

Two nodes as `tandem up` starts them, and this process, which asks. At a random token of an answer one process is killed
(SIGKILL): each actor, which is a worker of Ray, each party's supervisor, each raylet. Then the same question is asked
again and again until it gets its whole, undegraded answer, and until another process stands in the place of the killed
one. For a raylet somebody has to run `tandem up` again, which this process does.

Prediction: no token that both parties decided is wrong, ever. Of the device's actors most end the answer with one
sentence; of the cloud's, the device goes on alone; a supervisor's death shows nowhere. After it the next whole answer
comes within 30 s without a user; after a raylet's, as soon as the node is up again.

Where the first node's raylet dies, `tandem ask` ends; asked again, it gives the answer once both nodes run again.

Expected run time: 8 minutes for one kill each, 2 hours for --count 20; `--smoke`: 2 minutes, three of the processes.
Exit code 1 if a token is wrong or a process does not come back.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._common import finish, new_parser, summary
from tandem import Tandem
from tandem.errors import TandemError
from tandem.plugins.ray import registry
from tandem.protocol.routes import ROLES
from tandem.topology import PARTIES, Party
from tandem_lab.reliability.bench import Trial, configs_of, first_questions
from tandem_lab.reliability.cluster import run_command, two_nodes

NUM_QUESTIONS, NUM_SEEDS = 4, 2
RAYLET = f"{Party.CLOUD}/raylet"
HEAD = f"{Party.DEVICE}/raylet"
PROCESSES = tuple(f"{party}/{role}" for party in PARTIES for role in (*ROLES, "supervisor"))
VICTIMS = (*PROCESSES, RAYLET, HEAD)
SMOKE = (f"{Party.DEVICE}/draft_queue", f"{Party.CLOUD}/decoder", f"{Party.CLOUD}/supervisor")
BACK_S = 240.0
"""After which a process or a whole answer that has not come counts as lost."""
AGAIN_S = 0.25
"""Between two looks at what has come back."""


def raylet_of(party: str) -> psutil.Process | None:
    """The raylet of a party's node."""
    node = registry.running_node(party)
    below = psutil.Process(node.pid).children(recursive=True) if node else []
    return next((each for each in below if each.name() == "raylet"), None)


class Cluster(Trial):
    """The nodes, clients of them, and the whole answers."""

    @classmethod
    def at(cls, address: str) -> Cluster:
        """Of two nodes that run. Computes the whole answers."""
        clients = {policy: Tandem.connect(address, config) for policy, config in configs_of().items()}
        no_link: Any = None  # nothing is cut here
        cluster = cls(link=no_link, clients=clients, questions=first_questions(NUM_QUESTIONS))
        for question, seed in product(cluster.questions, range(NUM_SEEDS)):
            cluster.whole_answer(question, seed)
        return cluster

    def process(self, victim: str) -> psutil.Process | None:
        """The process in a place; None while there is none."""
        if victim == RAYLET:
            return raylet_of(Party.CLOUD)
        try:
            status = self.clients["continue"].status()
            party, _, role = victim.partition("/")
            if role == "supervisor":
                return psutil.Process(status["supervisors"][party]["pid"])
            (pid,) = (
                each["pid"]
                for each in status["actors"]
                if each["name"] == victim and each["state"] == "alive"
            )
            return psutil.Process(pid)
        except (TandemError, psutil.Error, KeyError, ValueError):
            return None

    def repair(self, victim: str, address: str) -> None:
        """What a user has to do after it: nothing, but for a raylet, once Ray has noticed its death."""
        until_s = time.monotonic() + BACK_S
        while victim == RAYLET:
            try:
                return run_command("up", Party.CLOUD, "--join", address)
            except RuntimeError:
                if time.monotonic() > until_s:
                    raise
                time.sleep(AGAIN_S)


def kill_once(cluster: Cluster, address: str, victim: str, random: Random) -> dict[str, Any]:
    """One kill at a random token, what became of the answer, and how long it took until all was as before."""
    (question, seed), whole = random.choice(list(cluster.whole.items()))
    at = random.randrange(1, max(2, len(whole) - 1))
    process = cluster.process(victim)
    if process is None:
        raise RuntimeError(f"{victim} is not there.")
    killed_s: list[float] = []

    def break_it(step: int) -> None:
        if step == at:
            process.kill()
            killed_s.append(time.monotonic())

    watched = cluster.ask(question, seed, break_it)
    if not killed_s:  # several tokens came at once, past that one
        process.kill()
        killed_s.append(time.monotonic())
    cluster.repair(victim, address)
    is_right, errors = watched.matches(whole), Counter[str]()
    until_s = killed_s[0] + BACK_S
    whole_s = None
    while whole_s is None and time.monotonic() < until_s:
        again = cluster.ask(question, seed)
        is_right &= again.matches(whole)
        if again.error:
            errors[_sentence(again.error)] += 1
            time.sleep(AGAIN_S)
        elif again.degraded_from is None:
            whole_s = time.monotonic() - killed_s[0]
    replaced_s = None
    while replaced_s is None and time.monotonic() < until_s:
        now = cluster.process(victim)
        if now is not None and now.pid != process.pid:
            replaced_s = time.monotonic() - killed_s[0]
        time.sleep(AGAIN_S)
    outcome = "one sentence" if watched.error else "whole" if watched.degraded_from is None else "degraded"
    return {
        "victim": victim,
        "at": at,
        "outcome": outcome,
        "sentence": _sentence(watched.error),
        "is_right": is_right,
        "gap_s": round(watched.gap_s, 2),
        "errors_after": dict(errors),
        "whole_again_s": whole_s,
        "replaced_s": replaced_s,
        "load": os.getloadavg()[0],
    }


def kill_head(random: Random) -> dict[str, Any]:
    """SIGKILL of the device's raylet, which holds the cluster together, while `tandem ask` prints an answer.

    A user then has to stop and start both nodes, and to ask again with the same seed.
    """
    question = random.choice(first_questions(NUM_QUESTIONS))
    asked = ("ask", "--quiet", "--seed", "1", "--temperature", "1", question)
    with two_nodes():
        whole = _tandem(*asked).communicate()[0].strip()
        at, raylet, process = random.randrange(1, len(whole) // 2), raylet_of(Party.DEVICE), _tandem(*asked)
        assert raylet is not None
        assert process.stdout is not None
        # Byte by byte: `communicate` would miss what a reader of texts has read ahead.
        begun = b"".join(os.read(process.stdout.fileno(), 1) for _ in range(at)).decode()
        raylet.kill()
        killed_s = time.monotonic()
        rest, said = process.communicate(timeout=BACK_S)
        ended_s, text = time.monotonic() - killed_s, (begun + rest).strip()
        run_command("down")
        run_command("up", Party.DEVICE)
        run_command("up", Party.CLOUD)
        again = _tandem(*asked).communicate()[0].strip()
        whole_s = time.monotonic() - killed_s
    is_sentence = process.returncode == 1 and said.startswith("tandem: ") and said.count("\n") == 1
    return {
        "victim": HEAD,
        "at": at,
        "outcome": "whole" if not process.returncode else "one sentence" if is_sentence else "other",
        "sentence": _sentence(said.strip()[-500:]),
        "is_right": again == whole,
        "is_clean": whole.startswith(text),  # Ray may write among the answer
        "gap_s": round(ended_s, 2),
        "whole_again_s": whole_s,
        "replaced_s": whole_s,
        "load": os.getloadavg()[0],
    }


def _tandem(*arguments: str) -> subprocess.Popen[str]:
    """A command of Tandem that is to be watched."""
    command = [sys.executable, "-m", "tandem", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _sentence(error: str) -> str:
    """An error without the numbers that differ each time."""
    return re.sub(r"\d+", "N", error)


def table(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """By victim: outcomes, wrong answers, times until all was as before."""
    result = {}
    for victim in dict.fromkeys(row["victim"] for row in rows):
        own = [row for row in rows if row["victim"] == victim]
        result[victim] = {
            "outcomes": dict(Counter(row["outcome"] for row in own)),
            "wrong": sum(not row["is_right"] for row in own),
            "lost": sum(None in (row["whole_again_s"], row["replaced_s"]) for row in own),
        } | {
            name: summary(values) | {"max": max(values)}
            for name in ("gap_s", "whole_again_s", "replaced_s")
            if (values := [row[name] for row in own if row[name] is not None])
        }
    return result


def main(argv: Sequence[str] | None = None) -> None:
    """Kill, one after the other."""
    parser = new_parser(__doc__)
    parser.add_argument("--count", type=int, default=1, help="kills of each")
    parser.add_argument("--victims", nargs="+", choices=VICTIMS, default=VICTIMS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--smoke", action="store_true")
    arguments = parser.parse_args(argv)
    print("prediction: 0 wrong, 0 lost", flush=True)
    random, rows = Random(arguments.seed), []
    victims = (SMOKE if arguments.smoke else arguments.victims) * arguments.count
    if others := [victim for victim in victims if victim != HEAD]:
        with two_nodes() as address:
            cluster = Cluster.at(address)
            try:
                for victim in others:
                    rows.append(kill_once(cluster, address, victim, random))
                    print(json.dumps(rows[-1]), flush=True)
            finally:
                cluster.detach()
    for _ in range(victims.count(HEAD)):
        rows.append(kill_head(random))
        print(json.dumps(rows[-1]), flush=True)
    result = table(rows)
    finish({"seed": arguments.seed, "victims": result})
    if any(each["wrong"] or each["lost"] for each in result.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()

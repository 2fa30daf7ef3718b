"""The grammar of the command line. Knows names, options and help; runs nothing by itself."""

from __future__ import annotations

import argparse
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from importlib import import_module
from typing import Any

from tandem import __version__

_SIDES = ("device", "cloud")
_SEED_LIMIT = 1 << 64


def parser() -> ArgumentParser:
    """The parser of all commands; `args.command(args)` of what it parses runs one and gives its exit code."""
    root = ArgumentParser(
        prog="tandem",
        description="Dual-side RAG: a device's private documents and a cloud's public ones write one answer.",
    )
    root.add_argument("--version", action="version", version=f"tandem {__version__}")
    commands = root.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for add in (
        _ask,
        _index,
        _profile,
        _up,
        _down,
        _status,
        _doctor,
        _config,
        _eval,
        _fuzz,
        _netlab,
        _replay,
        _bench,
    ):
        add(commands)
    return root


def _ask(commands: Any) -> None:
    command = _command(commands, "ask", "ask:run", "ask a question and stream the answer with its sources")
    command.add_argument("question", metavar="QUESTION")
    command.add_argument(
        "--seed", type=_seed, metavar="N", help="repeats an answer exactly (default: a fresh one)"
    )
    command.add_argument("--max-new-tokens", metavar="N", help="longest answer, in tokens")
    command.add_argument("--temperature", metavar="T", help="0 (the default) takes the most probable token")
    command.add_argument(
        "--alone",
        choices=_SIDES,
        metavar="SIDE",
        help="let the device or the cloud answer by itself; nothing crosses the link",
    )
    command.add_argument(
        "--provisional",
        action="store_true",
        help="show drafts at once, dimmed, until they are committed or replaced (on a terminal, and in --json; "
        "anywhere else committed text alone is printed)",
    )
    command.add_argument(
        "--filter",
        action="append",
        type=_filter,
        default=[],
        metavar="SIDE:KEY=VALUE",
        help="let a side use the documents with this metadata alone, as device:source=notes.md; once more for the same "
        "key lets another value through, for another key narrows further",
    )
    _add_address(command, "ask this running cluster (default: start one and stop it afterwards)")
    command.add_argument("--quiet", action="store_true", help="print the answer alone")
    command.add_argument(
        "--timeline",
        metavar="FILE",
        help="write when each token was drafted, sent and decided, as a JSON trace",
    )
    command.add_argument("--plot", metavar="FILE", help="draw that, as png, pdf or svg")
    _add_json(command)
    _add_settings(command)


def _index(commands: Any) -> None:
    command = _command(
        commands, "index", "index:run", "index one side's documents (txt, md, html, pdf, jsonl)"
    )
    command.add_argument("party", choices=_SIDES)
    command.add_argument("path", metavar="PATH", help="a file or a folder")
    command.add_argument("--out", metavar="DIR", help="where the index goes (default: one folder per side)")
    command.add_argument(
        "--factory", metavar="F", help="FAISS factory string, such as HNSW32 (default: by size)"
    )
    command.add_argument(
        "--kv", action="store_true", help="compute the caches of all chunks now, not at their first use"
    )
    _add_json(command)
    _add_settings(command)


def _profile(commands: Any) -> None:
    command = _command(
        commands,
        "profile",
        "profile:run",
        "measure how long a side's model takes for a token on this machine",
    )
    command.add_argument(
        "party",
        nargs="?",
        choices=(*_SIDES, "both"),
        default="both",
        help="(default: both, one after the other)",
    )
    command.add_argument(
        "--runs", type=_count, metavar="N", help="medians are taken over N runs (default: 3)"
    )
    command.add_argument(
        "--limit",
        type=_count,
        metavar="TOKENS",
        help="context length to stop at (default: the model's, at most 2048)",
    )
    command.add_argument("--again", action="store_true", help="measure even if there is a cached profile")
    command.add_argument("--plot", metavar="FILE", help="draw points and lines, as png, pdf or svg")
    _add_json(command)
    _add_settings(command)


def _up(commands: Any) -> None:
    command = _command(
        commands, "up", "nodes:up", "start this machine's node of a cluster, as device or cloud"
    )
    command.add_argument("role", choices=_SIDES)
    command.add_argument(
        "--join", metavar="ADDRESS", help="the running node to join (default: start a new cluster)"
    )
    _add_settings(command)


def _down(commands: Any) -> None:
    _command(commands, "down", "nodes:down", "stop what `tandem up` started on this machine")


def _status(commands: Any) -> None:
    command = _command(
        commands, "status", "nodes:status", "show nodes, actors, models and indexes of a cluster"
    )
    _add_address(command, "the cluster (default: the one that `tandem up` started or joined here)")
    _add_json(command)
    _add_settings(command)


def _doctor(commands: Any) -> None:
    command = _command(
        commands, "doctor", "doctor:run", "say what is missing on this machine, and the remedy"
    )
    _add_json(command)
    _add_settings(command)


def _config(commands: Any) -> None:
    command = _command(commands, "config", "show:run", "print the settings as TOML, each with its meaning")
    _add_settings(command)


def _eval(commands: Any) -> None:
    summary = "measure how good the answers are, by method and number of documents"
    evaluate: ArgumentParser = commands.add_parser("eval", help=summary, description=_sentence(summary))
    kinds = evaluate.add_subparsers(title="kinds", metavar="KIND", required=True)
    lm = _command(kinds, "lm", "lab.cli.evaluate:lm", "perplexity of a text with the help of documents")
    lm.add_argument("text", metavar="TEXT", help="a file or a folder: the text to score")
    lm.add_argument(
        "--documents",
        metavar="PATH",
        help="one corpus for both sides: of the documents found the cloud has the better half, the device the other "
        "(default: each side's own index)",
    )
    lm.add_argument(
        "--window", type=_count, metavar="TOKENS", help="(default: 1024, or half of the model's context)"
    )
    lm.add_argument("--windows", type=_count, metavar="N", help="score N windows of the text (default: all)")
    lm.add_argument("--document-tokens", type=_count, metavar="N", help="cut documents to N tokens")
    lm.add_argument(
        "--context-tokens", type=_count, metavar="N", help="cut joined documents (crcg, drcg) to N tokens"
    )
    qa = _command(kinds, "qa", "lab.cli.evaluate:qa", "exact match and F1 of the answers to questions")
    qa.add_argument(
        "questions",
        metavar="QUESTIONS",
        nargs="?",
        help='jsonl: {"question": ..., "answers": [...]} a line (default: the bundled ones)',
    )
    qa.add_argument("--limit", type=_count, metavar="N", help="ask the first N (default: all)")
    for command, default in ((lm, "0,1,2,4,8,16"), (qa, None)):
        command.add_argument(
            "--counts",
            metavar="LIST",
            default=default,
            help=f"documents a side, or device+cloud (default: {default or 'those of the settings'})",
        )
        command.add_argument(
            "--methods",
            metavar="LIST",
            default="none,crcg-device,crcg-cloud,drcg,device,cloud,static,dynamic",
            help="(default: %(default)s)",
        )
        command.add_argument(
            "--out", metavar="DIR", help="write result.json, table.txt, predictions and a plot"
        )
        _add_json(command)
        _add_settings(command)


def _fuzz(commands: Any) -> None:
    command = _command(
        commands,
        "fuzz",
        "lab.cli.fuzz:run",
        "test the protocol: seeded runs over links that lose, hosts that stall or crash",
    )
    command.add_argument("--runs", type=_count, default=1000, metavar="N", help="how many (default: 1000)")
    command.add_argument(
        "--first", type=_seed, default=0, metavar="SEED", help="seed of the first (default: 0)"
    )
    command.add_argument("--jobs", type=_count, metavar="J", help="processes (default: one for each CPU)")
    command.add_argument("--seed", type=_seed, metavar="S", help="play one run again and print its events")
    _add_json(command)


def _netlab(commands: Any) -> None:
    summary = (
        "build a bad network on this machine: two hosts with delay, jitter, loss and a rate between them"
    )
    netlab: ArgumentParser = commands.add_parser("netlab", help=summary, description=_sentence(summary))
    actions = netlab.add_subparsers(title="actions", metavar="ACTION", required=True)
    up = _command(actions, "up", "lab.cli.netlab:up", "build the two hosts and the link (as root)")
    shape = _command(
        actions, "shape", "lab.cli.netlab:shape", "change the link at once; what is not named stays (as root)"
    )
    down = _command(
        actions, "down", "lab.cli.netlab:down", "end what runs in the hosts and remove everything (as root)"
    )
    for command in (up, shape, down):
        command.add_argument("--name", default="lab", metavar="N", help="of the network (default: lab)")
    for command in (up, shape):
        command.add_argument(
            "--rtt", metavar="T", help="added round trip, half of it each way, such as 100ms"
        )
        command.add_argument("--jitter", metavar="T", help="of the round trip, up and down, such as 20ms")
        command.add_argument("--rate", metavar="R", help="for each way, such as 50mbit, or unlimited")
        command.add_argument("--loss", metavar="P", help="of the packets, for each way, such as 1%%")
    up.add_argument("--subnet", metavar="RANGE", help="addresses (default: an unused range of 198.18.0.0/18)")
    _add_json(
        _command(actions, "status", "lab.cli.netlab:status", "show the networks of this machine (as root)")
    )


def _replay(commands: Any) -> None:
    summary = "ask questions over a link that changes as a trace says; record and draw every token (as root)"
    command = _command(commands, "replay", "lab.cli.replay:run", summary)
    command.add_argument("trace", metavar="TRACE", help="a bundled one, such as sinusoid-100, or a CSV file")
    command.add_argument(
        "--questions",
        metavar="FILE",
        help="one a line, or JSON lines with the field question (default: the bundled ones)",
    )
    command.add_argument(
        "--out", default="replay", metavar="DIR", help="where the files go (default: the folder replay)"
    )
    command.add_argument("--max-new-tokens", metavar="N", help="longest answer, in tokens")
    command.add_argument("--temperature", metavar="T", help="0 (the default) takes the most probable token")
    command.add_argument("--within", metavar="NAME", help=argparse.SUPPRESS)  # the network, up already
    _add_json(command)
    _add_settings(command)


def _bench(commands: Any) -> None:
    summary = "measure every system of DRAGON's figures over the test network (as root)"
    bench: ArgumentParser = commands.add_parser("bench", help=summary, description=_sentence(summary))
    actions = bench.add_subparsers(title="actions", metavar="ACTION", required=True)
    for name, what in (("latency", "time per token, with whole answers"), ("ttft", "time to first token")):
        command = _command(actions, name, f"lab.cli.bench:{name}", f"{what}; without options the full grid")
        command.add_argument(
            "--rtt", nargs="+", metavar="T", help="injected round trips, such as 0 100ms 300ms"
        )
        command.add_argument("--temperature", nargs="+", metavar="T", help="such as 0 1")
        command.add_argument(
            "--systems", nargs="+", metavar="NAME", help="such as CRCG/device DRDG/TW Tandem/mirror"
        )
        command.add_argument("--data-plane", nargs="+", choices=("socket", "ray"), help="(default: socket)")
        command.add_argument(
            "--floors",
            nargs="+",
            metavar="D,C",
            help="least decode times of device and cloud in seconds, or none (default: 0.06,0.025)",
        )
        command.add_argument(
            "--runs", type=_count, metavar="N", help="medians are taken over N runs (default: 5)"
        )
        command.add_argument(
            "--questions", type=_count, metavar="N", help="bundled ones in a run (default: 3)"
        )
        command.add_argument(
            "--out",
            default=f"bench/{name}",
            metavar="DIR",
            help=f"where the files go (default: the folder bench/{name}); what was measured there already stays",
        )
        command.add_argument("--smoke", action="store_true", help="one run of one question at 100 ms")
        command.add_argument("--within", metavar="NAME", help=argparse.SUPPRESS)  # the network, up already
        _add_settings(command)


def _command(commands: Any, name: str, target: str, summary: str) -> ArgumentParser:
    """A command that imports `tandem.cli.<module>` and calls `<function>` of it when it is run."""
    command: ArgumentParser = commands.add_parser(name, help=summary, description=_sentence(summary))
    command.set_defaults(command=_lazily(*target.split(":")))
    return command


def _lazily(module: str, function: str) -> Callable[[Namespace], int]:
    def run(args: Namespace) -> int:
        return int(
            getattr(
                import_module(f"tandem.{module}" if module.startswith("lab.") else f"tandem.cli.{module}"),
                function,
            )(args)
        )

    return run


def _add_settings(command: ArgumentParser) -> None:
    command.add_argument(
        "--config", metavar="FILE", help="settings (default: tandem.toml of this folder, if any)"
    )
    command.add_argument(
        "--set",
        metavar="K=V",
        action="append",
        default=[],
        help="one setting, as section.key=value; repeatable",
    )


def _add_address(command: ArgumentParser, what: str) -> None:
    command.add_argument("--address", metavar="HOST:PORT", help=what)


def _add_json(command: ArgumentParser) -> None:
    command.add_argument("--json", action="store_true", help="print one JSON object")


def _seed(text: str) -> int:
    try:
        seed = int(text)
    except ValueError:
        seed = -1
    if not 0 <= seed < _SEED_LIMIT:
        raise argparse.ArgumentTypeError(f"a seed is a whole number from 0 to 2^64 - 1, but it is {text!r}")
    return seed


def _filter(text: str) -> tuple[str, str, str]:
    """Side, key and value."""
    party, _, rest = text.partition(":")
    key, equals, value = rest.partition("=")
    if party not in _SIDES or not key or not equals:
        raise argparse.ArgumentTypeError(
            f"a filter is SIDE:KEY=VALUE, as device:source=notes.md, but it is {text!r}"
        )
    return party, key, value


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"this is a whole number of at least 1, but it is {text!r}")
    return int(text)


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."

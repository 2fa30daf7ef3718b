"""Options of `tandem lab bench`, and how they are read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from tandem.cli.options import parse_count
from tandem.errors import TandemError

RUNS, QUESTIONS = 5, 3
"""Three bundled answers have 42 tokens."""
PLANES = ("socket", "ray")
DEPLOYMENTS = ("ray", "join")
MODELS = ("configured", "half")
NO_FLOORS = "none"


class ListCommand(TyperCommand):
    """Words behind the value of a repeatable option are more values: `--rtt 0 1s` is `--rtt 0 --rtt 1s`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As the base class."""
        parameters: list[Any] = list(self.params)
        repeatable = {name for parameter in parameters if parameter.multiple for name in parameter.opts}
        words, option = list[str](), ""
        for before, word in zip(["", *args], args, strict=False):
            if word.startswith("-"):
                name = word.partition("=")[0]
                option = name if name in repeatable else ""
            elif option and before != option:
                words.append(option)
            words.append(word)
        return super().parse_args(ctx, words)


def parse_plane(text: str) -> str:
    """A data plane. Raises a usage error."""
    if text not in PLANES:
        raise typer.BadParameter(f"must be socket or ray (got {text!r})")
    return text


def parse_deployment(text: str) -> str:
    """A deployment. Raises a usage error."""
    if text not in DEPLOYMENTS:
        raise typer.BadParameter(f"must be ray or join (got {text!r})")
    return text


def parse_models(text: str, allowed: Sequence[str] = MODELS) -> str:
    """Which models. Raises a usage error."""
    if text not in allowed:
        raise typer.BadParameter(f"must be {' or '.join(allowed)} (got {text!r})")
    return text


def parse_temperature(text: str) -> float:
    """At least 0. Raises TandemError."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise TandemError(f"A temperature must be a number of at least 0 (got {text!r}), such as 0 or 1.")
    return value


def parse_floors(text: str) -> tuple[float, float] | None:
    """Least decode times in seconds, device and cloud; None: as fast as the machine. Raises TandemError."""
    if text == NO_FLOORS:
        return None
    try:
        device_s, cloud_s = (float(part) for part in text.split(","))
    except ValueError:
        device_s = cloud_s = math.nan
    if not (0 <= device_s <= 10 and 0 <= cloud_s <= 10):
        raise TandemError(
            "--min-decode-time must be the device's and the cloud's in seconds, such as 0.06,0.025, "
            f"or `{NO_FLOORS}` (got {text!r})."
        )
    return device_s, cloud_s


Rtts = Annotated[
    list[str] | None,
    typer.Option("--rtt", metavar="T ...", help="injected round trips, such as 0 100ms 300ms"),
]
Temperatures = Annotated[list[str] | None, typer.Option("--temperature", metavar="T ...", help="such as 0 1")]
Systems = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME ...", help="such as CRCG/device DRDG/TW Tandem/mirror"),
]
Planes = Annotated[
    list[str] | None,
    typer.Option("--data-plane", metavar="P ...", parser=parse_plane, help="socket, ray (default: socket)"),
]
Deployments = Annotated[
    list[str] | None,
    typer.Option(
        "--deployment",
        metavar="D ...",
        parser=parse_deployment,
        help="ray, a cluster of both parties, or join, a device that has joined a cloud by a link, one process each; "
        "several are measured in turns on each link (default: ray)",
    ),
]
MinDecodeTimes = Annotated[
    list[str] | None,
    typer.Option(
        "--min-decode-time",
        metavar="D,C ...",
        help="the least time that device and cloud take per token, in seconds, or none (default: 0.06,0.025)",
    ),
]
ModelPair = Annotated[
    str | None,
    typer.Option(
        "--models",
        metavar="M",
        parser=parse_models,
        help="configured, or half: two random models of 50,000 tokens that accept half of each other's drafts "
        "(default: the settings' own; both in the full grid)",
    ),
]
Runs = Annotated[
    int | None,
    typer.Option(metavar="N", parser=parse_count, help=f"take medians over N runs (default: {RUNS})"),
]
NumQuestions = Annotated[
    int | None,
    typer.Option(
        "--questions",
        metavar="N",
        parser=parse_count,
        help=f"questions about the parties' documents per run (default: {QUESTIONS})",
    ),
]
Out = Annotated[
    str | None,
    typer.Option(
        metavar="DIR",
        help="where the files go (default: the folder bench/latency or bench/ttft); cells measured there are kept",
    ),
]
Smoke = Annotated[bool, typer.Option("--smoke", help="one run of one question at 100 ms")]
Within = Annotated[str | None, typer.Option(hidden=True)]  # the network, up already

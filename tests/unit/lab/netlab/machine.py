"""A machine that only exists in memory: it answers the commands that a test network needs, and remembers them."""

from __future__ import annotations

import json
from collections.abc import Sequence

from tandem_lab.errors import NetLabError
from tandem_lab.netlab.layout import Layout


class Machine:
    """A runner for `NetLab`. `fails_at`: part of a command that fails; `has_netem`: what the kernel can do."""

    def __init__(self, *, has_netem: bool = True, fails_at: str = "") -> None:
        self.has_netem = has_netem
        self.fails_at = fails_at
        self.commands: list[str] = []
        self.marks: dict[str, str] = {}
        self.addresses: list[tuple[str, int]] = []
        self.routes: list[str] = ["default"]

    def __call__(self, command: Sequence[str]) -> str:
        text = " ".join(command)
        self.commands.append(text)
        if self.fails_at and self.fails_at in text:
            raise NetLabError(f"`{text}` must succeed, but it said: no.")
        match list(command):
            case ["unshare", *_, mark, name]:
                self.marks[name] = mark
            case ["ip", "netns", "delete", name]:
                del self.marks[name]
            case ["ip", "-json", "netns", "list"]:
                return json.dumps([{"name": name} for name in self.marks])
            case ["ip", "-n", name, "-json", "link", "show", "lo"]:
                return json.dumps([{"ifname": "lo", "ifalias": self.marks[name]}])
            case ["ip", "-json", "-4", "address", "show"]:
                return json.dumps(
                    [{"addr_info": [{"local": a, "prefixlen": p} for a, p in self.addresses]}, {}]
                )
            case ["ip", "-json", "-4", "route", "show"]:
                return json.dumps([{"dst": route} for route in self.routes])
            case ["tc", "-n", _, "qdisc", "add", *_] if not self.has_netem:
                raise NetLabError("`tc` must succeed, but it said: Error: Specified qdisc kind is unknown.")
        return ""

    def made(self, word: str) -> list[str]:
        """The commands that hold a word."""
        return [command for command in self.commands if word in command]

    def add_leftover(self, name: str, role: str) -> None:
        """A namespace of Tandem's that a crash left."""
        layout = Layout(name)
        self.marks[layout.namespace(role)] = layout.mark(role)

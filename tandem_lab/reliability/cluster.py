"""Two nodes as `tandem up` starts them, on this machine or in the two hosts of a test network whose link can be cut."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from tandem.client.tandem import Tandem
from tandem.plugins.ray import registry
from tandem.topology import PARTIES, Party
from tandem_lab.netlab import NetLab, tools
from tandem_lab.reliability.bench import Trial, configs_of, first_questions
from tandem_lab.reliability.proxy import Cut

REJECT = "add table ip cut; add chain ip cut out {{ type filter hook output priority 0; }}; add rule ip cut out {rule}"
"""For `nft` in a host: whoever sends to the other host is told at once that the connection is no more."""


def run_command(*arguments: str, prefix: Sequence[str] = ()) -> None:
    """A command of Tandem, as a user would type it. Raises RuntimeError with what it said if it fails."""
    command = [*prefix, sys.executable, "-m", "tandem", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"tandem {' '.join(arguments)}: {done.stderr.strip()[-500:]}")


@contextmanager
def two_nodes(lab: NetLab | None = None) -> Iterator[str]:
    """A device's node and a cloud's, in a state folder of their own; the cluster's address.

    lab: a test network that is up, in whose device's host this process runs; each node is in its party's host.
    """
    with tempfile.TemporaryDirectory(prefix="tandem-nodes-") as folder:
        os.environ |= {"XDG_STATE_HOME": folder, "RAY_USAGE_STATS_ENABLED": "0"}
        try:
            _start(Party.DEVICE, lab)
            address = registry.running_nodes()[0].address
            _start(Party.CLOUD, lab, "--join", address)
            yield address
        finally:
            run_command("down")


def _start(party: str, lab: NetLab | None, *arguments: str) -> None:
    if lab is None:
        return run_command("up", party, *arguments)
    settings = ("--set", f"link.host={lab.address(party)}", "--set", "link.allow_plain=true")
    return run_command("up", party, *arguments, *settings, prefix=lab.enter(party))


class NetworkLink:
    """The link of a test network: all that goes between its hosts, Ray's own connections included.

    Packets are lost under `stall`, and connections that outlive the cut go on when TCP tries again. Under `reset` each
    host's own firewall resets whatever connection is used, and refuses new ones.
    """

    def __init__(self, lab: NetLab) -> None:
        tools.which("nft")
        self._lab, self._shape, self._how = lab, lab.current_shape(), ""

    def cut(self, how: Cut) -> None:
        """From now on nothing gets through."""
        self._how = how
        if how == "stall":
            return self._lab.shape(replace(self._shape, loss=1.0))
        for here, there in zip(PARTIES, reversed(PARTIES), strict=True):
            rule = f"ip daddr {self._lab.address(there)} ip protocol tcp reject with tcp reset"
            self._filter(here, REJECT.format(rule=rule))

    def heal(self) -> None:
        """What is sent from now on gets through."""
        if self._how == "stall":
            return self._lab.shape(self._shape)
        for host in PARTIES:
            self._filter(host, "delete table ip cut")

    def _filter(self, host: str, rules: str) -> None:
        tools.run([*self._lab.enter(host), "nft", rules])


@contextmanager
def connected(lab: NetLab, settings: Sequence[str] = ()) -> Iterator[Trial]:
    """Clients on the device of two nodes across a test network, and the link between them."""
    with two_nodes(lab) as address:
        clients = {policy: Tandem.connect(address, config) for policy, config in configs_of(settings).items()}
        trial = Trial(link=NetworkLink(lab), clients=clients, questions=first_questions())
        try:
            yield trial
        finally:
            trial.detach()

"""Deployments across the test network: a cluster, or a device that has joined a cloud by a link.

The device's node is in one host, the cloud's in the other, each on its own core. A joined device is this process, and
its cloud one process, which listens where the draft queue of a Ray cluster does, so that its packets are counted alike.

In mode "federated" the server has the place of the device, and all workers that of the cloud: each has a link of its
own to the server, and all these links cross the same shaped one.

Whoever calls `launch` runs in the device's host already (`tandem_lab.netlab.inside`). Knows networks and clusters;
nothing of questions.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from tandem.client.tandem import Tandem
from tandem.config.schema import Config
from tandem.joining.handshakes import queue_of
from tandem.joining.join_link import read_link
from tandem.sites.host import join
from tandem.sites.port import Deployment, Host, Progress, ignore
from tandem.topology import PARTIES, Party
from tandem_lab.baselines import client as baselines
from tandem_lab.baselines.actors import BASELINE_ACTORS
from tandem_lab.baselines.client import Baselines, Call
from tandem_lab.baselines.experiments import Experiments
from tandem_lab.baselines.served import DEVICE_NAME, CloudProcess, cloud_process
from tandem_lab.netlab import NetLab, Shape

DATA_PORT = 7700
"""Where the draft queue that others dial listens: below the ports that Ray and the kernel choose from."""


@functools.cache  # `launch` leaves this process one of them
def own_cores() -> tuple[int, int]:
    """A core for the device and one for the cloud, of those that this process may use; one for both if it is alone."""
    cores = sorted(os.sched_getaffinity(0))
    return cores[0], cores[min(1, len(cores) - 1)]


def hosts(
    lab: NetLab, cores: Sequence[int] | None = None, parties: Sequence[str] = PARTIES
) -> dict[str, Host]:
    """Each party's place in a network that is up, on the core given (None: `own_cores`). Raises NetLabError.

    The first is in the device's host, all others in the cloud's.
    """
    first, *others = parties
    pinned = own_cores() if cores is None else cores
    device, cloud = (
        Host(lab.address(host), (*lab.enter(host), "taskset", "-c", str(core)))
        for host, core in zip(PARTIES, pinned, strict=True)
    )
    return {first: device, **dict.fromkeys(others, cloud)}


def launch(
    lab: NetLab,
    config: Config,
    progress: Progress | None = None,
    experiments: Experiments | None = None,
) -> Tandem:
    """A cluster across `lab`, with the link as it was asked for once all is up. Raises TandemError.

    Both nodes and all actors meet over the unshaped link: Ray's many small calls would take long at 300 ms. This
    process, which is the client on the device, moves to the device's core. experiments: None uses the product's actors.
    """
    places = hosts(lab, parties=config.parties)
    (dialled,) = config.topology.dialled
    link = replace(config.link, host=places[dialled].address or "", port=config.link.port or DATA_PORT)
    settings = replace(config, link=link)
    with while_starting(lab):
        if experiments is None:
            return Tandem.launch(settings, runtime="ray", hosts=places, progress=progress)
        return baselines.launch(settings, experiments, hosts=places, progress=progress)


@contextlib.contextmanager
def while_starting(lab: NetLab) -> Iterator[None]:
    """The link is unshaped within the block, and this thread is on the device's core from now on, with those that it
    starts."""
    os.sched_setaffinity(0, {own_cores()[0]})
    asked = lab.current_shape()
    lab.shape(Shape())
    try:
        yield
    finally:
        lab.shape(asked)


# ---- A device that has joined by a link ---------------------------------------------------------------------------


class MeasuredDevice(Tandem):
    """A device that has joined a cloud; its status has the cloud's actors too."""

    def __init__(self, config: Config, deployment: Deployment, cloud: CloudProcess) -> None:
        super().__init__(config, deployment)
        self._cloud = cloud

    def status(self) -> dict[str, Any]:
        """As of a cluster of both parties."""
        status = super().status()
        return status | {"actors": [*status["actors"], *map(_as_in_a_cluster, self._cloud.status())]}


def _as_in_a_cluster(report: dict[str, Any]) -> dict[str, Any]:
    """With the link to its only device under the name that it has in a cluster."""
    names = {queue_of(DEVICE_NAME): f"{Party.DEVICE}/draft_queue"}
    return report | {"links": {names.get(name, name): link for name, link in report["links"].items()}}


@contextlib.contextmanager
def join_across(
    lab: NetLab, config: Config, experiments: Experiments, progress: Progress = ignore
) -> Iterator[tuple[Tandem, Baselines]]:
    """Both processes with the laboratory's actors, and the link as it was asked for once all is up.

    Raises TandemError; nothing runs then.
    """
    cloud_host = hosts(lab)[Party.CLOUD]
    with contextlib.ExitStack() as stack:
        with while_starting(lab):
            cloud, link = stack.enter_context(cloud_process(config, cloud_host, DATA_PORT, progress))
            device = join(read_link(link), config, progress, BASELINE_ACTORS)
            tandem = stack.enter_context(MeasuredDevice(config, device, cloud))
            calls: dict[str, Call] = {
                Party.DEVICE: device.sites[Party.DEVICE].call,
                Party.CLOUD: cloud.acall,
            }
            own = Baselines(tandem, calls)
            own.apply(experiments)
        yield tandem, own

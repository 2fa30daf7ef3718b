"""A device that has joined a cloud across the test network: two processes, each in its host and on its own core.

The device is this process, which runs in the device's host already (`tandem_lab.netlab.inside`); the cloud listens
where the draft queue of a Ray cluster does, so that its packets are counted alike.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from tandem.client.tandem import Tandem
from tandem.config.schema import Config
from tandem.joining.handshakes import queue_of
from tandem.joining.join_link import read_link
from tandem.sites import joined
from tandem.sites.deployment import Deployment, Progress, ignore
from tandem.topology import Party
from tandem_lab.baselines.actors import BASELINE_ACTORS
from tandem_lab.baselines.client import Baselines
from tandem_lab.baselines.experiments import Experiments
from tandem_lab.baselines.served import DEVICE_NAME, CloudProcess, cloud_process
from tandem_lab.latency.cluster import DATA_PORT, hosts, while_starting
from tandem_lab.netlab import NetLab


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
            device = joined.join(read_link(link), config, progress, BASELINE_ACTORS)
            tandem = stack.enter_context(MeasuredDevice(config, device, cloud))
            baselines = Baselines(tandem, {**tandem.actors, Party.CLOUD: cloud.handles})
            baselines.apply(experiments)
        yield tandem, baselines

"""Finds the device that `tandem device` runs on this machine."""

from __future__ import annotations

from tandem.config import Config
from tandem.sites.deployment import Deployment, Progress
from tandem.topology import Party


def find_device(config: Config, progress: Progress) -> Deployment | None:
    """The device that `tandem device` runs here; None if there is none. Raises ClusterError."""
    from tandem.sites import attached

    if not attached.is_device_running():
        return None
    from tandem.cluster.start_settings import explain_ignored

    device = attached.attach(progress)
    if ignored := explain_ignored(config, [(Party.DEVICE, device.settings)]):
        progress(ignored)
    return device

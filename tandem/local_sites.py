"""What `Tandem` uses without Ray: all sites in this process, or the device that runs on this machine."""

from __future__ import annotations

from tandem.config import Config
from tandem.errors import ConfigError
from tandem.sites.deployment import ActorClasses, Deployment, Progress
from tandem.topology import Party


def launch(
    config: Config, hosts: object, progress: Progress, actor_classes: ActorClasses | None
) -> Deployment:
    """All parties in this process. Raises TandemError."""
    if hosts is not None:
        raise ConfigError(
            'hosts says where Ray nodes run, but the runtime is "inline", which has none; leave out hosts, or use the '
            'runtime "ray".'
        )
    from tandem.sites import inline

    return inline.launch(config, progress, actor_classes)


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

"""The runtime "ray": each party is a Ray node of its own, with a process for each actor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tandem.errors import ClusterError, explain_missing

if TYPE_CHECKING:
    from tandem.config.schema import Config
    from tandem.sites.port import ActorClasses, Deployment, Host, Progress


class RayRuntime:
    """A `ClusterRuntime`; Ray is imported by what needs it."""

    @staticmethod
    def launch(
        config: Config,
        hosts: Mapping[Any, Host] | None,
        progress: Progress,
        actor_classes: ActorClasses | None,
    ) -> Deployment:
        """Start a node per party."""
        with explain_missing('The runtime "ray"', ClusterError, 'or use the runtime "inline"'):
            from tandem.plugins.ray import bootstrap

        return bootstrap.launch(config, hosts, progress, actor_classes)

    @staticmethod
    def connect(address: str | None, config: Config, progress: Progress) -> Deployment:
        """Meet the parties of a running cluster."""
        with explain_missing("A running cluster", ClusterError):
            from tandem.plugins.ray import bootstrap

        return bootstrap.connect(address, config, progress)

    @staticmethod
    def find_running(config: Config, progress: Progress) -> str | None:
        """The address of the cluster of which `tandem up` started a node here."""
        from tandem.plugins.ray.registry import find_local

        return find_local(config, progress)

    @staticmethod
    def read_status(address: str | None, config: Config, progress: Progress) -> dict[str, Any]:
        """The status of a running cluster."""
        with explain_missing("A running cluster", ClusterError):
            from tandem.plugins.ray.actors import read_status

        return read_status(address, config, progress)

"""A party's figures in the metrics of its Ray cluster, which each node gives to Prometheus where Ray has its agent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ray.util.metrics import Counter, Gauge

from tandem.figures import FIGURES, Figure, read_figures


class RayMetrics:
    """Records figures as Ray's counters and gauges; Ray puts `ray_` before their names."""

    def __init__(self) -> None:
        self._metrics = {figure: _create(figure) for figure in FIGURES}
        self._counts: dict[tuple[Figure, tuple[str, ...]], float] = {}  # as last recorded

    def record(self, actors: Iterable[dict[str, Any]]) -> None:
        """The figures as they are now. actors: of `read_reports`."""
        for figure, labels, value in read_figures(actors):
            metric, tags = self._metrics[figure], dict(zip(figure.labels, labels, strict=True))
            if isinstance(metric, Gauge):
                metric.set(float(value), tags)
                continue
            before = self._counts.get((figure, labels), 0.0)
            grown = value - before if value >= before else value
            self._counts[figure, labels] = value
            if grown > 0:  # Ray refuses to add nothing
                metric.inc(float(grown), tags)


def _create(figure: Figure) -> Counter | Gauge:
    kind = Counter if figure.is_count else Gauge
    return kind(figure.name, description=figure.help, tag_keys=figure.labels)

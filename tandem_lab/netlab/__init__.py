"""The test network: two hosts on one machine and a bad link between them, shaped by `tc netem`.

Knows Linux namespaces and links; knows nothing of Tandem's sides beyond the names of the two hosts, of Ray and of
what runs in them.
"""

from tandem_lab.netlab.lab import NetLab, lab_names
from tandem_lab.netlab.schedule import (
    LinkSchedule,
    ScheduleRow,
    bundled,
    bundled_names,
    play,
    read_schedule,
)
from tandem_lab.netlab.shape import Shape

__all__ = [
    "LinkSchedule",
    "NetLab",
    "ScheduleRow",
    "Shape",
    "bundled",
    "bundled_names",
    "lab_names",
    "play",
    "read_schedule",
]

"""Measures the cells of a plan over the test network, one deployment after the other, and keeps each cell at once.

The predictions of all cells are printed before anything is measured. Runs go through all systems in turn, so that drift
affects all of them. Knows networks, clusters and the clock; nothing of tables or plots.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import isfinite
from pathlib import Path

from tandem.client.tandem import Tandem
from tandem.config.schema import Config
from tandem.topology import PARTIES, SERVER, Party
from tandem_lab.baselines.client import Baselines
from tandem_lab.baselines.experiments import Experiments
from tandem_lab.bench.asker import Asker
from tandem_lab.bench.places import DATA_PORT, join_across, launch
from tandem_lab.bench.plan import CellPlan, Plan
from tandem_lab.bench.records import Cell, Prediction, Record, Setting, append_cell, latest, read_cells
from tandem_lab.bench.suite import Predicts
from tandem_lab.bench.systems import System
from tandem_lab.netlab import NetLab, Shape
from tandem_lab.netlab.capture import capturing
from tandem_lab.netlab.packets import HEADER_BYTES, LinkTraffic, read_packets
from tandem_lab.netlab.ping import Ping

CELLS = "cells.jsonl"
CAPTURE = "link.pcap"
IDLE_S = 4.0
"""How long the link is watched while nobody asks, once for each cluster."""

Say = Callable[[str], None]


class Bench:
    """One benchmark. Made in the device's host of a network that is up."""

    def __init__(
        self,
        lab: NetLab,
        configs: Mapping[str, Config],
        plan: Plan,
        folder: Path,
        predictors: Mapping[str, Predicts],
        say: Say,
        warm_up: System,
    ) -> None:
        """configs, predictors: by `Setting.group`, of all that the plan names. warm_up: asked first, so that stores
        are filled."""
        self._lab, self._configs, self._plan, self._say = lab, configs, plan, say
        self._file, self._capture = folder / CELLS, folder / CAPTURE
        self._predictors, self._warm_up = predictors, warm_up
        self._predictions: dict[tuple[str, Setting], Prediction] = {}
        self._cores = os.sched_getaffinity(0)

    def run(self) -> list[Cell]:
        """Every cell of the plan, in its order; what the file holds already is not measured again."""
        kept = read_cells(self._file)
        missing = [
            cell for cell in self._plan.cells if latest(kept, cell.setting, self._plan.of(cell)) is None
        ]
        self._announce_predictions(missing)
        for cells in self._plan.clusters():
            if any(cell in missing for cell in cells):
                self._measure_together([cell for cell in cells if cell in missing])
        kept = read_cells(self._file)
        found = (latest(kept, cell.setting, self._plan.of(cell)) for cell in self._plan.cells)
        return [cell for cell in found if cell is not None]

    # ---- before ----------------------------------------------------------------------------------------------

    def _announce_predictions(self, missing: Sequence[CellPlan]) -> None:
        num_known = len(self._plan.cells) - len(missing)
        self._say(f"plan: {len(missing)} settings to measure, {num_known} are there already")
        for cell in missing:
            self._say(f"predicted: {cell.setting}")
            for system in cell.systems:
                self._say(f"predicted:   {system.name:25} {self._told(system, cell.setting)}")

    def _told(self, system: System, setting: Setting) -> str:
        prediction = self._prediction(system, setting)
        if not isfinite(prediction.token_s):
            return "nothing: decode times are the machine's own"
        told = [f"{1e3 * prediction.token_s:6.1f} ms per token"]
        for name, values in (("accepted", prediction.acceptance), ("forwards", prediction.forwards)):
            if values:
                told.append(f"{name} {'/'.join(f'{value:.2f}' for value in values.values())}")
        told += [f"{name} {value:.2f}" for name, value in prediction.also.items()]
        return ", ".join(told)

    def _prediction(self, system: System, setting: Setting) -> Prediction:
        alike = replace(setting, deployment="ray")
        key = (system.name, alike)
        if key not in self._predictions:
            self._predictions[key] = self._predictors[setting.group].predict(system, alike)
        return self._predictions[key]

    def _reference(self, setting: Setting) -> tuple[tuple[int, ...], ...]:
        return self._predictors[setting.group].reference(setting)

    # ---- measuring -------------------------------------------------------------------------------------------

    def _measure_together(self, cells: Sequence[CellPlan]) -> None:
        """Those that one start of a deployment serves."""
        setting = cells[0].setting
        os.sched_setaffinity(0, self._cores)  # a deployment before this one has moved us to the device's core
        self._lab.shape(Shape())
        config = config_of(self._configs[setting.group])
        with self._running(config, setting) as (tandem, baselines):
            asker = Asker(tandem, baselines)
            for number, question in enumerate(self._plan.questions):  # stores hold what they may hold
                asker.ask(self._warm_up, setting, question, number, -1)
            idle = self._idle()
            for cell in cells:
                found = replace(self._measure(asker, cell), idle_bytes_per_s=idle)
                append_cell(self._file, found)

    @contextlib.contextmanager
    def _running(self, config: Config, setting: Setting) -> Iterator[tuple[Tandem, Baselines]]:
        """The deployment of a setting, and its laboratory's actors."""
        experiments = experiments_of(setting)
        if setting.deployment == "join":
            with join_across(self._lab, config, experiments, self._say) as running:
                yield running
        else:
            with launch(self._lab, config, self._say, experiments) as tandem:
                yield tandem, Baselines(tandem)

    def _measure(self, asker: Asker, cell: CellPlan) -> Cell:
        setting = cell.setting
        # Ray's own 7 KB/s are not what the rate is about, and would fill a slow link.
        self._lab.shape(Shape(rtt_s=setting.rtt_s, rate_bits_per_s=setting.bits_per_s, rate_port=DATA_PORT))
        for system in cell.systems:  # not measured: connections, caches of the processor, moving averages
            asker.ask(system, setting, self._plan.questions[0], 0, -1)
        ping = Ping(self._lab)
        try:
            with capturing(self._lab, self._capture, Party.DEVICE, packet_bytes=HEADER_BYTES):
                ping.start()
                try:
                    records = list(self._asked(asker, cell))
                finally:
                    replies = ping.stop()
            wire = LinkTraffic(read_packets(self._capture, self._lab.address(Party.DEVICE), DATA_PORT))
        finally:
            self._capture.unlink(missing_ok=True)
        return Cell(
            setting=setting,
            plan=self._plan.of(cell),
            records=tuple(
                replace(each, wire_bytes=wire.of(each.asked_at_s, each.done_at_s, each.settled_at_s))
                for each in records
            ),
            ping_s=tuple(reply.rtt_s for reply in replies),
            reference=self._reference(setting),
            predictions={system.name: self._prediction(system, setting) for system in cell.systems},
        )

    def _asked(self, asker: Asker, cell: CellPlan) -> Iterator[Record]:
        started_s = time.monotonic()
        for run in range(self._plan.runs):
            for system in cell.systems:
                for number, question in enumerate(self._plan.questions):
                    yield asker.ask(system, cell.setting, question, number, run)
            self._say(
                f"measured: {cell.setting}, run {run + 1} of {self._plan.runs}, "
                f"{time.monotonic() - started_s:.0f} s"
            )

    def _idle(self) -> dict[str, float]:
        """Bytes a second by sender while nobody asks: Ray's own, or what keeps a joined link alive."""
        before = self._lab.counters(Party.DEVICE)
        time.sleep(IDLE_S)
        seen = self._lab.counters(Party.DEVICE).since(before)
        return {"device": seen.sent_bytes / IDLE_S, "cloud": seen.received_bytes / IDLE_S}


def config_of(config: Config) -> Config:
    """The settings of a cluster in which one can measure: an answer waits for its link."""
    return replace(config, link=replace(config.link, on_peer_loss="wait"))


def experiments_of(setting: Setting) -> Experiments:
    """The conditions of a cluster in which `setting` can be measured."""
    first_s, other_s = setting.floors_s or (0.0, 0.0)
    if not setting.num_workers:
        return Experiments(min_decode_time_s=dict(zip(PARTIES, (first_s, other_s), strict=True)))
    times_s = {SERVER: first_s, **dict.fromkeys(setting.workers, other_s)}
    times_s[setting.workers[-1]] = setting.slow * other_s
    return Experiments(min_decode_time_s=times_s)

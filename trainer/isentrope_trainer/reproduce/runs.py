"""A run: how it is made, and the folder that keeps it.

    runs/KEY/settings.json   what determines it
    runs/KEY/series.npz      every scalar and histogram of its reports, by step
    runs/KEY/notes.json      labels and alerts, by step
    runs/KEY/promise.json    of a control that is pushed on the way: what was promised
    runs/KEY/timing.npz      scalars that measure time or delivery
    runs/KEY/made.json       when, where and by which versions it was made

The first three hold the same bytes each time the run is made, in any process.
"""

from __future__ import annotations

import io
import json
import logging
import os
import platform
import shutil
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import isentrope
from isentrope.transport import InMemoryTransport, MakeMessage, ReadyMessage, Transport, open_transport
from isentrope_trainer.loop import StepResult
from isentrope_trainer.reference_run import shown_settings, train_reference_policy
from isentrope_trainer.reproduce.settings import RunSettings
from isentrope_wire import environment
from isentrope_wire.control import CAPABILITIES
from isentrope_wire.control_answers import PredictedEffect
from isentrope_wire.diagnosis.course import Course
from isentrope_wire.diagnosis.effect import EFFECT_STEPS, LastSteps, predicted_effect
from isentrope_wire.errors import IsentropeError
from isentrope_wire.metrics import ENTROPY_GAIN, ENTROPY_MEAN, ENTROPY_UNSEEN_CHANGE, measured_change
from isentrope_wire.numbers import document_of, read
from isentrope_wire.reports import ControlSnapshot, RunStarted, StepReport

Series = NDArray[np.float64]
PROJECT = "reproduce"
TIMING = ("probe/", "time/")
"""Beginnings of names whose values depend on the machine."""
FIRST_STEPS, LAST_STEPS = 3, 10
"""Whose mean is a run's start and end."""


class NotReported(IsentropeError, KeyError):
    """A run does not report a metric that a figure needs."""

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True, slots=True)
class RunFiles:
    """A finished run as the contents of its files. Travels between processes and machines."""

    key: str
    contents: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Histograms:
    """One histogram of every step."""

    counts: NDArray[np.int64]
    """[steps, bins]."""
    low: Series
    """[steps]: where the first bin begins."""
    high: Series


class Run:
    """A finished run, read from its folder."""

    def __init__(self, settings: RunSettings, folder: Path) -> None:
        self.settings = settings
        self.folder = folder

    @cached_property
    def _arrays(self) -> dict[str, NDArray[Any]]:
        with np.load(self.folder / "series.npz") as file:
            return dict(file)

    @property
    def seed(self) -> int:
        return self.settings.seed

    @property
    def steps(self) -> NDArray[np.int64]:
        return self._arrays["steps"]

    @property
    def names(self) -> list[str]:
        """Of the scalars it reports."""
        return [str(name) for name in self._arrays["names"]]

    def series(self, name: str) -> Series:
        """One scalar of every step, NaN where a step did not measure it.

        Raises:
            NotReported: no step did.
        """
        if name not in self.names:
            raise NotReported(f"The run {self.settings} ({self.settings.key}) does not report {name}.")
        return np.asarray(self._arrays["scalars"][:, self.names.index(name)])

    def start(self, name: str, steps: int = FIRST_STEPS) -> float:
        """Mean of the first measurements of a scalar."""
        return float(np.mean(self._measured(name)[:steps]))

    def end(self, name: str, steps: int = LAST_STEPS) -> float:
        """Mean of the last measurements of a scalar."""
        return float(np.mean(self._measured(name)[-steps:]))

    def mean(self, name: str) -> float:
        """Mean of all measurements of a scalar."""
        return float(np.mean(self._measured(name)))

    def _measured(self, name: str) -> Series:
        series = self.series(name)
        return series[~np.isnan(series)]

    def histogram(self, name: str) -> Histograms:
        """One histogram of every step.

        Raises:
            NotReported: it was not reported.
        """
        if f"counts:{name}" not in self._arrays:
            raise NotReported(f"The run {self.settings} ({self.settings.key}) does not report the histogram {name}.")
        return Histograms(*(self._arrays[f"{what}:{name}"] for what in ("counts", "low", "high")))

    @cached_property
    def notes(self) -> list[dict[str, Any]]:
        """Of every step its `labels` (name -> word) and `alerts` (kind, level)."""
        loaded: list[dict[str, Any]] = json.loads((self.folder / "notes.json").read_text(encoding="utf-8"))
        return loaded

    @cached_property
    def promise(self) -> PredictedEffect | None:
        """What was promised of the control that was pushed; None where nothing could be."""
        document = json.loads((self.folder / "promise.json").read_text(encoding="utf-8"))
        return None if document is None else read(PredictedEffect, document)

    @cached_property
    def made(self) -> dict[str, Any]:
        """When, where and by which versions it was made."""
        loaded: dict[str, Any] = json.loads((self.folder / "made.json").read_text(encoding="utf-8"))
        return loaded


class RunFolder:
    """The finished runs of an output folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, settings: RunSettings) -> Run | None:
        path = self._folder / settings.key
        return Run(settings, path) if path.is_dir() else None

    def keep(self, files: RunFiles) -> None:
        """Keep a finished run. Renamed when complete: a folder with a key as its name is a whole run."""
        self._folder.mkdir(parents=True, exist_ok=True)
        partial = self._folder / f".{files.key}-{uuid.uuid4().hex[:8]}"
        partial.mkdir()
        try:
            for name, content in files.contents.items():
                (partial / name).write_bytes(content)
            if not (self._folder / files.key).exists():
                os.rename(partial, self._folder / files.key)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def make_run(settings: RunSettings, tags: Sequence[str] = (), *, report: bool = False) -> RunFiles:
    """Train, in this process.

    Args:
        settings: of the run.
        tags: names of the figures it is made for.
        report: whether the run reports to the server that `ISENTROPE_URL` and `ISENTROPE_GRPC` name, too. A control pushed
            there is not applied: it would make another run.
    """
    started, cpu = time.time(), time.process_time()
    # Alerts are among the results; a line for each in the terminal would hide how far the figures are.
    logging.getLogger("isentrope.step_report").setLevel(logging.ERROR)
    kept = InMemoryTransport()
    transport = _AlsoToServer(kept, settings, tags) if report else kept

    def push(_probe: isentrope.Probe, result: StepResult) -> None:
        if result.step == settings.pushed_after:
            kept.set_control(ControlSnapshot(version=1, control=settings.control, author="", requested_at=started))

    train_reference_policy(
        settings.training,
        isentrope.Control() if settings.pushed_after else settings.control,
        follow=push,
        policy_config=settings.policy,
        warm_start=settings.warm_start,
        transport=transport,
        threads=settings.threads,
        quiet=True,
    )
    reports = [message for message in kept.messages if isinstance(message, StepReport)]
    made = {
        "started_at": started,
        "seconds": time.time() - started,
        "cpu_seconds": time.process_time() - cpu,
        "torch": torch.__version__,
        "isentrope": isentrope.__version__,
        "processor": _processor(),
    }
    timing = [{n: v for n, v in report.scalars.items() if n.startswith(TIMING)} for report in reports]
    results = [{n: v for n, v in report.scalars.items() if not n.startswith(TIMING)} for report in reports]
    notes = [
        {"labels": dict(report.labels), "alerts": [[alert.kind, str(alert.level)] for alert in report.alerts]}
        for report in reports
    ]
    steps = np.array([report.step for report in reports])
    promised = {"promise.json": _json(document_of(_promise(reports, settings)))} if settings.pushed_after else {}
    return RunFiles(
        settings.key,
        promised
        | {
            "settings.json": _json(settings.document()),
            "series.npz": _npz({"steps": steps, **_columns(results), **_histograms(reports)}),
            "notes.json": _json(notes),
            "timing.npz": _npz({"steps": steps, **_columns(timing)}),
            "made.json": _json(made),
        },
    )


def _promise(reports: Sequence[StepReport], settings: RunSettings) -> PredictedEffect | None:
    """What the page says of the control when it is pushed."""
    course, before = Course(), [report for report in reports if report.step <= settings.pushed_after]
    for one in before:
        course.add(one.step, one.scalars[ENTROPY_MEAN], observed=measured_change(one.scalars))
    sums = [one.what_if for one in before[-EFFECT_STEPS:] if one.what_if is not None]
    last = LastSteps(
        sums=sums, gain=before[-1].scalars.get(ENTROPY_GAIN), of_unseen=ENTROPY_UNSEEN_CHANGE in before[-1].scalars
    )
    return predicted_effect(settings.control, last, course)


class _AlsoToServer:
    """Keeps every message, and sends it to a server too."""

    def __init__(self, kept: InMemoryTransport, settings: RunSettings, tags: Sequence[str]) -> None:
        now = time.time()
        self._kept = kept
        run = RunStarted(
            run_id=uuid.uuid4().hex[:12],
            incarnation=uuid.uuid4().hex,
            rank=0,
            world_size=1,
            name=str(settings),
            project=PROJECT,
            started_at=now,
            probe_version=isentrope.__version__,
            config=shown_settings(settings.training, settings.policy, settings.warm_start)
            | {"key": settings.key, "control": settings.control.to_document()},
            tags=tuple(tags),
            capabilities=CAPABILITIES,
            planned_steps=settings.training.steps,
            initial_control=ControlSnapshot(version=0, control=settings.control, author="trainer", requested_at=now),
        )
        self._sent: Transport = open_transport(
            run,
            mode="online",
            home=environment.home(),
            grpc_target=environment.grpc_target(),
        )
        self.statistics = kept.statistics

    def put(self, make: MakeMessage) -> bool:
        taken = self._kept.put(make)
        self._sent.put(ReadyMessage(self._kept.messages[-1]))
        return taken

    def requested_control(self) -> ControlSnapshot | None:
        return self._kept.requested_control()

    def close(self, timeout_seconds: float = 1.0) -> None:
        self._kept.close()
        self._sent.close(timeout_seconds)


def _columns(rows: Sequence[Mapping[str, float]]) -> dict[str, NDArray[Any]]:
    names = sorted({name for row in rows for name in row})
    scalars = np.array([[row.get(name, np.nan) for name in names] for row in rows], dtype=np.float64)
    return {"names": np.array(names, dtype=str), "scalars": scalars.reshape(len(rows), len(names))}


def _histograms(reports: Sequence[StepReport]) -> dict[str, NDArray[Any]]:
    of_steps = [{histogram.name: histogram for histogram in report.histograms} for report in reports]
    arrays: dict[str, NDArray[Any]] = {}
    # A histogram that a step lacks would shift all later ones.
    for name in sorted(set[str].intersection(*map(set[str], of_steps))) if of_steps else ():
        column = [histograms[name] for histograms in of_steps]
        arrays[f"counts:{name}"] = np.array([histogram.counts for histogram in column])
        arrays[f"low:{name}"] = np.array([histogram.low for histogram in column])
        arrays[f"high:{name}"] = np.array([histogram.high for histogram in column])
    return arrays


def _npz(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **dict(arrays))
    return buffer.getvalue()


def _json(value: object) -> bytes:
    return json.dumps(value, indent=1, sort_keys=True, default=str).encode()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()

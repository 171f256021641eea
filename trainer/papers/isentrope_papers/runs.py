"""A run: how it is made, and the folder that keeps it.

    runs/KEY/settings.json   what determines it
    runs/KEY/series.npz      every scalar of its reports, by step, but for those that measure time
                             or delivery
    runs/KEY/what_if.json    of a control that is pushed on the way: what-if sums of the last steps
                             before it, as they travel, in base64
    runs/KEY/alerts.json     its alerts, as they were raised
    runs/KEY/log.json        of a run under TRL: what TRL logged itself
    runs/KEY/made.json       how long it took, where and by which version of torch

All but the last hold the same bytes each time the run is made, in any process.
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
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import isentrope
from isentrope.transport import InMemoryTransport
from isentrope_papers.faults import FAULTS
from isentrope_papers.fresh import FRESH_CHANGE, FRESH_ERROR, FreshChange, FreshCompletions
from isentrope_papers.settings import RunSettings
from isentrope_papers.trl_faults import train_under_trl
from isentrope_trainer import smollm2
from isentrope_trainer.loop import StepResult
from isentrope_trainer.models.policy import Policy
from isentrope_trainer.reference_run import train_reference_policy
from isentrope_trainer.tasks.base import Task
from isentrope_wire.codec import decode_what_if, encode_what_if
from isentrope_wire.diagnosis.effect import EFFECT_STEPS
from isentrope_wire.errors import IsentropeError
from isentrope_wire.reports import ControlSnapshot, StepReport
from isentrope_wire.what_if import WhatIfSums

Series = NDArray[np.float64]
TIMING = (
    "probe/",
    "system/",
    "time/",
    "step_time",
    "train_runtime",
    "train_samples_per",
    "train_steps_per",
)
"""Beginnings of names whose values depend on the machine."""
FIRST_STEPS, LAST_STEPS = 3, 10
"""Whose mean is a run's start and end."""


class NotReported(IsentropeError, KeyError):
    """A run does not report a metric that a figure needs."""

    def __str__(self) -> str:
        return str(self.args[0])


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
        return [str(name) for name in self._arrays["names"]]

    def series(self, name: str) -> Series:
        """One scalar of every step, NaN where a step did not measure it.

        Raises:
            NotReported: no step did.
        """
        if name not in self.names:
            raise NotReported(
                f"The run {self.settings} ({self.settings.key}) does not report {name}."
            )
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

    @property
    def what_if(self) -> list[WhatIfSums]:
        """Of the last steps before a control was pushed, that have some."""
        return [decode_what_if(b64decode(packed)) for packed in self._document("what_if")]

    @property
    def alerts(self) -> list[dict[str, Any]]:
        """`step`, `kind`, `level` and `words` of each, as it was raised."""
        return list(self._document("alerts"))

    @property
    def log(self) -> list[dict[str, Any]]:
        """What TRL logged of a run under it, a row an update."""
        return list(self._document("log"))

    @cached_property
    def made(self) -> dict[str, Any]:
        """`cpu_seconds` that it took, `processor`, version of `torch`."""
        return dict(self._document("made"))

    def _document(self, name: str) -> Any:
        return json.loads((self.folder / f"{name}.json").read_text(encoding="utf-8"))


class RunFolder:
    """The finished runs of an output folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, settings: RunSettings) -> Run | None:
        path = self._folder / settings.key
        if path.is_dir():
            return Run(settings, path)
        return None

    def keep(self, settings: RunSettings, files: Mapping[str, bytes]) -> Run:
        """Keep a finished run. Renamed when complete: a folder with a key as its name is a whole
        run."""
        self._folder.mkdir(parents=True, exist_ok=True)
        partial = self._folder / f".{settings.key}-{uuid.uuid4().hex[:8]}"
        partial.mkdir()
        try:
            for name, content in files.items():
                (partial / name).write_bytes(content)
            if not (self._folder / settings.key).exists():
                os.rename(partial, self._folder / settings.key)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        return Run(settings, self._folder / settings.key)


def make_run(settings: RunSettings) -> dict[str, bytes]:
    """Train, in this process. Returns the contents of the run's files, by name."""
    started, cpu = time.time(), time.process_time()
    # Alerts are among the results; a line for each in the terminal would hide how far the figures
    # are.
    logging.getLogger("isentrope.steps.report").setLevel(logging.ERROR)
    transport = InMemoryTransport()

    fresh: FreshCompletions | None = None

    def judge_by_fresh(policy: Policy, task: Task, _probe: isentrope.Probe, _batch: int) -> Task:
        nonlocal fresh
        training = settings.training
        fresh = FreshCompletions(policy, task, settings.fresh, training.seed, training.temperature)
        return task

    def push(_probe: isentrope.Probe, result: StepResult) -> None:
        if fresh is not None:
            fresh.follow(result.step)
        if result.step == settings.pushed_after:
            transport.set_control(
                ControlSnapshot(
                    version=1, control=settings.control, author="", requested_at=started
                )
            )

    if settings.pushed_after:
        control = isentrope.Control()
    else:
        control = settings.control
    log: list[dict[str, Any]] | None = None
    if settings.under_trl:
        log = train_under_trl(
            settings.under_trl, settings.training.seed, settings.training.steps, transport
        )
    elif settings.language_model:
        # TRL takes seconds to import, and is another extra.
        from isentrope_trainer.language_model_run import train_language_model  # noqa: PLC0415

        torch.set_num_threads(settings.threads)
        coupling = settings.training.coupling
        train_language_model(
            smollm2.ensure(),
            settings.training,
            control,
            name="reproduce",
            project="reproduce",
            follow=push,
            transport=transport,
            coupling=coupling,
            # A prediction is compared with the change of all tokens; otherwise as `attach` has it.
            rescore_tokens=1_000_000 if coupling else None,
        )
    else:
        fault = FAULTS.get(settings.fault)
        prepare = None
        if fault is not None and fault.prepare is not None:
            prepare = fault.prepare()
        if settings.fresh:
            prepare = judge_by_fresh
        # A run that is made to fail may end with an error: what it reported until then counts.
        with suppress(*([RuntimeError] if fault else [])):
            train_reference_policy(
                settings.training,
                control,
                follow=push,
                policy_config=settings.policy,
                warm_start=settings.warm_start,
                transport=transport,
                threads=settings.threads,
                quiet=True,
                prepare=prepare,
            )
    reports = [message for message in transport.messages if isinstance(message, StepReport)]
    made = {
        "cpu_seconds": time.process_time() - cpu,
        "torch": torch.__version__,
        "processor": _processor(),
    }
    before = [report.what_if for report in reports if report.step <= settings.pushed_after][
        -EFFECT_STEPS:
    ]
    packed = [b64encode(encode_what_if(sums)).decode() for sums in before if sums is not None]
    alerts = [
        {"step": report.step, "kind": alert.kind, "level": str(alert.level), "words": alert.words}
        for report in reports
        for alert in report.alerts
    ]
    kept = {}
    if settings.pushed_after:
        kept = {"what_if.json": _json(packed)}
    if log is not None:
        rows = [
            {name: value for name, value in row.items() if not name.startswith(TIMING)}
            for row in log
        ]
        kept["log.json"] = _json(rows)
    return kept | {
        "settings.json": _json(settings.document()),
        "series.npz": _series(reports, {} if fresh is None else fresh.changes),
        "alerts.json": _json(alerts),
        "made.json": _json(made),
    }


def _series(reports: Sequence[StepReport], fresh: Mapping[int, FreshChange]) -> bytes:
    """The scalars of all steps; those of `fresh`, by step, as `FRESH_CHANGE` and `FRESH_ERROR`."""
    names = sorted(
        {name for report in reports for name in report.scalars if not name.startswith(TIMING)}
    )
    scalars = np.array(
        [[report.scalars.get(name, np.nan) for name in names] for report in reports],
        dtype=np.float64,
    )
    steps, buffer = np.array([report.step for report in reports]), io.BytesIO()
    if fresh:
        names += [FRESH_CHANGE, FRESH_ERROR]
        judged = [fresh.get(report.step, (np.nan, np.nan)) for report in reports]
        scalars = np.hstack([scalars, judged])
    np.savez_compressed(buffer, steps=steps, names=np.array(names, dtype=str), scalars=scalars)
    return buffer.getvalue()


def _json(value: object) -> bytes:
    return json.dumps(value, indent=1, sort_keys=True, default=str).encode()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    if names:
        return names[0]
    return platform.processor() or platform.machine()

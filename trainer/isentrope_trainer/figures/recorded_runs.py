"""Runs that are kept: each finished one is a JSON file named by all that determines it, and is not run again.

An experiment of many runs can so be killed and continued, and several processes may share its folder: a run that one of
them is busy with is left to it.
"""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import isentrope
from isentrope.transport import InMemoryTransport
from isentrope_trainer.reference_run import THREADS, train_reference_policy
from isentrope_trainer.settings import TrainingConfig
from isentrope_wire.reports import StepReport

_DIGITS = 10
"""Of the hash in a file's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """All that determines a run of the reference trainer, beside the code."""

    name: str
    """Of the rule, for people; the seed is in the configuration."""
    config: TrainingConfig
    control: isentrope.Control = isentrope.Control()  # noqa: RUF009  (frozen)

    def document(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "config": dataclasses.asdict(self.config),
            "control": self.control.to_document(),
        }

    def path(self, folder: Path) -> Path:
        """Where this run is kept; another configuration has another name."""
        content = json.dumps(self.document(), sort_keys=True).encode()
        digest = hashlib.sha256(content).hexdigest()[:_DIGITS]
        words = "".join(letter if letter.isalnum() or letter in ".-" else "_" for letter in self.name)
        return folder / f"{words}-seed{self.config.seed}-{digest}.json"


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One step's report."""

    step: int
    scalars: Mapping[str, float]
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """A finished run."""

    recipe: Mapping[str, Any]
    steps: tuple[RecordedStep, ...]

    def column(self, name: str) -> list[float]:
        """One scalar of every step; a KeyError where a step does not have it."""
        return [step.scalars[name] for step in self.steps]


def recorded(recipe: Recipe, folder: Path) -> RecordedRun | None:
    """The run, if it was finished before."""
    path = recipe.path(folder)
    return read_run(path) if path.exists() else None


def read_run(path: Path) -> RecordedRun:
    document = json.loads(path.read_text(encoding="utf-8"))
    steps = (RecordedStep(step["step"], step["scalars"], step["labels"]) for step in document["reports"])
    return RecordedRun(document["recipe"], tuple(steps))


def record(recipe: Recipe, folder: Path, *, threads: int = THREADS) -> RecordedRun | None:
    """The run: read where it was finished before, else trained now and kept.

    Returns:
        None where another process is busy with it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with _claimed(recipe.path(folder)) as claimed:
        if not claimed:
            return None
        if not recipe.path(folder).exists():
            _train_and_keep(recipe, folder, threads)
    return recorded(recipe, folder)


def _train_and_keep(recipe: Recipe, folder: Path, threads: int) -> None:
    transport, started = InMemoryTransport(), time.time()
    train_reference_policy(recipe.config, recipe.control, transport=transport, threads=threads)
    reports = [message for message in transport.messages if isinstance(message, StepReport)]
    document = {
        "recipe": recipe.document(),
        "threads": threads,
        "started_at": started,
        "seconds": time.time() - started,
        "reports": [
            {"step": report.step, "scalars": dict(report.scalars), "labels": dict(report.labels)} for report in reports
        ],
    }
    path = recipe.path(folder)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(document, indent=1), encoding="utf-8")
    # Renamed when complete: what has the name is a finished run.
    os.replace(partial, path)


@contextmanager
def _claimed(path: Path) -> Iterator[bool]:
    """Whether this process may make the file; the system takes the claim back from a process that is killed."""
    with path.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True

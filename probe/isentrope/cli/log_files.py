"""Reads the log of a run that exists: TRL's `trainer_state.json`, JSON Lines (verl's and any
other), CSV, a TensorBoard folder."""

from __future__ import annotations

import csv
import fnmatch
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from isentrope_wire.errors import ConfigurationError

_STEP_NAMES = (
    "step", "_step", "global_step", "train/global_step", "training/global_step",
    "trainer/global_step", "iteration", "update",
)  # fmt: skip
_WRAPPERS = ("data", "metrics", "scalars")
"""What some loggers keep a step's numbers in."""
_FORMATS = "trainer_state.json, JSON Lines, CSV or a TensorBoard folder"
_MOST_BYTES = 1 << 30
_EVENTS, _DEPTH, _MOST_FOLDERS = "events.out.tfevents.*", 3, 2_000
"""TensorBoard's files, how many folders below a given one they are looked for, and in how many in
all: somebody may name a home or /tmp."""

Steps = list[tuple[int, dict[str, float]]]
"""Step numbers, rising, each with what was logged of it."""


def read_log(path: Path) -> Steps:
    """The steps of a log.

    Raises:
        ConfigurationError: it is empty, broken, or none of the formats.
    """
    if path.is_dir() and (path / "trainer_state.json").is_file():
        path /= "trainer_state.json"
    read: Callable[[Path], Iterable[Mapping[str, Any]]] = _rows_of_text
    if path.is_dir():
        read = _rows_of_tensorboard
    steps: dict[int, dict[str, float]] = {}
    for place, row in enumerate(read(path)):
        numbers = dict(_numbers_of(row))
        step = _step_of(numbers, place)
        if step is not None:
            steps.setdefault(step, {}).update(numbers)
    if not any(steps.values()):
        raise ConfigurationError(f"{path} has no step with a number. Expected {_FORMATS}.")
    return sorted(steps.items())


def _step_of(numbers: dict[str, float], place: int) -> int | None:
    """The step's number, which is taken out; a row without one is numbered by its place. None of a
    row that has another than a finite one."""
    names = [name for name in _STEP_NAMES if name in numbers]
    if not names:
        return place
    value = numbers[names[0]]
    for name in names:
        del numbers[name]
    if not abs(value) < 1e15:
        return None
    return round(value)


def _numbers_of(row: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for name, value in row.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping):
            inside = f"{path}/"
            if not prefix and name in _WRAPPERS:
                inside = ""
            yield from _numbers_of(value, inside)
        elif isinstance(value, list):
            yield from _numbers_of(
                {str(at): item for at, item in enumerate(value[:64])}, f"{path}/"
            )
        elif isinstance(value, str):
            number = _number_in(value)
            if number is not None:
                yield path, number
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield path, float(value)


def _number_in(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _rows_of_text(path: Path) -> Iterable[Mapping[str, Any]]:
    if path.stat().st_size > _MOST_BYTES:
        raise ConfigurationError(f"{path} is larger than 1 GiB. Pass a log of scalars alone.")
    try:
        text = path.read_text(encoding="utf-8-sig").strip()
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path} is no text. Expected {_FORMATS}.") from error
    if not text:
        raise ConfigurationError(f"{path} is empty. Expected {_FORMATS}.")
    if text[0] not in "{[":
        return _rows_of_csv(path, text)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return _rows_of_lines(path, text)
    if isinstance(document, Mapping):
        document = document.get("log_history", [document])
    if isinstance(document, list):
        return [row for row in document if isinstance(row, Mapping)]
    raise ConfigurationError(f"The log_history of {path} is no list. Expected {_FORMATS}.")


def _rows_of_lines(path: Path, text: str) -> list[Mapping[str, Any]]:
    lines = [line for line in text.splitlines() if line.strip()]
    rows: list[Mapping[str, Any]] = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            if number == len(lines) and rows:
                break  # a process that was killed while it wrote
            raise ConfigurationError(
                f"Line {number} of {path} is no JSON object: {line[:60]!r}. Expected {_FORMATS}."
            ) from error
        if isinstance(row, Mapping):
            rows.append(row)
    return rows


def _rows_of_csv(path: Path, text: str) -> list[Mapping[str, Any]]:
    lines = text.splitlines()
    reader = csv.DictReader(lines)
    try:
        names = reader.fieldnames or []
        rows = list(reader)
    except csv.Error as error:
        raise ConfigurationError(f"{path} can't be read as CSV: {error}.") from error
    if len(names) < 2 or not rows:
        raise ConfigurationError(
            f"{path} has no table: its first line is {lines[0][:60]!r}. Expected {_FORMATS}."
        )
    return [{name: cell for name, cell in row.items() if name and cell} for row in rows]


def _rows_of_tensorboard(path: Path) -> list[Mapping[str, Any]]:
    folders = _event_folders(path)
    if not folders:
        raise ConfigurationError(
            f"{path} has neither trainer_state.json nor TensorBoard's {_EVENTS}, up to {_DEPTH}"
            f" folders below it and in {_MOST_FOLDERS:,} folders at most. Name the log of one run."
        )
    try:
        from tensorboard.backend.event_processing.event_accumulator import (  # noqa: PLC0415
            EventAccumulator,
        )
    except ImportError as error:
        raise ConfigurationError(
            "A TensorBoard folder is read with tensorboard: pip install tensorboard."
        ) from error
    rows: list[Mapping[str, Any]] = []
    for folder in folders:
        events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
        events.Reload()
        for tag in events.Tags()["scalars"]:
            rows += [{"step": event.step, tag: event.value} for event in events.Scalars(tag)]
    return rows


def _event_folders(path: Path) -> list[Path]:
    """The folders that hold TensorBoard's files, sorted."""
    holding = []
    for place, (folder, below, names) in enumerate(os.walk(path)):
        if place >= _MOST_FOLDERS:
            break
        if len(Path(folder).relative_to(path).parts) >= _DEPTH:
            below.clear()
        if fnmatch.filter(names, _EVENTS):
            holding.append(Path(folder))
    return sorted(holding)

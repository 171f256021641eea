"""Histories of scalars: what TRL logs, what W&B exports, and what `isentrope export` wrote.

Rows of the same step make one report; where both have a metric, the later row counts. Metrics that mean the same as a
promised one get its name, all others keep theirs. Text and lists are skipped.
"""

from __future__ import annotations

import csv
import importlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from isentrope.imports.delivery import ImportRefused
from isentrope_wire.metrics import imported_names
from isentrope_wire.reports import StepReport

Row = Mapping[str, object]

_STEP_NAMES = ("step", "_step", "Step", "global_step", "train/global_step")
_TIME_NAMES = ("_timestamp", "time")
_NOT_METRICS = frozenset({*_STEP_NAMES, *_TIME_NAMES, "_runtime", "incarnation", "rank", "control_version"})
_OWN_COLUMNS = ("step", "incarnation", "rank", "time")
"""The first columns of a file that `isentrope export` wrote."""
_PROMISED = imported_names()
"""Names of TRL and others, also behind `train/`."""
_KINDS = "a history as .csv, .jsonl or .parquet, or a trainer_state.json"
_PARQUET_MAGIC = b"PAR1"
_LARGEST_STEP = 2**63 - 1
_LONGEST_NAME = 200


def read_history(file: Path) -> list[StepReport]:
    """The reports in a file, by rising step.

    Raises:
        ImportRefused: the file is no history; the message names the line.
    """
    if file.is_dir():
        raise ImportRefused(
            f"{file} is a folder without rank_*.jsonl files of a prime-rl token export. Pass that export's token_exports "
            f"folder, or one file: {_KINDS}."
        )
    written_at = file.stat().st_mtime
    merged: dict[int, dict[str, float]] = {}
    times: dict[int, float] = {}
    for place, row in _rows(file):
        step = _step_of(place, row)
        merged.setdefault(step, {}).update(_scalars(place, row))
        times[step] = _time_of(row, times.get(step, written_at))
    reports = [
        StepReport(step=step, recorded_at=times[step], scalars=merged[step]) for step in sorted(merged) if merged[step]
    ]
    if not reports:
        raise ImportRefused(f"{file} has no numbers besides its steps; a history has a column per metric.")
    return reports


def _rows(file: Path) -> Iterator[tuple[str, Row]]:
    """Each row with its place in the file, for messages."""
    try:
        if _is_parquet(file):
            yield from _parquet_rows(file)
        elif file.suffix == ".csv":
            with file.open(encoding="utf-8-sig", newline="") as text:
                reader = csv.DictReader(text)
                if (names := reader.fieldnames) and tuple(names[: len(_OWN_COLUMNS)]) == _OWN_COLUMNS:
                    reader.fieldnames = [_without_apostrophe(name) for name in names]
                yield from ((f"{file}, line {number}", row) for number, row in enumerate(reader, 2))
        elif file.suffix == ".json":
            yield from _log_history(file)
        else:
            with file.open(encoding="utf-8") as text:
                lines = ((f"{file}, line {number}", line) for number, line in enumerate(text, 1))
                yield from ((place, _object(place, line)) for place, line in lines if line.strip())
    except (UnicodeDecodeError, csv.Error) as error:
        raise ImportRefused(f"{file} is not a readable text file ({error}); expected {_KINDS}.") from error


def _without_apostrophe(name: str) -> str:
    """A metric's name without the apostrophe that `isentrope export` adds, so that no spreadsheet evaluates it."""
    own = name.startswith("'") and name.lstrip("'").startswith(("=", "+", "-", "@", "\t", "\r"))
    return name[1:] if own else name


def _is_parquet(file: Path) -> bool:
    """Whether the first bytes or the name are Parquet's."""
    with file.open("rb") as content:
        return content.read(len(_PARQUET_MAGIC)) == _PARQUET_MAGIC or file.suffix == ".parquet"


def _parquet_rows(file: Path) -> Iterator[tuple[str, Row]]:
    try:
        # Only Parquet needs a library; it is installed with the server.
        arrow: Any = importlib.import_module("pyarrow")
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ModuleNotFoundError as error:
        raise ImportRefused(
            f"{file} is Parquet, which needs pyarrow: pip install pyarrow, or export with --format jsonl."
        ) from error
    number = 0
    try:
        with parquet.ParquetFile(file) as table:
            for batch in table.iter_batches():
                for row in batch.to_pylist():
                    number += 1
                    yield f"{file}, row {number}", row
    except (arrow.ArrowInvalid, arrow.ArrowNotImplementedError, OSError) as error:
        raise ImportRefused(f"{file} can't be read as Parquet ({error}); export it once more.") from error


def _log_history(file: Path) -> Iterator[tuple[str, Row]]:
    state = _object(str(file), file.read_text(encoding="utf-8"))
    history = state.get("log_history")
    if not isinstance(history, list) or not all(isinstance(row, dict) for row in history):
        raise ImportRefused(f"{file} must be a trainer_state.json with a list `log_history`; it has none.")
    yield from ((f"{file}, entry {number} of log_history", row) for number, row in enumerate(history, 1))


def _object(place: str, text: str) -> dict[str, object]:
    try:
        row = json.loads(text)
    except json.JSONDecodeError as error:
        raise ImportRefused(f"{place} must be a JSON object, got {text.strip()[:60]!r} ({error}).") from error
    if not isinstance(row, dict):
        raise ImportRefused(f"{place} must be a JSON object, got {text.strip()[:60]!r}.")
    return row


def _step_of(place: str, row: Row) -> int:
    given = next((row[name] for name in _STEP_NAMES if row.get(name) not in (None, "")), None)
    step = _number(given)
    if step is None:
        raise ImportRefused(
            f"{place} has no step: expected a number under {', '.join(_STEP_NAMES[:-1])}, got {sorted(map(str, row))[:6]}."
        )
    if not (math.isfinite(step) and step == int(step) and 0 <= step <= _LARGEST_STEP):
        raise ImportRefused(f"{place}: a step is a whole number from 0 on, got {given!r}.")
    return int(step)


def _time_of(row: Row, otherwise: float) -> float:
    given = next((_number(row[name]) for name in _TIME_NAMES if name in row), None)
    return otherwise if given is None or not math.isfinite(given) else given


def _scalars(place: str, row: Row) -> dict[str, float]:
    scalars = {}
    for name, given in _named(row.items()):
        value = _number(given)
        if value is not None:
            if len(name) > _LONGEST_NAME:
                raise ImportRefused(
                    f"{place}: a metric's name has at most {_LONGEST_NAME} characters, got {name[:60]!r}…."
                )
            scalars[_PROMISED.get(name.removeprefix("train/"), name)] = value
    return scalars


def _named(columns: Iterable[tuple[object, object]]) -> Iterator[tuple[str, object]]:
    for name, value in columns:
        # W&B's CSV export of one chart: `RUN - METRIC`, with `__MIN` and `__MAX` beside it.
        metric = str(name).rpartition(" - ")[2]
        if metric and metric not in _NOT_METRICS and not metric.endswith(("__MIN", "__MAX")):
            yield metric, value


def _number(value: object) -> float | None:
    """The number, also of text; None where it is missing or no number."""
    if isinstance(value, bool) or value is None or value == "":
        return None
    if isinstance(value, int | float | str):
        try:
            return float(value)
        except (ValueError, OverflowError):
            return None
    return None

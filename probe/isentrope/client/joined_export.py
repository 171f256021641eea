"""Exports of several runs as one file: a column `run` before those of each run."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from contextlib import ExitStack
from io import TextIOWrapper
from pathlib import Path
from typing import BinaryIO

from isentrope_wire.errors import ConfigurationError, install_command

RUN = "run"
Files = Mapping[str, Path]
"""Run id -> its export."""


def join(files: Files, to: BinaryIO, file_format: str) -> None:
    """Write one file. A run has no values in the columns of others; its metric `run` is called
    `metric/run`. ConfigurationError: Parquet without pyarrow."""
    {"parquet": _join_parquet, "csv": _join_csv, "jsonl": _join_lines}[file_format](files, to)


def _join_lines(files: Files, to: BinaryIO) -> None:
    for run, path in files.items():
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                values = {_apart(name): value for name, value in json.loads(line).items()}
                to.write(f"{json.dumps({RUN: run} | values)}\n".encode())


def _join_csv(files: Files, to: BinaryIO) -> None:
    with ExitStack() as opened:
        tables = {
            run: csv.DictReader(opened.enter_context(path.open(encoding="utf-8", newline="")))
            for run, path in files.items()
        }
        columns = {
            _apart(name): None for table in tables.values() for name in table.fieldnames or ()
        }
        text = TextIOWrapper(to, encoding="utf-8", newline="", write_through=True)
        writer = csv.DictWriter(text, [RUN, *columns], lineterminator="\n")
        writer.writeheader()
        for run, table in tables.items():
            for row in table:
                values = {_apart(name): value for name, value in row.items()}
                writer.writerow({RUN: run} | values)
        text.detach()


def _join_parquet(files: Files, to: BinaryIO) -> None:
    try:
        import pyarrow as pa  # noqa: PLC0415  (an extra)
        import pyarrow.parquet as pq  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            "A Parquet file of several runs needs pyarrow, of the extra server: "
            f"{install_command('server')}; csv and jsonl need nothing."
        ) from error
    tables = {run: pq.ParquetFile(path) for run, path in files.items()}
    columns = {
        _apart(field.name): field.type for table in tables.values() for field in table.schema_arrow
    }
    schema = pa.schema([(RUN, pa.string()), *columns.items()])
    with pq.ParquetWriter(to, schema) as writer:
        for run, table in tables.items():
            for batch in table.iter_batches():
                rows = pa.table(batch.columns, names=[_apart(name) for name in batch.schema.names])
                rows = rows.append_column(RUN, pa.array([run] * len(rows), pa.string()))
                # Beside no rows of all columns, it gets those that it lacks.
                every = [schema.empty_table(), rows]
                writer.write_table(pa.concat_tables(every, promote_options="default"))


def _apart(column: str) -> str:
    return {RUN: f"metric/{RUN}"}.get(column, column)

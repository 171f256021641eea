"""`isentrope diagnose` reads the logs that exist, says what it found, and ends with its status."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from isentrope.cli import frame

Rows = list[dict[str, Any]]


def log_of(*, is_cut: bool) -> Rows:
    """What TRL logs of a run that learns; from step 60 on its completions are cut."""
    noise = random.Random(1)
    return [
        {
            "step": step,
            "reward": 0.2 + 0.004 * step + noise.gauss(0, 0.01),
            "frac_reward_zero_std": 0.1,
            "entropy": 1.2 - 0.001 * step + noise.gauss(0, 0.01),
            "completions/clipped_ratio": 0.01 * max(0, step - 60) if is_cut else 0.0,
        }
        for step in range(1, 121)
    ]


def diagnose(path: Path, *options: str) -> Result:
    return CliRunner().invoke(frame.main, ["diagnose", str(path), *options])


def write_trainer_state(path: Path, rows: Rows) -> Path:
    folder = path / "checkpoint-120"
    folder.mkdir()
    history = [*rows, {"step": 120, "eval_reward": 0.5, "eval_runtime": 3.0}]
    file = folder / "trainer_state.json"
    file.write_text(json.dumps({"global_step": 120, "log_history": history}))
    return file


def write_jsonl(path: Path, rows: Rows) -> Path:
    file = path / "log.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def write_verl(path: Path, rows: Rows) -> Path:
    names = {
        "reward": "critic/score/mean",
        "entropy": "actor/entropy",
        "completions/clipped_ratio": "response_length/clip_ratio",
    }
    file = path / "verl.jsonl"
    lines = [
        {"step": row["step"], "data": {theirs: row[ours] for ours, theirs in names.items()}}
        for row in rows
    ]
    file.write_text("\n".join(map(json.dumps, lines)))
    return file


def write_csv(path: Path, rows: Rows) -> Path:
    file = path / "log.csv"
    with file.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, [*rows[0], "note"])
        writer.writeheader()
        writer.writerows({**row, "note": "a word"} for row in rows)
    return file


def write_tensorboard(path: Path, rows: Rows) -> Path:
    writer = EventFileWriter(str(path / "events"))
    for row in rows:
        values = [
            Summary.Value(tag=f"train/{name}", simple_value=value)
            for name, value in row.items()
            if name != "step"
        ]
        writer.add_event(Event(step=row["step"], summary=Summary(value=values)))
    writer.close()
    return path


@pytest.mark.parametrize(
    "write", [write_trainer_state, write_jsonl, write_verl, write_csv, write_tensorboard]
)
def test_each_format_gives_the_same_finding(
    tmp_path: Path, write: Callable[[Path, Rows], Path]
) -> None:
    result = diagnose(write(tmp_path, log_of(is_cut=True)), "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    diagnosis = json.loads(result.stdout)
    (finding,) = diagnosis["findings"]
    assert (finding["kind"], finding["level"], diagnosis["level"]) == ("truncation", "act", "act")
    assert 62 <= finding["since"] <= finding["step"] <= 78
    assert (diagnosis["first_step"], diagnosis["last_step"], diagnosis["steps"]) == (1, 120, 120)
    assert "value" in diagnosis["no_data"]


def test_words_say_what_since_when_and_what_to_do(tmp_path: Path) -> None:
    output = diagnose(write_jsonl(tmp_path, log_of(is_cut=True))).stdout
    assert "since step 6" in output or "since step 7" in output
    assert "of the completions end at the length limit" in output
    assert "Raise the length limit" in output
    assert "value would need the explained variance" in output


def test_each_level_of_a_collapse_has_its_step(tmp_path: Path) -> None:
    """A log has no live run: nothing can be pushed to it."""
    rows = [
        {"step": step, "reward": 0.2, "entropy": 2.0 * 0.97 ** max(0, step - 10)}
        for step in range(1, 61)
    ]
    file = write_jsonl(tmp_path, rows)
    (finding, *_) = json.loads(diagnose(file, "--json").stdout)["findings"]
    assert (finding["kind"], finding["level"]) == ("collapse", "act")
    assert finding["step"] < finding["level_step"]
    entropy = rows[finding["level_step"] - 1]["entropy"]
    assert finding["evidence"]["entropy"] == pytest.approx(entropy, rel=0.1)
    output = diagnose(file).stdout
    assert f"Act at step {finding['level_step']}, watch since step {finding['since']}: " in output
    assert "Lower the learning rate" in output
    assert "push" not in output


def test_a_run_that_learns_is_healthy_and_it_says_why(tmp_path: Path) -> None:
    result = diagnose(write_jsonl(tmp_path, log_of(is_cut=False)), "--fail-on", "watch")
    assert result.exit_code == 0
    assert result.stdout.startswith("Healthy (120 steps, 1 to 120)\nThe reward still rises")


@pytest.mark.parametrize(
    ("fail_on", "steps", "status"),
    [("watch", 120, 1), ("act", 120, 1), ("watch", 80, 1), ("act", 80, 0)],
)
def test_fail_on_ends_with_status_1(tmp_path: Path, fail_on: str, steps: int, status: int) -> None:
    """Most of the completions are cut at the end of the longer log, so that is to be acted on."""
    rows = log_of(is_cut=True)[:steps]
    assert diagnose(write_jsonl(tmp_path, rows), "--fail-on", fail_on).exit_code == status


@pytest.mark.parametrize(
    ("name", "content", "word"),
    [
        ("empty.jsonl", b"", "is empty"),
        ("blank.csv", b"\n\n", "is empty"),
        ("broken.jsonl", b'{"step": 1, "reward": 0.1}\n{"step": 2,\n{"step": 3}\n', "Line 2"),
        ("picture.png", bytes(range(256)), "is no text"),
        ("words.txt", b"no table at all\nmore words\n", "no table"),
        ("state.json", b'{"log_history": 3}', "is no list"),
        ("nothing.json", b'{"log_history": []}', "no step with a number"),
        (
            "unknown.jsonl",
            b'{"step": 1, "speed": 3}\n{"step": 2, "speed": 4}\n',
            "such as reward, ",
        ),
    ],
)
def test_a_file_that_is_no_log_gets_one_sentence(
    tmp_path: Path, name: str, content: bytes, word: str
) -> None:
    (tmp_path / name).write_bytes(content)
    result = diagnose(tmp_path / name)
    assert (result.exit_code, result.stdout) == (2, "")
    assert word in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_missing_file_and_an_empty_folder_are_usage_errors(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        result = diagnose(path)
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1), result.output


def test_a_folder_is_looked_through_three_deep(tmp_path: Path) -> None:
    """Somebody may name a home, or /tmp: what lies deeper belongs to some other run."""
    deep = tmp_path / "a/b/c/d"
    deep.mkdir(parents=True)
    write_tensorboard(deep, log_of(is_cut=True))
    result = diagnose(tmp_path)
    assert result.exit_code == 2
    assert "nor TensorBoard's events.out.tfevents.*, up to 3 folders below" in result.stderr
    assert diagnose(tmp_path / "a/b").exit_code == 0


def test_a_last_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    file = write_jsonl(tmp_path, log_of(is_cut=False))
    file.write_text(file.read_text() + '{"step": 121, "rew')
    assert json.loads(diagnose(file, "--json").stdout)["last_step"] == 120


def test_nan_in_a_log_is_a_finding(tmp_path: Path) -> None:
    rows = [row | {"grad_norm": 1.0} for row in log_of(is_cut=False)]
    rows[70]["grad_norm"] = float("nan")
    result = diagnose(write_jsonl(tmp_path, rows), "--fail-on", "act", "--json")
    assert result.exit_code == 1
    (finding,) = json.loads(result.stdout)["findings"]
    assert (finding["kind"], finding["cause"], finding["step"]) == ("gradient", "not_finite", 71)


def test_a_folder_with_a_trainer_state_is_read(tmp_path: Path) -> None:
    file = write_trainer_state(tmp_path, log_of(is_cut=True))
    assert diagnose(file.parent).stdout == diagnose(file).stdout

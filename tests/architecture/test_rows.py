"""One row a method, one row a metric: what a row holds appears wherever it is used, without another
line."""

from __future__ import annotations

import ast
import copy
import csv
import json
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from isentrope_dashboard.figures.panel import metric_panel
from isentrope_wire import reports
from isentrope_wire.methods import Method, method
from isentrope_wire.metrics import (
    HISTOGRAMS,
    METRICS,
    Show,
    metric,
    promised_metrics,
    reported_names,
    unit_of,
)
from tests.architecture.test_house import ROOT, SOURCES, relative, tree
from tests.benchmarks import tuned_constants

TOY_FILE = """
\"\"\"Toy: clips what lies beyond thresholds on twice S_c.\"\"\"
from isentrope.methods.threshold import clip_by_threshold

TOY = clip_by_threshold(
    lambda scores, over: (2 * scores.vocab_centered_scores.double(), over.vocab_centered_std)
)
"""
TOY_ROW = """
method(
    "toy",
    label="Toy",
    does="keeps it while 2 S_c <= mu_high sigma'",
    implementation="toy.TOY",
    thresholds=True,
    parameters=(Parameter("size", 1.0, "how large", minimum=0.0, idle=(0, "no toy")),),
    presets={"small": {"mu_high": 1.0, "parameters": {"size": 0.5}}},
)
"""
TRY_TOY = """
import torch
import isentrope
from isentrope.transport import InMemoryTransport
from isentrope_wire.control import CAPABILITIES, Scope
from isentrope_wire.methods import METHODS, threshold_methods
from isentrope_wire.what_if import WhatIfCurve
from tests.architecture.generated_tables import ROOT, with_methods_table

control = isentrope.Control(method="toy", parameters={"preset": "small"})
assert (control.method.label, control.mu_high, control.number("size")) == ("Toy", 1.0, 0.5)
for wrong in (
    {"mu_high": 1.0, "parameters": {"size": -1}},
    {"mu_high": 1.0, "parameters": {"other": 1}},
    {},
):
    try:
        isentrope.Control(method="toy", **wrong)
    except isentrope.ConfigurationError:
        continue
    raise AssertionError(wrong)
isentrope.Control(method="toy", hold={"target_entropy": 0.5})
assert control.capability in CAPABILITIES and "toy" in threshold_methods()

generator = torch.Generator().manual_seed(0)
logits = (2 * torch.randn(4, 50, 12, generator=generator)).requires_grad_()
ids = torch.randint(12, (4, 50), generator=generator)
transport = InMemoryTransport()
probe = isentrope.Probe(control=control, transport=transport)
scores = probe.score(logits, ids)
gated = probe.gate(scores, torch.randn(4, generator=generator))
(gradient,) = torch.autograd.grad(gated.sum(), scores.logprobs)
centred = scores.vocab_centered_scores.double()
beyond = 2 * centred > centred.std(correction=0)
assert torch.equal(gradient == 0, beyond) and 0 < beyond.sum() < 200
probe.step(1)
report = next(message for message in transport.messages if hasattr(message, "what_if"))
curve = WhatIfCurve(report.what_if, Scope.ALL, METHODS["toy"])
assert report.scalars["clip/fraction"] == beyond.double().mean().item()
assert curve.evaluate(None, 1.0).clip_fraction == report.scalars["clip/fraction"]
assert curve.evaluate(0.0, 0.0).clip_fraction == 1.0
table = with_methods_table((ROOT / "docs/methods.md").read_text())
assert "| `toy` | keeps it while 2 S_c" in table
"""


def test_method_with_thresholds_is_one_file_and_one_row(tmp_path: Path) -> None:
    """In a copy of the probe and the wire, made of links but for the row's file."""
    for package in (ROOT / "probe/isentrope", ROOT / "probe/isentrope_wire"):
        own = tmp_path / package.name
        own.mkdir()
        for part in package.iterdir():
            if part.name not in ("methods", "methods.py", "__pycache__"):
                (own / part.name).symlink_to(part)
    methods = tmp_path / "isentrope/methods"
    methods.mkdir()
    for part in (ROOT / "probe/isentrope/methods").glob("*.py"):
        (methods / part.name).symlink_to(part)
    (methods / "toy.py").write_text(TOY_FILE)
    rows = (ROOT / "probe/isentrope_wire/methods.py").read_text()
    (tmp_path / "isentrope_wire/methods.py").write_text(rows + TOY_ROW)
    path = os.pathsep.join(map(str, (tmp_path, ROOT)))
    subprocess.run(
        [sys.executable, "-c", TRY_TOY], check=True, env=os.environ | {"PYTHONPATH": path}
    )


WHERE_THRESHOLD_METHODS_ARE_NAMED = {
    "probe/isentrope_wire/methods.py",
    "probe/isentrope/methods/threshold.py",
}
"""Their rows and their implementation. Elsewhere: `Method.thresholds`, and `SUGGESTED` where
nothing was asked for."""


def test_clip_b_and_clip_v_are_named_by_their_rows_alone() -> None:
    named = {
        relative(path)
        for path in SOURCES
        if not {"isentrope_trainer", "isentrope_papers"}
        & set(path.parts)  # its figures are of these methods
        for node in ast.walk(tree(path))
        if (isinstance(node, ast.Constant) and node.value in ("clip_b", "clip_v"))
        or (
            isinstance(node, ast.Attribute | ast.Name)
            and getattr(node, "attr", getattr(node, "id", "")) in ("CLIP_B", "CLIP_V")
        )
    }
    assert named <= WHERE_THRESHOLD_METHODS_ARE_NAMED


@pytest.mark.parametrize("command", ["control", "train"])
def test_toy_method_is_command_line_choice(command: str) -> None:
    register = "from isentrope_wire.methods import method; method('toy', label='Toy', does='plays')"
    run = f"{register}; from isentrope.cli import main; main(['{command}', '--help'])"
    shown = subprocess.run(
        [sys.executable, "-c", run], capture_output=True, text=True, check=True
    ).stdout
    assert re.search(r"--method\s+\[[^]]*toy", shown)


@pytest.mark.parametrize(
    ("register", "name"),
    [
        (lambda name: method(name, label="", does=""), "clip_v"),
        (lambda name: metric(name, "", "again"), "entropy/mean"),
    ],
    ids=["method", "metric"],
)
def test_second_row_is_refused(register: Callable[[str], object], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        register(name)


def test_copied_method_stays_itself() -> None:
    row = Method.CLIP_V
    for copied in (copy.deepcopy(row), pickle.loads(pickle.dumps(row))):
        assert copied == row
        assert copied.thresholds
    assert json.dumps({"method": row}) == '{"method": "clip_v"}'
    assert type(str(row)) is str


def test_metric_names_are_group_and_what() -> None:
    assert all(
        name == row and name.count("/") == 1 and row.meaning
        for name, row in (METRICS | HISTOGRAMS).items()
    )


def test_rename_of_a_metric_costs_one_file() -> None:
    names = set(METRICS) | set(HISTOGRAMS)
    written = {
        relative(path)
        for path in SOURCES
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Constant) and node.value in names
    }
    assert written == {"probe/isentrope_wire/metrics.py"}


@pytest.mark.parametrize(
    "name", ["max_change_per_step", "target_share", "target_curve", "expires_in_seconds"]
)
def test_field_of_a_control_costs_four_files(name: str) -> None:
    # Of a control's own fields: the route, the client's method, the assistant's tool, the command
    # line. Of a hold's: one declares and checks it, one acts on it, and the page has its field and
    # its name: JSON, REST, the client, the command line, the store, the wire and the checkpoint
    # take it from the declaration.
    word = re.compile(rf"\b{name}\b")
    assert len([path for path in SOURCES if word.search(path.read_text(encoding="utf-8"))]) <= 4


def test_toy_metric_is_known_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = dict(METRICS)
    toy = metric("toy/share", "of toys", "toys", show=Show.PERCENT, also=("toys",), rows=rows)
    for name, row in rows.items():
        monkeypatch.setitem(METRICS, name, row)
    assert toy in promised_metrics()
    assert reported_names(["train/toys"])[toy] == "train/toys"
    assert unit_of("toy/share") == "of toys"
    assert metric_panel(toy, 176).share


def test_own_metric_has_no_unit() -> None:
    assert unit_of("mine") == ""


def test_each_label_of_a_report_is_read_by_a_surface() -> None:
    names = [
        name
        for name, value in vars(reports).items()
        if name.isupper() and isinstance(value, str) and re.fullmatch(r"\w+/\w+", value)
    ]
    assert "HOLD_STATE" in names
    surfaces = "".join(
        path.read_text()
        for path in SOURCES
        if {"isentrope_server", "isentrope_dashboard"} & set(path.parts)
    )
    assert [name for name in names if not re.search(rf"\b{name}\b", surfaces)] == []


def test_each_chosen_constant_has_its_measured_row() -> None:
    with tuned_constants.TABLE.open(newline="") as file:
        rows = {row["constant"]: row["value"] for row in csv.DictReader(file)}
    del rows["all as they are"]
    assert rows == {
        name: tuned_constants.write_value(value) for name, value in tuned_constants.CHANGED.items()
    }

"""One row a method, one row a metric: what a row holds appears wherever it is used, without another line."""

from __future__ import annotations

import ast
import copy
import json
import pickle
import re
import subprocess
import sys
from collections.abc import Callable

import pytest

from isentrope_dashboard.formatting import shown
from isentrope_server.api.control import method_description
from isentrope_wire.control import Control
from isentrope_wire.errors import ConfigurationError
from isentrope_wire.methods import METHODS, Method, Parameter, idle_parameters, method, threshold_methods
from isentrope_wire.metrics import HISTOGRAMS, METRICS, Show, imported_names, metric, promised_metrics, unit_of
from tests.architecture.test_house import SOURCES, relative, tree

WHERE_METRICS_ARE_WRITTEN = {
    "probe/isentrope_wire/metrics.py",
    "probe/isentrope/statistics/covariance.py",  # TOP_SHARES: each name with its share of the tokens
    "trainer/isentrope_trainer/loop.py",  # logs its own metrics, as any loop does
}
"""No other product file holds a metric's name: it uses the row."""


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Method:
    rows: dict[str, Method] = {}
    row = method(
        "toy",
        label="Toy",
        does="plays",
        thresholds=True,
        parameters=(Parameter(name="size", default=1.0, minimum=0.0, sense="how large", idle=(0, "no toy")),),
        presets={"small": {"mu_low": 3.0, "parameters": {"size": 0.5}}},
        rows=rows,
    )
    monkeypatch.setitem(METHODS, "toy", row)
    return row


def test_toy_method_is_validated(toy: Method) -> None:
    control = Control(method="toy", parameters={"preset": "small"})
    assert (control.method.label, control.mu_low, control.number("size")) == ("Toy", 3.0, 0.5)
    with pytest.raises(ConfigurationError, match="-1"):
        Control(method="toy", mu_low=1.0, parameters={"size": -1})
    assert "toy" in threshold_methods()
    assert len(list(idle_parameters(toy, {"size": 0}))) == 1


def test_toy_method_reaches_rest(toy: Method) -> None:
    answer = method_description(toy)
    assert (answer.label, answer.thresholds, answer.presets, answer.parameters[0].name) == (
        "Toy",
        True,
        ["small"],
        "size",
    )


@pytest.mark.parametrize("command", ["control", "train"])
def test_toy_method_is_command_line_choice(command: str) -> None:
    register = "from isentrope_wire.methods import method; method('toy', label='Toy', does='plays')"
    run = f"{register}; from isentrope.cli import main; main(['{command}', '--help'])"
    shown = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True, check=True).stdout
    assert re.search(r"--method\s+\[[^]]*toy", shown)


@pytest.mark.parametrize(
    ("register", "name"),
    [
        (lambda name: method(name, label="", does=""), "clip_v"),
        (lambda name: metric(name, meaning="again"), "entropy/mean"),
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
    assert all(name == row and name.count("/") == 1 and row.meaning for name, row in (METRICS | HISTOGRAMS).items())


def test_metric_names_are_written_once() -> None:
    names = set(METRICS) | set(HISTOGRAMS)
    written = {
        relative(path)
        for path in SOURCES
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Constant) and node.value in names
    }
    assert written == WHERE_METRICS_ARE_WRITTEN


def test_toy_metric_is_known_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = dict(METRICS)
    toy = metric("toy/share", unit="of toys", meaning="toys", show=Show.PERCENT, imported_as=("toys",), rows=rows)
    for name, row in rows.items():
        monkeypatch.setitem(METRICS, name, row)
    assert toy in promised_metrics()
    assert imported_names()["toys"] is toy
    assert unit_of("toy/share") == "of toys"
    assert shown(toy, 0.25) == "25.0\N{NO-BREAK SPACE}%"


def test_own_metric_has_no_unit() -> None:
    assert unit_of("mine") == ""

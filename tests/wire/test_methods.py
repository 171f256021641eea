"""One row a method: what it says is found wherever the method is named."""

from __future__ import annotations

import copy
import json
import pickle
import re
import subprocess
import sys

import pytest

from isentrope_dashboard.components.control_panel import method_props
from isentrope_dashboard.records import RunSummary
from isentrope_server.api.control import method_description
from isentrope_wire.control import Control
from isentrope_wire.errors import ConfigurationError
from isentrope_wire.methods import METHODS, Method, Parameter, idle_parameters, method, threshold_methods


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


def test_toy_method_is_in_rest_and_form(toy: Method) -> None:
    answer = method_description(toy)
    assert (answer.label, answer.thresholds, answer.presets, answer.parameters[0].name) == (
        "Toy",
        True,
        ["small"],
        "size",
    )
    run = RunSummary.from_json(
        {"id": "r", "name": "r", "project": "p", "status": "running", "capabilities": ["method:toy"]}
    )
    assert {"value": "toy", "label": "Toy"} in method_props(run)["control-method"]["data"]


@pytest.mark.parametrize("command", ["control", "train"])
def test_toy_method_is_a_choice_of_the_command_line(command: str) -> None:
    register = "from isentrope_wire.methods import method; method('toy', label='Toy', does='plays')"
    run = f"{register}; from isentrope.cli import main; main(['{command}', '--help'])"
    shown = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True, check=True).stdout
    assert re.search(r"--method\s+\[[^]]*toy", shown)


def test_second_row_of_a_name_is_refused() -> None:
    with pytest.raises(ValueError, match="clip_v"):
        method("clip_v", label="", does="")


def test_method_stays_itself_in_copies_and_json() -> None:
    row = Method.CLIP_V
    for copied in (copy.deepcopy(row), pickle.loads(pickle.dumps(row))):
        assert copied == row
        assert copied.thresholds
    assert json.dumps({"method": row}) == '{"method": "clip_v"}'
    assert type(str(row)) is str

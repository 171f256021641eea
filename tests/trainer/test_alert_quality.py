"""Alerts are judged by what came to pass in the run they were said in."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from isentrope_trainer.figures import alert_quality
from isentrope_trainer.figures.alert_quality import (
    FEWEST_FORETOLD,
    Said,
    Scenario,
    arrivals,
    broken,
    figures,
    good_enough,
    judged,
    recorded,
    synthetic,
    table,
)


def test_an_entropy_arrives_when_the_mean_of_ten_steps_has() -> None:
    falls = [2.0] * 10 + [2.0 - 0.1 * step for step in range(1, 21)]
    # The mean of ten steps trails by 4.5 of them: it passes 0.5 nats between 0.55 at step 28 and 0.45 at 29.
    assert arrivals(falls) == {"collapse": 29}
    assert arrivals([2.0] * 50) == {}
    assert arrivals([1.0] * 10 + [3.0] * 10) == {"explosion": 14}
    assert arrivals([2.0] * 5) == {}


def alerts_of(scenario: Scenario) -> list[tuple[str, str]]:
    return [(said.kind, said.verdict) for said in judged(scenario)]


def test_a_collapse_that_comes_is_right_and_one_that_does_not_is_false_unless_nobody_could_tell() -> None:
    collapse = next(one for one in synthetic(0) if one.name == "collapse, time constant 60")
    (said,) = judged(collapse)
    assert (said.kind, said.verdict) == ("collapse", "right")
    assert said.lead == collapse.events["collapse"] - said.step
    # The same run, of which it is not known that it collapsed: cut right behind the alert, and followed for long.
    assert alerts_of(Scenario("cut", collapse.rows[: said.step + 1])) == [("collapse", "open")]
    stays = Scenario("stays", collapse.rows[: said.step + 1] + ((dict(collapse.rows[said.step][0]), {}),) * 400)
    assert ("collapse", "false") in alerts_of(stays)


def test_what_breaks_is_said_after_it_broke_and_what_was_said_before_is_false() -> None:
    for scenario in broken(1):
        ((kind, event),) = scenario.events.items()
        after = [said for said in judged(scenario) if said.kind == kind and said.verdict == "right"]
        assert after[0].lead is not None
        assert -30 < after[0].lead <= 0
        too_late = replace(scenario, events={kind: 2 * event})
        assert alerts_of(too_late)[-1] == (kind, "false")


def test_the_figures_are_worked_by_hand() -> None:
    long = Scenario("a", ((({}), {}),) * 400, {"collapse": 100})
    well = Scenario("b", ((({}), {}),) * 600)
    said = [
        [Said("collapse", "a", 60, "right", 40), Said("collapse", "a", 120, "right", -20)],
        [Said("collapse", "b", 5, "false"), Said("collapse", "b", 590, "open"), Said("prediction", "b", 9, "unjudged")],
    ]
    collapse, explosion, _, prediction, *_ = figures([long, well], said)
    assert (collapse.events, collapse.told, collapse.median_lead, collapse.median_lead_share) == (1, 1, 40, 0.4)
    assert (collapse.false, collapse.open, collapse.false_per_1000_steps) == (1, 1, 1.0)
    assert (explosion.events, explosion.told, explosion.median_lead) == (0, 0, None)
    assert prediction.unjudged == 1
    assert good_enough([collapse])
    assert not good_enough([replace(collapse, false=2)])
    assert not good_enough([replace(collapse, events=2, told=1)])
    assert FEWEST_FORETOLD > 0.5
    assert "| `collapse` | 1 of 2 runs | 1 | +40 | +40% | 1 | 1.00 | 1 | 0 |" in table([collapse])


def test_one_that_is_only_said_afterwards_was_not_foretold() -> None:
    late = Scenario("a", ((({}), {}),) * 400, {"collapse": 100})
    collapse, *_ = figures([late], [[Said("collapse", "a", 120, "right", -20)]])
    assert (collapse.events, collapse.told) == (1, 0)


def kept_run(folder: Path) -> None:
    rows = next(one for one in synthetic(2) if one.name == "collapse, time constant 60").rows
    document = {
        "recipe": {"name": "vanilla", "config": {"seed": 2}},
        "reports": [{"step": step, "scalars": scalars, "labels": {}} for step, (scalars, _) in enumerate(rows)],
    }
    (folder / "vanilla-seed2-0.json").write_text(json.dumps(document), encoding="utf-8")


def test_recorded_runs_are_judged_by_their_own_entropies(tmp_path: Path) -> None:
    kept_run(tmp_path)
    (scenario,) = recorded(tmp_path)
    assert scenario.name == "vanilla, seed 2"
    assert scenario.events["collapse"] == pytest.approx(60 * 1.386, abs=12)
    assert ("collapse", "right") in alerts_of(scenario)


def test_the_command_prints_both_tables_and_writes_the_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept_run(tmp_path)
    few = {name: alert_quality.COURSES[name] for name in ("collapse, time constant 60", "explosion, time constant 80")}
    monkeypatch.setattr(alert_quality, "COURSES", few)
    out = tmp_path / "out"
    result = CliRunner().invoke(
        alert_quality.main, ["--seeds", "1", "--recorded", str(tmp_path), "--out", str(out)]
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert result.output.count("| alert | came to pass |") == 2
    assert "- vanilla, seed 2: collapse at step" in result.output
    document = json.loads((out / "alert_quality.json").read_text())
    assert {line["kind"]: line["told"] for line in document["made of numbers"]["figures"]} == dict.fromkeys(
        alert_quality.KINDS, 1
    )

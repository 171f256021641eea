"""Alerts are judged by what is true of the run they were raised in."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from isentrope_trainer.figures import alert_quality
from isentrope_trainer.figures.alert_quality import (
    Judged,
    Row,
    Scenario,
    broken,
    figures,
    good_enough,
    judged,
    recorded,
    synthetic,
    table,
)
from isentrope_wire.reports import AlertLevel

WATCH, ACT = AlertLevel.WATCH, AlertLevel.ACT


def scenario_of(group: str, entropies: list[float], **known: object) -> Scenario:
    rows: tuple[Row, ...] = tuple(({"entropy/mean": entropy}, {}) for entropy in entropies)
    return Scenario(group, "a", rows, tuple(entropies), **known)  # type: ignore[arg-type]


def test_the_end_is_where_a_quarter_is_left_or_twice_as_much() -> None:
    assert scenario_of("a", [2.0] * 10 + [0.6, 0.5, 0.4]).ends_at("collapse") == 11
    assert scenario_of("a", [2.0] * 10 + [3.0, 4.0, 5.0]).ends_at("explosion") == 11
    assert scenario_of("a", [2.0] * 10).ends_at("collapse") is None


def test_a_share_that_is_lost_is_right_and_one_that_is_not_is_false() -> None:
    falls = scenario_of("a", [2.0] * 10 + [2.0 - 0.1 * step for step in range(1, 20)])
    watch, act = judged(falls)
    assert (watch.level, watch.verdict, watch.lead) == (WATCH, "right", falls.ends_at("collapse") - watch.step)  # type: ignore[operator]
    assert watch.lost == pytest.approx(0.3, abs=0.02)
    assert (act.level, act.verdict) == (ACT, "right")
    # The same reports, of a policy whose entropy really stays where it is.
    noise = replace(falls, entropies=(2.0,) * len(falls.rows))
    assert [(one.verdict, one.lead) for one in judged(noise)] == [("false", None), ("false", None)]


def test_a_held_entropy_is_counted_from_its_target() -> None:
    rows: tuple[Row, ...] = tuple(({"entropy/mean": 1.0, "hold/target": 0.5}, {}) for _ in range(4))
    held = Scenario("held", "a", rows, (1.0, 1.0, 1.0, 0.25))
    assert (held.left("collapse", 3), held.left("explosion", 3)) == (0.5, 4.0)


def test_what_breaks_is_raised_after_it_broke_and_what_was_raised_before_is_false() -> None:
    for scenario in broken(1):
        ((kind, event),) = scenario.broken_at.items()
        after = [one for one in judged(scenario) if one.kind == kind and one.verdict == "right"]
        assert after[0].lead is not None
        assert -30 < after[0].lead <= 0
        too_late = replace(scenario, broken_at={kind: 2 * event})
        assert judged(too_late)[-1].verdict == "false"


def test_the_figures_are_worked_by_hand() -> None:
    def alert(level: AlertLevel, step: int, verdict: str, lost: float, lead: int | None) -> Judged:
        return Judged(kind="collapse", level=level, scenario="a", step=step, verdict=verdict, lost=lost, lead=lead)

    falls = scenario_of("falls", [2.0] * 100 + [0.1] * 300)
    stays = scenario_of("falls", [2.0] * 600)
    alerts = [
        [alert(WATCH, 60, "right", 0.3, 40), alert(ACT, 120, "right", 0.5, -20)],
        [alert(ACT, 5, "false", 0.1, None), alert(ACT, 590, "open", 0.2, None)],
    ]
    watch, act, *_ = figures([falls, stays], alerts)
    assert (watch.level, watch.ended, watch.in_time, watch.median_lead) == (WATCH, 1, 1, 40)
    assert watch.median_lost == pytest.approx(0.2)
    assert (watch.largest_lost, watch.right, watch.false) == (0.3, 1, 0)
    assert (act.level, act.in_time, act.right, act.false, act.open) == (ACT, 0, 1, 1, 1)
    assert act.false_per_1000_steps == 1.0
    assert "| falls | `collapse` | watch | 1 of 2 | 1 | 20%, 30% | +40 | 1 | 0 | 0.00 | 0 | 0 |" in table([watch])
    assert good_enough([watch])
    assert not good_enough([act])
    assert not good_enough([replace(watch, false=2)])
    assert good_enough([replace(watch, group="collapsing")])
    assert not good_enough([replace(watch, group="collapsing", median_lost=0.31)])


def kept_run(folder: Path) -> None:
    rows = next(one for one in synthetic(2) if one.name == "collapse, time constant 60").rows
    document = {
        "recipe": {"name": "vanilla", "config": {"seed": 2}},
        "reports": [{"step": step, "scalars": scalars, "labels": {}} for step, (scalars, _) in enumerate(rows)],
    }
    (folder / "vanilla-seed2-0.json").write_text(json.dumps(document), encoding="utf-8")


def test_recorded_runs_are_judged_by_their_own_smoothed_entropies(tmp_path: Path) -> None:
    kept_run(tmp_path)
    (scenario,) = recorded(tmp_path)
    assert scenario.name == "vanilla, seed 2"
    assert scenario.ends_at("collapse") == pytest.approx(60 * 1.386, abs=6)
    assert [(one.kind, one.level, one.verdict) for one in judged(scenario)] == [
        ("collapse", WATCH, "right"),
        ("collapse", ACT, "right"),
    ]


def test_the_command_prints_both_tables_and_writes_the_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept_run(tmp_path)
    few = {name: alert_quality.COURSES[name] for name in ("collapse, time constant 60", "explosion, time constant 80")}
    monkeypatch.setattr(alert_quality, "COURSES", few)
    out = tmp_path / "out"
    result = CliRunner().invoke(
        alert_quality.main, ["--seeds", "1", "--recorded", str(tmp_path), "--out", str(out)]
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert result.output.count("| runs | alert |") == 2
    assert "- vanilla, seed 2: collapse (watch) at step" in result.output
    document = json.loads((out / "alert_quality.json").read_text())
    rows = {(line["group"], line["kind"], line["level"]): line for line in document["synthetic"]["figures"]}
    assert rows["collapsing", "collapse", "act"]["in_time"] == 1
    assert rows["exploding", "explosion", "watch"]["in_time"] == 1
    assert {kind for (group, kind, _), row in rows.items() if group == "broken" and row["right"]} == set(
        alert_quality.KINDS[2:]
    )

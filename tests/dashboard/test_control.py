"""The control card: what its fields mean, who may push, the what-if's curves, conflicts, and the
newest control."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from isentrope.client import calls
from isentrope_dashboard.components import control_card as card
from isentrope_dashboard.components.control_card import (
    Fields,
    chosen,
    control_of,
    fields_of,
    has_form,
    why_closed,
)
from isentrope_dashboard.components.control_effects import hold_in_words, latest_control
from isentrope_dashboard.figures import what_if
from isentrope_dashboard.figures.chart import Scale
from isentrope_dashboard.formatting import change, changes, number, percent
from isentrope_dashboard.pages import control, overview
from isentrope_dashboard.view import View
from isentrope_wire.answers import Alert, Me, Status, TokenScope
from isentrope_wire.control import Control, Scope
from isentrope_wire.control_answers import (
    Compared,
    ForecastScore,
    Outcome,
    Verdict,
    version_before,
)
from isentrope_wire.diagnosis.health import Preview
from isentrope_wire.diagnosis.outlook import FIRST_CONTROL
from isentrope_wire.errors import ConfigurationError
from isentrope_wire.methods import METHODS, Method
from isentrope_wire.metrics import HOLD_BONUS, HOLD_MU
from isentrope_wire.reports import ALERT_KINDS, AlertLevel
from tests.dashboard.conftest import Site
from tests.dashboard.made_answers import BEGAN, run_control, run_detail, version, words
from tests.dashboard.test_states import finished


def example(method: Method) -> Control:
    """A control of the method with every parameter at another value than its default."""
    values: dict[str, object] = {}
    for name, parameter in method.parameters.items():
        if parameter.choices:
            values[name] = next(word for word in parameter.choices if word != parameter.default)
        elif parameter.whole:
            values[name] = 7
        else:
            values[name] = 2.5 if name in method.rising[-1:] else 0.4
    mu_low = 1.25 if method.thresholds else None
    return Control(method=method, mu_low=mu_low, parameters=values, guard="revert")


@pytest.mark.parametrize("name", METHODS)
def test_fields_mean_the_control_they_were_filled_from(name: str) -> None:
    wanted = example(METHODS[name])
    assert control_of(fields_of(wanted)) == wanted
    assert control_of(fields_of(wanted), "why").reason == "why"


@pytest.mark.parametrize("name", METHODS)
def test_a_chosen_method_can_be_pushed_as_it_is(name: str) -> None:
    before = fields_of(Control(method="clip_cov", parameters={"ratio": 0.5}))
    wanted = control_of(chosen(name, replace(before, method=name)))
    first = Control()
    if METHODS[name].thresholds:
        first = Control(method=name, mu_low=2.0, mu_high=2.0, scope=Scope.DECREASING)
    assert (wanted.mu_low, wanted.mu_high, wanted.scope) == (
        first.mu_low,
        first.mu_high,
        first.scope,
    )
    assert wanted.parameters == {}


def test_thresholds_are_kept_between_methods_that_have_them() -> None:
    fields = chosen("clip_b", Fields(method="clip_b", mu_low="", mu_high=2.5))
    assert (control_of(fields).mu_low, control_of(fields).mu_high) == (None, 2.5)


@pytest.mark.parametrize("target", ["0.46", "75%", "1:100% 200:25%"])
def test_a_hold_is_read_from_its_fields_and_written_back(target: str) -> None:
    fields = replace(
        fields_of(Control()),
        hold=True,
        hold_target=target,
        parameters={"hold.side": "raise", "hold.mu_max": "8", "hold.reward_guard": "off"},
    )
    wanted = control_of(fields)
    assert wanted.held is not None
    assert (wanted.held.target, wanted.held.side, wanted.held.mu_max) == (target, "raise", 8.0)
    assert wanted.held.reward_guard is False
    assert control_of(fields_of(wanted)) == wanted
    assert not chosen("kl_cov", fields).hold


@pytest.mark.parametrize(
    "fields",
    [
        Fields(method="clip_v", mu_low="", mu_high=None),
        Fields(method="clip_v", mu_low="-", mu_high=1),
        Fields(method="clip_v", mu_low=1, parameters={"max_fraction": "2"}),
        Fields(hold=True, hold_target=" "),
        Fields(hold=True, hold_target="warm"),
    ],
)
def test_what_no_control_can_have_is_refused(fields: Fields) -> None:
    with pytest.raises(ConfigurationError):
        control_of(fields)


def test_changes_are_counted_without_the_reason_and_defaults() -> None:
    before = Control(method="clip_v", mu_low=1, mu_high=1, reason="a")
    same = Control(
        method="clip_v", mu_low=1, mu_high=1, parameters={"denominator": "keep"}, reason="b"
    )
    assert changes(same, before) == []
    other = Control(method="clip_v", mu_low=2, parameters={"max_fraction": 0.1})
    assert [name for name, _, _ in changes(other, before)] == ["µ₋", "µ₊", "max_fraction"]


@pytest.mark.parametrize(
    ("status", "scope", "capabilities", "said"),
    [
        (Status.RUNNING, TokenScope.CONTROL, ["method:none"], ""),
        (Status.SILENT, TokenScope.ADMIN, ["method:none"], ""),
        (Status.RUNNING, TokenScope.READ, ["method:none"], "scope read"),
        (Status.FINISHED, TokenScope.ADMIN, ["method:none"], "has finished"),
        (Status.FAILED, TokenScope.ADMIN, ["method:none"], "has failed"),
        (Status.ENDED, TokenScope.ADMIN, ["method:none"], "has ended"),
        (Status.RUNNING, TokenScope.ADMIN, [], "only observes"),
    ],
)
def test_who_may_push(
    status: Status, scope: TokenScope, capabilities: list[str], said: str
) -> None:
    me = Me(token_id="1", name="bob", scope=scope, is_owner=False, is_session=True)
    run = run_detail(status=status, capabilities=capabilities, step=3)
    closed = why_closed(run, me)
    assert said in closed
    assert bool(closed) == bool(said)
    # To push, or to see what thresholds would do; of a failed run its error stands there.
    assert has_form(run, closed) == (status != Status.FAILED)


def asked(site: Site, run: str, wanted: Control) -> Preview:
    return site.client.ask(calls.preview(run, wanted, curves=True))


def test_the_figure_has_each_side_with_its_spread(site: Site) -> None:
    run = site.run(20)
    found = asked(site, run, Control(method="clip_v", mu_low=1.0))
    assert found.curves is not None
    figure = what_if.what_if_figure(found.curves, -0.002, "dark", what_if.reach(1.0, None))
    lines = {trace["name"]: trace for trace in figure["data"] if "name" in trace}
    lower = lines["lower side, clipped"]
    assert (lower["x"][20], lower["y"][20]) == (-1.0, found.clip_fraction)
    assert found.clip_fraction_std is not None
    band = figure["data"][figure["data"].index(lower) - 1]
    assert band["y"][20] - lower["y"][20] == pytest.approx(found.clip_fraction_std)
    assert found.pace is not None
    assert lines["lower side, pace"]["y"][20] == pytest.approx(found.pace.value)
    assert figure["layout"]["shapes"][0]["y0"] == -0.002
    assert what_if.reach(8.5, 1.0) == 10


def test_the_browser_is_given_the_servers_numbers(site: Site) -> None:
    run = site.run(20)
    wanted = Control(method="clip_v", mu_low=1.0, mu_high=1.0)
    found = asked(site, run, wanted)
    assert found.pace is not None
    assert found.forecast is not None
    shown = control.shown_preview(found, wanted, "dark", Scale(), 20)
    assert shown[card.CLIPPED] == percent(found.clip_fraction)
    assert shown[card.CHANGE] == change(found.pace.value)
    assert shown[card.ENTROPY] == number(found.forecast.entropy[-1])
    lines = shown[card.PREVIEW]["lines"]
    assert lines["chart-entropy"]["y"] == found.forecast.entropy
    assert lines["chart-entropy"]["x"] == found.forecast.step
    assert set(lines["chart-change"]["y"]) == {found.pace.value}
    assert set(lines["chart-clip"]["y"]) == {found.clip_fraction}
    hidden = control.shown_preview(found, wanted, "dark", Scale(), None)
    assert "lines" not in hidden[card.PREVIEW]


@pytest.mark.parametrize("error", [0.1, 0.3])
def test_a_forecast_no_better_than_nothing_is_a_band(site: Site, error: float) -> None:
    run_id, wanted = site.run(20), Control(method="clip_v", mu_low=1.0, mu_high=1.0)
    outlook = site.client.ask(calls.outlook(run_id, wanted))
    score = ForecastScore(horizon=50, forecasts=9, mean_error=error, unchanged_error=0.2)
    outlook = replace(outlook, diagnosis=replace(outlook.diagnosis, forecast_score=score))
    assert outlook.preview is not None
    course = outlook.preview.forecast
    assert course is not None
    run = site.client.run(run_id)
    base = {"version": 0, "document": Control().to_document(), "may_push": True}
    view = View(form={"fields": {}, "base": base})
    shown = control.form_values(view, run, wanted, outlook, Scale())[card.ENTROPY]
    band = f"{number(course.low[-1], 2)} to {number(course.high[-1], 2)}"
    assert shown == (band if error > 0.2 else number(course.entropy[-1]))


def test_each_method_is_offered_once_in_plain_words() -> None:
    groups = card.grouped([*METHODS])
    assert [group["group"] for group in groups] == ["Common", "From papers"]
    offered = [item["value"] for group in groups for item in group["items"]]
    assert sorted(offered) == sorted(METHODS)
    assert all(len(row.plain) <= 60 for row in METHODS.values())
    assert offered[:2] == [Method.NONE, Method.CLIP_V]
    assert [group["group"] for group in card.grouped(["clip_b"])] == ["From papers"]


def test_both_documents_of_a_conflict_are_shown() -> None:
    theirs = version(4, "APPLIED", Control(method="clip_b", mu_low=2.0), author="bob")
    rows = control.conflict_rows(theirs, Control(method="clip_v", mu_low=3.0))
    assert list(map(words, rows)) == [
        "v4 by bob:  Clip_B · µ₋ 2.00",
        "yours:  Clip_V · µ₋ 3.00",
    ]


def test_a_verdict_is_shown_with_what_was_predicted() -> None:
    verdict = Verdict(
        version=3,
        outcome=Outcome.SLOWED,
        steps=31,
        judged_steps=20,
        clip_fraction=Compared(before=0.0, predicted=0.011, realised=0.01),
        promised=-0.002,
        realised=-0.0015,
        without=None,
        left=0.68,
        message="Slowed the fall to 68 %.",
    )
    newest = version(3, "APPLIED", Control(method="clip_v", mu_high=2.5), 21, verdict=verdict)
    shown = words(latest_control([newest, BEGAN], is_over=False, may_push=True))
    said = (
        "Slowed to 68\u00a0%",
        "Slowed the fall",
        "Revert to v0",
        "20 steps",
    )
    assert [one for one in said if one not in shown] == []
    assert "Revert" not in words(latest_control([newest, BEGAN], is_over=False, may_push=False))
    held = version(3, "APPLIED", Control(hold={"target_share": 0.6}), 21)
    acts = hold_in_words({HOLD_BONUS: 0.53, HOLD_MU: math.nan})
    assert "by a bonus of 0.53" in words(
        latest_control([held, BEGAN], is_over=False, may_push=True, acts=acts)
    )
    assert hold_in_words({HOLD_BONUS: 0.0}) == ""
    stopped = replace(verdict, outcome=Outcome.STOPPED, message="Stopped the fall: 0.300 nats.")
    newest = replace(newest, verdict=stopped)
    older = [version(4, "APPLIED", Control(), 51), newest]
    assert words(latest_control(older, is_over=False, may_push=True)).count("Stopped the fall") == 1


def test_a_closed_form_shows_thresholds_without_a_hold() -> None:
    held = Control(method="clip_v", mu_low=2.5, hold={"target_share": 0.6})
    bare = Control(method="clip_v", hold={"target_share": 0.6})
    for begun, shown in ((held, Control(method="clip_v", mu_low=2.5)), (bare, FIRST_CONTROL)):
        newest = version(2, "APPLIED", begun, 5)
        run = run_detail(control=run_control(newest, newest))
        assert control.first_control(run, may_push=False) == shown
        assert control.first_control(run, may_push=True) == begun


def test_an_ended_run_says_what_was_in_force(site: Site) -> None:
    pushed, none = site.run(5), site.run(5, finished=finished("finished"))
    site.client.set_control(pushed, method="clip_v", mu_low=3.0, if_version=0)
    site.apply(pushed, 1)
    site.rank(pushed).send(finished("finished"))
    for run, said in (
        (pushed, "It ended with Clip_V · µ₋ 3.00."),
        (none, "It ended without a control."),
    ):
        assert said in site.values(overview.PART, f"/runs/{run}")[control.CLOSED]


def test_alerts_of_all_kinds_are_on_the_page() -> None:
    known: dict[str, Any] = {"recorded_at": 1.0, "evidence": {}} | dict.fromkeys(
        ("cause", "suggestion", "acknowledged_by", "acknowledged_at")
    )
    for kind, in_words in ALERT_KINDS.items():
        alert = Alert(
            id="7.0",
            step=9,
            kind=kind,
            level=AlertLevel.WATCH,
            message=f"What {kind} found.",
            **known,
        )
        shown = words(card.alert_rows([alert], may_acknowledge=False))
        assert in_words in shown
        assert alert.message in shown
        assert "Acknowledge" not in shown
    watch = [replace(alert, step=step) for step in range(9, 3, -1)]
    act = replace(alert, level=AlertLevel.ACT, step=1)
    shown = words(card.alert_rows([*watch, act], may_acknowledge=True))
    assert shown.startswith("Act")
    assert shown.count("Watch") == card.ALERTS_SHOWN - 1
    assert card.alert_rows([], may_acknowledge=True) == []


def test_a_pending_control_counts_down_to_its_expiry() -> None:
    open_one = version(3, "PENDING", Control(method="clip_v", mu_low=1.0), expires_at=99.0)
    shown = latest_control([open_one], is_over=False, may_push=True)
    assert "data-expires" in str(shown)
    assert "Pending" in words(shown)
    assert version_before(open_one, [open_one]) is None


def test_a_revert_goes_to_the_newest_version_that_was_applied() -> None:
    second = version(1, "APPLIED", Control(method="clip_v", mu_low=2.0), 21)
    refused = version(2, "REJECTED", Control(method="clip_v", mu_low=3.0))
    newest = version(3, "APPLIED", Control(method="clip_v", mu_low=1.0), 22)
    assert version_before(newest, [newest, refused, second, BEGAN]) == second
    shown = latest_control([refused, second, BEGAN], is_over=False, may_push=True)
    assert "Revert to v0" in words(shown)

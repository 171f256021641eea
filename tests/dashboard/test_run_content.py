"""What a run page shows at one moment."""

from __future__ import annotations

from isentrope_dashboard import ids
from isentrope_dashboard.components.kpi_cards import kpi_props
from isentrope_dashboard.components.shell import status_props, step_seconds
from isentrope_dashboard.figures.lines import StepRow
from isentrope_dashboard.pages.routing import control_notifications
from isentrope_dashboard.pages.run import quality_props, split_props
from isentrope_dashboard.pages.snapshot import View, control_signature
from isentrope_wire.answers import Status
from isentrope_wire.control import Control
from tests.dashboard.made_answers import BEGAN, latest, page_of, run_control, run_detail, version

RUN = run_detail()


def rows(*values: float | None, metric: str = "reward/mean") -> list[StepRow]:
    return [StepRow(step=i, scalars={} if v is None else {metric: v}) for i, v in enumerate(values)]


def words(component: object) -> str:
    """The text of a component and of what is in it."""
    if isinstance(component, str):
        return component
    if isinstance(component, list | tuple):
        return "".join(words(child) for child in component)
    return words(getattr(component, "children", None) or "")


def test_a_run_with_no_data_has_a_page_with_dashes() -> None:
    page = page_of(RUN)
    assert page[ids.kpi("entropy", "value")].children == "–"
    assert words(page[ids.RUN_STEP].children) == "step –"
    assert page[ids.RUN_PROGRESS].value == 0
    assert page[ids.METHOD].data == []
    assert (
        words(page[ids.PREDICTION_QUALITY].children)
        == "Prediction qualityR² –sign agreement –inside the 90 % interval –gain –"
    )


def test_a_card_compares_with_the_mean_of_the_hundred_steps_before() -> None:
    props = kpi_props(rows(*([9.0] * 50), *([1.0] * 100), 1.5))
    assert props["kpi-reward-value"]["children"] == "1.500"
    assert props["kpi-reward-reference"]["children"] == "vs 100-step mean"
    badge = props["kpi-reward-delta"]["children"]
    assert words(badge).strip() == "0.5000"
    assert badge.color == "teal"


def test_card_names_the_number_of_steps_compared() -> None:
    assert kpi_props(rows(1.0, None, 2.0, 1.0))["kpi-reward-reference"]["children"] == "vs 2-step mean"


def test_a_metric_that_is_not_measured_in_every_step_shows_its_last_value_and_when_that_was() -> None:
    props = kpi_props(rows(0.5, 1.0, None, None))
    assert props["kpi-reward-value"]["children"] == "1.000"
    assert props["kpi-reward-unit"]["children"] == "step 1, 2 ago"
    assert words(props["kpi-reward-delta"]["children"]).strip() == "0.5000"
    assert kpi_props(rows(0.5, 1.0))["kpi-reward-unit"]["children"] == ""


def test_a_metric_older_than_the_last_steps_shows_the_newest_value_there_is() -> None:
    props = kpi_props(rows(None, None, None, metric="reward/mean"), latest({"reward/mean": 0.25}, step=0))
    assert (props["kpi-reward-value"]["children"], props["kpi-reward-unit"]["children"]) == (
        "0.250",
        "step 0, 2 ago",
    )


def test_a_metric_that_was_never_measured_is_a_dash() -> None:
    props = kpi_props(rows(None, None))
    assert props["kpi-reward-value"]["children"] == "–"
    assert words(props["kpi-reward-delta"]["children"]) == "–"


def test_a_difference_that_rounds_to_nothing_points_nowhere() -> None:
    badge = kpi_props(rows(0.1, 0.0999999, metric="clip/fraction"))["kpi-clip-delta"]["children"]
    assert (words(badge), badge.color) == ("±0", "gray")
    assert words(kpi_props(rows(0.1, 0.09, metric="clip/fraction"))["kpi-clip-delta"]["children"]).strip() == "1.0%"


def test_the_split_counts_the_steps_that_have_data() -> None:
    some = rows(None, 0.5, None, None, metric="change/positive_low")
    assert split_props("r1", some, View())[ids.SPLIT_SUBTITLE]["children"].endswith(", mean of 1 step with data")
    assert split_props("r1", rows(None), View())[ids.SPLIT_SUBTITLE]["children"] == "Advantage sign × score sign"


def test_falling_entropy_is_news_but_neither_good_nor_bad() -> None:
    props = kpi_props(rows(2.0, 1.0, metric="entropy/mean"))
    assert props["kpi-entropy-delta"]["children"].color == "iris"


def test_prediction_quality_is_the_newest_steps() -> None:
    scalars = {
        "entropy/prediction_r2": 0.713,
        "entropy/prediction_sign_agreement": 0.9,
        "entropy/interval_coverage": 0.88,
        "entropy/gain": -0.0123,
    }
    content = quality_props([StepRow(step=1, scalars=scalars)])
    assert (
        words(content[ids.PREDICTION_QUALITY]["children"])
        == "Prediction qualityR² 0.71sign agreement 90%inside the 90 % interval 88%gain −0.0123"
    )


def test_prediction_quality_stays_where_a_step_did_not_measure_it() -> None:
    measured = StepRow(step=1, scalars={"entropy/prediction_r2": 0.5, "entropy/gain": 0.1})
    content = quality_props([measured, StepRow(step=2, scalars={"entropy/gain": 0.2})])
    said = words(content[ids.PREDICTION_QUALITY]["children"])
    assert ("R² 0.50" in said, "gain 0.2" in said) == (True, True)


def test_the_status_line_shows_progress_against_the_plan() -> None:
    run = run_detail(status=Status.SILENT, step=30, planned_steps=120)
    props = status_props(run, [])
    assert props[ids.RUN_STATUS] == {"children": "Silent", "color": "orange"}
    assert words(props[ids.RUN_STEP]["children"]) == "step 30 / 120"
    assert props[ids.RUN_PROGRESS]["value"] == 25


def test_seconds_per_step_come_from_the_trainer() -> None:
    assert step_seconds(rows(0.5, 0.7, metric="time/step_seconds")) == 0.6
    assert step_seconds(rows(1.0)) is None


CLIP = Control.from_document({"method": "clip_v", "mu_low": 1.0})


def test_a_control_that_reached_its_end_is_notified_once() -> None:
    applied, rejected = version(1, "APPLIED", CLIP, 8), version(2, "REJECTED", CLIP, code="too_far")
    history = [rejected, applied, BEGAN]
    shown = control_notifications(history, [1], 1)
    assert [one["id"] for one in shown] == ["control-2-REJECTED", "control-1-APPLIED"]
    assert "applied at step 8" in shown[1]["message"]
    assert control_notifications(history, [], 2) == []
    assert control_notifications([version(3, "PENDING", CLIP), *history], [], 2) == []


def test_the_signature_changes_with_the_control_alone() -> None:
    pending, applied = version(1, "PENDING", CLIP), version(1, "APPLIED", CLIP, 3)
    runs = [
        RUN,
        run_detail(control=run_control(pending, BEGAN)),
        run_detail(control=run_control(applied, BEGAN)),
        run_detail(control=run_control(applied, applied)),
    ]
    assert len({control_signature(run) for run in runs}) == len(runs)
    assert control_signature(run_detail(step=5, status=Status.FINISHED)) == control_signature(RUN)

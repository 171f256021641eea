"""Everything a run page shows, read side by side."""

from __future__ import annotations

import asyncio

from isentrope_dashboard.api_client import RECENT_STEPS, SCORE_HISTOGRAM, ApiClient
from isentrope_dashboard.records import RunSnapshot, View, rows_of

CHART_METRICS = (
    "entropy/mean",
    "entropy/observed_change",
    "entropy/predicted_change",
    "entropy/predicted_change_low",
    "entropy/predicted_change_high",
    "hold/target",
    "hold/mu",
    "control/mu_low",
    "control/mu_high",
)
RECENT_METRICS = (
    "entropy/mean",
    "entropy/predicted_change",
    "entropy/prediction_r2",
    "entropy/prediction_sign_agreement",
    "entropy/interval_coverage",
    "entropy/gain",
    "clip/fraction",
    "reward/mean",
    "change/positive_high",
    "change/positive_low",
    "change/negative_high",
    "change/negative_low",
    "change/with_nothing_in_force",
    "change/by_ratio_clip",
    "change/by_intervention",
    "change/by_kl_penalty",
    "entropy/unit_predicted_change",
    "covariance/group",
    "covariance/group_easy",
    "covariance/group_middle",
    "covariance/group_hard",
    "time/step_seconds",
    "probe/dropped_reports",
    "hold/target",
    "hold/mu",
    "score/discriminator_mean",
    "score/discriminator_std",
    "ratio/mean",
    "token/count",
    "token/effective_fraction",
    "clip/fraction_positive",
    "clip/fraction_negative",
)


async def read_snapshot(api: ApiClient, run_id: str, view: View) -> RunSnapshot:
    """What there is at this moment, within the window that is looked at."""
    run, methods = await asyncio.gather(api.run(run_id), api.methods())
    newest = run.step or 0
    chart_from = None if view.steps is None else max(0, newest - view.steps + 1)
    law, labels, latest, gaps, diagnosis, (chart, recent, histograms, control, history) = await asyncio.gather(
        api.law(run_id),
        api.labels(run_id, run.step),
        api.latest(run_id),
        api.gaps(run_id),
        api.diagnosis(run_id),
        asyncio.gather(
            api.series(run_id, CHART_METRICS, from_step=chart_from),
            api.series(run_id, RECENT_METRICS, from_step=max(0, newest - RECENT_STEPS + 1)),
            api.histograms(run_id, SCORE_HISTOGRAM, from_step=chart_from),
            api.control_or_none(run_id),
            api.history(run_id),
        ),
    )
    return RunSnapshot(
        run=run,
        control=control,
        history=history,
        methods=methods,
        labels=labels,
        latest=latest,
        gaps=gaps,
        series=chart,
        recent=rows_of(recent)[-RECENT_STEPS:],
        histograms=histograms,
        law=law,
        diagnosis=diagnosis,
    )

"""Everything a run page shows, read side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from isentrope_dashboard import unread
from isentrope_dashboard.api_client import RECENT_STEPS, SCORE_HISTOGRAM, ApiClient
from isentrope_dashboard.diagnosis import CountedTokens
from isentrope_dashboard.predictions import Law
from isentrope_dashboard.records import HistogramColumns, RunSnapshot, RunSummary, View, rows_of
from isentrope_dashboard.unread import Reading

_BESIDE = frozenset({unread.HISTOGRAMS, unread.LABELS, unread.LATEST, unread.GAPS, unread.ALERTS, unread.TOKENS})

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
    "hold/gain",
    "hold/drift",
    "hold/resting_point",
    "score/discriminator_mean",
    "score/discriminator_std",
    "ratio/mean",
    "token/count",
    "token/effective_fraction",
    "clip/fraction_positive",
    "clip/fraction_negative",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reread:
    """Some of a snapshot's fields, read again."""

    fields: Mapping[str, Any]
    parts: frozenset[str]
    """Those that were asked for."""
    unread: Mapping[str, str]
    """Of these, the ones that could not be read, with why."""

    def onto(self, snapshot: RunSnapshot) -> RunSnapshot:
        """A snapshot that may have moved on meanwhile, with these fields."""
        others = {part: why for part, why in snapshot.unread.items() if part not in self.parts}
        return replace(snapshot, **self.fields, unread={**others, **self.unread})


async def read_snapshot(api: ApiClient, run_id: str, view: View) -> RunSnapshot:
    """What there is at this moment, within the window that is looked at; a part that can't be read says so itself.

    Raises:
        ApiError: nobody is signed in, or there is no such run.
        ApiUnreachableError: no answer came.
    """
    reading = Reading()
    run, methods = await asyncio.gather(api.run(run_id), reading.part(unread.METHODS, api.methods(), []))
    newest = run.step or 0
    chart_from = _first_of(view, newest)
    recent_from = max(0, newest - RECENT_STEPS + 1)
    law, beside, (chart, recent, control, history) = await asyncio.gather(
        read_law(api, run_id),
        read_beside(api, run, view),
        asyncio.gather(
            reading.part(unread.SERIES, api.series(run_id, CHART_METRICS, from_step=chart_from), {}),
            reading.part(unread.RECENT, api.series(run_id, RECENT_METRICS, from_step=recent_from), {}),
            reading.part(unread.CONTROL, api.control_or_none(run_id), None),
            reading.part(unread.HISTORY, api.history(run_id), []),
        ),
    )
    snapshot = RunSnapshot(
        run=run,
        control=control,
        history=history,
        methods=methods,
        series=chart,
        recent=rows_of(recent)[-RECENT_STEPS:],
        unread=reading.unread,
    )
    return law.onto(beside.onto(snapshot))


async def read_law(api: ApiClient, run_id: str) -> Reread:
    """The law of all steps so far."""
    reading = Reading()
    law = await reading.part(unread.LAW, api.law(run_id), Law())
    return Reread(fields={"law": law}, parts=frozenset({unread.LAW}), unread=reading.unread)


async def read_beside(api: ApiClient, run: RunSummary, view: View) -> Reread:
    """What no event of the live stream carries."""
    reading = Reading()
    first = _first_of(view, run.step or 0)
    histograms, labels, latest, gaps, alerts, tokens = await asyncio.gather(
        reading.part(unread.HISTOGRAMS, api.histograms(run.id, SCORE_HISTOGRAM, from_step=first), HistogramColumns()),
        reading.part(unread.LABELS, api.labels(run.id, run.step), {}),
        reading.part(unread.LATEST, api.latest(run.id), {}),
        reading.part(unread.GAPS, api.gaps(run.id), []),
        reading.part(unread.ALERTS, api.alerts(run.id), []),
        reading.part(unread.TOKENS, api.tokens(run.id), CountedTokens()),
    )
    return Reread(
        fields={
            "histograms": histograms,
            "labels": labels,
            "latest": latest,
            "gaps": gaps,
            "alerts": alerts,
            "tokens": tokens,
        },
        parts=_BESIDE,
        unread=reading.unread,
    )


def _first_of(view: View, newest: int) -> int | None:
    """The first step that is looked at; None for all."""
    return None if view.steps is None else max(0, newest - view.steps + 1)

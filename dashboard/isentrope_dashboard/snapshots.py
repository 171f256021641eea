"""Everything a run page shows, read side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from isentrope_dashboard import foreseen, hold_preview, unread
from isentrope_dashboard.api_client import RECENT_STEPS, SCORE_HISTOGRAM, ApiClient
from isentrope_dashboard.components import kpi_cards
from isentrope_dashboard.diagnosis import CountedTokens
from isentrope_dashboard.figures import change_split, entropy
from isentrope_dashboard.predictions import Law
from isentrope_dashboard.records import HistogramColumns, RunSnapshot, RunSummary, View, rows_of
from isentrope_dashboard.unread import Reading
from isentrope_wire.metrics import (
    ENTROPY_GAIN,
    ENTROPY_INTERVAL_COVERAGE,
    ENTROPY_PREDICTION_R2,
    ENTROPY_PREDICTION_SIGN_AGREEMENT,
    HOLD_MU,
    HOLD_TARGET,
    METRICS,
    PROBE_DROPPED_REPORTS,
    TIME_STEP_SECONDS,
)

_BESIDE = frozenset({unread.HISTOGRAMS, unread.LABELS, unread.LATEST, unread.GAPS, unread.ALERTS, unread.TOKENS})

CHART_METRICS = tuple(metric for metric in entropy.LIVE_METRICS if metric in METRICS)
RECENT_METRICS = tuple(
    dict.fromkeys(
        (
            *kpi_cards.CARDS.values(),
            *(metric for view in change_split.VIEWS.values() for metric, _ in view.parts),
            ENTROPY_PREDICTION_R2,
            ENTROPY_PREDICTION_SIGN_AGREEMENT,
            ENTROPY_INTERVAL_COVERAGE,
            ENTROPY_GAIN,
            HOLD_TARGET,
            HOLD_MU,
            *hold_preview.STEERING_METRICS,
            *foreseen.EVIDENCE,
            TIME_STEP_SECONDS,
            PROBE_DROPPED_REPORTS,
        )
    )
)
"""Whatever a part of the page reads from the newest steps, once."""


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

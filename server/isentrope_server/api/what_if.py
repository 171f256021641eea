"""What other thresholds would have done to a step, or to the mean of several."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import AfterValidator
from sqlalchemy import Connection

from isentrope_server.api.dependencies import BackendDep, RunDep, StepParam, read_of
from isentrope_server.api.tokens import check_reported
from isentrope_server.errors import NotFound
from isentrope_server.store.reports import attachments, steps
from isentrope_server.store.runs import Run
from isentrope_wire.answers import StepReport
from isentrope_wire.control import Scope
from isentrope_wire.control_answers import CurveColumns, WhatIfAnswer, WhatIfCurves
from isentrope_wire.methods import METHODS, SUGGESTED, threshold_methods
from isentrope_wire.metrics import ENTROPY_GAIN
from isentrope_wire.what_if import EDGES, WhatIfCurve, WhatIfSums

router = APIRouter(tags=["control"])

Mu = Annotated[
    float | None,
    Query(
        ge=0,
        allow_inf_nan=False,
        description="In standard deviations; not given: that side does not clip.",
    ),
]
Steps = Annotated[
    int,
    Query(
        ge=1,
        le=50,
        description="The mean over so many steps that can answer, the last of them the step.",
    ),
]


def _with_thresholds(method: str | None) -> str | None:
    if method is not None and method not in threshold_methods():
        raise ValueError(f"must be one of {', '.join(threshold_methods())}")
    return method


@router.get("/runs/{run_id}/what-if")
async def get_what_if(
    run: RunDep,
    backend: BackendDep,
    step: StepParam = None,
    steps: Steps = 1,
    mu_low: Mu = None,
    mu_high: Mu = None,
    scope: Scope = Scope.ALL,
    method: Annotated[
        str | None,
        AfterValidator(_with_thresholds),
        Query(
            description=f"Default: the step's own if it has thresholds, else {SUGGESTED}.",
            json_schema_extra={"enum": threshold_methods()},
        ),
    ] = None,
    curve: Annotated[
        bool | None, Query(description="Default: only when no threshold is given.")
    ] = None,
) -> WhatIfAnswer:
    """Clip fraction and predicted entropy change the step would have had; by default of the newest
    step.

    Of several steps the means by their tokens, with the gain of the newest; steps without sums are
    passed over.

    A method's other parameters are ignored: `POST control/preview` counts a cap and a denominator.
    Exact where a threshold is a bin edge (every 0.05 up to 5, then wider), linearly interpolated
    and bounded between.

    404 `what_if_missing`: the step was reported without the sums that could answer.
    """
    wanted = (mu_low is None and mu_high is None) if curve is None else curve
    found, stored = await read_of(
        backend, run, lambda connection: _read(connection, run, step, steps)
    )
    own = METHODS.get(stored.labels.get("control/method", ""))
    chosen = method or str(own if own is not None and own.thresholds else SUGGESTED)
    curves = [WhatIfCurve(sums, scope, METHODS[chosen]) for _, sums in found]
    gain = stored.scalars.get(ENTROPY_GAIN)
    gain = gain if gain is not None and math.isfinite(gain) else None
    tokens = [sums.tokens for _, sums in found]
    asked = _Asked(curves, tokens, gain)
    return WhatIfAnswer(
        step=stored.step,
        steps=len(found),
        method=chosen,
        scope=scope,
        mu_low=mu_low,
        mu_high=mu_high,
        tokens=sum(tokens),
        gain=gain,
        unclipped_unit_predicted_change=asked.at(None, None)["unit_predicted_change"],
        curve=WhatIfCurves(
            low=_columns([asked.at(mu, mu_high) for mu in EDGES]),
            high=_columns([asked.at(mu_low, mu) for mu in EDGES]),
        )
        if wanted
        else None,
        **asked.at(mu_low, mu_high),
    )


@dataclass(frozen=True, slots=True)
class _Asked:
    """The sums of steps, to be evaluated at thresholds."""

    steps: Sequence[WhatIfCurve]
    tokens: Sequence[int]
    gain: float | None

    def at(self, mu_low: float | None, mu_high: float | None) -> dict[str, Any]:
        """Fields of an answer: the steps' means by tokens, and standard deviations, which one step
        has not."""
        found = [step.at(mu_low, mu_high) for step in self.steps]
        fractions = [one.clip_fraction for one in found]
        units = [one.unit_predicted_change for one in found]
        unit, unit_std = self._mean(units), _std(units)
        return {
            "clip_fraction": self._mean(fractions),
            "clip_fraction_std": _std(fractions),
            "unit_predicted_change": unit,
            "predicted_change": None if self.gain is None else self.gain * unit,
            "predicted_change_std": None
            if self.gain is None or unit_std is None
            else abs(self.gain) * unit_std,
            "clip_fraction_bound": self._mean([one.clip_fraction_bound for one in found]),
            "unit_predicted_change_bound": self._mean(
                [one.unit_predicted_change_bound for one in found]
            ),
        }

    def _mean(self, values: Sequence[float]) -> float:
        return values[0] if len(values) == 1 else fmean(values, self.tokens)


def _std(values: Sequence[float]) -> float | None:
    return stdev(values) if len(values) > 1 else None


def _read(
    connection: Connection, run: Run, step: int | None, count: int
) -> tuple[list[tuple[int, WhatIfSums]], StepReport]:
    """Up to `count` steps with their sums, the newest last, and what else the newest reported."""
    found = attachments.read_what_if(connection, run.key, last=step, steps=count)
    if found and step in (None, found[-1][0]):
        newest = steps.find(connection, run.key, found[-1][0])
        assert newest is not None, "sums are stored with their report"
        return found, newest
    check_reported(connection, run, step)
    which = (
        f"Run {run.id} has no step" if step is None else f"Step {step} of run {run.id} was reported"
    )
    raise NotFound(
        f"{which} {'with' if step is None else 'without'} what-if sums: no token of it counted, or its probe does "
        "not measure them.",
        code="what_if_missing",
        step=step,
    )


def _columns(points: Sequence[dict[str, Any]]) -> CurveColumns:
    columns: dict[str, Any] = {"mu": list(EDGES)}
    for name in (name for name in points[0] if not name.endswith("_bound")):
        column = [point[name] for point in points]
        # All of it or none: it depends on the gain and the number of steps.
        columns[name] = None if None in column else column
    return CurveColumns(**columns)

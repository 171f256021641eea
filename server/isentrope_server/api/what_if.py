"""What other thresholds would have done to a step, or to the mean of several."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import fmean, stdev
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import AfterValidator
from sqlalchemy import Connection

from isentrope_server.api.dependencies import BackendDep, RunDep, StepParam, read_of
from isentrope_server.errors import NotFound, WhatIfMissing
from isentrope_server.store.reports import attachments, steps
from isentrope_server.store.reports.attachments import StoredWhatIf
from isentrope_server.store.reports.steps import StoredStep
from isentrope_server.store.runs import Run
from isentrope_wire.control import Scope
from isentrope_wire.control_answers import CurveColumns, WhatIfAnswer, WhatIfCurves
from isentrope_wire.methods import METHODS, SUGGESTED, threshold_methods
from isentrope_wire.metrics import ENTROPY_GAIN
from isentrope_wire.what_if import EDGES, WhatIfCurve

router = APIRouter(tags=["control"])

Mu = Annotated[
    float | None,
    Query(ge=0, allow_inf_nan=False, description="In standard deviations; not given: that side does not clip."),
]
Steps = Annotated[
    int, Query(ge=1, le=50, description="The mean over so many steps that can answer, the last of them the step.")
]
_PASSED_OVER = 3
"""Read this many times the wanted steps: some steps have no sums."""


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
    curve: Annotated[bool | None, Query(description="Default: only when no threshold is given.")] = None,
) -> WhatIfAnswer:
    """Clip fraction and predicted entropy change the step would have had; by default of the newest step.

    Of several steps the means by their tokens, with the gain of the newest; steps without sums are passed over.

    A method's other parameters are ignored: `POST control/preview` counts a cap and a denominator. Exact where a threshold is a bin edge (every 0.05 up to 5, then wider), linearly interpolated and bounded
    between.

    404 `what_if_missing`: the step was reported without the sums that could answer.
    """
    wanted = (mu_low is None and mu_high is None) if curve is None else curve
    found, stored = await read_of(backend, run, lambda connection: _read(connection, run, step, steps))
    chosen = method or _own_method(stored)
    curves = [WhatIfCurve(one.sums, scope, METHODS[chosen]) for one in found]
    gain = _gain(stored)
    tokens = [one.sums.tokens for one in found]
    asked = _Asked(curves, tokens, gain)
    point = asked.at(mu_low, mu_high)
    return WhatIfAnswer(
        step=found[0].step,
        steps=len(found),
        method=chosen,
        scope=scope,
        mu_low=mu_low,
        mu_high=mu_high,
        tokens=sum(tokens),
        clip_fraction=point.clip_fraction,
        clip_fraction_std=point.clip_fraction_std,
        unit_predicted_change=point.unit_predicted_change,
        predicted_change=point.predicted_change,
        predicted_change_std=point.predicted_change_std,
        gain=gain,
        clip_fraction_bound=point.clip_fraction_bound,
        unit_predicted_change_bound=point.unit_predicted_change_bound,
        unclipped_unit_predicted_change=asked.at(None, None).unit_predicted_change,
        curve=_curves(asked, mu_low, mu_high) if wanted else None,
    )


@dataclass(frozen=True, slots=True)
class _Point:
    """One pair of thresholds: the steps' means by tokens, and standard deviations, which one step has not."""

    clip_fraction: float
    clip_fraction_std: float | None
    unit_predicted_change: float
    predicted_change: float | None
    predicted_change_std: float | None
    clip_fraction_bound: float
    unit_predicted_change_bound: float


@dataclass(frozen=True, slots=True)
class _Asked:
    """The sums of steps, to be evaluated at thresholds."""

    steps: Sequence[WhatIfCurve]
    tokens: Sequence[int]
    gain: float | None

    def at(self, mu_low: float | None, mu_high: float | None) -> _Point:
        found = [step.at(mu_low, mu_high) for step in self.steps]
        fractions = [one.clip_fraction for one in found]
        units = [one.unit_predicted_change for one in found]
        unit, unit_std = self._mean(units), _std(units)
        return _Point(
            clip_fraction=self._mean(fractions),
            clip_fraction_std=_std(fractions),
            unit_predicted_change=unit,
            predicted_change=None if self.gain is None else self.gain * unit,
            predicted_change_std=None if self.gain is None or unit_std is None else abs(self.gain) * unit_std,
            clip_fraction_bound=self._mean([one.clip_fraction_bound for one in found]),
            unit_predicted_change_bound=self._mean([one.unit_predicted_change_bound for one in found]),
        )

    def _mean(self, values: Sequence[float]) -> float:
        return values[0] if len(values) == 1 else fmean(values, self.tokens)


def _std(values: Sequence[float]) -> float | None:
    return stdev(values) if len(values) > 1 else None


def _read(connection: Connection, run: Run, step: int | None, count: int) -> tuple[list[StoredWhatIf], StoredStep]:
    """The sums of up to `count` steps, newest first, and what else the newest of them reported."""
    found = attachments.find_what_if_sums(connection, run.key, step)
    if found is None and step is not None and steps.find(connection, run.key, step) is None:
        raise NotFound(f"Run {run.id} has no report of step {step}.", step=step)
    stored = None if found is None else steps.find(connection, run.key, found.step)
    if found is None or stored is None:
        which = f"Run {run.id} has no step" if step is None else f"Step {step} of run {run.id} was reported"
        raise WhatIfMissing(
            f"{which} {'with' if step is None else 'without'} what-if sums: no token of it counted, or its probe does "
            "not measure them.",
            step=step,
        )
    before = range(found.step - 1, max(-1, found.step - _PASSED_OVER * count), -1)
    earlier = (attachments.find_what_if_sums(connection, run.key, number) for number in before)
    return [found, *islice((one for one in earlier if one is not None), count - 1)], stored


def _own_method(stored: StoredStep) -> str:
    own = METHODS.get(stored.labels.get("control/method", ""))
    return str(own if own is not None and own.thresholds else SUGGESTED)


def _gain(stored: StoredStep) -> float | None:
    gain = stored.scalars.get(ENTROPY_GAIN)
    return gain if gain is not None and math.isfinite(gain) else None


def _curves(asked: _Asked, mu_low: float | None, mu_high: float | None) -> WhatIfCurves:
    return WhatIfCurves(
        low=_columns([asked.at(mu, mu_high) for mu in EDGES]), high=_columns([asked.at(mu_low, mu) for mu in EDGES])
    )


def _columns(points: Sequence[_Point]) -> CurveColumns:
    return CurveColumns(
        mu=list(EDGES),
        clip_fraction=[point.clip_fraction for point in points],
        clip_fraction_std=_known([point.clip_fraction_std for point in points]),
        unit_predicted_change=[point.unit_predicted_change for point in points],
        predicted_change=_known([point.predicted_change for point in points]),
        predicted_change_std=_known([point.predicted_change_std for point in points]),
    )


def _known(values: Sequence[float | None]) -> list[float] | None:
    """All of them or none: they depend on the gain and the number of steps."""
    found = [value for value in values if value is not None]
    return found if len(found) == len(values) else None

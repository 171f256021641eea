"""What other thresholds would have done to a step, before anything is pushed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Literal, Self

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field
from sqlalchemy import Connection

from isentrope_server.api.dependencies import BackendDep, RunDep, StepParam
from isentrope_server.api.numbers import Number, number
from isentrope_server.errors import NotFound, WhatIfMissing
from isentrope_server.store import steps, what_if_sums
from isentrope_server.store.runs import Run
from isentrope_server.store.steps import StoredStep
from isentrope_server.store.what_if_sums import StoredWhatIf
from isentrope_wire.control import Method, Scope
from isentrope_wire.what_if import EDGES, WhatIf, WhatIfCurve

router = APIRouter(tags=["control"])

Mu = Annotated[
    float | None,
    Query(ge=0, allow_inf_nan=False, description="In standard deviations; left out: that side does not clip."),
]
ThresholdMethod = Literal["clip_b", "clip_v"]


class CurveColumns(BaseModel):
    """The step at every bin edge of one side, as columns of one length; exact there."""

    mu: list[float]
    clip_fraction: list[float]
    unit_predicted_change: list[Number]
    predicted_change: list[Number] | None

    @classmethod
    def of(cls, points: Sequence[WhatIf], gain: float | None) -> Self:
        return cls(
            mu=list(EDGES),
            clip_fraction=[point.clip_fraction for point in points],
            unit_predicted_change=[number(point.unit_predicted_change) for point in points],
            predicted_change=None if gain is None else [number(gain * point.unit_predicted_change) for point in points],
        )


class WhatIfCurves(BaseModel):
    """One side's threshold over all edges, the other side's as it was asked for."""

    low: CurveColumns
    high: CurveColumns


class WhatIfOut(BaseModel):
    """One step under thresholds it did not have. All its valid tokens count, also those that were clipped then."""

    step: int
    method: ThresholdMethod
    scope: Scope
    mu_low: float | None
    mu_high: float | None
    tokens: int
    clip_fraction: float = Field(description="Share of the step's tokens these thresholds would have left out.")
    unit_predicted_change: Number = Field(description="-mean(keep r A S_c), in nats per unit gain.")
    predicted_change: Number | None = Field(
        description="gain times the unit prediction, in nats a step: what a step brings once the optimiser's momentum "
        "has forgotten the gradients before these thresholds. Null while the gain is not known."
    )
    gain: Number | None
    clip_fraction_bound: float = Field(description="The truth differs by at most this much; 0 at a bin edge.")
    unit_predicted_change_bound: Number
    unclipped_unit_predicted_change: Number = Field(description="With no threshold at all.")
    curve: WhatIfCurves | None


@router.get("/runs/{run_id}/what-if")
async def get_what_if(
    run: RunDep,
    backend: BackendDep,
    step: StepParam = None,
    mu_low: Mu = None,
    mu_high: Mu = None,
    scope: Scope = Scope.ALL,
    method: Annotated[ThresholdMethod | None, Query(description="Left out: the step's own, else clip_v.")] = None,
    curve: Annotated[bool | None, Query(description="Left out: only when no threshold is given.")] = None,
) -> WhatIfOut:
    """Clip fraction and predicted entropy change the step would have had; by default of the newest step.

    Thresholds and scope are all that counts: a cap on the fraction or limits on the ratio play no part.
    Exact where a threshold is a bin edge (every 0.05 up to 5, then wider), linearly interpolated and bounded between.

    404 `what_if_missing`: the step was reported without the sums that could answer.
    """
    wanted = (mu_low is None and mu_high is None) if curve is None else curve
    found, stored = await backend.read(lambda connection: _read(connection, run, step))
    chosen = method or _own_method(stored)
    return _answer(found, stored, chosen, scope, mu_low, mu_high, curve=wanted)


def _read(connection: Connection, run: Run, step: int | None) -> tuple[StoredWhatIf, StoredStep]:
    found = what_if_sums.find(connection, run.key, step)
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
    return found, stored


def _own_method(stored: StoredStep) -> ThresholdMethod:
    return "clip_b" if stored.labels.get("control/method") == Method.CLIP_B else "clip_v"


def _answer(
    found: StoredWhatIf,
    stored: StoredStep,
    method: ThresholdMethod,
    scope: Scope,
    mu_low: float | None,
    mu_high: float | None,
    *,
    curve: bool,
) -> WhatIfOut:
    gain = stored.scalars.get("entropy/gain")
    gain = gain if gain is not None and math.isfinite(gain) else None
    thresholds = WhatIfCurve(found.sums, scope, Method(method))
    asked = thresholds.at(mu_low, mu_high)
    return WhatIfOut(
        step=found.step,
        method=method,
        scope=scope,
        mu_low=mu_low,
        mu_high=mu_high,
        tokens=found.sums.tokens,
        clip_fraction=asked.clip_fraction,
        unit_predicted_change=number(asked.unit_predicted_change),
        predicted_change=None if gain is None else number(gain * asked.unit_predicted_change),
        gain=gain,
        clip_fraction_bound=asked.clip_fraction_bound,
        unit_predicted_change_bound=number(asked.unit_predicted_change_bound),
        unclipped_unit_predicted_change=number(thresholds.at(None, None).unit_predicted_change),
        curve=_curves(thresholds, mu_low, mu_high, gain) if curve else None,
    )


def _curves(thresholds: WhatIfCurve, mu_low: float | None, mu_high: float | None, gain: float | None) -> WhatIfCurves:
    return WhatIfCurves(
        low=CurveColumns.of([thresholds.at(mu, mu_high) for mu in EDGES], gain),
        high=CurveColumns.of([thresholds.at(mu_low, mu) for mu in EDGES], gain),
    )

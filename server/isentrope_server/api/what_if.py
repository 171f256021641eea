"""What other thresholds would have done to a step, before anything is pushed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field
from sqlalchemy import Connection

from isentrope_server.api.dependencies import BackendDep, RunDep, StepParam, read_of
from isentrope_server.errors import NotFound, WhatIfMissing
from isentrope_server.store.reports import attachments, steps
from isentrope_server.store.reports.attachments import StoredWhatIf
from isentrope_server.store.reports.steps import StoredStep
from isentrope_server.store.runs import Run
from isentrope_wire.control import Method, Scope
from isentrope_wire.methods import METHODS
from isentrope_wire.metrics import ENTROPY_GAIN
from isentrope_wire.numbers import Number, number
from isentrope_wire.what_if import EDGES, WhatIf, WhatIfCurve

router = APIRouter(tags=["control"])

Mu = Annotated[
    float | None,
    Query(ge=0, allow_inf_nan=False, description="In standard deviations; left out: that side does not clip."),
]
ThresholdMethod = Literal["clip_b", "clip_v"]
Denominator = Literal["keep", "shrink"]
MaxFraction = Annotated[
    float | None,
    Query(
        gt=0,
        le=1,
        allow_inf_nan=False,
        description="At most this share of the tokens is clipped, those furthest beyond their threshold.",
    ),
]
NOT_INCLUDED = ("epsilon_low", "epsilon_high")
"""Parameters of clip_b and clip_v that look at the ratio, about which the sums know nothing."""


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
    max_fraction: float | None
    denominator: Denominator
    not_included: list[str] = Field(description="Parameters of the method that play no part in the answer.")
    tokens: int
    capped: bool = Field(description="Whether max_fraction binds, so that moving the thresholds changes nothing.")
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
    max_fraction: MaxFraction = None,
    denominator: Annotated[
        Denominator, Query(description="shrink: the mean is over the tokens that are kept, not over all.")
    ] = "keep",
    curve: Annotated[bool | None, Query(description="Left out: only when no threshold is given.")] = None,
) -> WhatIfOut:
    """Clip fraction and predicted entropy change the step would have had; by default of the newest step.

    Limits on the ratio play no part; a cap is counted over the step's own tokens, by the gate over those of the step before.
    Exact where a threshold is a bin edge (every 0.05 up to 5, then wider), linearly interpolated and bounded between.

    404 `what_if_missing`: the step was reported without the sums that could answer.
    """
    wanted = (mu_low is None and mu_high is None) if curve is None else curve
    found, stored = await read_of(backend, run, lambda connection: _read(connection, run, step))
    chosen = method or _own_method(stored)
    thresholds = WhatIfCurve(found.sums, scope, METHODS[chosen])
    asked = _Asked(thresholds, max_fraction, shrink=denominator == "shrink")
    point = asked.at(mu_low, mu_high)
    gain = _gain(stored)
    return WhatIfOut(
        step=found.step,
        method=chosen,
        scope=scope,
        mu_low=mu_low,
        mu_high=mu_high,
        max_fraction=max_fraction,
        denominator=denominator,
        not_included=list(NOT_INCLUDED),
        tokens=found.sums.tokens,
        capped=point.capped,
        clip_fraction=point.clip_fraction,
        unit_predicted_change=number(point.unit_predicted_change),
        predicted_change=None if gain is None else number(gain * point.unit_predicted_change),
        gain=gain,
        clip_fraction_bound=point.clip_fraction_bound,
        unit_predicted_change_bound=number(point.unit_predicted_change_bound),
        unclipped_unit_predicted_change=number(thresholds.at(None, None).unit_predicted_change),
        curve=_curves(asked, mu_low, mu_high, gain) if wanted else None,
    )


@dataclass(frozen=True, slots=True)
class _Asked:
    """A step's answer for everything that was asked but the thresholds."""

    thresholds: WhatIfCurve
    max_fraction: float | None
    shrink: bool

    def at(self, mu_low: float | None, mu_high: float | None) -> WhatIf:
        return self.thresholds.at(mu_low, mu_high, max_fraction=self.max_fraction, shrink_denominator=self.shrink)


def _read(connection: Connection, run: Run, step: int | None) -> tuple[StoredWhatIf, StoredStep]:
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
    return found, stored


def _own_method(stored: StoredStep) -> ThresholdMethod:
    return "clip_b" if stored.labels.get("control/method") == Method.CLIP_B else "clip_v"


def _gain(stored: StoredStep) -> float | None:
    gain = stored.scalars.get(ENTROPY_GAIN)
    return gain if gain is not None and math.isfinite(gain) else None


def _curves(asked: _Asked, mu_low: float | None, mu_high: float | None, gain: float | None) -> WhatIfCurves:
    return WhatIfCurves(
        low=CurveColumns.of([asked.at(mu, mu_high) for mu in EDGES], gain),
        high=CurveColumns.of([asked.at(mu_low, mu) for mu in EDGES], gain),
    )

"""What other thresholds would have done to a step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Query
from sqlalchemy import Connection

from isentrope_server.api.dependencies import BackendDep, RunDep, StepParam, read_of
from isentrope_server.errors import NotFound, WhatIfMissing
from isentrope_server.store.reports import attachments, steps
from isentrope_server.store.reports.attachments import StoredWhatIf
from isentrope_server.store.reports.steps import StoredStep
from isentrope_server.store.runs import Run
from isentrope_wire.control import Method, Scope
from isentrope_wire.control_answers import CurveColumns, Denominator, ThresholdMethod, WhatIfAnswer, WhatIfCurves
from isentrope_wire.methods import METHODS
from isentrope_wire.metrics import ENTROPY_GAIN
from isentrope_wire.what_if import EDGES, WhatIf, WhatIfCurve

router = APIRouter(tags=["control"])

Mu = Annotated[
    float | None,
    Query(ge=0, allow_inf_nan=False, description="In standard deviations; not given: that side does not clip."),
]
MaxFraction = Annotated[
    float | None,
    Query(
        gt=0,
        le=1,
        allow_inf_nan=False,
        description="At most this share of the tokens is clipped, those furthest beyond their threshold.",
    ),
]
NOT_INCLUDED = ("epsilon_low", "epsilon_high", "zero_advantage")
"""Parameters of clip_b and clip_v that the answer ignores: two depend on the ratio, which the sums do not contain, and
tokens with A = 0 change only what a mean divides by."""


@router.get("/runs/{run_id}/what-if")
async def get_what_if(
    run: RunDep,
    backend: BackendDep,
    step: StepParam = None,
    mu_low: Mu = None,
    mu_high: Mu = None,
    scope: Scope = Scope.ALL,
    method: Annotated[ThresholdMethod | None, Query(description="Default: the step's own, else clip_v.")] = None,
    max_fraction: MaxFraction = None,
    denominator: Annotated[
        Denominator, Query(description="shrink: the mean is over the tokens that are kept, not over all.")
    ] = "keep",
    curve: Annotated[bool | None, Query(description="Default: only when no threshold is given.")] = None,
    sums: Annotated[bool, Query(description="Also the sums that all answers about the step are read from.")] = False,
) -> WhatIfAnswer:
    """Clip fraction and predicted entropy change the step would have had; by default of the newest step.

    Limits on the ratio and `zero_advantage` are ignored; a cap is counted over the step's own tokens, by the gate over those of the step
    before. Exact where a threshold is a bin edge (every 0.05 up to 5, then wider), linearly interpolated and bounded
    between.

    404 `what_if_missing`: the step was reported without the sums that could answer.
    """
    wanted = (mu_low is None and mu_high is None) if curve is None else curve
    found, stored = await read_of(backend, run, lambda connection: _read(connection, run, step))
    chosen = method or _own_method(stored)
    thresholds = WhatIfCurve(found.sums, scope, METHODS[chosen])
    asked = _Asked(thresholds, max_fraction, shrink=denominator == "shrink")
    point = asked.at(mu_low, mu_high)
    gain = _gain(stored)
    return WhatIfAnswer(
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
        unit_predicted_change=point.unit_predicted_change,
        predicted_change=None if gain is None else gain * point.unit_predicted_change,
        gain=gain,
        clip_fraction_bound=point.clip_fraction_bound,
        unit_predicted_change_bound=point.unit_predicted_change_bound,
        unclipped_unit_predicted_change=thresholds.at(None, None).unit_predicted_change,
        curve=_curves(asked, mu_low, mu_high, gain) if wanted else None,
        sums=found.sums if sums else None,
    )


@dataclass(frozen=True, slots=True)
class _Asked:
    """A step's sums and parameters, to be evaluated at thresholds."""

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
        low=_columns([asked.at(mu, mu_high) for mu in EDGES], gain),
        high=_columns([asked.at(mu_low, mu) for mu in EDGES], gain),
    )


def _columns(points: Sequence[WhatIf], gain: float | None) -> CurveColumns:
    units = [point.unit_predicted_change for point in points]
    return CurveColumns(
        mu=list(EDGES),
        clip_fraction=[point.clip_fraction for point in points],
        unit_predicted_change=units,
        predicted_change=None if gain is None else [gain * unit for unit in units],
    )

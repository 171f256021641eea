"""Every call of the REST API: its address, what it sends, and the dataclass it answers with.

`Client` and `AsyncClient` send these. Arguments that are None are not sent.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, Generic, TypeVar
from urllib.parse import quote

from isentrope_wire.answers import (
    AccessToken,
    Alert,
    AuditEntry,
    AuditVerification,
    CreatedToken,
    Gap,
    HistogramColumns,
    LatestMetric,
    LiveStep,
    Me,
    Page,
    RecurringTokens,
    Rollouts,
    RunCounts,
    RunDetail,
    RunSummary,
    SeriesAnswer,
    StepReport,
    TopTokens,
)
from isentrope_wire.control import Control
from isentrope_wire.control_answers import (
    ControlVersion,
    EntropyPerformance,
    MethodDescription,
    RunControl,
    WhatIfAnswer,
)
from isentrope_wire.diagnosis.health import Diagnosis

Answer_co = TypeVar("Answer_co", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Generic[Answer_co]):
    """One request, and the class of its answer."""

    path: str
    """Below /api/v1."""
    answer: type[Answer_co]
    """NoneType: the answer has no body."""
    verb: str = "GET"
    query: Mapping[str, Any] = field(default_factory=dict)
    body: object | None = None
    """As JSON; None: no body."""
    headers: Mapping[str, str] = field(default_factory=dict)


Names = str | Sequence[str] | None


def runs(
    *,
    project: Names = None,
    status: Names = None,
    tag: Names = None,
    level: Names = None,
    q: str | None = None,
    order: str | None = None,
) -> Call[Page[RunSummary]]:
    query = _run_filter(project, status, tag, level, q) | {"order": order}
    return Call(path="runs", answer=Page[RunSummary], query=query)


def run_counts(
    *, project: Names = None, status: Names = None, tag: Names = None, level: Names = None, q: str | None = None
) -> Call[RunCounts]:
    return Call(path="run-counts", answer=RunCounts, query=_run_filter(project, status, tag, level, q))


def _run_filter(project: Names, status: Names, tag: Names, level: Names, q: str | None) -> dict[str, Any]:
    named = {"project": project, "status": status, "tag": tag, "level": level}
    return {name: None if values is None else _list(values) for name, values in named.items()} | {"q": q}


def run(run_id: str) -> Call[RunDetail]:
    return Call(path=_run(run_id), answer=RunDetail)


def edit_run(run_id: str, name: str | None, tags: Sequence[str] | None, notes: str | None) -> Call[RunDetail]:
    changes = {"name": name, "tags": None if tags is None else list(tags), "notes": notes}
    body = {name: value for name, value in changes.items() if value is not None}
    return Call(verb="PATCH", path=_run(run_id), answer=RunDetail, body=body)


def delete_run(run_id: str) -> Call[None]:
    return Call(verb="DELETE", path=_run(run_id), answer=NoneType)


def diagnosis(run_id: str) -> Call[Diagnosis]:
    return Call(path=f"{_run(run_id)}/diagnosis", answer=Diagnosis)


def latest(run_id: str) -> Call[Page[LatestMetric]]:
    return Call(path=f"{_run(run_id)}/metrics", answer=Page[LatestMetric])


def series(
    run_id: str,
    names: str | Sequence[str],
    *,
    since: str | None = None,
    from_step: int | None = None,
    to_step: int | None = None,
    points: int | None = None,
) -> Call[SeriesAnswer]:
    query = {"name": _list(names), "since": since, "from_step": from_step, "to_step": to_step, "points": points}
    return Call(path=f"{_run(run_id)}/metrics/series", answer=SeriesAnswer, query=query)


def export(run_id: str, file_format: str, names: str | Sequence[str] | None, labels: bool) -> Call[bytes]:
    query = {"format": file_format, "labels": labels, "name": None if names is None else _list(names)}
    return Call(path=f"{_run(run_id)}/export", answer=bytes, query=query)


def live(run_id: str, since: str | None) -> Call[LiveStep | ControlVersion | RunDetail]:
    return Call(path=f"{_run(run_id)}/live", answer=LiveStep, query={"since": since})


def step(run_id: str, number: int) -> Call[StepReport]:
    return Call(path=f"{_run(run_id)}/steps/{number}", answer=StepReport)


def histograms(
    run_id: str, name: str, *, from_step: int | None = None, to_step: int | None = None, points: int | None = None
) -> Call[HistogramColumns]:
    query = {"from_step": from_step, "to_step": to_step, "points": points}
    return Call(path=f"{_run(run_id)}/histograms/{quote(name, safe='/')}", answer=HistogramColumns, query=query)


def tokens(run_id: str, *, step: int | None = None) -> Call[TopTokens]:
    return Call(path=f"{_run(run_id)}/tokens", answer=TopTokens, query={"step": step})


def rollouts(run_id: str, *, step: int | None = None) -> Call[Rollouts]:
    return Call(path=f"{_run(run_id)}/rollouts", answer=Rollouts, query={"step": step})


def recurring_tokens(run_id: str, *, steps: int | None = None, step: int | None = None) -> Call[RecurringTokens]:
    return Call(path=f"{_run(run_id)}/tokens/recurring", answer=RecurringTokens, query={"steps": steps, "step": step})


def alerts(run_id: str) -> Call[Page[Alert]]:
    return Call(path=f"{_run(run_id)}/alerts", answer=Page[Alert])


def gaps(run_id: str) -> Call[Page[Gap]]:
    return Call(path=f"{_run(run_id)}/gaps", answer=Page[Gap])


def law(run_id: str, *, points: int | None = None, reward: str | None = None) -> Call[EntropyPerformance]:
    return Call(path=f"{_run(run_id)}/law", answer=EntropyPerformance, query={"points": points, "reward": reward})


def what_if(
    run_id: str,
    *,
    mu_low: float | None = None,
    mu_high: float | None = None,
    scope: str = "all",
    method: str | None = None,
    step: int | None = None,
    steps: int | None = None,
    max_fraction: float | None = None,
    denominator: str = "keep",
    curve: bool | None = None,
    sums: bool = False,
) -> Call[WhatIfAnswer]:
    query = {
        "mu_low": mu_low,
        "mu_high": mu_high,
        "scope": scope,
        "method": method,
        "step": step,
        "steps": steps,
        "max_fraction": max_fraction,
        "denominator": denominator,
        "curve": curve,
        "sums": sums or None,
    }
    return Call(path=f"{_run(run_id)}/what-if", answer=WhatIfAnswer, query=query)


def control(run_id: str) -> Call[RunControl]:
    return Call(path=f"{_run(run_id)}/control", answer=RunControl)


def control_history(run_id: str) -> Call[Page[ControlVersion]]:
    return Call(path=f"{_run(run_id)}/control/history", answer=Page[ControlVersion])


def set_control(
    run_id: str,
    wanted: Control,
    *,
    if_version: int,
    expires_in_seconds: int | None = None,
    assistant: str | None = None,
) -> Call[ControlVersion]:
    return Call(
        verb="PUT",
        path=f"{_run(run_id)}/control",
        answer=ControlVersion,
        body=wanted.to_document() | {"expires_in_seconds": expires_in_seconds},
        # With the key, a repetition after a lost answer is the same request and not a second change.
        headers={"If-Match": f'"{if_version}"', "Idempotency-Key": uuid.uuid4().hex}
        | ({} if assistant is None else {"Isentrope-Assistant": assistant}),
    )


def methods() -> Call[Page[MethodDescription]]:
    return Call(path="methods", answer=Page[MethodDescription])


def me() -> Call[Me]:
    return Call(path="me", answer=Me)


def access_tokens() -> Call[Page[AccessToken]]:
    return Call(path="access-tokens", answer=Page[AccessToken])


def create_access_token(scope: str, name: str | None, run: str | None, project: str | None) -> Call[CreatedToken]:
    wanted = {"scope": scope, "name": name, "run": run, "project": project}
    return Call(verb="POST", path="access-tokens", answer=CreatedToken, body=wanted)


def revoke_access_token(token_id: str) -> Call[None]:
    return Call(verb="DELETE", path=f"access-tokens/{quote(token_id, safe='')}", answer=NoneType)


def audit(run_id: str | None = None) -> Call[Page[AuditEntry]]:
    return Call(path="audit", answer=Page[AuditEntry], query={"run": run_id})


def verify_audit(head: str | None) -> Call[AuditVerification]:
    return Call(path="audit/verification", answer=AuditVerification, query={"head": head})


def _run(run_id: str) -> str:
    return f"runs/{quote(run_id, safe='')}"


def _list(names: str | Sequence[str]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)

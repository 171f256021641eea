"""Every call of the REST API: its address, what it sends, and the dataclass it answers with.

client.ask(calls.tokens(run_id, step=12)).items
list(client.items(calls.alerts(run_id), 10))

`Client` and `AsyncClient` send these. Arguments by name are the query, as the route names it and `/docs` of the server
describes it; those that are None are not sent. The stream of live events is no call.
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
    CreatedToken,
    Destination,
    Gap,
    HistogramColumns,
    LatestMetric,
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
    RunControl,
    WhatIfAnswer,
)
from isentrope_wire.diagnosis.health import Diagnosis, Preview

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


class _OfRun(Generic[Answer_co]):
    """Something that is read of one run."""

    def __init__(self, path: str, answer: type[Answer_co]) -> None:
        self._path = path
        self._answer = answer

    def __call__(self, run_id: str, **query: object) -> Call[Answer_co]:
        return Call(path=_run(run_id) + self._path, answer=self._answer, query=query)


def _run(run_id: str) -> str:
    return f"runs/{quote(run_id, safe='')}"


run = _OfRun("", RunDetail)
diagnosis = _OfRun("/diagnosis", Diagnosis)
latest = _OfRun("/metrics", Page[LatestMetric])
export = _OfRun("/export", bytes)
tokens = _OfRun("/tokens", TopTokens)
rollouts = _OfRun("/rollouts", Rollouts)
recurring_tokens = _OfRun("/tokens/recurring", RecurringTokens)
alerts = _OfRun("/alerts", Page[Alert])
gaps = _OfRun("/gaps", Page[Gap])
law = _OfRun("/law", EntropyPerformance)
what_if = _OfRun("/what-if", WhatIfAnswer)
control = _OfRun("/control", RunControl)
control_history = _OfRun("/control/history", Page[ControlVersion])


def series(run_id: str, names: str | Sequence[str], **query: object) -> Call[SeriesAnswer]:
    return Call(path=f"{_run(run_id)}/metrics/series", answer=SeriesAnswer, query={"name": names, **query})


def step(run_id: str, number: int) -> Call[StepReport]:
    return Call(path=f"{_run(run_id)}/steps/{number}", answer=StepReport)


def histograms(run_id: str, name: str, **query: object) -> Call[HistogramColumns]:
    return Call(path=f"{_run(run_id)}/histograms/{quote(name, safe='/')}", answer=HistogramColumns, query=query)


def edit_run(
    run_id: str, name: str | None = None, tags: Sequence[str] | None = None, notes: str | None = None
) -> Call[RunDetail]:
    changes = {"name": name, "tags": None if tags is None else list(tags), "notes": notes}
    body = {name: value for name, value in changes.items() if value is not None}
    return Call(verb="PATCH", path=_run(run_id), answer=RunDetail, body=body)


def delete_run(run_id: str) -> Call[None]:
    return Call(verb="DELETE", path=_run(run_id), answer=NoneType)


def set_control(
    run_id: str, wanted: Control, *, if_version: int, assistant: str | None = None, **more: object
) -> Call[ControlVersion]:
    """`more` is what the request holds beside the control."""
    return Call(
        verb="PUT",
        path=f"{_run(run_id)}/control",
        answer=ControlVersion,
        body=wanted.to_document() | more,
        # With the key, a repetition after a lost answer is the same request and not a second change.
        headers={"If-Match": f'"{if_version}"', "Idempotency-Key": uuid.uuid4().hex}
        | ({} if assistant is None else {"Isentrope-Assistant": assistant}),
    )


def preview(run_id: str, wanted: Control, *, curves: bool = False) -> Call[Preview]:
    path = f"{_run(run_id)}/control/preview"
    return Call(verb="POST", path=path, answer=Preview, body=wanted.to_document(), query={"curves": curves})


def runs(**query: object) -> Call[Page[RunSummary]]:
    return Call(path="runs", answer=Page[RunSummary], query=query)


def run_counts(**query: object) -> Call[RunCounts]:
    return Call(path="run-counts", answer=RunCounts, query=query)


def me() -> Call[Me]:
    return Call(path="me", answer=Me)


def access_tokens() -> Call[Page[AccessToken]]:
    return Call(path="access-tokens", answer=Page[AccessToken])


def create_access_token(scope: str, name: str | None = None) -> Call[CreatedToken]:
    return Call(verb="POST", path="access-tokens", answer=CreatedToken, body={"scope": scope, "name": name})


def create_link(run_id: str) -> Call[CreatedToken]:
    """A token that shows a browser this run and no other."""
    return Call(verb="POST", path=f"{_run(run_id)}/link", answer=CreatedToken)


def revoke_access_token(token_id: str) -> Call[None]:
    return Call(verb="DELETE", path=f"access-tokens/{quote(token_id, safe='')}", answer=NoneType)


def destinations() -> Call[Page[Destination]]:
    return Call(path="notify", answer=Page[Destination])


def test_destinations() -> Call[Page[Destination]]:
    return Call(verb="POST", path="notify/test", answer=Page[Destination])


def audit(run_id: str | None = None) -> Call[Page[AuditEntry]]:
    return Call(path="audit", answer=Page[AuditEntry], query={"run": run_id})

"""Every call of the REST API: its address, what it sends, and the dataclass it answers with.

client.ask(calls.tokens(run_id, step=12)).items
list(client.items(calls.alerts(run_id), 10))

`Client` and `AsyncClient` send these. Arguments by name are the query, as the route names it and
`/docs` of the server describes it; those that are None are not sent. The stream of live events is
no call."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, Generic, TypeVar
from urllib.parse import quote

from isentrope_wire import answers, control_answers
from isentrope_wire.control import Control
from isentrope_wire.diagnosis.check_states import CheckState
from isentrope_wire.diagnosis.health import Diagnosis, Preview
from isentrope_wire.diagnosis.outlook import Outlook

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


run = _OfRun("", answers.RunDetail)
diagnosis = _OfRun("/diagnosis", Diagnosis)
checks = _OfRun("/checks", answers.Page[CheckState])
latest = _OfRun("/metrics", answers.Page[answers.LatestMetric])
export = _OfRun("/export", bytes)
tokens = _OfRun("/tokens", answers.TopTokens)
rollouts = _OfRun("/rollouts", answers.Rollouts)
recurring_tokens = _OfRun("/tokens/recurring", answers.RecurringTokens)
alerts = _OfRun("/alerts", answers.Page[answers.Alert])
gaps = _OfRun("/gaps", answers.Page[answers.Gap])
law = _OfRun("/law", control_answers.EntropyPerformance)
control = _OfRun("/control", control_answers.RunControl)
control_history = _OfRun("/control/history", answers.Page[control_answers.ControlVersion])


def series(run_id: str, names: str | Sequence[str], **query: object) -> Call[answers.SeriesAnswer]:
    return Call(
        path=f"{_run(run_id)}/metrics/series",
        answer=answers.SeriesAnswer,
        query={"name": names, **query},
    )


def step(run_id: str, number: int) -> Call[answers.StepReport]:
    return Call(path=f"{_run(run_id)}/steps/{number}", answer=answers.StepReport)


def histograms(run_id: str, name: str, **query: object) -> Call[answers.HistogramColumns]:
    return Call(
        path=f"{_run(run_id)}/histograms/{quote(name, safe='/')}",
        answer=answers.HistogramColumns,
        query=query,
    )


def edit_run(
    run_id: str,
    name: str | None = None,
    tags: Sequence[str] | None = None,
    notes: str | None = None,
) -> Call[answers.RunDetail]:
    changes = {"name": name, "tags": None if tags is None else list(tags), "notes": notes}
    body = {name: value for name, value in changes.items() if value is not None}
    return Call(verb="PATCH", path=_run(run_id), answer=answers.RunDetail, body=body)


def delete_run(run_id: str) -> Call[None]:
    return Call(verb="DELETE", path=_run(run_id), answer=NoneType)


def set_control(
    run_id: str, wanted: Control, *, if_version: int, assistant: str | None = None, **more: object
) -> Call[control_answers.ControlVersion]:
    """`more` is what the request holds beside the control."""
    return Call(
        verb="PUT",
        path=f"{_run(run_id)}/control",
        answer=control_answers.ControlVersion,
        body=wanted.to_document() | more,
        # With the key, a repetition after a lost answer is the same request and not a second
        # change.
        headers={"If-Match": f'"{if_version}"', "Idempotency-Key": uuid.uuid4().hex}
        | ({} if assistant is None else {"Isentrope-Assistant": assistant}),
    )


def preview(run_id: str, wanted: Control, *, curves: bool = False) -> Call[Preview]:
    path = f"{_run(run_id)}/control/preview"
    return Call(
        verb="POST", path=path, answer=Preview, body=wanted.to_document(), query={"curves": curves}
    )


def outlook(run_id: str, wanted: Control | None = None, *, curves: bool = False) -> Call[Outlook]:
    if wanted is None:
        document = None
    else:
        document = wanted.to_document()
    body = {"control": document, "curves": curves}
    return Call(verb="POST", path=f"{_run(run_id)}/outlook", answer=Outlook, body=body)


def acknowledge(run_id: str, alert_id: str) -> Call[answers.Alert]:
    path = f"{_run(run_id)}/alerts/{quote(alert_id, safe='')}/acknowledgement"
    return Call(verb="PUT", path=path, answer=answers.Alert)


def runs(**query: object) -> Call[answers.Page[answers.RunSummary]]:
    return Call(path="runs", answer=answers.Page[answers.RunSummary], query=query)


def run_counts(**query: object) -> Call[answers.RunCounts]:
    return Call(path="run-counts", answer=answers.RunCounts, query=query)


def me() -> Call[answers.Me]:
    return Call(path="me", answer=answers.Me)


def access_tokens() -> Call[answers.Page[answers.AccessToken]]:
    return Call(path="access-tokens", answer=answers.Page[answers.AccessToken])


def create_access_token(scope: str, name: str | None = None) -> Call[answers.CreatedToken]:
    return Call(
        verb="POST",
        path="access-tokens",
        answer=answers.CreatedToken,
        body={"scope": scope, "name": name},
    )


def create_link(run_id: str) -> Call[answers.CreatedToken]:
    """A token that shows a browser this run and no other."""
    return Call(verb="POST", path=f"{_run(run_id)}/link", answer=answers.CreatedToken)


def revoke_access_token(token_id: str) -> Call[None]:
    return Call(verb="DELETE", path=f"access-tokens/{quote(token_id, safe='')}", answer=NoneType)


def destinations() -> Call[answers.Page[answers.Destination]]:
    return Call(path="notify", answer=answers.Page[answers.Destination])


def test_destinations() -> Call[answers.Page[answers.Destination]]:
    return Call(verb="POST", path="notify/test", answer=answers.Page[answers.Destination])


def audit(run_id: str | None = None) -> Call[answers.Page[answers.AuditEntry]]:
    return Call(path="audit", answer=answers.Page[answers.AuditEntry], query={"run": run_id})

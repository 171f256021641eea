"""The REST API as the dashboard uses it, over HTTP, with the browser user's own credentials."""

from __future__ import annotations

import json
import ssl
import uuid
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import httpx
from httpx_sse import ServerSentEvent, aconnect_sse

from isentrope_dashboard.access import Credentials
from isentrope_dashboard.controls import ControlItem, ControlState, ControlValues
from isentrope_dashboard.diagnosis import AlertRow, CountedTokens, TokenRow
from isentrope_dashboard.errors import ApiError, ApiTimeoutError, ApiUnreachableError
from isentrope_dashboard.method_forms import MethodForm
from isentrope_dashboard.predictions import Law, Thresholds, WhatIf
from isentrope_dashboard.records import (
    HistogramColumns,
    LatestValue,
    LiveEvent,
    RecordGap,
    RunSummary,
    SeriesColumns,
    StepRow,
)
from isentrope_wire.metrics import VOCAB_CENTERED_SCORES
from isentrope_wire.numbers import measured, seconds_since_epoch

CHART_POINTS = 2000
RECENT_STEPS = 240
HISTOGRAM_POINTS = 160
SCORE_HISTOGRAM = VOCAB_CENTERED_SCORES

# A server on a busy machine takes its time, above all when a page asks for everything at once.
_TIMEOUT = httpx.Timeout(30.0, connect=10.0)

# A live stream is quiet between steps, but the server sends a comment every few seconds.
_LIVE_TIMEOUT = httpx.Timeout(10.0, read=90.0)


class ApiSource:
    """Where the REST API is. Opens one client per piece of work, so that nothing outlives it."""

    def __init__(self, api_url: str) -> None:
        self._base_url = api_url.rstrip("/") + "/api/v1"
        # Reading the certificate store takes tens of milliseconds: once, not per client.
        self._verify: ssl.SSLContext | bool = ssl.create_default_context() if api_url.startswith("https:") else False

    @asynccontextmanager
    async def open(self, credentials: Credentials) -> AsyncIterator[ApiClient]:
        """A client that acts for one user."""
        async with httpx.AsyncClient(
            base_url=self._base_url,
            # It is this very process that answers: compressing would cost it twice and save nothing.
            headers={**credentials.headers(), "Accept-Encoding": "identity"},
            timeout=_TIMEOUT,
            verify=self._verify,
            trust_env=False,
        ) as http:
            yield ApiClient(http)


class ApiClient:
    """One user's view of the REST API.

    Every method raises:
        ApiError: the server answered with its error body.
        ApiUnreachableError: no answer came.
    """

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def runs(self, limit: int = 200) -> list[RunSummary]:
        """The newest runs."""
        body = (await self._request("GET", "/runs", params={"limit": limit})).json()
        return [RunSummary.from_json(item) for item in body["items"]]

    async def run(self, run_id: str) -> RunSummary:
        return RunSummary.from_json((await self._request("GET", _run_path(run_id))).json())

    async def series(
        self, run_id: str, names: Iterable[str], *, from_step: int | None = None, points: int = CHART_POINTS
    ) -> dict[str, SeriesColumns]:
        """Metrics over steps, reduced by the server to at most `points` each. A metric never reported is absent."""
        params: list[tuple[str, str | int]] = [("name", name) for name in names]
        params.append(("points", points))
        if from_step is not None:
            params.append(("from_step", from_step))
        body = (await self._request("GET", f"{_run_path(run_id)}/metrics/series", params=params)).json()
        return {name: SeriesColumns.from_json(columns) for name, columns in body["series"].items()}

    async def histograms(
        self, run_id: str, name: str, *, from_step: int | None = None, points: int = HISTOGRAM_POINTS
    ) -> HistogramColumns:
        """One histogram over steps; no columns when it was never reported."""
        params: dict[str, str | int] = {"points": points}
        if from_step is not None:
            params["from_step"] = from_step
        try:
            answer = await self._request("GET", f"{_run_path(run_id)}/histograms/{quote(name)}", params=params)
        except ApiError as error:
            if error.status == 404:
                return HistogramColumns()
            raise
        return HistogramColumns.from_json(answer.json())

    async def what_if(self, run_id: str, asked: Thresholds) -> WhatIf:
        """The newest step under these thresholds, with the curves of both sides."""
        params: dict[str, str | float] = {
            "method": asked.method,
            "scope": asked.scope,
            "denominator": asked.denominator,
            "curve": "true",
        }
        bounds = {"mu_low": asked.mu_low, "mu_high": asked.mu_high, "max_fraction": asked.max_fraction}
        params |= {name: value for name, value in bounds.items() if value is not None}
        return WhatIf.from_json((await self._request("GET", f"{_run_path(run_id)}/what-if", params=params)).json())

    async def law(self, run_id: str) -> Law:
        return Law.from_json((await self._request("GET", f"{_run_path(run_id)}/law")).json())

    async def tokens(self, run_id: str) -> CountedTokens:
        """The newest tokens that counted most; none from a server that does not tell."""
        try:
            named = (await self._request("GET", f"{_run_path(run_id)}/tokens")).json()
        except ApiError as error:
            if error.status == 404:
                return CountedTokens()
            raise
        return CountedTokens(step=named.get("step"), rows=[TokenRow.from_json(item) for item in named["items"]])

    async def alerts(self, run_id: str, limit: int = 5) -> list[AlertRow]:
        """The newest alerts, newest first; none from a server that does not tell."""
        try:
            answer = await self._request("GET", f"{_run_path(run_id)}/alerts", params={"limit": limit})
        except ApiError as error:
            if error.status == 404:
                return []
            raise
        return [AlertRow.from_json(item) for item in answer.json()["items"]]

    async def control(self, run_id: str) -> ControlState:
        answer = await self._request("GET", f"{_run_path(run_id)}/control")
        return ControlState.from_json(answer.json(), answer.headers.get("etag", ""))

    async def history(self, run_id: str, limit: int = 100) -> list[ControlItem]:
        """The newest control versions, newest first."""
        answer = await self._request("GET", f"{_run_path(run_id)}/control/history", params={"limit": limit})
        return [ControlItem.from_json(item) for item in answer.json()["items"]]

    async def methods(self) -> list[MethodForm]:
        """The methods a control can name; none from a server that does not tell."""
        try:
            answer = await self._request("GET", "/methods")
        except ApiError as error:
            if error.status == 404:
                return []
            raise
        return [MethodForm.from_json(item) for item in answer.json()["items"]]

    async def labels(self, run_id: str, step: int | None) -> dict[str, str]:
        """What the report of a step says in words, by name; empty where it says nothing."""
        if step is None:
            return {}
        try:
            answer = await self._request("GET", f"{_run_path(run_id)}/steps/{step}")
        except ApiError as error:
            if error.status == 404:
                return {}
            raise
        return {str(name): str(text) for name, text in (answer.json().get("labels") or {}).items()}

    async def latest(self, run_id: str) -> dict[str, LatestValue]:
        """Every metric of the run with its newest value, by name."""
        items = (await self._request("GET", f"{_run_path(run_id)}/metrics")).json()["items"]
        return {str(i["name"]): LatestValue(step=int(i["step"]), value=measured(i["value"])) for i in items}

    async def gaps(self, run_id: str, limit: int = 20) -> list[RecordGap]:
        """What was lost before it reached the server, newest first; none from a server that does not tell."""
        try:
            answer = await self._request("GET", f"{_run_path(run_id)}/gaps", params={"limit": limit})
        except ApiError as error:
            if error.status == 404:
                return []
            raise
        return [RecordGap.from_json(item) for item in answer.json()["items"]]

    async def push_control(self, run_id: str, values: ControlValues, reason: str, etag: str) -> ControlItem:
        """Ask for a new control; refused with status 412 when the control is no longer the one `etag` names."""
        answer = await self._request(
            "PUT",
            f"{_run_path(run_id)}/control",
            json={**values.to_json(), "reason": reason},
            headers={"If-Match": etag, "Idempotency-Key": str(uuid.uuid4())},
        )
        return ControlItem.from_json(answer.json())

    async def live(self, run_id: str, after: str | None = None) -> AsyncIterator[LiveEvent]:
        """The run's live stream, from `after` (a cursor) or from now. Ends when the server ends it."""
        headers = {} if after is None else {"Last-Event-ID": after}
        path = f"{_run_path(run_id)}/live"
        try:
            async with aconnect_sse(self._http, "GET", path, headers=headers, timeout=_LIVE_TIMEOUT) as stream:
                if stream.response.is_error:
                    await stream.response.aread()
                    raise ApiError.of(stream.response)
                yield LiveEvent(cursor=after or "")
                async for message in stream.aiter_sse():
                    event = _live_event(message)
                    if event is not None:
                        yield event
        except httpx.TransportError as error:
            raise ApiUnreachableError(f"The live stream of run {run_id} broke off: {error!r}.") from error

    async def control_or_none(self, run_id: str) -> ControlState | None:
        """None for a run that never said which control it runs with."""
        try:
            return await self.control(run_id)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def _request(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        try:
            answer = await self._http.request(method, path, **arguments)
        except (httpx.ReadTimeout, httpx.PoolTimeout) as error:
            raise ApiTimeoutError(f"The server did not answer {method} {path} within {_TIMEOUT.read:.0f} s.") from error
        except httpx.TransportError as error:
            raise ApiUnreachableError(
                f"The server did not answer {method} {path}: {error!r}. Is it running?"
            ) from error
        if answer.is_error:
            raise ApiError.of(answer)
        return answer


def _run_path(run_id: str) -> str:
    return f"/runs/{quote(run_id, safe='')}"


def _live_event(message: ServerSentEvent) -> LiveEvent | None:
    """Read one event; None for a kind this page does not show, and for ranks other than the first."""
    if message.event not in ("step", "control", "run") or not message.data:
        return None
    body: Mapping[str, Any] = json.loads(message.data)
    if message.event == "control":
        return LiveEvent(cursor=message.id, control=ControlItem.from_json(body))
    if message.event == "run":
        return LiveEvent(cursor=message.id, run=RunSummary.from_json(body))
    if body.get("rank", 0) not in (0, None):
        return None
    values = ((name, measured(value)) for name, value in body.get("scalars", {}).items())
    scalars = {name: value for name, value in values if value is not None}
    return LiveEvent(
        cursor=message.id,
        step=StepRow(step=int(body["step"]), scalars=scalars, recorded_at=seconds_since_epoch(body.get("recorded_at"))),
    )

"""The REST client: what a run reported, as plain columns, and its control.

client = isentrope.Client("http://127.0.0.1:7070", token)
pandas.DataFrame(client.metrics("countdown-1a2b3c", ["entropy/mean", "reward/mean"]))
client.set_control("countdown-1a2b3c", method="clip_v", mu_low=1, mu_high=1, reason="collapse", wait=True)
"""

from __future__ import annotations

import math
import os
import re
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self
from urllib.parse import quote

import httpx

from isentrope.errors import ConfigurationError
from isentrope.trusted_servers import Credentials, advice_on
from isentrope_wire import environment
from isentrope_wire.control import Control
from isentrope_wire.errors import IsentropeError

Json = dict[str, Any]
Columns = dict[str, list[Any]]

TERMINAL_STATES = frozenset({"APPLIED", "PARTIAL", "REJECTED", "EXPIRED", "SUPERSEDED"})
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_TOKEN_NUMBERS = ("logprob", "entropy", "vocab_centered_score", "advantage", "contribution")
_WHAT_IF_NUMBERS = (
    "unit_predicted_change",
    "unit_predicted_change_bound",
    "unclipped_unit_predicted_change",
    "predicted_change",
    "gain",
)
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+")
_POLL_SECONDS = 0.2
_PAGE_ITEMS = 500


class ServerUnreachable(IsentropeError, ConnectionError):
    """No answer, or none in time."""


class NotAllowed(IsentropeError, PermissionError):
    """The token is missing, wrong, or of a scope that doesn't allow this."""


class NotFound(IsentropeError, KeyError):
    """The server has no such run or step."""

    def __str__(self) -> str:
        # KeyError would show the sentence in quotation marks.
        return str(self.args[0])


class RequestRefused(IsentropeError, ValueError):
    """The server understood and says no: a control that can't be applied, a parameter out of range."""


class ControlConflict(RequestRefused):
    """Somebody else changed the control since it was last read."""


class ServerFailed(IsentropeError, RuntimeError):
    """The server answered with a failure of its own, or with something that is no Isentrope server's answer."""


class ControlTimeout(IsentropeError, TimeoutError):
    """A control version had reached no terminal state in the time given."""


class Client:
    """Reads runs and changes their control. Usable as a context manager; methods are thread-safe."""

    def __init__(self, url: str | None = None, token: str | None = None, *, timeout_seconds: float = 10.0) -> None:
        """
        Args:
            url: the server's address; None: ISENTROPE_URL.
            token: None: ISENTROPE_TOKEN, or the owner's token of a server with the same home.

        Raises:
            ConfigurationError: no server could have given out such a token, or a certificate file can't be used.
        """
        token = token or environment.token()
        if token and not _TOKEN.fullmatch(token):
            raise ConfigurationError(
                "A token consists of letters, digits and the signs . _ ~ + / = - alone, and this one has others. "
                "Check ISENTROPE_TOKEN, or the file owner-token in ISENTROPE_HOME."
            )
        self.url = (url or environment.url()).rstrip("/")
        self._http = httpx.Client(
            base_url=f"{self.url}/api/v1/",
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout=timeout_seconds,
            verify=Credentials.from_environment().ssl_context() if self.url.startswith("https://") else True,
            # The environment names proxies.
            trust_env=not environment.is_on_this_machine(self.url),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the connections back."""
        self._http.close()

    def runs(self, *, project: str | None = None, status: str | None = None, q: str | None = None) -> list[Json]:
        """All runs, newest first, optionally those of a project, a status, or with a text in their names."""
        return list(self._items("runs", {"project": project, "status": status, "q": q}))

    def run(self, run_id: str) -> Json:
        """One run."""
        return self._json("GET", f"runs/{_segment(run_id)}")

    def metric_names(self, run_id: str) -> list[str]:
        """Names of the metrics a run has reported."""
        return [str(item["name"]) for item in self._items(f"runs/{_segment(run_id)}/metrics", {})]

    def metrics(
        self,
        run_id: str,
        names: str | Sequence[str],
        *,
        from_step: int | None = None,
        to_step: int | None = None,
        points: int | None = None,
    ) -> Columns:
        """Metrics over steps, one column each and one named `step`, ready for `pandas.DataFrame`.

        Args:
            points: reduce each series to so many points; `series` keeps their minima and maxima.
        Returns: columns of one length; None where a metric was not measured at a step, NaN where it was NaN.
        """
        series = self.series(run_id, names, from_step=from_step, to_step=to_step, points=points)
        values = {name: dict(zip(one["step"], one["value"], strict=True)) for name, one in series.items()}
        steps = sorted({step for column in values.values() for step in column})
        return {"step": steps} | {name: [column.get(step) for step in steps] for name, column in values.items()}

    def series(
        self,
        run_id: str,
        names: str | Sequence[str],
        *,
        from_step: int | None = None,
        to_step: int | None = None,
        points: int | None = None,
    ) -> dict[str, Columns]:
        """Each metric by itself: columns `step` and `value`, with `min` and `max` of each bucket when reduced."""
        answer = self._json(
            "GET",
            f"runs/{_segment(run_id)}/metrics/series",
            params={
                "name": [names] if isinstance(names, str) else list(names),
                "from_step": from_step,
                "to_step": to_step,
                "points": points,
            },
        )
        return {name: _number_columns(columns) for name, columns in answer["series"].items()}

    def export(
        self,
        run_id: str,
        to: str | os.PathLike[str] | BinaryIO,
        *,
        format: str = "parquet",
        names: str | Sequence[str] | None = None,
    ) -> int:
        """Write all reports of a run to a file, of every rank and incarnation; returns how many bytes that made.

        Columns `step`, `incarnation`, `rank`, `time` (seconds since the Unix epoch) and the metrics by name. What was not
        measured is null (in CSV an empty field), NaN is NaN. However long the run, it is never in memory as a whole.

        Args:
            to: a path, at which a file appears only when it is complete, or an open binary file.
            format: parquet, csv or jsonl.
            names: only these metrics; None: all.
        """
        given = [names] if isinstance(names, str) else names
        params = {"format": format} | ({} if given is None else {"name": list(given)})
        path = f"runs/{_segment(run_id)}/export"
        if not isinstance(to, str | os.PathLike):
            return self._download(path, params, to)
        complete = Path(to)
        partial = complete.with_name(f".{complete.name}.{os.getpid()}.partial")
        try:
            with partial.open("wb") as file:
                count = self._download(path, params, file)
            partial.replace(complete)
        finally:
            partial.unlink(missing_ok=True)
        return count

    def step(self, run_id: str, step: int) -> Json:
        """The whole report of one step."""
        report = self._json("GET", f"runs/{_segment(run_id)}/steps/{step}")
        return report | {"scalars": {name: _number(value) for name, value in report["scalars"].items()}}

    def histograms(
        self,
        run_id: str,
        name: str,
        *,
        from_step: int | None = None,
        to_step: int | None = None,
        points: int | None = None,
    ) -> Columns:
        """One histogram over steps: columns `step`, `low`, `high`, `counts` (a list of 64 each) and `not_finite`."""
        answer = self._json(
            "GET",
            f"runs/{_segment(run_id)}/histograms/{quote(name, safe='/')}",
            params={"from_step": from_step, "to_step": to_step, "points": points},
        )
        return _number_columns({column: values for column, values in answer.items() if column != "name"})

    def what_if(
        self,
        run_id: str,
        *,
        mu_low: float | None = None,
        mu_high: float | None = None,
        scope: str = "all",
        method: str | None = None,
        step: int | None = None,
        curve: bool | None = None,
    ) -> Json:
        """What other thresholds would have done to a step: `clip_fraction`, `unit_predicted_change` and more.

        Args:
            mu_low, mu_high: in standard deviations; None: that side does not clip.
            method: clip_b or clip_v; None: the step's own, else clip_v.
            step: None: the newest that can answer.
            curve: also the columns over all thresholds, under `curve`; None: only when no threshold is given.
        """
        answer = self._json(
            "GET",
            f"runs/{_segment(run_id)}/what-if",
            params={
                "mu_low": mu_low,
                "mu_high": mu_high,
                "scope": scope,
                "method": method,
                "step": step,
                "curve": curve,
            },
        )
        return answer | {name: _number(answer[name]) for name in _WHAT_IF_NUMBERS}

    def tokens(self, run_id: str, *, step: int | None = None) -> list[Json]:
        """The tokens that counted most for the change of entropy in a step, largest first; at most 16.

        Their `text` is whatever a model or a user wrote.

        Args:
            step: None: the newest that names any.
        """
        answer = self._json("GET", f"runs/{_segment(run_id)}/tokens", params={"step": step})
        return [
            item | {name: _number(item[name]) for name in _TOKEN_NUMBERS} | {"step": answer["step"]}
            for item in answer["items"]
        ]

    def alerts(self, run_id: str) -> list[Json]:
        """What a person should know of a run, newest first: `step`, `kind`, `reason`, `evidence`."""
        return list(self._items(f"runs/{_segment(run_id)}/alerts", {}))

    def law(self, run_id: str, *, points: int | None = None) -> Json:
        """R = -a exp(H) + b fitted to a run: `fit` with intervals and ceiling, `forecast`, `curve`, `points`.

        Where the run does not tell, `fit` or `forecast` is None, and `reason` or `forecast_reason` says why.

        Args:
            points: show the run as at most so many means of neighbouring steps.
        """
        return self._json("GET", f"runs/{_segment(run_id)}/law", params={"points": points})

    def control(self, run_id: str) -> Json:
        """The newest control version of a run, its state, and `in_force`: what the newest report was made under."""
        return self._json("GET", f"runs/{_segment(run_id)}/control")

    def control_history(self, run_id: str) -> list[Json]:
        """Every control version ever asked for, newest first."""
        return list(self._items(f"runs/{_segment(run_id)}/control/history", {}))

    def set_control(
        self,
        run_id: str,
        *,
        method: str = "none",
        mu_low: float | None = None,
        mu_high: float | None = None,
        scope: str | None = None,
        parameters: Mapping[str, object] | None = None,
        hold: Mapping[str, object] | None = None,
        reason: str = "",
        expires_in_seconds: int | None = None,
        if_version: int | None = None,
        wait: bool = False,
        wait_seconds: float = 60.0,
    ) -> Json:
        """Ask for a new control.

        Args:
            mu_low: µ⁻ in standard deviations; None: that side does not clip. mu_high likewise.
            scope: on which tokens the method acts; None: all, or what a preset says.
            parameters: the method's own by name, such as `{"ratio": 1e-3}`; those left out keep their defaults.
            expires_in_seconds: a probe that hears of it later does not apply it; None: the server's default.
            if_version: the version this builds on; None: whatever is newest now.
            wait: return only when it has reached a terminal state.

        Returns: the new version as its history item.

        Raises:
            ControlError: a value no control can have; nothing was sent.
            ControlConflict: somebody else changed it meanwhile; read it again and decide anew.
            ControlTimeout: `wait` was over before a terminal state; the version still stands.
        """
        control = Control.from_document(
            {
                "method": method,
                "mu_low": mu_low,
                "mu_high": mu_high,
                "scope": scope,
                "parameters": parameters or {},
                "hold": hold,
                "reason": reason,
            }
        )
        version = self.control(run_id)["version"] if if_version is None else if_version
        item = self._json(
            "PUT",
            f"runs/{_segment(run_id)}/control",
            json=control.to_document() | {"expires_in_seconds": expires_in_seconds},
            # The key lets the one repetition after a lost answer be the same request, not a second change.
            headers={"If-Match": f'"{version}"', "Idempotency-Key": uuid.uuid4().hex},
        )
        return self.wait_for_control(run_id, item["version"], timeout_seconds=wait_seconds) if wait else item

    def wait_for_control(self, run_id: str, version: int, *, timeout_seconds: float = 60.0) -> Json:
        """Wait until a control version has reached a terminal state.

        Raises:
            ControlTimeout: it had not in the time given.
        """
        end = time.monotonic() + timeout_seconds
        while True:
            item = self._control_version(run_id, version)
            if item["state"] in TERMINAL_STATES:
                return item
            if time.monotonic() >= end:
                raise ControlTimeout(
                    f"Control version {version} of run {run_id} is still {item['state']} after {timeout_seconds:g} s. "
                    "It stands, and is applied if the trainer reaches a step boundary before it expires."
                )
            time.sleep(_POLL_SECONDS)

    def _control_version(self, run_id: str, version: int) -> Json:
        for item in self._items(f"runs/{_segment(run_id)}/control/history", {}):
            if item["version"] == version:
                return item
        raise NotFound(f"Run {run_id} has no control version {version}.")

    def _items(self, path: str, params: Mapping[str, object]) -> Iterable[Json]:
        cursor: str | None = None
        while True:
            page = self._json("GET", path, params={**params, "cursor": cursor, "limit": _PAGE_ITEMS})
            yield from page["items"]
            cursor = page.get("next_cursor")
            if cursor is None:
                return

    def _download(self, path: str, params: Mapping[str, Any], file: BinaryIO) -> int:
        count = 0
        with self._answering(), self._http.stream("GET", path, params=params) as response:
            if not response.is_success:
                response.read()
                _checked(response, self.url)
            for data in response.iter_bytes():
                count += file.write(data)
        return count

    def _json(
        self,
        verb: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        json: object | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Json:
        given = {name: value for name, value in (params or {}).items() if value is not None}
        with self._answering():
            response = self._send(verb, path, params=given, json=json, headers=headers)
        return _checked(response, self.url)

    @contextmanager
    def _answering(self) -> Iterator[None]:
        """
        Raises:
            ServerUnreachable: whatever went wrong on the way to the server or back.
        """
        try:
            yield
        except httpx.HTTPError as error:
            advice = advice_on(str(error)) or "Start it with `isentrope up`, or point ISENTROPE_URL at it."
            raise ServerUnreachable(
                f"The server at {self.url} gives no answer ({error or type(error).__name__}). {advice}"
            ) from error
        except httpx.InvalidURL as error:
            raise ServerUnreachable(f"{self.url} is no address of a server ({error}).") from error

    def _send(self, verb: str, path: str, **request: Any) -> httpx.Response:
        try:
            return self._http.request(verb, path, **request)
        except httpx.RemoteProtocolError:
            # A connection kept open across the server's restart: the first use finds it closed.
            return self._http.request(verb, path, **request)


def _checked(response: httpx.Response, url: str) -> Json:
    try:
        body = response.json()
    except ValueError:
        body = None
    if response.is_success and isinstance(body, dict):
        return body
    message = _error_message(body)
    match response.status_code:
        case 401 | 403:
            raise NotAllowed(f"The server at {url} refuses the token: {message or 'no reason given'}")
        case 404 if message:
            raise NotFound(message)
        case 412:
            raise ControlConflict(message or "Somebody else changed the control; read it again.")
        case status if 400 <= status < 500 and message:
            raise RequestRefused(message)
    raise ServerFailed(
        f"The server at {url} answered {response.status_code}: {message or 'not an answer of an Isentrope server'}"
    )


def _error_message(body: object) -> str | None:
    match body:
        case {"error": {"message": str(message)}}:
            return message
        case _:
            return None


def _number_columns(columns: Mapping[str, Any]) -> Columns:
    return {name: [_number(value) for value in values] for name, values in columns.items() if values is not None}


def _number(value: Any) -> Any:
    """NaN and infinities travel as words, JSON having none."""
    return _NOT_FINITE.get(value, value) if isinstance(value, str) else value


def _segment(identifier: str) -> str:
    return quote(identifier, safe="")

"""The REST client: what a run reported, as plain columns, and its control.

client = isentrope.Client("http://127.0.0.1:7070", token)
pandas.DataFrame(client.metrics("countdown-1a2b3c", ["entropy/mean", "reward/mean"]))
client.set_control("countdown-1a2b3c", method="clip_v", mu_low=1, mu_high=1, reason="collapse", wait=True)

What owners do: write on runs and delete them, make and revoke tokens, look at the audit trail.

Server-sent events, as a run's live stream sends them.
"""

from __future__ import annotations

import json
import math
import os
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

from isentrope.client.connection import (
    ControlConflict,
    Json,
    NotAllowed,
    NotFound,
    RequestRefused,
    RestConnection,
    ServerFailed,
    ServerUnreachable,
    segment,
)
from isentrope_wire.control import Control
from isentrope_wire.errors import IsentropeError


class Administration(RestConnection):
    """The part of the client that changes more than a control."""

    def edit_run(self, run_id: str, *, tags: Sequence[str] | None = None, notes: str | None = None) -> Json:
        """Write tags or notes on a run; None leaves them as they are. Returns the run."""
        changes = {"tags": None if tags is None else list(tags), "notes": notes}
        return self._json(
            "PATCH",
            f"runs/{segment(run_id)}",
            json={name: value for name, value in changes.items() if value is not None},
        )

    def delete_run(self, run_id: str) -> None:
        """Delete a run with all it reported.

        Raises:
            RequestRefused: it is still reporting.
        """
        self._done("DELETE", f"runs/{segment(run_id)}")

    def access_tokens(self) -> list[Json]:
        """Every token, revoked ones too, without its secret."""
        return self._all("access-tokens")

    def create_access_token(
        self, scope: str, *, name: str | None = None, run: str | None = None, project: str | None = None
    ) -> Json:
        """Make a token; its secret is under `token` in this answer and nowhere else.

        Args:
            scope: read, ingest, control or admin.
            name: stands as the author beside changes made with it; None: the scope.
            run: only with ingest: the one run it reports, by id or name.
            project: only with ingest: the project whose runs it reports.
        """
        wanted = {"scope": scope, "name": name, "run": run, "project": project}
        return self._json("POST", "access-tokens", json=wanted)

    def revoke_access_token(self, token_id: str) -> None:
        """From now on it opens nothing, and what it has open is closed."""
        self._done("DELETE", f"access-tokens/{segment(token_id)}")

    def audit(self, *, limit: int | None = None) -> list[Json]:
        """Every change of controls, runs and tokens, newest first; with a limit the newest so many."""
        return list(self._items("audit", {}, limit))

    def verify_audit(self, *, head: str | None = None) -> Json:
        """Whether the audit trail is whole (`is_whole`), and the hash of its newest entry (`head`).

        Args:
            head: the hash of an earlier verification, kept elsewhere: does it still stand?
        """
        return self._json("GET", "audit/verification", params={"head": head})


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveEvent:
    """One event of a run."""

    kind: str
    """step, control or run."""
    id: str
    """Where to go on after it."""
    data: dict[str, Any]


def events_in(lines: Iterable[str]) -> Iterator[LiveEvent]:
    """The events in a stream's lines; comments, which keep the connection alive, are passed over."""
    fields: dict[str, str] = {}
    for line in lines:
        if not line:
            if "data" in fields:
                yield LiveEvent(
                    kind=fields.get("event", "message"), id=fields.get("id", ""), data=json.loads(fields["data"])
                )
            fields = {}
            continue
        name, _, value = line.partition(":")
        if name:
            # Data of several lines is one text.
            value = value.removeprefix(" ")
            fields[name] = f"{fields[name]}\n{value}" if name == "data" and name in fields else value


__all__ = [
    "Client",
    "Columns",
    "ControlConflict",
    "ControlTimeout",
    "Json",
    "LiveEvent",
    "NotAllowed",
    "NotFound",
    "RequestRefused",
    "ServerFailed",
    "ServerUnreachable",
]

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
_POLL_SECONDS = 0.2


class ControlTimeout(IsentropeError, TimeoutError):
    """A control version had reached no terminal state in the time given."""


class Client(Administration):
    """Reads runs and changes their control. Usable as a context manager; methods are thread-safe."""

    def runs(
        self,
        *,
        project: str | None = None,
        status: str | None = None,
        q: str | None = None,
        limit: int | None = None,
    ) -> list[Json]:
        """Runs, newest first, optionally those of a project, a status, or with a text in their names.

        Args:
            limit: only the newest so many; None: all.
        """
        return list(self._items("runs", {"project": project, "status": status, "q": q}, limit))

    def run(self, run_id: str) -> Json:
        """One run."""
        return self._json("GET", f"runs/{segment(run_id)}")

    def metric_names(self, run_id: str) -> list[str]:
        """Names of the metrics a run has reported."""
        return [str(item["name"]) for item in self._all(f"runs/{segment(run_id)}/metrics")]

    def latest(self, run_id: str) -> list[Json]:
        """Every metric a run has reported, by `name`, with its newest `value` and the `step` it is of."""
        items = self._all(f"runs/{segment(run_id)}/metrics")
        return [item | {"value": _number(item["value"])} for item in items]

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
            f"runs/{segment(run_id)}/metrics/series",
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
        labels: bool = False,
    ) -> int:
        """Write all reports of a run to a file, of every rank and incarnation; returns how many bytes that made.

        Columns `step`, `incarnation`, `rank`, `time` (seconds since the Unix epoch) and the metrics by name. What was not
        measured is null (in CSV an empty field), NaN is NaN. However long the run, it is never in memory as a whole.

        Args:
            to: a path, at which a file appears only when it is complete, or an open binary file.
            format: parquet, csv or jsonl.
            names: only these metrics; None: all.
            labels: also columns `control_version` and `labels`, a JSON object such as {"control/method": "clip_v"}.
        """
        given = [names] if isinstance(names, str) else names
        params = {"format": format, "labels": labels} | ({} if given is None else {"name": list(given)})
        path = f"runs/{segment(run_id)}/export"
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

    def series_since(
        self,
        run_id: str,
        names: str | Sequence[str],
        since: str | None = None,
        *,
        from_step: int | None = None,
        to_step: int | None = None,
        points: int | None = None,
    ) -> tuple[dict[str, Columns], str, bool]:
        """What is new: each metric's columns, a cursor for the next call, and whether these are all points.

        Args:
            since: the cursor of the call before; None: everything.
            points: reduce what is new of each series to so many points, as `series` does.
        Returns: columns, cursor, reset. Where `reset` is True these replace what was read before: a resumed run has
            begun to speak for steps that were known.
        """
        answer = self._json(
            "GET",
            f"runs/{segment(run_id)}/metrics/series",
            params={
                "name": [names] if isinstance(names, str) else list(names),
                "since": since,
                "from_step": from_step,
                "to_step": to_step,
                "points": points,
            },
        )
        columns = {name: _number_columns(one) for name, one in answer["series"].items()}
        return columns, str(answer["cursor"]), bool(answer["reset"])

    def live(self, run_id: str, *, since: str | None = None) -> Iterator[LiveEvent]:
        """A run's events as they are committed, until the run is deleted or the server stops.

        Args:
            since: an event's id, or the cursor of `series_since`: begin right after it. None: with what comes next.

        Raises:
            ServerUnreachable: the connection is lost; go on with the id of the last event.
        """
        with self._stream(f"runs/{segment(run_id)}/live", {"since": since}) as lines:
            yield from events_in(lines)

    def step(self, run_id: str, step: int) -> Json:
        """The whole report of one step."""
        report = self._json("GET", f"runs/{segment(run_id)}/steps/{step}")
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
            f"runs/{segment(run_id)}/histograms/{quote(name, safe='/')}",
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
        max_fraction: float | None = None,
        denominator: str = "keep",
        curve: bool | None = None,
    ) -> Json:
        """What other thresholds would have done to a step: `clip_fraction`, `unit_predicted_change` and more.

        Args:
            mu_low, mu_high: in standard deviations; None: that side does not clip.
            method: clip_b or clip_v; None: the step's own, else clip_v.
            step: None: the newest that can answer.
            max_fraction: at most this share of the tokens is clipped, those furthest beyond their threshold.
            denominator: keep, or shrink: the mean is over the tokens that are kept, not over all.
            curve: also the columns over all thresholds, under `curve`; None: only when no threshold is given.
        """
        answer = self._json(
            "GET",
            f"runs/{segment(run_id)}/what-if",
            params={
                "mu_low": mu_low,
                "mu_high": mu_high,
                "scope": scope,
                "method": method,
                "step": step,
                "max_fraction": max_fraction,
                "denominator": denominator,
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
        answer = self._json("GET", f"runs/{segment(run_id)}/tokens", params={"step": step})
        return [
            item | {name: _number(item[name]) for name in _TOKEN_NUMBERS} | {"step": answer["step"]}
            for item in answer["items"]
        ]

    def gaps(self, run_id: str, *, limit: int | None = None) -> list[Json]:
        """What a run's record lacks, newest first: `rank`, `first_seq`, `last_seq`, `reason`."""
        return list(self._items(f"runs/{segment(run_id)}/gaps", {}, limit))

    def methods(self) -> list[Json]:
        """Every method a control can name, with its parameters, their bounds and defaults."""
        return self._all("methods")

    def alerts(self, run_id: str, *, limit: int | None = None) -> list[Json]:
        """What a person should know of a run, newest first: `step`, `kind`, `reason`, `evidence`."""
        return list(self._items(f"runs/{segment(run_id)}/alerts", {}, limit))

    def law(self, run_id: str, *, points: int | None = None) -> Json:
        """R = -a exp(H) + b fitted to a run: `fit` with intervals and ceiling, `forecast`, `curve`, `points`.

        Where the run does not tell, `fit` or `forecast` is None, and `reason` or `forecast_reason` says why.

        Args:
            points: show the run as at most so many means of neighbouring steps.
        """
        return self._json("GET", f"runs/{segment(run_id)}/law", params={"points": points})

    def control(self, run_id: str) -> Json:
        """The newest control version of a run, its state, and `in_force`: what the newest report was made under."""
        return self._json("GET", f"runs/{segment(run_id)}/control")

    def control_history(self, run_id: str, *, limit: int | None = None) -> list[Json]:
        """Every control version ever asked for, newest first; with a limit the newest so many."""
        return list(self._items(f"runs/{segment(run_id)}/control/history", {}, limit))

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
            ConfigurationError: a value no control can have; nothing was sent.
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
            f"runs/{segment(run_id)}/control",
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
        for item in self._items(f"runs/{segment(run_id)}/control/history", {}):
            if item["version"] == version:
                return item
        raise NotFound(f"Run {run_id} has no control version {version}.")


def _number_columns(columns: Mapping[str, Any]) -> Columns:
    return {name: [_number(value) for value in values] for name, values in columns.items() if values is not None}


def _number(value: Any) -> Any:
    """NaN and infinities travel as words, JSON having none."""
    return _NOT_FINITE.get(value, value) if isinstance(value, str) else value

"""The REST client: what a run reported, as dataclasses and plain columns, and its control.

client = isentrope.Client("http://127.0.0.1:7070", token)
pandas.DataFrame(client.metrics("countdown-1a2b3c", ["entropy/mean", "reward/mean"]))
client.set_control("countdown-1a2b3c", method="clip_v", mu_low=1, mu_high=1, reason="collapse",
wait=True)"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

from isentrope.client import calls
from isentrope.client.calls import Call, Names
from isentrope.client.connection import ApiError, Connection
from isentrope.client.inline import RunView
from isentrope.client.joined_export import join
from isentrope_wire import answers
from isentrope_wire.control import Control, begun_at
from isentrope_wire.control_answers import ControlVersion, EntropyPerformance, RunControl
from isentrope_wire.diagnosis.check_states import CheckState
from isentrope_wire.diagnosis.health import Diagnosis, Preview
from isentrope_wire.metrics import ENTROPY_MEAN, HOLD_TARGET, REWARD_MEAN

Columns = dict[str, list[Any]]

_NAMES_AT_ONCE = 100
"""The server takes no more in one request."""
_POLL_SECONDS = 0.2
_SHOWN, _SHOWN_POINTS = (ENTROPY_MEAN, REWARD_MEAN, HOLD_TARGET), 500


class Client(Connection):
    """Reads runs and changes their control. Usable as a context manager; methods are thread-safe.

    For what has no method here, `isentrope.client.calls` has the call of every route:
    `client.ask(calls.tokens(run_id))` gives its answer, `client.items(calls.alerts(run_id))` the
    items of a list, page by page.

    Every method raises `ApiError` where the server gives no answer or refuses.
    """

    def runs(
        self,
        *,
        project: Names = None,
        status: Names = None,
        tag: Names = None,
        level: Names = None,
        q: str | None = None,
        order: str = "newest",
        sort: str | None = None,
        metric: Names = None,
        limit: int | None = None,
    ) -> list[answers.RunSummary]:
        """Runs, newest first, or those that need attention, or by a column.

        Args:
            project: Only runs of this project, or of one of several; so with the next three.
            status: running, finished, failed, ended or silent.
            tag: A tag that the run has.
            level: act, watch, holding, healthy or no_data; of running ones.
            q: Only runs with this text in id, name, project, a tag or the error.
            order: newest, or attention: running ones by level, then silent ones, then ended ones.
            sort: In the place of `order` by a column, `-` before it for the largest first: name,
                entropy, `config.lr`, `metric.kl/mean` ... Runs without a value come last.
            metric: Metrics whose newest values the digests are to have.
            limit: Only the first ones, at most this many; None: all.
        """
        query = {"project": project, "status": status, "tag": tag, "level": level, "q": q}
        call = calls.runs(**query, order=order, sort=sort, metric=metric)
        return list(self.items(call, limit))

    def run(self, run_id: str) -> answers.RunDetail:
        """One run."""
        return self.ask(calls.run(run_id))

    def diagnosis(self, run_id: str) -> Diagnosis:
        """How a run is doing now: its level, one sentence, the cause, and the control that would
        stop a collapse."""
        return self.ask(calls.diagnosis(run_id))

    def checks(self, run_id: str) -> list[CheckState]:
        """Every check of why a run does not learn: what it found, or what would give it data."""
        return self.ask(calls.checks(run_id)).items

    def top_tokens(self, run_id: str, *, steps: int = 10) -> answers.RecurringTokens:
        """The tokens that contribute most to the entropy change of the newest `steps` steps (1 to
        100), by their text. Contributions are in nats per unit gain: u S_c, summed."""
        return self.ask(calls.recurring_tokens(run_id, steps=steps))

    def show(self, run_id: str) -> RunView:
        """The run as a picture, for the last line of a notebook's cell: health line and chart."""
        run, columns = self.run(run_id), self.metrics(run_id, _SHOWN, points=_SHOWN_POINTS)
        entropies, rewards, targets = (
            {
                step: value
                for step, value in zip(columns["step"], columns.get(name, ()), strict=False)
                if value is not None
            }
            for name in _SHOWN
        )
        history = self.control_history(run_id)
        return RunView(
            title=f"{run.name}  {run.id}",
            diagnosis=self.diagnosis(run_id),
            entropies=entropies,
            rewards=rewards,
            targets=targets,
            applied_steps=[item.applied_step for item in history if item.applied_step is not None],
            page=f"{self.url}/runs/{run.id}",
        )

    def metric_names(self, run_id: str) -> list[str]:
        """Names of the metrics that a run has reported."""
        return [metric.name for metric in self.latest(run_id)]

    def latest(self, run_id: str) -> list[answers.LatestMetric]:
        """Every metric that a run has reported, with its newest value and the step of that
        value."""
        return self.ask(calls.latest(run_id)).items

    def metrics(
        self,
        run_id: str,
        names: Names = None,
        *,
        from_step: int | None = None,
        to_step: int | None = None,
        points: int | None = None,
    ) -> Columns:
        """Metrics over steps, one column each and one named `step`, ready for `pandas.DataFrame`.

        Args:
            names: One name or several; None: every metric of the run.
            from_step: The first step.
            to_step: The last step.
            points: Reduce each series to at most this many points, each the last value of its
                bucket; `series` also gives minimum, maximum and mean.

        Returns:
            Columns of one length; None where a metric was not measured at a step, NaN where it was
            NaN.
        """
        if names is None:
            names = self.metric_names(run_id)
        if isinstance(names, str):
            names = [names]
        series: dict[str, answers.SeriesColumns] = {}
        for first in range(0, len(names), _NAMES_AT_ONCE):
            few = names[first : first + _NAMES_AT_ONCE]
            series |= self.series(
                run_id, few, from_step=from_step, to_step=to_step, points=points
            ).series
        values = {name: dict(zip(one.step, one.value, strict=True)) for name, one in series.items()}
        steps = sorted({step for column in values.values() for step in column})
        return {"step": steps} | {
            name: [column.get(step) for step in steps] for name, column in values.items()
        }

    def series(
        self,
        run_id: str,
        names: str | Sequence[str],
        *,
        since: str | None = None,
        from_step: int | None = None,
        to_step: int | None = None,
        points: int | None = None,
    ) -> answers.SeriesAnswer:
        """Each metric by itself, as columns.

        Args:
            names: One name or several.
            since: The cursor of an earlier answer: only what is new. Where `reset` is true all
                points came all the same, because a resumed run reports steps again.
            from_step: The first step.
            to_step: The last step.
            points: Reduce each series to at most this many points;
                `isentrope_wire.answers.REDUCED_SERIES` says what their columns hold.
        """
        return self.ask(
            calls.series(
                run_id, names, since=since, from_step=from_step, to_step=to_step, points=points
            )
        )

    def export(
        self,
        run_id: str | Sequence[str],
        to: str | os.PathLike[str] | BinaryIO,
        *,
        format: str = "parquet",
        names: str | Sequence[str] | None = None,
        labels: bool = False,
    ) -> int:
        """Write all reports of a run to a file, of every rank and incarnation; of several runs
        with a column `run` before the others.

        Columns `step`, `incarnation`, `rank`, `time` (seconds since the Unix epoch) and the metrics
        by name. What was not measured is null (in CSV an empty field), NaN is NaN. The file is
        written as it arrives, however long the run.

        Args:
            to: A path, at which a file appears only when it is complete, or an open binary file. A
                pipe or a device is written to.
            format: parquet, csv or jsonl.
            names: Only these metrics; None: all.
            labels: Also columns `control_version` and `labels`, a JSON object such as
                {"control/method": "clip_v"}.

        Returns:
            The number of bytes written.
        """
        call = partial(calls.export, format=format, name=names, labels=labels)
        if isinstance(run_id, str):
            fetch = partial(self._download, call(run_id))
        else:
            fetch = partial(self._download_joined, {run: call(run) for run in run_id}, format)
        if not isinstance(to, str | os.PathLike):
            return fetch(to)
        complete = Path(to)
        if complete.exists() and not complete.is_file():
            # A file that is renamed to it would take its place.
            with complete.open("wb") as file:
                return fetch(file)
        partial_file = complete.with_name(f".{complete.name}.{os.getpid()}.partial")
        try:
            with partial_file.open("wb") as file:
                count = fetch(file)
            partial_file.replace(complete)
        finally:
            partial_file.unlink(missing_ok=True)
        return count

    def _download(self, call: Call[bytes], file: BinaryIO) -> int:
        with self._stream(call) as response:
            return sum(file.write(data) for data in response.iter_bytes())

    def _download_joined(
        self, exports: Mapping[str, Call[bytes]], file_format: str, file: BinaryIO
    ) -> int:
        with TemporaryDirectory() as folder:
            files = {run: Path(folder) / str(place) for place, run in enumerate(exports)}
            for run, path in files.items():
                with path.open("wb") as part:
                    self._download(exports[run], part)
            joined = Path(folder) / "joined"
            with joined.open("wb") as whole:
                join(files, whole, file_format)
            with joined.open("rb") as whole:
                shutil.copyfileobj(whole, file)
            return joined.stat().st_size

    def step(self, run_id: str, step: int) -> answers.StepReport:
        """The whole report of one step."""
        return self.ask(calls.step(run_id, step))

    def delete(self, run_id: str) -> None:
        """Delete a run with all its reports; the token needs the scope admin. A run that still
        reports is refused."""
        self.ask(calls.delete_run(run_id))

    def gaps(self, run_id: str, *, limit: int | None = None) -> list[answers.Gap]:
        """Records of a run that were lost, newest first."""
        return list(self.items(calls.gaps(run_id), limit))

    def acknowledge(self, run_id: str, alert_id: str) -> answers.Alert:
        """Acknowledge an alert; returns it with the name and time of the first who did."""
        return self.ask(calls.acknowledge(run_id, alert_id))

    def law(
        self, run_id: str, *, points: int | None = None, reward: str | None = None
    ) -> EntropyPerformance:
        """R = -a exp(H) + b fitted to a run, with intervals, ceiling and forecast, or the reason
        why there is none.

        Args:
            run_id: the run.
            points: Show the run as at most this many means of neighbouring steps.
            reward: metric to fit; None: an evaluation's reward where the run has one, else
                `reward/mean`.
        """
        return self.ask(calls.law(run_id, points=points, reward=reward))

    def control(self, run_id: str) -> RunControl:
        """The newest control version of a run, and in `active` the one active when the newest
        report was made."""
        return self.ask(calls.control(run_id))

    def control_history(self, run_id: str, *, limit: int | None = None) -> list[ControlVersion]:
        """Every requested control version, newest first; with a limit at most this many."""
        return list(self.items(calls.control_history(run_id), limit))

    def preview(self, run_id: str, control: Control) -> Preview:
        """What a control would do if it were pushed now; changes nothing."""
        return self.ask(calls.preview(run_id, control))

    def control_from(self, run_id: str, document: Mapping[str, object]) -> Control:
        """The control that a document means if it is pushed now: an anneal that names no start
        begins at the run's next step. ConfigurationError: no control can have these values."""
        wanted = Control.from_document(document)
        if begun_at(document, 0) == document:
            return wanted
        return Control.from_document(begun_at(document, (self.run(run_id).step or 0) + 1))

    def set_control(
        self,
        run_id: str,
        *,
        method: str = "none",
        mu_low: float | None = None,
        mu_high: float | None = None,
        scope: str | None = None,
        parameters: Mapping[str, object] | None = None,
        hold: Mapping[str, object] | float | str | None = None,
        reason: str = "",
        guard: str | None = None,
        expires_in_seconds: int | None = None,
        if_version: int | None = None,
        wait: bool = False,
        wait_seconds: float = 60.0,
    ) -> ControlVersion:
        """Request a new control.

        Args:
            method: The method's name.
            mu_low: Lower threshold in standard deviations; None: that side does not clip.
            mu_high: Upper threshold, likewise.
            scope: On which tokens the method acts; None: all, or the preset's.
            parameters: The method's own by name, such as `{"ratio": 1e-3}`; those not given keep
                their defaults.
            hold: The entropy to hold: a number of nats such as 0.46, or `"75%"` of the
                early level, or `{"anneal": ["100%", "40%"], "steps": 300}` from the run's next
                step on; None: none.
            reason: Kept in the history.
            guard: `"revert"`: the server takes the control back where it does harm; None or
                `"alert"`: an alert suggests it.
            expires_in_seconds: A probe that receives it later does not apply it; None: the server's
                default.
            if_version: The version this builds on; None: the newest one.
            wait: Return when the version has reached a final state, or after `wait_seconds` as it
                is then.
            wait_seconds: The longest wait.

        Returns:
            The new version.

        Raises:
            ConfigurationError: A value that no control can have; nothing was sent.
            ControlConflict: The control changed meanwhile; read it again.
        """
        document: dict[str, object] = {
            "method": method,
            "mu_low": mu_low,
            "mu_high": mu_high,
            "scope": scope,
            "parameters": parameters or {},
            "hold": hold,
            "reason": reason,
            "guard": guard,
        }
        wanted = self.control_from(run_id, document)
        if if_version is None:
            if_version = self.control(run_id).version
        item = self.ask(
            calls.set_control(
                run_id, wanted, if_version=if_version, expires_in_seconds=expires_in_seconds
            )
        )
        if wait:
            return self.wait_for_control(run_id, item.version, timeout_seconds=wait_seconds)
        return item

    def wait_for_control(
        self, run_id: str, version: int, *, timeout_seconds: float = 60.0
    ) -> ControlVersion:
        """Wait until a control version has reached a final state.

        Returns:
            The version; after `timeout_seconds` in the state it has then, which is not final.
        """
        end = time.monotonic() + timeout_seconds
        while True:
            history = self.items(calls.control_history(run_id))
            item = next((item for item in history if item.version == version), None)
            if item is None:
                raise ApiError(f"Run {run_id} has no control version {version}.", 404, "not_found")
            if item.state.is_final or time.monotonic() >= end:
                return item
            time.sleep(_POLL_SECONDS)

    def me(self) -> answers.Me:
        """Name and scope of the token that this client sends."""
        return self.ask(calls.me())

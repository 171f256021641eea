"""A version that nobody pushed: each life of a run brings its own version 0, and they may differ."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection

from isentrope_server.store import steps, streams
from isentrope_server.store.controls import ControlItem, State
from isentrope_server.store.runs import Run
from isentrope_server.store.streams import InitialControl


def as_begun(connection: Connection, run: Run, version: int, recorded: ControlItem | None) -> ControlItem | None:
    """A version as the newest life of the run that began under it describes it.

    A life that goes on from a checkpoint goes on under that one's control, whatever it announced. Its reports tell
    method and scope, so where lives differ the newest description counts that agrees with them.

    Args:
        recorded: the version as this server has it; the answer where no life says anything else.
    """
    lives = [life for life in streams.initial_controls(connection, run.key) if life.version == version]
    if not lives:
        return recorded
    told = [_item(run.key, life) for life in lives] + ([] if recorded is None else [recorded])
    chosen = told[0]
    if any(item.document != chosen.document for item in told):
        labels = _newest_labels(connection, run)
        chosen = next((item for item in told if _agrees(item.document, labels)), chosen)
    return recorded if recorded is not None and recorded.document == chosen.document else chosen


def _newest_labels(connection: Connection, run: Run) -> Mapping[str, str]:
    report = None if run.step is None else steps.find(connection, run.key, run.step)
    return {} if report is None else report.labels


def _agrees(document: Mapping[str, object], labels: Mapping[str, str]) -> bool:
    return all(labels.get(f"control/{name}", document[name]) == document[name] for name in ("method", "scope"))


def _item(run_key: int, life: InitialControl) -> ControlItem:
    return ControlItem(
        run_key=run_key,
        version=life.version,
        document=life.document,
        author=life.author or "run",
        requested_at=life.began_at,
        requested_step=None,
        expires_at=None,
        state=State.APPLIED,
        applied_at=life.began_at,
        ended_at=life.began_at,
        message="What the run started with.",
    )

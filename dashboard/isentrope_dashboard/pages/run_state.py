"""A run page's state in the server while someone looks at it: a snapshot, moved on by live events."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from isentrope_dashboard.api_client import CHART_POINTS, RECENT_STEPS
from isentrope_dashboard.controls import IN_FORCE_STATES, ControlItem, ControlState
from isentrope_dashboard.records import LiveEvent, RunSnapshot, StepRow, View
from isentrope_dashboard.unread import RECENT

GROWTH_POINTS = 2 * CHART_POINTS
"""A chart of all steps grows to this many points before the server is asked to reduce it again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """What a batch of live events did to the page's state."""

    snapshot: RunSnapshot
    new_rows: tuple[StepRow, ...] = ()
    changed_controls: tuple[ControlItem, ...] = ()
    run_changed: bool = False
    start_over: bool = False
    """The steps went back or the chart is full: read a new snapshot instead."""


@dataclass(slots=True)
class _Batch:
    rows: list[StepRow] = field(default_factory=list)
    controls: dict[int, ControlItem] = field(default_factory=dict)


def advance(snapshot: RunSnapshot, events: Iterable[LiveEvent], *, first: bool, drawn_points: int) -> Advance:
    """Apply live events to a snapshot.

    Args:
        first: the batch may repeat what the snapshot already holds, because listening started before reading.
        drawn_points: how many points the entropy chart has.
    """
    batch, run, run_changed, start_over = _Batch(), snapshot.run, False, False
    newest = snapshot.recent[-1].step if snapshot.recent else -1
    for event in events:
        if event.step is not None:
            if event.step.step > newest:
                newest = event.step.step
                batch.rows.append(event.step)
            elif not first:
                start_over = True  # a resumed run repeats steps; what the chart shows is no longer what is stored
        elif event.control is not None:
            batch.controls[event.control.version] = event.control
        elif event.run is not None:
            run_changed = run_changed or event.run != run
            run = replace(event.run, capabilities=event.run.capabilities or run.capabilities)
    known = {item.version: item for item in snapshot.history}
    changed = tuple(item for item in batch.controls.values() if known.get(item.version) != item)
    return Advance(
        snapshot=replace(
            snapshot,
            run=replace(run, step=max(newest, run.step or 0)) if newest >= 0 else run,
            recent=[*snapshot.recent, *batch.rows][-RECENT_STEPS:],
            history=sorted((known | batch.controls).values(), key=lambda item: item.version, reverse=True),
            control=_follow(snapshot.control, changed),
        ),
        new_rows=tuple(batch.rows),
        changed_controls=changed,
        run_changed=run_changed,
        start_over=start_over
        or drawn_points + len(batch.rows) > GROWTH_POINTS
        or (not snapshot.recent and RECENT not in snapshot.unread),
    )


def points_kept(view: View) -> int:
    """How many points the entropy chart may hold: a window slides, the whole run grows."""
    return GROWTH_POINTS if view.steps is None else view.steps


def _follow(control: ControlState | None, changed: Iterable[ControlItem]) -> ControlState | None:
    for item in changed:
        if control is None or item.version < control.desired.version:
            continue
        running = item.values if item.state in IN_FORCE_STATES else control.in_force
        control = ControlState(desired=item, in_force=running, etag=f'"{item.version}"')
    return control

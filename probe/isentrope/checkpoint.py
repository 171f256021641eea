"""What a probe keeps from step to step, written into a training's checkpoint and read back.

    # After probe.step, before the next gate:
    state = {"model": ..., "optimizer": ..., "probe": probe.state_dict()}
    ...
    # A new attempt of the run; before the first gate, on every rank:
    probe = isentrope.Probe(run_id=the_same)
    probe.load_state_dict(state["probe"])

It holds the active control (which a run of another id does not take over), what thresholds are
counted from, what calibration, interval and alerts have learnt, the state of a held entropy, and
the step's number, from which the seeded draws follow. An interrupted run then continues as if it
had not been interrupted. It does not hold what was logged for an open step, nor the tokens of a
first pass or a step; a share of a step's tokens is kept as the value at which it begins
(`SelectionBasis.state`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta

from isentrope.distributed import ResumeMessage
from isentrope.guard import SafeLog
from isentrope.hold.controller import HoldController
from isentrope.methods.basis import SelectionBasis
from isentrope.steps.parts import Parts
from isentrope.steps.report import ReportBuilder
from isentrope_wire import __version__
from isentrope_wire.codec import decode_control, encode_control
from isentrope_wire.control import CAPABILITIES
from isentrope_wire.errors import CheckpointError
from isentrope_wire.hold_action import Action
from isentrope_wire.numbers import document_of, read_exactly
from isentrope_wire.reports import ControlSnapshot

logger = SafeLog(__name__)

FORMAT = "isentrope probe state"
LAYOUT = 6
"""Raised when the state's layout changes."""

REPORT_SECONDS = 10.0
"""The longest a checkpoint waits for the writer thread to build the last step's report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """What a checkpoint holds, as its JSON has it."""

    format: str = FORMAT
    layout: int = LAYOUT
    version: str = __version__
    run_id: str
    rank: int
    step: Annotated[int, Meta(ge=0)] | None
    """The last one that was reported."""
    control: str
    """The active `ControlSnapshot` as `encode_control` gives it, in hexadecimal digits."""
    decided: int
    selection: dict[str, Any]
    learnt: dict[str, Any]
    hold: dict[str, Any]
    next: Action | None


def state_of(parts: Parts) -> dict[str, Any]:
    """What the parts keep, as JSON values, for torch.save and JSON alike; RuntimeError where a rank
    is gone whose sums were awaited. Waits for the device, and up to REPORT_SECONDS for the last
    report."""
    state = _State(
        run_id=parts.config.run_id,
        rank=parts.config.rank,
        step=parts.control.last_step,
        control=encode_control(parts.control.active).hex(),
        decided=parts.control.newest_decided,
        selection=parts.basis.state(parts.hold.control),
        learnt=parts.reports.state(REPORT_SECONDS),
        hold=parts.hold.state(),
        next=parts.ranks.next_action,
    )
    return dict(document_of(state))


def resume(
    parts: Parts, state: Mapping[str, Any] | None, requested: ControlSnapshot | None
) -> None:
    """Continue from a state before the first step. Every rank calls this; rank 0's state counts for
    all.

    Args:
        state: what `state_of` gave on this rank or another. None or empty: this rank has none.

    Raises:
        CheckpointError: on all ranks, when one of them can't continue from what it was given.
    """
    own_error, own, mine = None, None, ResumeMessage()
    try:
        if parts.control.has_begun:
            raise CheckpointError(
                "load_state_dict must be called before the first gate, log or step of a new probe;"
                f" this one is at step {parts.control.next_step}."
            )
        if state:
            own = _checked(state)
            # A decision about another run's control does not fit this one's.
            action = None
            if own.run_id == parts.config.run_id:
                action = own.next
            mine = ResumeMessage(state=state if parts.config.rank == 0 else None, action=action)
    except CheckpointError as error:
        own_error, mine = error, ResumeMessage(error=str(error))
    messages = parts.ranks.resume(mine, requested)
    if own_error is not None:
        raise own_error
    for rank, message in enumerate(messages):
        if message.error:
            raise CheckpointError(f"Rank {rank} can't continue from its state: {message.error}")
    if messages[0].state is None:
        where = " on rank 0, which counts for all"
        if len(messages) == 1:
            where = ""
        logger.warning(
            "There is no probe state to continue from%s: calibration, alerts and control (%s) are"
            " those of a new run.",
            where,
            parts.control.active.control.method,
        )
        return
    shared = _checked(messages[0].state)
    _restore(parts, shared, own or shared)


def _checked(document: Any) -> _State:
    """Read all of a state, also into parts that are thrown away: one that can't be read must not be
    restored in part."""
    if not isinstance(document, Mapping) or document.get("format") != FORMAT:
        shown = f"{document!r:.200}"
        if isinstance(document, Mapping):
            shown = f"an object of {', '.join(sorted(map(str, document)))[:200] or 'nothing'}"
        raise CheckpointError(
            f"load_state_dict takes what probe.state_dict() gave, got {shown}. Pass that part of"
            " the checkpoint, or leave it out and let the calibration start afresh."
        )
    if document.get("layout") != LAYOUT:
        raise CheckpointError(
            f"The probe's state has layout {document.get('layout')!r} (written by isentrope"
            f" {document.get('version')}); this isentrope {__version__} reads layout {LAYOUT}."
            " Upgrade isentrope, or leave the state out and let the calibration start afresh."
        )
    try:
        state = read_exactly(_State, dict(document))
        _restore_parts(state, state, SelectionBasis("auto"), ReportBuilder(), HoldController())
        snapshot = _snapshot(state)
    except (KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
        raise CheckpointError(
            f"The probe's state can't be read: {type(error).__name__}: {error}. The file is"
            " damaged, was changed, or was written by another version of isentrope: use an earlier"
            " checkpoint, or leave the state out and let the calibration start afresh."
        ) from error
    if snapshot.control.capability not in CAPABILITIES:
        raise CheckpointError(
            f"This probe can apply {', '.join(CAPABILITIES)}; the control of the checkpoint needs "
            f"{snapshot.control.capability}. Upgrade isentrope, or leave the state out."
        )
    return state


def _restore(parts: Parts, shared: _State, own: _State) -> None:
    snapshot, newest_decided = _snapshot(shared), shared.decided
    if shared.run_id != parts.config.run_id:
        # Versions count within a run. Version 0 of this one is what it has announced: that must be
        # active, and the first version pushed must not look old.
        logger.warning(
            "The probe's state is of run %s, this is run %s: it continues with what was learnt,"
            " under its own control (%s). Give it run_id=%r to continue that run under the"
            " checkpoint's.",
            *(
                shared.run_id,
                parts.config.run_id,
                parts.control.active.control.method,
                shared.run_id,
            ),
        )
        snapshot, newest_decided = parts.control.active, parts.control.newest_decided
    parts.control.resume(snapshot, newest_decided, shared.step)
    # A share of the tokens is counted on each rank; rank 0's is used where this rank has none.
    if not (own.rank == parts.config.rank and own.step == shared.step):
        own = shared
    _restore_parts(shared, own, parts.basis, parts.reports, parts.hold)


def _restore_parts(
    shared: _State, own: _State, basis: SelectionBasis, reports: ReportBuilder, hold: HoldController
) -> None:
    basis.restore(shared.selection, own.selection)
    reports.restore(shared.learnt)
    hold.restore(shared.hold)


def _snapshot(state: _State) -> ControlSnapshot:
    snapshot = decode_control(bytes.fromhex(state.control))
    if snapshot.unreadable:
        raise ValueError(snapshot.unreadable)
    return snapshot

"""What a probe remembers from step to step, written into a training's checkpoint and taken up again.

    state = {"model": ..., "optimizer": ..., "probe": probe.state_dict()}         # after probe.step, before the next gate
    ...
    probe = isentrope.Probe(run_id=the_same)                                       # a new incarnation of the run
    probe.load_state_dict(state["probe"])                                          # before the first gate, on every rank

Part of it is the control in force (which a run of another id does not take over), what thresholds are counted from, what calibration, interval and alerts have learnt,
the state of a held entropy, and the step's number, from which the seeded draws follow. A run that was interrupted then
goes on as if it had not been. Not part of it: what was logged for a step that is still open, and a first pass' or a
step's tokens; a share of a step's tokens is kept as the value at which it begins (`SelectionBasis.state`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import isentrope
from isentrope.config import ProbeConfig
from isentrope.control import ControlDesk, StepBoundary
from isentrope.distributed import RankMeeting, ResumeWord
from isentrope.errors import CheckpointError, CodecError
from isentrope.hold import Pilot
from isentrope.methods.gate import CAPABILITIES
from isentrope.methods.reference import SelectionBasis, ThresholdSources
from isentrope.step_report import StepCloser
from isentrope_wire.codec import decode_control, encode_control
from isentrope_wire.hold_decision import Action
from isentrope_wire.reports import ControlSnapshot

logger = logging.getLogger(__name__)

FORMAT = "isentrope probe state"
LAYOUT = 2
"""Raised when the state's layout changes."""

REPORT_SECONDS = 10.0
"""How long a checkpoint waits for the last step's report to be built, elsewhere, before it goes without."""

_KEYS = frozenset(
    {
        "format",
        "layout",
        "version",
        "run_id",
        "rank",
        "step",
        "control",
        "decided",
        "thresholds",
        "selection",
        "learnt",
        "hold",
        "next",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The parts of a probe that remember."""

    config: ProbeConfig
    boundary: StepBoundary
    thresholds: ThresholdSources
    basis: SelectionBasis
    closer: StepCloser
    pilot: Pilot
    meeting: RankMeeting


def state_of(memory: Memory) -> dict[str, Any]:
    """The memory as plain values, for torch.save and JSON alike. It stays as it is.

    Waits for the device, and up to REPORT_SECONDS for the last report; not for the other ranks' checkpoints.

    Raises:
        RuntimeError: a rank whose sums were awaited is gone.
    """
    decided_ahead = memory.meeting.told_action
    return {
        "format": FORMAT,
        "layout": LAYOUT,
        "version": isentrope.__version__,
        "run_id": memory.config.run_id,
        "rank": memory.config.rank,
        "step": memory.boundary.last_step,
        "control": encode_control(memory.boundary.in_force).hex(),
        "decided": memory.boundary.newest_decided,
        "thresholds": memory.thresholds.state(),
        "selection": memory.basis.state(memory.pilot.control),
        "learnt": memory.closer.state(REPORT_SECONDS),
        "hold": memory.pilot.state(),
        "next": None if decided_ahead is None else decided_ahead.encode().decode(),
    }


def resume(memory: Memory, state: Mapping[str, Any] | None, desired: ControlSnapshot | None) -> None:
    """Go on from a state. Every rank comes here; rank 0's state counts for all.

    Args:
        state: what `state_of` gave on this rank or another. None or empty: this rank has none.
        desired: the newest control this rank was asked for.

    Raises:
        CheckpointError: on all ranks, when one of them can't go on from what it was given.
    """
    own_error, mine = None, ResumeWord()
    try:
        if not memory.boundary.untouched:
            raise CheckpointError(
                "load_state_dict must be called before the first gate, log or step of a new probe; this one is at "
                f"step {memory.boundary.this_step}."
            )
        if state:
            _check(state)
            # What was decided for another run's control is not for this one's.
            action = _action(state) if _of_this_run(memory, state) else b""
            mine = ResumeWord(state=state if memory.config.rank == 0 else None, action=action)
    except CheckpointError as error:
        own_error, mine = error, ResumeWord(error=str(error))
    words = memory.meeting.resume(mine, desired)
    if own_error is not None:
        raise own_error
    for rank, word in enumerate(words):
        if word.error:
            raise CheckpointError(f"Rank {rank} can't go on from its state: {word.error}")
    if words[0].state is None:
        logger.warning("There is no probe state to go on from%s: the calibration begins anew.", _on_rank_0(words))
        return
    _restore(memory, words[0].state, state or words[0].state)


def _of_this_run(memory: Memory, state: Mapping[str, Any]) -> bool:
    return bool(state["run_id"] == memory.config.run_id)


def _on_rank_0(words: tuple[ResumeWord, ...]) -> str:
    return " on rank 0, which counts for all" if len(words) > 1 else ""


def _check(state: Mapping[str, Any]) -> None:
    """Read all of it once, into parts that are thrown away: what can't be read must not be half taken up.

    Raises:
        CheckpointError: it is something else, of a later layout, or damaged.
    """
    if not isinstance(state, Mapping) or state.get("format") != FORMAT:
        raise CheckpointError(
            f"load_state_dict takes what probe.state_dict() gave, got {_shown(state)}. "
            "Pass that part of the checkpoint, or leave it out and let the calibration begin anew."
        )
    layout = state.get("layout")
    if layout != LAYOUT:
        raise CheckpointError(
            f"The probe's state has layout {layout!r} (written by isentrope {state.get('version')}); this isentrope "
            f"{isentrope.__version__} reads layout {LAYOUT}. Upgrade isentrope, or leave the state out and let the "
            "calibration begin anew."
        )
    if missing := sorted(_KEYS - set(state)):
        raise CheckpointError(
            f"The probe's state must hold {', '.join(sorted(_KEYS))}; {', '.join(missing)} is missing."
        )
    thresholds = ThresholdSources("auto")
    _restore_parts(state, state, thresholds, SelectionBasis("auto", thresholds), StepCloser(), Pilot())
    _snapshot(state)
    _action(state)


def _shown(state: object) -> str:
    if isinstance(state, Mapping):
        return f"an object of {', '.join(sorted(map(str, state)))[:200] or 'nothing'}"
    return f"{state!r:.200}"


def _restore(memory: Memory, shared: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    snapshot, newest_decided = _snapshot(shared), shared["decided"]
    if not _of_this_run(memory, shared):
        # Versions count within a run, and version 0 of this one is what it has announced: that is what must act, and
        # the first one pushed must not look old.
        logger.warning(
            "The probe's state is of run %s, this is run %s: it goes on with what was learnt, under its own control (%s). "
            "Give it run_id=%r to continue that run under the checkpoint's.",
            *(shared["run_id"], memory.config.run_id, memory.boundary.in_force.control.method, shared["run_id"]),
        )
        snapshot, newest_decided = memory.boundary.in_force, memory.boundary.newest_decided
    memory.boundary.resume(ControlDesk(snapshot, CAPABILITIES, newest_decided), shared["step"])
    # A share of the tokens is counted on each rank; another rank's will do where there is no own.
    own = own if own["rank"] == memory.config.rank and own["step"] == shared["step"] else shared
    _restore_parts(shared, own, memory.thresholds, memory.basis, memory.closer, memory.pilot)


def _restore_parts(
    shared: Mapping[str, Any],
    own: Mapping[str, Any],
    thresholds: ThresholdSources,
    basis: SelectionBasis,
    closer: StepCloser,
    pilot: Pilot,
) -> None:
    try:
        thresholds.restore(shared["thresholds"])
        basis.restore({**shared["selection"], "cutoff": own["selection"]["cutoff"]})
        closer.restore(shared["learnt"])
        pilot.restore(shared["hold"])
    except CheckpointError:
        raise
    except (KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
        raise _damaged(f"{type(error).__name__}: {error}") from error


def _snapshot(state: Mapping[str, Any]) -> ControlSnapshot:
    step = state["step"]
    if step is not None and (type(step) is not int or step < 0):
        raise _damaged(f"its step must be a whole number or null, got {step!r}")
    if type(state["decided"]) is not int:
        raise _damaged(f"its newest decided version must be a whole number, got {state['decided']!r}")
    try:
        snapshot = decode_control(bytes.fromhex(state["control"]))
    except (CodecError, TypeError, ValueError) as error:
        raise _damaged(str(error)) from error
    if snapshot.unreadable:
        raise _damaged(snapshot.unreadable)
    if snapshot.control.capability not in CAPABILITIES:
        raise CheckpointError(
            f"This probe can carry out {', '.join(CAPABILITIES)}; the control of the checkpoint asks for "
            f"{snapshot.control.capability}. Upgrade isentrope, or leave the state out."
        )
    return snapshot


def _action(state: Mapping[str, Any]) -> bytes:
    """Decided for the step that comes next; empty where nothing was."""
    encoded = state.get("next")
    if encoded is None:
        return b""
    try:
        return Action.decode(str(encoded).encode()).encode()
    except CodecError as error:
        raise _damaged(str(error)) from error


def _damaged(why: str) -> CheckpointError:
    return CheckpointError(
        f"The probe's state can't be read: {why}. The file is damaged or was changed; use an earlier checkpoint, or leave "
        "the state out and let the calibration begin anew."
    )

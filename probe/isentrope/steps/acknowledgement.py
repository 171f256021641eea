"""Which controls' outcomes a report may carry.

"Applied at step n" says that tokens of step n passed the gate under it: until some do, it waits,
and where steps are closed that gate nothing it is rejected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from isentrope.control import NOTHING_GATED, NOTHING_GATED_MESSAGE
from isentrope.guard import SafeLog
from isentrope_wire.control import Control, Method
from isentrope_wire.numbers import printable
from isentrope_wire.reports import ControlOutcome, ControlSnapshot, OutcomeState

logger = SafeLog(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """What is known of the gate in a step that was closed."""

    step: int
    active_version: int
    """Of the control that was active."""
    gated: bool
    """Whether `gate` was called: on any rank, as far as this one knows."""
    has_tokens: bool
    """Whether tokens passed it."""
    is_of_all: bool
    """Whether both are known of all ranks."""
    acts_elsewhere: bool
    """Whether tokens of other ranks pass it, on a rank that does not report them."""


class Acknowledgement:
    """Holds back outcomes until tokens have met their control; of one run, in the order of its
    steps."""

    def __init__(self) -> None:
        self.has_gated: bool | None = None
        """Whether tokens of any rank have passed the gate; None: not known. On the rank that
        reports all of them."""
        self.shown_version = 0
        """Version of the control that tokens of the last report met."""
        self._waiting: tuple[ControlOutcome, ...] = ()
        """Of controls that are active, but that no token has met yet."""
        self._refused: set[int] = set()
        """Versions that are active, but were rejected because nothing met them."""
        self._gate_called = False
        self._logged: set[tuple[int, OutcomeState]] = set()

    def take(
        self, outcomes: Sequence[ControlOutcome], passage: Passage
    ) -> tuple[ControlOutcome, ...]:
        """The outcomes that the report of the next step may carry; `outcomes` are those of the
        step itself."""
        was_bypassed = self.has_gated is False
        if passage.is_of_all and not passage.gated and not self._gate_called:
            self.has_gated = False
        self._gate_called |= passage.gated
        if passage.has_tokens:
            self.has_gated = True
        ready: list[ControlOutcome] = []
        waiting: list[ControlOutcome] = []
        for outcome in (*self._begin_waiting(passage), *outcomes):
            acts = passage.has_tokens or passage.acts_elsewhere
            if acts or outcome.state != OutcomeState.APPLIED:
                ready.append(outcome)
            elif was_bypassed and not passage.gated:
                self._refused.add(outcome.version)
                ready.append(_reject(outcome))
            else:
                waiting.append(outcome)
        self._waiting = tuple(waiting)
        unmet = self._refused.union(outcome.version for outcome in waiting)
        if passage.has_tokens or passage.active_version not in unmet:
            self.shown_version = passage.active_version
        return tuple(ready)

    def log(self, step: int, outcomes: Sequence[ControlOutcome], active: ControlSnapshot) -> None:
        """One line for each outcome of a report: who trains in a terminal sees no page."""
        for outcome in outcomes:
            # An outcome that found no room travels again with a later report.
            if (outcome.version, outcome.state) in self._logged:
                continue
            self._logged.add((outcome.version, outcome.state))
            words = [f"control v{outcome.version}"]
            why = outcome.message
            if outcome.state == OutcomeState.APPLIED and outcome.version == active.version:
                words.append(name_control(active.control))
                why = f"{active.author}: {active.control.reason}".removesuffix(": ")
            words.append(outcome.state.lower())
            if why:
                words.append(f"({why})")
            logger.warning("isentrope: step %d: %s", step, printable(" ".join(words)))

    def _begin_waiting(self, passage: Passage) -> tuple[ControlOutcome, ...]:
        """Outcomes that waited. Where tokens passed, these began to act now; one of this step says
        itself at which it did."""
        if not passage.has_tokens:
            return self._waiting
        return tuple(replace(outcome, step=passage.step) for outcome in self._waiting)


def _reject(outcome: ControlOutcome) -> ControlOutcome:
    return ControlOutcome(
        version=outcome.version,
        state=OutcomeState.REJECTED,
        at=outcome.at,
        code=NOTHING_GATED,
        message=NOTHING_GATED_MESSAGE,
    )


def name_control(control: Control) -> str:
    """A control in a few words, with any method."""
    if control == Control(reason=control.reason):
        return "no control"
    words = []
    if control.held is not None:
        words.append(f"hold {control.held.target_in_words}")
    if control.method != Method.NONE:
        thresholds = " ".join(
            f"µ {mu:g}" for mu in dict.fromkeys((control.mu_low, control.mu_high)) if mu is not None
        )
        words += [f"{control.method.label} {thresholds}".strip(), control.scope]
    return ", ".join(words)

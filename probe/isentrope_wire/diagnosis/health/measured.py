"""What a diagnosis is made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from isentrope_wire.answers import Alert, Status
from isentrope_wire.control import Control
from isentrope_wire.control_answers import (
    ControlVersion,
    Verdict,
)
from isentrope_wire.diagnosis.course import Course
from isentrope_wire.diagnosis.effect import (
    LastSteps,
)
from isentrope_wire.numbers import (
    is_usable,
)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a diagnosis is made of."""

    status: Status = Status.RUNNING
    error: str = ""
    """Why a failed run failed."""
    step: int | None = None
    """The newest."""
    first_step: int | None = None
    planned_steps: int | None = None
    """The run's last step; None: not known."""
    largest_entropy: float | None = None
    """ln V, in nats; None where the number V of the vocabulary's tokens is not known."""
    early_entropies: Sequence[float] = ()
    """Mean entropies of the first steps, finite."""
    entropies: Mapping[int, float] = field(default_factory=dict)
    """Step -> entropy of the last steps that measured it, STEPS_READ at most."""
    observed: Mapping[int, float] = field(default_factory=dict)
    """Step -> change of the entropy of unseen tokens, or else of its own, finite."""
    observed_errors: Mapping[int, float] = field(default_factory=dict)
    """Step -> standard error of that of unseen tokens, finite."""
    predicted: Mapping[int, float] = field(default_factory=dict)
    """Step -> calibrated prediction of its change, made before it was observed; finite."""
    by_control: Mapping[int, float] = field(default_factory=dict)
    """Step -> part of the predicted change that the active control made, in nats, finite."""
    explained: Mapping[int, float] = field(default_factory=dict)
    """Step -> R² of the predictions so far, finite."""
    targets: Mapping[int, float] = field(default_factory=dict)
    """Step -> the entropy that it held, finite."""
    is_acting: bool = False
    """Whether a hold clips in the newest step."""
    rewards: Mapping[int, float] = field(default_factory=dict)
    """Step -> mean reward, finite."""
    applied_steps: Sequence[int] = ()
    """The steps from which another control was active."""
    parts: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    """Step -> its `change_parts`, of the last CAUSE_STEPS steps."""
    last: LastSteps = field(default_factory=LastSteps)
    newest: ControlVersion | None = None
    """The newest control, in any state."""
    active: ControlVersion | None = None
    before: Control | None = None
    """The control that the active one replaced; None: none was pushed, or it is not read."""
    verdict: Verdict | None = None
    alert: Alert | None = None
    findings: Sequence[Alert] = ()
    """What the checks found: the newest alerts of their kinds."""
    holding: frozenset[str] | None = None
    """Kinds that rang and still hold; None: the probe does not say."""
    overshoot: Alert | None = None
    """That the active control does harm."""
    hold_state: str = ""
    """What a hold did in the newest step, `HoldStatus`; empty: there is none."""
    hold_why: str = ""
    """Why it does not act."""
    said: int | None = None
    """Urgency of the course as the probe says it, where the course's own is higher."""

    @cached_property
    def course(self) -> Course | None:
        """None where no finite entropy was reported."""
        finite = [
            (step, value) for step, value in sorted(self.entropies.items()) if is_usable(value)
        ]
        if not finite or self.step is None:
            return None
        first = min(self.first_step or 0, finite[0][0])
        course = Course(age=max(0, finite[0][0] - first))
        course.largest = self.largest_entropy or course.largest
        # Where the first steps are among those that are added, the course finds its early level by
        # itself.
        for value in self.early_entropies if course.age else ():
            course.early.add(value)
        applied = sorted(self.applied_steps, reverse=True)
        for step, value in finite:
            is_new = bool(applied) and applied[-1] <= step
            while applied and applied[-1] <= step:
                applied.pop()
            course.add(
                step,
                value,
                observed=self.observed.get(step),
                target=self.targets.get(step),
                is_new_control=is_new and course.steps > 0,
                by_control=self.by_control.get(step),
                explained=self.explained.get(step),
            )
        return course

    @property
    def target(self) -> float | None:
        """The entropy that the newest step held."""
        if self.step is None:
            return None
        return self.targets.get(self.step)


def finite(values: Iterable[tuple[int, float]]) -> dict[int, float]:
    """Step -> value, of the values that can be calculated with."""
    return {step: value for step, value in values if is_usable(value)}

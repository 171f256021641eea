"""The control document: a method with its thresholds, and the entropy to hold. Checked where it is
built.

- `Hold`: the field `hold`, the entropy to hold and the bounds within which thresholds may be moved
    for it
- `ControlFields`: the fields of the document as the REST API answers them; `Control`: those that a
trainer can apply"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from itertools import pairwise
from typing import Any, TypeVar

from isentrope_wire.errors import ConfigurationError
from isentrope_wire.methods import (
    METHODS,
    Method,
    Value,
    checked_parameters,
    method_named,
    parameter_value,
    preset,
    resolve_aliases,
    threshold_methods,
)
from isentrope_wire.numbers import Answer, document_of, is_finite_number, shown

LARGEST_CHANGE = 0.05
"""Largest correction of a step where `max_change_per_step` is not given: this share of the distance
between entropy and target, or of the target where that is more."""
LARGEST_SHARE = 10.0
"""Largest target as a share of the early level: a larger number is a percentage without its
sign."""
LARGEST_ENTROPY = 20.0
"""Largest target in nats, that of a vocabulary of half a billion: a larger number is a percentage
without its sign."""
LONGEST_CURVE = 100
"""Points of a target curve."""
LONGEST_ANNEAL = 10_000_000
"""Steps of an anneal."""


_Words = TypeVar("_Words", bound=StrEnum)


class HoldSide(StrEnum):
    """Which way the entropy may be moved."""

    RAISE = "raise"
    """Only up: tokens whose update lowers entropy are clipped, and nothing is where the entropy
    lies above the target."""
    LOWER = "lower"
    """Only down: tokens whose update raises entropy are clipped."""
    BOTH = "both"


class HoldLever(StrEnum):
    """What moves the entropy."""

    AUTO = "auto"
    """Thresholds, and a bonus where they don't suffice."""
    THRESHOLDS = "thresholds"
    BONUS = "bonus"
    """An entropy bonus at the gate alone (method `entropy_bonus`): nothing is clipped."""


Level = float | str
"""An entropy: a number of nats, or a share of the early level as text, such as `75%`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """The entropy to hold, and the bounds for it. Exactly one of the three targets is given.

    Raises:
        ConfigurationError: naming the field, what was expected and what came.
    """

    target_entropy: float | None = None
    """H* in nats: the mean entropy of a step's tokens that is wanted."""
    target_share: float | None = None
    """H* as a share of the run's early level (`isentrope_wire.metrics.EarlyLevel`), such as 0.75;
    the text `75%` is read too."""
    target_curve: tuple[tuple[int, Level], ...] | None = None
    """H* over the run's steps: points of a step and a level, straight lines between them, constant
    before and after."""
    max_change_per_step: float | None = None
    """The largest correction that one step is to bring about, in nats. An approach to the target
    that is faster is slowed by clipping only where this is given. None: LARGEST_CHANGE."""
    mu_min: float = 0.0
    """The lowest threshold allowed, in standard deviations: how hard may be clipped."""
    mu_max: float = 10.0
    """The highest one; where it would still be too low, nothing is clipped."""
    side: HoldSide = HoldSide.BOTH
    lever: HoldLever = HoldLever.AUTO
    reward_guard: bool = True
    """End the hold when the reward begins to fall while it acts (`isentrope.hold`)."""

    def __post_init__(self) -> None:
        given = [name for name in TARGETS if getattr(self, name) is not None]
        if len(given) != 1:
            raise ConfigurationError(
                f"hold needs one target: {' or '.join(TARGETS)}, such as target_entropy 0.46 (nats)"
                f" or target_share 0.75 (of the early level); got {', '.join(given) or 'none'}."
            )
        self._set("side", _one_of(HoldSide, "hold.side", self.side))
        self._set("lever", _one_of(HoldLever, "hold.lever", self.lever))
        self._set(
            "target_share",
            None if self.target_share is None else _share("target_share", self.target_share),
        )
        self._set("target_curve", None if self.target_curve is None else _curve(self.target_curve))
        if self.target_entropy is not None:
            self._set("target_entropy", _entropy("target_entropy", self.target_entropy))
        if self.max_change_per_step is not None:
            changes = _require_above_zero("max_change_per_step", self.max_change_per_step)
            self._set("max_change_per_step", changes)
        for name in ("mu_min", "mu_max"):
            self._set(name, _threshold(f"hold.{name}", getattr(self, name)))
        if self.mu_min > self.mu_max:
            raise ConfigurationError(
                f"hold.mu_min must not lie above mu_max, got {self.mu_min:g} and {self.mu_max:g}."
            )
        if not isinstance(self.reward_guard, bool):
            raise ConfigurationError(
                f"hold.reward_guard must be true or false, got {shown(self.reward_guard)}."
            )

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    @classmethod
    def from_document(cls, document: object) -> Hold:
        """Read what users send: an object, or its target alone, as `target_from_text` takes it:
        0.75 is nats, `75%` a share of the early level.

        Fields not given, and those that are null, keep their defaults. In the place of the three
        targets `target` is read, likewise; or `anneal`, two levels, with `steps` and `start`: a
        straight line from the first level in step `start` to the second one `steps` later.

        Raises:
            ConfigurationError: no object, a field it does not have, or a value a field can't take.
        """
        if isinstance(document, str) or is_finite_number(document):
            document = {"target": document}
        if not isinstance(document, Mapping):
            raise ConfigurationError(
                "hold must be a number of nats such as 0.46, a share of the early level such as "
                f"'75%', an object, or null, got {shown(document)}."
            )
        known = [field.name for field in fields(cls)]
        unknown = sorted(str(name) for name in document if name not in [*known, "target", *ANNEAL])
        if unknown:
            raise ConfigurationError(
                f"hold has the fields {', '.join(known)}; got {', '.join(unknown)[:200]}."
            )
        given = {name: value for name, value in document.items() if value is not None}
        if "target" in given:
            given |= target_from_text(given.pop("target"))
        if given.keys() & set(ANNEAL):
            anneal = {name: given.pop(name) for name in ANNEAL if name in given}
            given = _compiled_anneal(given, anneal)
        return cls(**given)

    def to_document(self) -> dict[str, object]:
        """As JSON takes it, with every field."""
        return dict(document_of(self))

    @property
    def curve_end(self) -> int | None:
        """The step at which its curve ends; None: it has none."""
        if self.target_curve is None:
            return None
        return self.target_curve[-1][0]

    def target_at(self, step: int, early_level: float | None) -> float | None:
        """H* of a step of the run, from 1, in nats; None where it is a share of an early level that
        is not known yet."""
        if self.target_entropy is not None:
            return self.target_entropy
        if self.target_share is not None:
            if early_level is None:
                return None
            return self.target_share * early_level
        points = [(at, _nats(level, early_level)) for at, level in self.target_curve or ()]
        later = next((index for index, (at, _) in enumerate(points) if at >= step), len(points))
        (start, low), (end, high) = points[max(later - 1, 0)], points[min(later, len(points) - 1)]
        if low is None or high is None:
            return None
        if start == end:
            return low
        return low + (high - low) * (step - start) / (end - start)

    def largest_change(self, target: float, gap: float = 0.0) -> float:
        """The largest correction of a step, in nats, for a target and an entropy that lies `gap`
        away from it."""
        given = self.max_change_per_step
        if given is None:
            return LARGEST_CHANGE * max(abs(gap), target)
        return given

    @property
    def target(self) -> str:
        """The target as `target_from_text` reads it: `0.46`, `75%`, or a curve such as `1:100%
        200:25%`."""
        if self.target_curve is not None:
            return " ".join(f"{step}:{level}" for step, level in self.target_curve)
        if self.target_share is None:
            return str(self.target_entropy)
        return _percent(self.target_share)

    @property
    def target_in_words(self) -> str:
        """For a person: `0.46 nats`, `75% of the early level`."""
        if self.target_share is not None:
            return f"{self.target} of the early level"
        if self.target_entropy is None:
            return self.target
        return f"{self.target_entropy:.6g} nats"


TARGETS = ("target_entropy", "target_share", "target_curve")
"""The fields of a hold of which one is given."""
ANNEAL = ("anneal", "steps", "start")
"""Another way to write a `target_curve` of two points."""
_ANNEAL_TEXT = re.compile(r"(\S+)\s*(?:->|→|\bto\b)\s*(\S+)\s+(?:over|in)\s+(\S+)(?:\s+steps)?")


def target_from_text(text: object) -> dict[str, object]:
    """The target's field of a hold: `0.46` is a number of nats, `75%` a share of the early level,
    `1:100% 200:25%` a curve of steps and levels, `100% to 40% over 300 steps` an anneal.
    ConfigurationError: it is none of these."""
    written = str(text).strip()
    if annealed := _ANNEAL_TEXT.fullmatch(written):
        first, last, steps = annealed.groups()
        return {"anneal": [_level(first), _level(last)], "steps": _whole(steps)}
    if ":" in written:
        points = [point.partition(":") for point in written.replace(",", " ").split()]
        return {"target_curve": [[_whole(step), _level(level)] for step, _, level in points]}
    if written.endswith("%"):
        return {"target_share": written}
    return {"target_entropy": _number(written)}


def begun_at(document: Mapping[str, object], step: int) -> dict[str, object]:
    """The document of a control that is pushed to a run: an anneal that names no start begins at
    this step of the run."""
    hold = document.get("hold")
    if isinstance(hold, str) and _ANNEAL_TEXT.fullmatch(hold.strip()):
        hold = {"target": hold}
    if not isinstance(hold, Mapping) or hold.get("start") is not None:
        return dict(document)
    target = hold.get("target")
    is_text = isinstance(target, str) and _ANNEAL_TEXT.fullmatch(target.strip())
    if hold.get("anneal") is None and not is_text:
        return dict(document)
    return {**document, "hold": {**hold, "start": step}}


def _compiled_anneal(
    fields_of_hold: Mapping[str, object], anneal: Mapping[str, object]
) -> dict[str, object]:
    """The fields of a hold with the curve of two points that the anneal means."""
    targets = [name for name in TARGETS if name in fields_of_hold]
    levels, steps, start = anneal.get("anneal"), anneal.get("steps"), anneal.get("start", 1)
    if levels is None or steps is None or targets:
        raise ConfigurationError(
            "hold.anneal takes two levels, with steps and no other target, such as "
            f"{{'anneal': ['100%', '40%'], 'steps': 300}}; got {', '.join([*anneal, *targets])}."
        )
    if not isinstance(levels, Sequence) or isinstance(levels, str) or len(levels) != 2:
        raise ConfigurationError(
            f"hold.anneal is two levels [from, to], such as ['100%', '40%'], got {shown(levels)}."
        )
    begins = _count_of_steps("start", start, 0)
    ends = begins + _count_of_steps("steps", steps, 1)
    return {**fields_of_hold, "target_curve": [[begins, levels[0]], [ends, levels[1]]]}


def _count_of_steps(name: str, value: object, least: int) -> int:
    if (
        isinstance(value, bool)
        or not isinstance(value, int)
        or not least <= value <= LONGEST_ANNEAL
    ):
        raise ConfigurationError(
            f"hold.{name} is a whole number from {least} to {LONGEST_ANNEAL}, got {shown(value)}."
        )
    return value


def _level(text: str) -> Level:
    if "%" in text:
        return text
    return _number(text)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigurationError(
            "A target is a number of nats such as 0.46, a share of the early level such as 75%, "
            "a curve such as 1:100% 200:25%, or an anneal such as 100% to 40% over 300 steps; "
            f"got {text!r:.80}."
        ) from None


def _whole(text: str) -> int:
    number = _number(text)
    if number.is_integer():
        return int(number)
    return _refuse_step(text)


def _refuse_step(value: object) -> int:
    raise ConfigurationError(
        f"hold.target_curve has whole steps of at least 0 that rise, got {shown(value)}."
    )


def _percent(share: float) -> str:
    return f"{100 * share:.12g}%"


def _share(name: str, value: object) -> float:
    if isinstance(value, str) and (
        percent := re.fullmatch(r"\s*([0-9]+\.?[0-9]*)\s*%\s*", value, re.ASCII)
    ):
        number: object = float(percent[1]) / 100
    else:
        number = value
    if not is_finite_number(number) or not 0 < number <= LARGEST_SHARE:
        raise ConfigurationError(
            f"hold.{name} is a share of the early level above 0 and at most {LARGEST_SHARE:g}, such"
            f" as 0.75 or '75%'; got {shown(value)}."
        )
    return float(number)


def _curve(points: object) -> tuple[tuple[int, Level], ...]:
    if (
        not isinstance(points, Sequence)
        or isinstance(points, str)
        or not 0 < len(points) <= LONGEST_CURVE
    ):
        raise ConfigurationError(
            f"hold.target_curve is a list of 1 to {LONGEST_CURVE} points [step, level], got"
            f" {shown(points)}."
        )
    curve = tuple(_point(point) for point in points)
    steps = [step for step, _ in curve]
    if steps != sorted(set(steps)):
        _refuse_step(steps)
    return curve


def _point(point: object) -> tuple[int, Level]:
    if not isinstance(point, Sequence) or isinstance(point, str) or len(point) != 2:
        raise ConfigurationError(
            f"A point of hold.target_curve is [step, level], got {shown(point)}."
        )
    step, level = point
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        _refuse_step(step)
    if isinstance(level, str):
        return step, _percent(_share("target_curve", level))
    return step, _entropy("target_curve", level)


def _nats(level: Level, early_level: float | None) -> float | None:
    if not isinstance(level, str):
        return level
    if early_level is None:
        return None
    return _share("target_curve", level) * early_level


def _one_of(kind: type[_Words], name: str, value: object) -> _Words:
    try:
        return kind(str(value))
    except ValueError:
        raise ConfigurationError(
            f"{name} must be one of {', '.join(kind)}; got {value!r}."
        ) from None


def _entropy(name: str, value: object) -> float:
    nats = _require_above_zero(name, value)
    if nats > LARGEST_ENTROPY:
        raise ConfigurationError(
            f"hold.{name} counts nats, of which no vocabulary has more than {LARGEST_ENTROPY:g}; "
            f"got {shown(value)}. A share of the early level has a percent sign: '{nats:g}%'."
        )
    return nats


def _require_above_zero(name: str, value: object) -> float:
    if not is_finite_number(value) or value <= 0:
        raise ConfigurationError(
            f"hold.{name} counts nats and must be finite and above 0, got {shown(value)}."
        )
    return float(value)


def _threshold(name: str, value: object) -> float:
    if not is_finite_number(value) or value < 0:
        raise ConfigurationError(
            f"{name} counts standard deviations and must be a number, finite and not negative, got"
            f" {shown(value)}."
        )
    return float(value)


__all__ = ["Control", "Method", "Scope"]


class Scope(StrEnum):
    """On which tokens the method acts."""

    NEGATIVE = "negative"
    """Tokens with A < 0."""
    POSITIVE = "positive"
    """Tokens with A > 0."""
    ALL = "all"
    DECREASING = "decreasing"
    """Tokens whose update lowers entropy: A * S_c > 0."""
    INCREASING = "increasing"
    """Tokens whose update raises entropy: A * S_c < 0."""

    @property
    def label(self) -> str:
        """For a person."""
        return {
            Scope.NEGATIVE: "Negative samples (A < 0)",
            Scope.POSITIVE: "Positive samples (A > 0)",
            Scope.ALL: "All tokens",
            Scope.DECREASING: "Tokens that lower entropy",
            Scope.INCREASING: "Tokens that raise entropy",
        }[self]


GUARDS = ("alert", "revert")
"""An alert suggests to take the control back; the server takes it back by itself."""

LONGEST_REASON = 10_000
"""Characters of a control's reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlFields(Answer):
    """The control document: the fields that a request, a stored version and an answer of the REST
    API have in common."""

    method: str
    mu_low: float | None
    """µ⁻: drop tokens whose score lies more than this many standard deviations below the centre.
    None: no lower side."""
    mu_high: float | None
    """µ⁺: the same above the centre. None: no upper side."""
    scope: str
    """On which tokens the method acts: one of `Scope`."""
    parameters: Mapping[str, Any]
    """What was given of the method's own parameters (`methods`); read them with `value`, which
    knows the defaults. A `preset` among those given sets the others, and is not kept."""
    hold: Mapping[str, Any] | None
    """The entropy to hold by moving thresholds, as `Hold` writes it; None: the thresholds stay as
    given. While it can't be done, the method and thresholds beside it are active."""
    reason: str
    """Kept in the history."""
    guard: str | None = None
    """One of `GUARDS`: what happens where the control does harm, as the alert `overshoot` says.
    None: `alert`; what an assistant pushes is reverted. A hold is ended by its own reward guard."""


@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class Control(ControlFields):
    """What a person or a controller asks of a running trainer.

    Raises:
        ConfigurationError: naming the field, what was expected and what came.
    """

    method: Method
    scope: Scope
    parameters: Mapping[str, Value]

    def __init__(
        self,
        *,
        method: Method | str = Method.NONE,
        mu_low: float | None = None,
        mu_high: float | None = None,
        scope: Scope | str | None = None,
        parameters: Mapping[str, object] | None = None,
        hold: Mapping[str, object] | float | str | None = None,
        reason: str = "",
        guard: str | None = None,
    ) -> None:
        # Written out so that users may pass the plain words of the JSON document.
        if parameters is not None and not isinstance(parameters, Mapping):
            raise ConfigurationError(
                f"parameters must be an object of names and values, got {parameters!r}."
            )
        method = method_named(method)
        named = _filled_in(method, mu_low, mu_high, scope, dict(parameters or {}))
        object.__setattr__(self, "method", method)
        object.__setattr__(self, "scope", _one_of(Scope, "scope", named["scope"]))
        for name in ("mu_low", "mu_high"):
            value = named[name]
            object.__setattr__(self, name, None if value is None else _threshold(name, value))
        object.__setattr__(self, "parameters", checked_parameters(method, named["parameters"]))
        object.__setattr__(
            self, "hold", None if hold is None else Hold.from_document(hold).to_document()
        )
        object.__setattr__(self, "reason", reason)
        object.__setattr__(self, "guard", guard)
        self._check()

    def _check(self) -> None:
        if self.hold is not None and not (self.method.thresholds or self.method == Method.NONE):
            raise ConfigurationError(
                f"hold moves the thresholds of {' or '.join(threshold_methods())}, got method"
                f" {self.method}. Choose one of these methods, or none."
            )
        if self.guard not in (None, *GUARDS):
            raise ConfigurationError(
                f"guard must be {' or '.join(GUARDS)}, got {shown(self.guard)}."
            )
        if not isinstance(self.reason, str):
            raise ConfigurationError(f"reason must be text, got {self.reason!r}.")
        if len(self.reason) > LONGEST_REASON:
            raise ConfigurationError(
                f"reason may have {LONGEST_REASON} characters, got {len(self.reason)}. Shorten it."
            )
        thresholds_given = self.mu_low is not None or self.mu_high is not None
        if self.method.thresholds and not thresholds_given and self.hold is None:
            raise ConfigurationError(
                f"{self.method} needs mu_low, mu_high or both, got neither: it would clip nothing. "
                "Give at least one, or use method none."
            )
        if not self.method.thresholds and thresholds_given:
            raise ConfigurationError(
                f"mu_low and mu_high act only with {', '.join(threshold_methods())}, got method"
                f" {self.method}. Leave them out, or choose one of these methods."
            )
        self._check_parameters()

    def _check_parameters(self) -> None:
        for low, high in pairwise(self.method.rising):
            if self.number(low) >= self.number(high):
                raise ConfigurationError(
                    f"parameters.{low} must lie below {high}, got {self.value(low)} and"
                    f" {self.value(high)}."
                )
        if self.method.positive_only and self.scope == Scope.NEGATIVE:
            raise ConfigurationError(
                f"{self.method} acts on positive samples, with scope negative it would do nothing. "
                "Use scope all or positive, or another method."
            )

    def value(self, name: str) -> Value:
        """A parameter of the method: as given, else its default; None where the knob is off or not
        the method's."""
        return parameter_value(self.method, self.parameters, name)

    def number(self, name: str) -> float:
        """A parameter that is a number and on; ConfigurationError: it is off, or not the
        method's."""
        value = self.value(name)
        if not isinstance(value, int | float):
            raise ConfigurationError(
                f"The method {self.method} has no number {name}; it is {value!r}."
            )
        return float(value)

    def to_document(self) -> dict[str, object]:
        """The control as the JSON object users send and read."""
        return dict(document_of(self))

    @classmethod
    def from_document(cls, document: Mapping[str, object]) -> Control:
        """Read the JSON object users send. Fields not given keep their defaults.

        Raises:
            ConfigurationError: for a field no control has, or a value a field can't take.
        """
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(document) - known)
        if unknown:
            raise ConfigurationError(
                f"A control has the fields {', '.join(sorted(known))}; got {', '.join(unknown)}."
            )
        return cls(**document)  # type: ignore[arg-type]  # checked field by field

    @property
    def held(self) -> Hold | None:
        """`hold` as a `Hold`; None where there is none."""
        if self.hold is None:
            return None
        return Hold.from_document(self.hold)

    @property
    def capability(self) -> str:
        """What a probe must be able to do to carry this control out, as listed in
        `RunStarted.capabilities`."""
        if self.hold is not None:
            return "hold"
        return f"method:{self.method}"


CAPABILITIES = (*(f"method:{name}" for name in METHODS), "hold")
"""Every `Control.capability` of this version: what a probe announces when its run starts."""


def _filled_in(
    method: Method, mu_low: object, mu_high: object, scope: object, parameters: dict[str, object]
) -> dict[str, Any]:
    """The fields, with those not given set by a preset among the parameters; the preset itself is
    removed."""
    shorthand: Mapping[str, Any] = {}
    if "preset" in parameters:
        shorthand = preset(method, parameters.pop("preset"))
    parameters = resolve_aliases(method, parameters)
    thresholds_given = mu_low is not None or mu_high is not None
    return {
        # Both thresholds or none: a preset's lower side beside one's own upper side is neither.
        "mu_low": mu_low if thresholds_given else shorthand.get("mu_low"),
        "mu_high": mu_high if thresholds_given else shorthand.get("mu_high"),
        "scope": shorthand.get("scope", Scope.ALL) if scope is None else scope,
        "parameters": {**shorthand.get("parameters", {}), **parameters},
    }

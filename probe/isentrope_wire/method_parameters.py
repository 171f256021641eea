"""What each method can be told beside thresholds and scope: names, kinds, bounds, defaults and sense.

One table for all: the trainer and the server validate by it, the command line and the dashboard's form are made from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from isentrope_wire.errors import ControlError
from isentrope_wire.finite_numbers import is_finite_number, shown

Value = float | int | str | None


class Method(StrEnum):
    """Interventions known to the wire. A probe tells in its capabilities which of them it can carry out."""

    NONE = "none"
    CLIP_B = "clip_b"
    CLIP_V = "clip_v"
    CLIP_COV = "clip_cov"
    KL_COV = "kl_cov"
    SCORE_SIGN = "score_sign"
    TOP_ENTROPY = "top_entropy"
    UNLIKELY = "unlikely"
    RATIO_CLIP = "ratio_clip"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One knob of a method: a number between bounds, or one of several words."""

    name: str
    default: Value
    """What a control that does not name the parameter means. None: the knob is off."""
    sense: str
    """What it does, in one phrase."""
    minimum: float | None = None
    maximum: float | None = None
    minimum_excluded: bool = False
    whole: bool = False
    """Whether only whole numbers make sense."""
    choices: tuple[str, ...] = ()
    """The words it can be; empty for a number."""

    def check(self, value: object) -> Value:
        """The value as this parameter takes it.

        Raises:
            ControlError: naming the parameter, what it takes and what came.
        """
        if value is None and self.default is None:
            return None
        if self.choices:
            if value not in self.choices:
                raise ControlError(f"parameters.{self.name} must be one of {', '.join(self.choices)}; got {value!r}.")
            return str(value)
        if not is_finite_number(value) or not self._takes(value):
            raise ControlError(f"parameters.{self.name} must be {self.range_in_words}, got {shown(value)}.")
        return int(value) if self.whole else float(value)

    def _takes(self, value: float) -> bool:
        if self.whole and value != int(value):
            return False
        if self.minimum is not None and (value < self.minimum or (self.minimum_excluded and value == self.minimum)):
            return False
        return self.maximum is None or value <= self.maximum

    @property
    def range_in_words(self) -> str:
        """What it takes: `a number above 0 and at most 1`."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        lowest = (
            "" if self.minimum is None else f"{'above' if self.minimum_excluded else 'of at least'} {self.minimum:g}"
        )
        highest = "" if self.maximum is None else f"{'and ' if lowest else ''}at most {self.maximum:g}"
        words = ["a whole number" if self.whole else "a finite number", lowest, highest]
        return " ".join(word for word in words if word)


_DENOMINATOR = Parameter(
    name="denominator",
    default="keep",
    choices=("keep", "shrink"),
    sense="what a token mean divides by: all tokens (keep), or only those whose gradient takes part (shrink)",
)
_EPSILON_LOW = Parameter(
    name="epsilon_low",
    default=None,
    minimum=0.0,
    maximum=1.0,
    sense="also leave out tokens with A < 0 whose ratio fell below 1 - epsilon_low",
)
_EPSILON_HIGH = Parameter(
    name="epsilon_high",
    default=None,
    minimum=0.0,
    sense="also leave out tokens with A > 0 whose ratio rose above 1 + epsilon_high",
)
_COMMON = (_DENOMINATOR, _EPSILON_LOW, _EPSILON_HIGH)

_CLIP = (
    Parameter(
        name="max_fraction",
        default=None,
        minimum=0.0,
        maximum=1.0,
        minimum_excluded=True,
        sense="leave out at most this share of the tokens, the ones furthest beyond their threshold",
    ),
    *_COMMON,
)

PARAMETERS: Mapping[Method, tuple[Parameter, ...]] = {
    Method.NONE: (),
    Method.CLIP_B: _CLIP,
    Method.CLIP_V: _CLIP,
    Method.CLIP_COV: (
        Parameter(name="ratio", default=2e-4, minimum=0.0, maximum=1.0, sense="share of all tokens to leave out"),
        Parameter(name="omega_low", default=1.0, sense="only tokens whose covariance lies above this"),
        Parameter(name="omega_high", default=5.0, sense="only tokens whose covariance lies below this"),
        Parameter(
            name="seed", default=0, minimum=0, maximum=2**31 - 1, whole=True, sense="of the random choice of tokens"
        ),
        *_COMMON,
    ),
    Method.KL_COV: (
        Parameter(name="k", default=2e-3, minimum=0.0, maximum=1.0, sense="top share by covariance that is penalised"),
        Parameter(name="beta", default=1.0, minimum=0.0, sense="weight of KL(old policy || policy) on those tokens"),
        *_COMMON,
    ),
    Method.SCORE_SIGN: (
        Parameter(
            name="sign",
            default="positive",
            choices=("positive", "negative"),
            sense="tokens with S* > 0 (positive) or with S* < 0 (negative)",
        ),
        Parameter(
            name="action",
            default="mask",
            choices=("mask", "keep"),
            sense="leave those tokens out (mask), or all others (keep)",
        ),
        *_COMMON,
    ),
    Method.TOP_ENTROPY: (
        Parameter(
            name="fraction",
            default=0.2,
            minimum=0.0,
            maximum=1.0,
            minimum_excluded=True,
            sense="update only this share of the tokens, the ones of highest entropy",
        ),
        *_COMMON,
    ),
    Method.UNLIKELY: (
        Parameter(
            name="strength",
            default=1.0,
            minimum=0.0,
            sense="how much more a positive token counts as its probability goes to 0: 1 + strength times",
        ),
        Parameter(
            name="below",
            default=0.2,
            minimum=0.0,
            maximum=1.0,
            minimum_excluded=True,
            sense="only tokens less likely than this",
        ),
        *_COMMON,
    ),
    Method.RATIO_CLIP: (
        Parameter(
            name="epsilon_low",
            default=0.2,
            minimum=0.0,
            maximum=1.0,
            sense="leave out tokens with A < 0 whose ratio fell below 1 - epsilon_low",
        ),
        Parameter(
            name="epsilon_high",
            default=0.28,
            minimum=0.0,
            sense="leave out tokens with A > 0 whose ratio rose above 1 + epsilon_high",
        ),
        _DENOMINATOR,
    ),
}


def checked_parameters(method: Method, given: Mapping[str, object]) -> dict[str, Value]:
    """The parameters given, each in its kind and within its bounds; those left out stay out.

    Raises:
        ControlError: naming a parameter the method does not have, or the value it can't take.
    """
    known = {parameter.name: parameter for parameter in PARAMETERS[method]}
    unknown = sorted(str(name) for name in given if name not in known)
    if unknown:
        has = f"the parameters {', '.join(known)}" if known else "no parameters"
        raise ControlError(f"The method {method} has {has}; got {', '.join(unknown)[:200]}.")
    return {name: known[name].check(value) for name, value in given.items()}


def name_and_value(text: str) -> tuple[str, Value]:
    """`ratio=0.001` as a name and a number, `sign=negative` as a name and a word; `off` is the word for no value.

    Raises:
        ControlError: there is no name or no equals sign.
    """
    name, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not name:
        raise ControlError(f"A parameter is given as NAME=VALUE, such as ratio=0.001; got {text!r}.")
    if value == "off":
        return name, None
    try:
        return name, int(value) if value.lstrip("+-").isdecimal() else float(value)
    except ValueError:
        return name, value


def parameter_value(method: Method, parameters: Mapping[str, Value], name: str) -> Value:
    """What the parameter stands at: as given, else its default. None too when the method has no such parameter."""
    if name in parameters:
        return parameters[name]
    return next((parameter.default for parameter in PARAMETERS[method] if parameter.name == name), None)

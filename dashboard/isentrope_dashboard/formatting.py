"""Numbers, times and controls as the pages print them. What was not measured is a dash, never a zero."""

from __future__ import annotations

import math

from isentrope_wire.methods import METHODS
from isentrope_wire.metrics import Metric, Show

MISSING = "–"
MINUS = "−"


def number(value: float | None, digits: int = 3, *, signed: bool = False) -> str:
    """A value with a true minus sign; `–` when it was not measured, NaN and ∞ by their names.

    What rounds to nothing has no sign: there is no −0.
    """
    if value is None:
        return MISSING
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else f"{MINUS}∞"
    text = f"{value:+,.{digits}f}" if signed else f"{value:,.{digits}f}"
    if not any(digit in "123456789" for digit in text):
        text = text.lstrip("+-")
    return text.replace("-", MINUS)


def change(value: float | None) -> str:
    """Two significant digits with a sign, in powers of ten where that is shorter."""
    if value is None or not math.isfinite(value):
        return number(value)
    if value == 0:
        return "0"
    if abs(value) < 1e-4 or abs(value) >= 1e4:
        return f"{value:+.1e}".replace("-", MINUS)
    return number(value, max(0, 1 - math.floor(math.log10(abs(value)))), signed=True)


def percent(value: float | None, digits: int = 1) -> str:
    """A share in [0, 1] as per cent."""
    if value is None or not math.isfinite(value):
        return number(value)
    return f"{number(100 * value, digits)}%"


def shown(metric: Metric, value: float | None) -> str:
    """A value of a metric, written as its row says."""
    return {Show.NUMBER: number, Show.CHANGE: change, Show.PERCENT: percent}[metric.show](value)


def shown_difference(metric: Metric, size: float | None) -> str:
    """The size of a difference between two of its values."""
    return number(size, 4) if metric.show == Show.NUMBER else shown(metric, size).lstrip("+")


def count(value: int | None) -> str:
    """A step or a count with thousands separated."""
    return MISSING if value is None else f"{value:,}"


def seconds(value: float | None) -> str:
    """A duration in seconds with three significant digits."""
    if value is None or not math.isfinite(value):
        return number(value)
    digits = 2 if value < 10 else 1 if value < 100 else 0
    return f"{number(value, digits)} s"


def threshold(value: float | None) -> str:
    """µ in standard deviations; `off` on a side that does not clip. What two decimals can't hold is a power of ten."""
    if value is None:
        return "off"
    plain = value == 0 or 0.01 <= abs(value) < 1e6
    return f"{value:.2f}" if plain else f"{value:.3g}"


def parameter(value: object) -> str:
    """A parameter as a person types it: `0.0002`, `7`, `shrink`; nothing when it is off."""
    if value is None:
        return ""
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def method_label(name: str) -> str:
    """As the form offers it."""
    return METHODS[name].label if name in METHODS else name


def method(name: str) -> str:
    """The method as people write it; a method this page does not know stays as it came."""
    return method_label(name).removesuffix(" (observe only)")


def scope(name: str) -> str:
    """The scope's name in lower case, as it stands in a control document."""
    return name

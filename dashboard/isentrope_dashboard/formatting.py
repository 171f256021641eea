"""Numbers, times and controls as the pages print them. What was not measured is a dash, never a
zero."""

from __future__ import annotations

import math
from collections.abc import Sequence

from isentrope_wire.control import Control, Hold
from isentrope_wire.control_answers import ControlVersion, version_before
from isentrope_wire.diagnosis.course import AHEAD
from isentrope_wire.methods import METHODS, Method

MISSING = "–"
MINUS = "−"


def number(value: float | None, digits: int = 3, *, signed: bool = False) -> str:
    """A value with a true minus sign; `–` when it was not measured, NaN and ∞ by their names. What
    rounds to nothing has no sign: there is no −0."""
    if value is None:
        return MISSING
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else f"{MINUS}∞"
    if signed:
        text = f"{value:+,.{digits}f}"
    else:
        text = f"{value:,.{digits}f}"
    if not any(digit in "123456789" for digit in text):
        text = text.lstrip("+-")
    return text.replace("-", MINUS)


def change(value: float | None) -> str:
    """Two significant digits with a sign, in powers of ten where that is shorter."""
    if value is None or not math.isfinite(value):
        return number(value)
    if value == 0:
        return "0"
    if abs(value) < 1e-5 or abs(value) >= 1e4:
        mantissa, _, power = f"{value:+.1e}".partition("e")
        return f"{mantissa}e{int(power)}".replace("-", MINUS)
    return number(value, max(0, 1 - math.floor(math.log10(abs(value)))), signed=True)


LEVEL = "level"


def pace(value: float | None, entropy: float | None) -> str:
    """A pace in nats a step; `level` where it moves the entropy by less than a hundredth in fifty
    steps."""
    if value is not None and entropy and abs(value) * AHEAD < 0.01 * abs(entropy):
        return LEVEL
    return change(value)


def significant(value: float | None, digits: int = 4) -> str:
    """Any size of number in few digits, in powers of ten where that is shorter: `0.125`, `1,234`,
    `3e−6`."""
    if value is None or not math.isfinite(value):
        return number(value)
    size = abs(value)
    if 1e4 <= size < 1e7:
        text = f"{value:,.0f}"
    else:
        text = f"{value:.{digits}g}"
    mantissa, _, power = text.partition("e")
    return (f"{mantissa}e{int(power)}" if power else text).replace("-", MINUS)


WHOLE = 1e15
"""Whole numbers below this are written in full."""
_DIGITS = 5


def told_apart(value: float | None, span: float = 0.0) -> str:
    """A value with as many digits as tell it from others of a chart that spans `span`: `0.12346`,
    `1,000,007,680`, `12,345.61`."""
    if value is None or not math.isfinite(value):
        return number(value)
    size = abs(value)
    if size < WHOLE and value == int(value):
        return f"{int(value):,}".replace("-", MINUS)
    power = math.floor(math.log10(size))
    more = 0
    if 0 < span < size:
        more = math.ceil(math.log10(size / span))
    digits = min(17, _DIGITS + more)
    if not -5 <= power < 15:
        mantissa, _, exponent = f"{value:.{digits - 1}e}".partition("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}".replace("-", MINUS)
    text = f"{value:,.{max(1, digits - 1 - power)}f}"
    return text.rstrip("0").rstrip(".").replace("-", MINUS)


def percent(value: float | None, digits: int = 1) -> str:
    """A share in [0, 1] as per cent."""
    if value is None or not math.isfinite(value):
        return number(value)
    return f"{number(100 * value, digits)}\N{NO-BREAK SPACE}%"


def count(value: int | None) -> str:
    """A step or a count with thousands separated."""
    if value is None:
        return MISSING
    return f"{value:,}"


def seconds(value: float | None) -> str:
    """A duration in seconds with three significant digits."""
    if value is None or not math.isfinite(value):
        return number(value)
    digits = next((digits for limit, digits in ((10, 2), (100, 1)) if value < limit), 0)
    return f"{number(value, digits)} s"


def threshold(value: float | None) -> str:
    """µ in standard deviations; `off` on a side that does not clip. What two decimals can't hold is
    a power of ten."""
    if value is None:
        return "off"
    plain = value == 0 or 0.01 <= abs(value) < 1e6
    if plain:
        return f"{value:.2f}"
    return f"{value:.3g}"


def parameter(value: object) -> str:
    """A parameter as a person types it: `0.0002`, `7`, `shrink`; nothing when it is off."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.12g}"
    return str(value)


def method(name: str) -> str:
    """The method as people write it; a method this page does not know stays as it came."""
    if name in METHODS:
        return METHODS[name].label.removesuffix(" (observe only)")
    return name


DEFAULT = "default"
OFF = "off"


def describe(new: Control, old: Control | None) -> str:
    """`µ₋ 0.15 → 0.22, scope all → negative`; without an old control the new one alone."""
    if old is None:
        parts = {
            name: words for name, words in _parts(new).items() if (name, words) != ("hold", OFF)
        }
        return ", ".join(
            [parts.pop("method"), *(f"{name} {words}" for name, words in parts.items())]
        )
    return (
        ", ".join(f"{name} {before} → {after}" for name, before, after in changes(new, old))
        or "no change"
    )


def _parts(control: Control, *, parameters: bool = True, bounds: bool = False) -> dict[str, str]:
    """Each part of a control in words, by its name: its parameters that are not at their default,
    the bounds of what it holds."""
    held = control.held
    guard = {}
    if control.guard == "revert":
        guard = {"guard": control.guard}
    parts = guard | {
        "method": method(control.method),
        "µ₋": threshold(control.mu_low),
        "µ₊": threshold(control.mu_high),
        "scope": str(control.scope),
        "hold": OFF if held is None else held.target_in_words,
    }
    if parameters:
        known = control.method.parameters
        given = {
            name: value
            for name, value in control.parameters.items()
            if value != known[name].default
        }
        parts |= {name: parameter(value) or OFF for name, value in given.items()}
    if bounds and held is not None:
        limits = {
            "largest change": held.max_change_per_step,
            "µ min": held.mu_min,
            "µ max": held.mu_max,
        }
        parts |= {
            label: DEFAULT if bound is None else f"{bound:.4g}" for label, bound in limits.items()
        }
        parts |= {
            "side": str(held.side),
            "lever": str(held.lever),
            "reward guard": "on" if held.reward_guard else OFF,
        }
    return parts


def changes(new: Control, old: Control) -> list[tuple[str, str, str]]:
    """The parts that differ: name, words before and after. A parameter of another method counts as
    at its default."""
    bounds = new.held is not None and old.held is not None
    before, after = (
        _parts(old, parameters=old.method == new.method, bounds=bounds),
        _parts(new, bounds=bounds),
    )
    pairs = [
        (name, before.get(name, DEFAULT), after.get(name, DEFAULT)) for name in {**before, **after}
    ]
    return [pair for pair in pairs if pair[1] != pair[2]]


def hold_target(hold: Hold) -> str:
    """What is held in a few words: `100 → 40 %, steps 82 to 382`."""
    if hold.target_curve is None or len(hold.target_curve) != 2:
        return hold.target_in_words
    (begins, first), (ends, last) = hold.target_curve
    high, low = str(first), str(last)
    if high.endswith("%") and low.endswith("%"):
        high = high.removesuffix("%")
    low = low.replace("%", "\N{NO-BREAK SPACE}%")
    return f"{high} → {low}, steps {count(begins)} to {count(ends)}"


def short_label(new: Control, old: Control | None) -> str:
    """What changed, in a few characters: `Clip_V · µ₋ 0.22`; empty when nothing did."""
    parts = []
    if (old is None or new.method != old.method) and (
        new.held is None or new.method != Method.NONE
    ):
        parts.append(method(new.method))
    same_method = old is not None and new.method == old.method
    sides = (("µ₋", new.mu_low, old and old.mu_low), ("µ₊", new.mu_high, old and old.mu_high))
    changed = [
        f"{name} {threshold(after)}"
        for name, after, before in sides
        if after != before and (after is not None or same_method)
    ]
    if len(changed) == 2 and new.mu_low == new.mu_high:
        parts += [f"µ {threshold(new.mu_low)}"]
    else:
        parts += changed
    if old is not None and new.scope != old.scope and (new.method, new.held) != (Method.NONE, None):
        parts.append(new.scope)
    if old is None:
        names = {}
    else:
        names = {**old.parameters, **new.parameters}
    if old is None:
        parameters = []
    else:
        parameters = [(name, after) for name, _, after in changes(new, old) if name in names]
    if len(parameters) > 1:
        parts += ["parameters"]
    else:
        parts += [f"{name} {after}" for name, after in parameters]
    if new.held != (old and old.held):
        parts.append(f"Hold {OFF if new.held is None else hold_target(new.held)}")
    return " · ".join(parts)


def previous_control(item: ControlVersion, history: Sequence[ControlVersion]) -> Control | None:
    """The control that the trainer ran with before; None of the one that it started with."""
    before = version_before(item, history)
    if before is None:
        return None
    return before.control


def control_markers(history: Sequence[ControlVersion]) -> list[tuple[int, str]]:
    """Step and a few characters of each applied version after the one the run started with, in the
    order of their steps."""
    marks = []
    for item in history:
        if item.version > 0 and item.applied_step is not None:
            label = short_label(item.control, previous_control(item, history))
            marks.append(
                (item.applied_step, f"v{item.version} · {label}" if label else f"v{item.version}")
            )
    return sorted(marks)

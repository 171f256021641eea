"""What a control changed, in words: for the history, the chart's markers and the status of a push."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from isentrope_dashboard.controls import IN_FORCE_STATES, ControlItem, ControlValues, HoldValues
from isentrope_dashboard.figures.marker_labels import ControlMarker
from isentrope_dashboard.formatting import method, parameter, scope, threshold

ARROW = "→"
UNCHANGED = "no change"
PARAMETERS = "parameters"
DEFAULT = "default"
OFF = "off"


def describe(new: ControlValues, old: ControlValues | None) -> str:
    """`µ₋ 0.15 → 0.22, scope all → negative`; without an old control the new one alone."""
    if old is None:
        thresholds = [f"µ₋ {threshold(new.mu_low)}", f"µ₊ {threshold(new.mu_high)}", f"scope {scope(new.scope)}"]
        parameters = [f"{name} {parameter(value) or OFF}" for name, value in new.parameters.items()]
        held = [] if new.hold is None else [f"hold {_target(new.hold)}"]
        return ", ".join([method(new.method), *thresholds, *parameters, *held])
    pairs = (
        ("method", method(old.method), method(new.method)),
        ("µ₋", threshold(old.mu_low), threshold(new.mu_low)),
        ("µ₊", threshold(old.mu_high), threshold(new.mu_high)),
        ("scope", scope(old.scope), scope(new.scope)),
    )
    changed = [f"{name} {before} {ARROW} {after}" for name, before, after in pairs if before != after]
    changed += [f"{name} {before} {ARROW} {after}" for name, before, after in _changed_parameters(new, old)]
    changed += [f"{name} {before} {ARROW} {after}" for name, before, after in _changed_hold(new.hold, old.hold)]
    return ", ".join(changed) or UNCHANGED


def short_label(new: ControlValues, old: ControlValues | None) -> str:
    """The same for the chart, where there is room for a few characters: `Clip_V · µ₋ 0.22`. Empty when nothing changed."""
    parts = []
    if old is None or new.method != old.method:
        parts.append(method(new.method))
    same_method = old is not None and new.method == old.method
    for name, after, before in (("µ₋", new.mu_low, old and old.mu_low), ("µ₊", new.mu_high, old and old.mu_high)):
        if after != before and (after is not None or same_method):
            parts.append(f"{name} {threshold(after)}")
    if old is not None and new.scope != old.scope:
        parts.append(scope(new.scope))
    parameters = [] if old is None else _changed_parameters(new, old)
    if len(parameters) > 1:
        parts.append(PARAMETERS)
    parts += [f"{name} {after}" for name, _, after in parameters if len(parameters) == 1]
    if new.hold != (old and old.hold):
        parts.append(f"hold {_target(new.hold)}")
    return " · ".join(parts)


def _target(hold: HoldValues | None) -> str:
    return OFF if hold is None else f"{hold.target_entropy:.6g}"


def _changed_hold(new: HoldValues | None, old: HoldValues | None) -> list[tuple[str, str, str]]:
    """Names, and values before and after; of a hold that begins or ends its target alone."""
    pairs = [("hold", _target(old), _target(new))]
    if new is not None and old is not None:
        bounds = (("largest change", "max_change_per_step"), ("µ min", "mu_min"), ("µ max", "mu_max"))
        pairs += [(label, _bound(getattr(old, name)), _bound(getattr(new, name))) for label, name in bounds]
        pairs.append(("side", old.side, new.side))
    return [pair for pair in pairs if pair[1] != pair[2]]


def _bound(value: float | None) -> str:
    return DEFAULT if value is None else f"{value:.4g}"


def _changed_parameters(new: ControlValues, old: ControlValues) -> list[tuple[str, str, str]]:
    """Names, and values before and after. A parameter that is left out stands at its default."""
    before = old.parameters if old.method == new.method else {}
    values = [(name, _shown(before, name), _shown(new.parameters, name)) for name in {**before, **new.parameters}]
    return [(name, old_value, new_value) for name, old_value, new_value in values if old_value != new_value]


def _shown(parameters: Mapping[str, Any], name: str) -> str:
    return (parameter(parameters[name]) or OFF) if name in parameters else DEFAULT


def previous_in_force(item: ControlItem, history: Sequence[ControlItem]) -> ControlValues | None:
    """The control the trainer ran with before `item`: the newest earlier version that it applied."""
    earlier = [
        other
        for other in history
        if other.version < item.version and (other.state in IN_FORCE_STATES or was_applied(other))
    ]
    return max(earlier, key=lambda other: other.version).values if earlier else None


def was_applied(item: ControlItem) -> bool:
    """Whether the trainer ever ran with this version; a later one may have replaced it since."""
    return item.applied_step is not None or item.state in IN_FORCE_STATES


def markers(history: Sequence[ControlItem]) -> list[ControlMarker]:
    """One mark for each applied version after the one the run started with, in the order of their steps."""
    marks = [
        ControlMarker(
            item.applied_step, short_label(item.values, previous_in_force(item, history)) or f"v{item.version}"
        )
        for item in history
        if item.version > 0 and item.applied_step is not None
    ]
    return sorted(marks, key=lambda mark: mark.step)


def history_rows(history: Sequence[ControlItem]) -> list[dict[str, Any]]:
    """Rows of the history grid, newest first. Times stay seconds: the browser knows the reader's time zone."""
    return [
        {
            "id": f"v{item.version}",
            "version": item.version,
            "time": item.requested_at,
            "author": item.author,
            "change": describe(item.values, previous_in_force(item, history)),
            "method": method(item.values.method),
            "state": item.state,
            "requested": item.requested_step,
            "applied": item.applied_step,
            "latency": item.latency_seconds,
            "reason": item.reason,
            "outcome": " ".join(part for part in (item.code, item.message) if part),
        }
        for item in sorted(history, key=lambda item: item.version, reverse=True)
    ]

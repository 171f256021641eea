"""Notifications and error messages. All text reaches the page as text nodes."""

from __future__ import annotations

import logging
from typing import Any

import dash_mantine_components as dmc
from dash import set_props

from isentrope_dashboard import ids
from isentrope_dashboard.components.control_panel import outcome_text
from isentrope_dashboard.control_changes import describe, previous_in_force
from isentrope_dashboard.controls import ControlItem
from isentrope_dashboard.records import RunSnapshot

_log = logging.getLogger(__name__)

_TITLES = {
    "APPLIED": ("Applied", "teal"),
    "PARTIAL": ("Applied by some ranks only", "orange"),
    "REJECTED": ("Rejected by the trainer", "red"),
    "EXPIRED": ("Expired", "orange"),
}


def notification(title: str, message: str, color: str, *, key: str, seconds: float = 8) -> dict[str, Any]:
    """One notification for `NotificationContainer.sendNotifications`."""
    return {
        "action": "show",
        "id": key,
        "title": title,
        "message": message,
        "color": color,
        "autoClose": int(1000 * seconds),
        "closeButtonProps": {"aria-label": "Close this notification"},
    }


def control_notifications(snapshot: RunSnapshot, changed: tuple[ControlItem, ...]) -> list[dict[str, Any]]:
    """One notification for each control version that just came to its end."""
    shown = []
    for item in changed:
        if item.state in _TITLES:
            title, color = _TITLES[item.state]
            what = describe(item.values, previous_in_force(item, snapshot.history))
            message = f"v{item.version}: {what}, {outcome_text(item)}"
            shown.append(notification(title, message, color, key=f"control-{item.version}-{item.state}"))
    return shown


def alert(title: str, message: str, color: str = "red") -> dmc.Alert:
    """A message in the place of a page that can't be shown."""
    return dmc.Alert(message, title=title, color=color, variant="light", radius="lg")


def report_failure(error: Exception) -> None:
    """A callback failed in a way nobody foresaw: the log gets the whole of it, the page one sentence."""
    _log.error("A callback of the dashboard failed.", exc_info=error)
    message = f"{type(error).__name__}: this page may be out of date. The server's log says more; reload to go on."
    show = [notification("The dashboard failed", message, "red", key="failure", seconds=30)]
    set_props(ids.NOTIFICATIONS, {"sendNotifications": show})

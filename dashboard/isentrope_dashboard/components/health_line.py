"""The health line: one word, one sentence, and the control that would help, with a button that tries it."""

from __future__ import annotations

from typing import Any

import dash_mantine_components as dmc
from dash import html

from isentrope_dashboard.components.basics import icon, with_symbols
from isentrope_wire.answers import HealthLevel, RunDetail, Status
from isentrope_wire.diagnosis.health import Diagnosis

TRY = "try"

_FLAGS = {
    HealthLevel.NO_DATA: ("No data", "clock"),
    HealthLevel.HEALTHY: ("Healthy", "check"),
    HealthLevel.WATCH: ("Watch", "eye"),
    HealthLevel.ACT: ("Act", "alert"),
    HealthLevel.HOLDING: ("Holding", "check"),
}


def health_line(diagnosis: Diagnosis, run: RunDetail) -> html.Div:
    """The line of a run. Runs that are over have no button: no control reaches them."""
    word, drawing = _FLAGS[diagnosis.level]
    live = run.status in (Status.RUNNING, Status.SILENT)
    why: list[Any] = [diagnosis.message]
    if diagnosis.cause is not None:
        why += [" ", *with_symbols(_sentence(diagnosis.cause.message))]
    cure: list[Any] = []
    if diagnosis.suggestion is not None and live:
        head, colon, rest = diagnosis.suggestion.message.partition(":")
        cure = [html.B(head + colon), rest]
    elif diagnosis.verdict is not None:
        cure = [html.B(f"v{diagnosis.verdict.version}: "), diagnosis.verdict.message]
    buttons: list[Any] = []
    if diagnosis.cause is not None:
        buttons.append(html.A("See the tokens", href="?tab=tokens", className="dim", **{"data-tab": "tokens"}))
    if diagnosis.suggestion is not None and live:
        buttons.append(dmc.Button("Try it", id=TRY, h=36, size="sm", rightSection=icon("arrow", 14)))
    return html.Div(
        [
            html.Div([icon(drawing, 18), word], className="flag"),
            html.Div([html.Div(why, className="why num"), html.Div(cure, className="cure num")], className="spacer"),
            *buttons,
        ],
        className=f"health {diagnosis.level}",
        role="status",
    )


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:] + ("" if words.endswith(".") else ".")

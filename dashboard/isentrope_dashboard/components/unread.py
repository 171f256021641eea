"""One sentence in the place of what could not be read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dash import html
from dash.development.base_component import Component

from isentrope_dashboard import ids, unread

PLACES: Mapping[str, str] = {
    ids.KPI_CARDS: unread.RECENT,
    ids.RECORD: unread.LATEST,
    ids.RECORD_GAPS: unread.GAPS,
    ids.ENTROPY_GRAPH: unread.SERIES,
    ids.LAW_GRAPH: unread.LAW,
    ids.SCORE_GRAPH: unread.HISTOGRAMS,
    ids.SPLIT_GRAPH: unread.RECENT,
    ids.ALERTS: unread.ALERTS,
    ids.TOKENS: unread.TOKENS,
    ids.METHOD_FORMS: unread.METHODS,
    ids.DEAD_KNOBS: unread.LABELS,
    ids.CONTROL_PROGRESS: unread.CONTROL,
    ids.HISTORY_GRID: unread.HISTORY,
}
"""Where a sentence may stand -> the part of the page that is shown there otherwise."""


def unread_note(place: str) -> html.Div:
    """No words as yet; with them, the style sheet takes what follows the note within its parent out of sight."""
    return html.Div("", id=ids.unread(place), className="unread", role="status")


def or_unread(place: str, *content: Component) -> html.Div:
    """The content, or the sentence in its place."""
    return html.Div([unread_note(place), *content])


def unread_props(told: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Component id -> properties of every note: its sentence, or nothing where all was read."""
    return {ids.unread(place): {"children": told.get(part, "")} for place, part in PLACES.items()}

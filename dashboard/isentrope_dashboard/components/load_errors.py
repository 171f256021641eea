"""What a run page reads, part by part, and what is said where one part could not be read.

One sentence in the place of what could not be read.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import Any, Final, TypeVar

from dash import html
from dash.development.base_component import Component

from isentrope_dashboard import ids
from isentrope_dashboard.errors import ApiError, ApiTimeoutError

METHODS: Final = "methods"
LAW: Final = "law"
LABELS: Final = "labels"
LATEST: Final = "latest"
GAPS: Final = "gaps"
ALERTS: Final = "alerts"
TOKENS: Final = "tokens"
SERIES: Final = "series"
RECENT: Final = "recent"
HISTOGRAMS: Final = "histograms"
CONTROL: Final = "control"
HISTORY: Final = "history"
RUNS: Final = "runs"

_NAMES: Final = {
    METHODS: "The methods' parameters",
    LAW: "The law",
    LABELS: "What the newest report says",
    LATEST: "The newest value of every metric",
    GAPS: "What the record lacks",
    ALERTS: "The alerts",
    TOKENS: "The tokens",
    SERIES: "The entropy over steps",
    RECENT: "The last steps",
    HISTOGRAMS: "The score's distribution",
    CONTROL: "The control",
    HISTORY: "The control history",
    RUNS: "The other runs",
}
ONLY_AT_THE_BEGINNING: Final = frozenset({SERIES, RECENT, CONTROL, HISTORY})
"""Read when a page begins to follow a run; afterwards events carry it."""
_SIGNED_OUT = 401

_Answer = TypeVar("_Answer")


class Reading:
    """The parts that are read at one moment, each of which may fail alone."""

    def __init__(self) -> None:
        self.unread: dict[str, str] = {}
        """Part -> one sentence that says what is missing, and why."""

    async def part(self, name: str, read: Coroutine[Any, Any, _Answer], otherwise: _Answer) -> _Answer:
        """What was read, or `otherwise`.

        Raises:
            ApiError: nobody is signed in, so that nothing can be read.
            ApiUnreachableError: the server is gone.
        """
        try:
            return await read
        except (ApiError, ApiTimeoutError) as error:
            if isinstance(error, ApiError) and error.status == _SIGNED_OUT:
                raise
            self.unread[name] = f"{_NAMES[name]} could not be read: {error}"
            return otherwise


PLACES: Mapping[str, str] = {
    ids.KPI_CARDS: RECENT,
    ids.RECORD: LATEST,
    ids.RECORD_GAPS: GAPS,
    ids.ENTROPY_GRAPH: SERIES,
    ids.LAW_GRAPH: LAW,
    ids.SCORE_GRAPH: HISTOGRAMS,
    ids.SPLIT_GRAPH: RECENT,
    ids.ALERTS: ALERTS,
    ids.TOKENS: TOKENS,
    ids.METHOD_FORMS: METHODS,
    ids.DEAD_KNOBS: LABELS,
    ids.CONTROL_PROGRESS: CONTROL,
    ids.HISTORY_GRID: HISTORY,
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

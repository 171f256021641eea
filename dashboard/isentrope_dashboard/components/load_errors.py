"""The parts that a run page reads, and the sentence shown in the place of one that failed to load."""

from __future__ import annotations

from collections.abc import Collection, Coroutine, Mapping
from typing import Any, Final, TypeVar

from dash import html
from dash.development.base_component import Component

from isentrope.client.connection import ApiError
from isentrope_dashboard import ids

LAW: Final = "law"
LABELS: Final = "labels"
LATEST: Final = "latest"
GAPS: Final = "gaps"
ALERTS: Final = "alerts"
TOKENS: Final = "tokens"
SERIES: Final = "series"
RECENT: Final = "recent"
HISTOGRAMS: Final = "histograms"
HISTORY: Final = "history"
RUNS: Final = "runs"

_NAMES: Final = {
    LAW: "The fit",
    LABELS: "The newest report",
    LATEST: "The newest value of every metric",
    GAPS: "The gaps of the record",
    ALERTS: "The alerts",
    TOKENS: "The tokens",
    SERIES: "The entropy over steps",
    RECENT: "The last steps",
    HISTOGRAMS: "The score's distribution",
    HISTORY: "The control history",
    RUNS: "The other runs",
}
_SIGNED_OUT = 401

_Answer = TypeVar("_Answer")


class Reading:
    """Reads several parts, each of which may fail alone."""

    def __init__(self) -> None:
        self.errors: dict[str, str] = {}
        """Part -> the sentence shown in its place."""

    async def part(self, name: str, read: Coroutine[Any, Any, _Answer], otherwise: _Answer) -> _Answer:
        """The answer, or `otherwise` where reading it failed.

        Raises:
            ApiError: Nobody is signed in, so that nothing can be read.
        """
        try:
            return await read
        except ApiError as error:
            if error.status == _SIGNED_OUT:
                raise
            self.errors[name] = f"{_NAMES[name]} failed to load: {error}"
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
    ids.DEAD_KNOBS: LABELS,
    ids.HISTORY_GRID: HISTORY,
}
"""Place of a sentence -> the part that is shown there otherwise."""


def load_error_note(place: str) -> html.Div:
    """An empty note. With a sentence in it, the style sheet hides what follows it within its parent."""
    return html.Div("", id=ids.load_error(place), className="load-error", role="status")


def or_load_error(place: str, *content: Component) -> html.Div:
    """The content, or the sentence in its place."""
    return html.Div([load_error_note(place), *content])


def load_error_props(errors: Mapping[str, str], parts: Collection[str]) -> dict[str, dict[str, Any]]:
    """Component id -> properties of the notes of these parts."""
    return {
        ids.load_error(place): {"children": errors.get(part, "")} for place, part in PLACES.items() if part in parts
    }

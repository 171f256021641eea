"""How many different series a run may have over its life: a name that changes with every step would be a new one each.

Every page, every look at the names and every layout would grow with it. What a run already has goes on as before; of
what is new beyond the limit the numbers are left out, and the report itself and an alert say so.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import replace

from sqlalchemy import Connection

from isentrope_server.store import alerts, layouts
from isentrope_server.store.layouts import Layout
from isentrope_server.store.records import Arrival
from isentrope_server.store.streams import Stream
from isentrope_wire.messages import Alert, StepReport
from isentrope_wire.metrics import HISTOGRAMS, promised_metrics

LEFT_OUT_SERIES = "report/left_out_series"
"""Label of a report that had more: how many names, and the first of them."""
_KIND = "left_out"
_RUNS_REMEMBERED = 256
_NAMES_REMEMBERED = 200_000
"""Of all runs but the one at hand: a name may have 500 characters. What is forgotten is read from the database."""
_NAMES_TOLD = 5
_CHARACTERS_TOLD = 100


class SeriesLimit:
    """Belongs to the writer's thread: it remembers what runs report, so that an ordinary report costs one comparison.

    What a transaction brought stays remembered should it fail: the same report comes again. Of servers that share a
    database each counts what it has seen.
    """

    def __init__(self, series_per_run: int) -> None:
        self._limit = series_per_run
        self._names: OrderedDict[str, set[str]] = OrderedDict()

    def within(self, connection: Connection, run_id: str, stream: Stream, arrivals: Sequence[Arrival]) -> list[Arrival]:
        """The same arrivals, their reports without the series that are too many."""
        known = self._known(connection, run_id, stream.run_key)
        lightened: list[Arrival] = []
        is_told: bool | None = None
        fits: Layout | None = None
        for arrival in arrivals:
            layout = None if arrival.packed is None else arrival.packed.layout
            # Mostly the very object that the report before had.
            if layout is fits or not isinstance(arrival.message, StepReport):
                lightened.append(arrival)
                continue
            excess = self._excess(known, arrival.message)
            if not excess:
                fits = layout
                lightened.append(arrival)
                continue
            if is_told is None:
                is_told = alerts.was_told(connection, stream.run_key, stream.key, _KIND, evidence=_EVIDENCE)
            message = self._without(arrival.message, excess)
            lightened.append(replace(arrival, message=message if is_told else self._told(message, excess)))
            is_told = True
        return lightened

    def _known(self, connection: Connection, run_id: str, run_key: int) -> set[str]:
        if run_id in self._names:
            self._names.move_to_end(run_id)
            return self._names[run_id]
        known = {
            name
            for used in layouts.used_by(connection, run_key)
            for name in (*used.names, *(place.name for place in used.layout.histograms))
        }
        self._names[run_id] = known
        while len(self._names) > _RUNS_REMEMBERED or self._others_names(known) > _NAMES_REMEMBERED:
            self._names.popitem(last=False)
        return known

    def _others_names(self, known: set[str]) -> int:
        return sum(map(len, self._names.values())) - len(known)

    def _excess(self, known: set[str], report: StepReport) -> set[str]:
        """The names of a report that have no room; those that have are known from now on."""
        histograms = [histogram.name for histogram in report.histograms]
        if report.scalars.keys() <= known and known.issuperset(histograms):
            return set()
        new = {*report.scalars, *histograms} - known
        known |= new & _PROMISED
        others = sorted(new - _PROMISED)
        room = max(0, self._limit - (len(known) - len(known & _PROMISED)))
        known.update(others[:room])
        return set(others[room:])

    def _without(self, report: StepReport, excess: Collection[str]) -> StepReport:
        return replace(
            report,
            scalars={name: value for name, value in report.scalars.items() if name not in excess},
            histograms=tuple(histogram for histogram in report.histograms if histogram.name not in excess),
            labels={**report.labels, LEFT_OUT_SERIES: f"{len(excess)}: {_first_of(excess)}"},
        )

    def _told(self, report: StepReport, excess: Collection[str]) -> StepReport:
        alert = Alert(
            kind=_KIND,
            reason=(
                f"From step {report.step} on new metrics are left out: the run has {self._limit} already, as many as one "
                f"may have. Does a name hold a step or another number that keeps changing, as {_first_of(excess)}? "
                "ISENTROPE_SERIES_PER_RUN of the server sets the limit."
            ),
            evidence={_EVIDENCE: float(self._limit), "left_out": float(len(excess))},
        )
        # In front: of many alerts in a report the first ones are kept.
        return replace(report, alerts=(alert, *report.alerts))


_PROMISED = promised_metrics() | frozenset(HISTOGRAMS)
_EVIDENCE = "series_per_run"


def _first_of(names: Collection[str]) -> str:
    first = sorted(names)[:_NAMES_TOLD]
    more = ", ..." if len(names) > len(first) else ""
    return ", ".join(name[:_CHARACTERS_TOLD] for name in first) + more

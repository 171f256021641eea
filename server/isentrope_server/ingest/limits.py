"""How much a Hello may hold. What no probe sends is cut before anything reads it; no run is lost for what it says of itself.

How much a push, a report and a run may hold: enough for every training, too little to fill a disk with names.

How many different series a run may have over its life: a name that changes with every step would be a new one each.

Every page, every look at the names and every layout would grow with it. What a run already has goes on as before; of
what is new beyond the limit the numbers are left out, and the report itself and an alert say so.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from sqlalchemy import Connection

from isentrope_server.store.reports import attachments, layouts
from isentrope_server.store.reports.layouts import Layout
from isentrope_server.store.reports.records import Arrival
from isentrope_server.store.streams import Stream
from isentrope_wire.errors import CodecError
from isentrope_wire.metrics import HISTOGRAMS, promised_metrics
from isentrope_wire.reports import CONFIG_CHARACTERS, NAME_CHARACTERS, TAG_CHARACTERS, TAGS, Alert, StepReport, cut
from isentrope_wire.v1 import telemetry_pb2 as pb

CAPABILITIES = 200
CAPABILITY_CHARACTERS = 200
VERSION_CHARACTERS = 100
CONTROL_CHARACTERS = 64 * 1024
"""Of the parameters and of the hold of the control a run starts with, as JSON."""
REASON_CHARACTERS = 10_000


def cut_to_size(run: pb.RunStarted) -> None:
    """Cut in place what is too long.

    Raises:
        CodecError: a control with parameters of a size that no method has.
    """
    if len(run.config_json) > CONFIG_CHARACTERS:
        # The first half of a JSON document is none.
        left_out = f"{len(run.config_json)} characters of JSON, at most {CONFIG_CHARACTERS} are kept"
        run.config_json = json.dumps({"left_out": left_out})
    tags = [cut(tag, TAG_CHARACTERS) for tag in run.tags[:TAGS]]
    capabilities = [name for name in run.capabilities[:CAPABILITIES] if len(name) <= CAPABILITY_CHARACTERS]
    del run.tags[:], run.capabilities[:]
    run.tags.extend(tags)
    run.capabilities.extend(capabilities)
    run.probe_version = cut(run.probe_version, VERSION_CHARACTERS)
    if run.HasField("initial_control"):
        _cut_control(run.initial_control)


def _cut_control(control: pb.ControlSnapshot) -> None:
    size = max(len(control.parameters_json), len(control.hold_json))
    if size > CONTROL_CHARACTERS:
        raise CodecError(
            f"parameters_json and hold_json have at most {CONTROL_CHARACTERS} characters each, got {size}."
        )
    control.reason = cut(control.reason, REASON_CHARACTERS)
    control.author = cut(control.author, VERSION_CHARACTERS)


RECORDS_OF_A_PUSH = 1_000
"""A shipper sends 250 at most. All of a push is one piece of work for the writer, and everybody waits for it."""
SCALARS = 5_000
MOST_HISTOGRAMS = 500
HISTOGRAM_BINS = 4_096
LABELS = 500
LABEL_CHARACTERS = 10_000
TOKENS = 1_000
TOKEN_CHARACTERS = 1_000
ALERTS = 500
ALERT_NUMBERS = 500
OUTCOMES = 10_000
STREAMS_OF_A_RUN = 65_536
"""Ranks times incarnations."""


def excess(report: StepReport) -> str:
    """What a report has too much of, in words; empty where nothing."""
    for what, limit, count_of in _LIMITS:
        count = count_of(report)
        if count > limit:
            return f"{count} {what}, at most {limit} are taken"
    return ""


def _longest(texts: Collection[str]) -> int:
    # Most reports have none of most of these.
    return max(map(len, texts)) if texts else 0


_LIMITS: tuple[tuple[str, int, Callable[[StepReport], int]], ...] = (
    ("scalars", SCALARS, lambda report: len(report.scalars)),
    ("histograms", MOST_HISTOGRAMS, lambda report: len(report.histograms)),
    ("bins of a histogram", HISTOGRAM_BINS, lambda report: max([len(h.counts) for h in report.histograms], default=0)),
    ("labels", LABELS, lambda report: len(report.labels)),
    ("characters in a label", LABEL_CHARACTERS, lambda report: _longest(report.labels.values())),
    ("characters in a label's name", NAME_CHARACTERS, lambda report: _longest(report.labels)),
    ("tokens", TOKENS, lambda report: len(report.tokens)),
    ("characters of a token", TOKEN_CHARACTERS, lambda r: _longest([t.text or "" for t in r.tokens])),
    ("alerts", ALERTS, lambda report: len(report.alerts)),
    ("numbers of an alert", ALERT_NUMBERS, lambda report: max([len(a.evidence) for a in report.alerts], default=0)),
    (
        "characters in the name of an alert's number",
        NAME_CHARACTERS,
        lambda report: _longest([name for alert in report.alerts for name in alert.evidence]),
    ),
    ("control outcomes", OUTCOMES, lambda report: len(report.outcomes)),
)

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
                is_told = attachments.was_reported(connection, stream.run_key, stream.key, _KIND, evidence=_EVIDENCE)
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

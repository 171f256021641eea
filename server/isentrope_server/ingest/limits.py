"""What a client may send: one table of limits, and what happens to what exceeds them.

A Hello is cut, so that no run is lost for its description. A push or report beyond its limit is
refused. Of metrics beyond the limit of a run the numbers are dropped from the report; the report's
label and one alert name them.

The limits that the probe checks first (configuration, tags, names, errors) are in
`isentrope_wire.reports`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence, Sized
from dataclasses import dataclass, replace

from sqlalchemy import Connection

from isentrope_server.store import rows
from isentrope_server.store.reports import alerts
from isentrope_server.store.reports.records import Arrival
from isentrope_server.store.streams import Stream
from isentrope_wire import reports
from isentrope_wire.codec import write_json
from isentrope_wire.metrics import HISTOGRAMS, METRICS


@dataclass(frozen=True, slots=True)
class Limit:
    """The most a client may send of something."""

    most: int
    unit: str
    reason: str
    count: Callable[[reports.StepReport], int] | None = None
    """How many a report has; None: the limit is not one of a report."""


def _longest(texts: Iterable[Sized]) -> int:
    return max(map(len, texts), default=0)


MESSAGE = Limit(
    16 << 20,
    "bytes of a gRPC message",
    "a push of large reports has some; more would fill the memory",
)
CONNECTIONS = Limit(16_000, "gRPC connections", "a rank has one; each costs an open file")
CALLS = Limit(
    1_000,
    "calls on a connection at once",
    "a rank has a Watch and two pushes; ranks of a process share one",
)
RECORDS = Limit(
    1_000, "records of a push", "a push is one piece of work for the writer; shippers send 250"
)
STREAMS = Limit(
    65_536, "ranks and incarnations of a run", "each is a row that Hello and the pages read"
)
RANK = Limit(2**31 - 1, "as a rank or world size", "the column's range")
FIRST_VERSION = Limit(
    2**31 - 1, "as the version of a run's first control", "later versions count on from it"
)
CAPABILITIES = Limit(200, "capabilities of a probe", "a probe has one per method")
CAPABILITY = Limit(200, "characters of a capability", "longer than any method's name")
VERSION = Limit(100, "characters of the probe's version", "shown beside the run")
AUTHOR = Limit(200, "characters of a control's author", "shown beside each version")
OUTCOMES = Limit(
    10_000, "control outcomes", "versions a report may answer", lambda r: len(r.outcomes)
)

_OF_A_REPORT = (
    OUTCOMES,
    Limit(
        reports.LOGGED_SCALARS + 2_000,
        "scalars",
        "every name is a series",
        lambda r: len(r.scalars),
    ),
    Limit(500, "histograms", "every name is a series", lambda r: len(r.histograms)),
    Limit(
        4_096,
        "bins of a histogram",
        "64 are drawn",
        lambda r: _longest(h.counts for h in r.histograms),
    ),
    Limit(500, "labels", "stored as JSON", lambda r: len(r.labels)),
    Limit(10_000, "characters in a label", "stored as JSON", lambda r: _longest(r.labels.values())),
    Limit(
        reports.NAME_CHARACTERS,
        "characters in a label's name",
        "as a metric's name",
        lambda r: _longest(r.labels),
    ),
    Limit(1_000, "tokens", "the probe sends 16", lambda r: len(r.tokens)),
    Limit(
        1_000,
        "characters of a token",
        "shown in a table",
        lambda r: _longest(t.text or "" for t in r.tokens),
    ),
    Limit(16, "rollouts", "the probe sends 6", lambda r: len(r.rollouts)),
    Limit(
        1_000,
        "tokens of a rollout",
        "the probe sends 160",
        lambda r: _longest(o.texts for o in r.rollouts),
    ),
    Limit(
        1_000,
        "characters of a rollout's token",
        "as a token",
        lambda r: _longest(t for o in r.rollouts for t in o.texts),
    ),
    Limit(
        10_000,
        "characters of a prompt",
        "1 024 are sent",
        lambda r: _longest(o.prompt or "" for o in r.rollouts),
    ),
    Limit(
        1_000,
        "characters of an answer",
        "48 are sent",
        lambda r: _longest(o.answer or "" for o in r.rollouts),
    ),
    Limit(99, "parts of a reward", "4 are sent", lambda r: _longest(o.rewards for o in r.rollouts)),
    Limit(500, "alerts", "the store keeps 16 of a report", lambda r: len(r.alerts)),
)


def excess(report: reports.StepReport) -> str:
    """Describe the first limit that a report exceeds; empty where it exceeds none."""
    for limit in _OF_A_REPORT:
        if limit.count is None:
            count = 0
        else:
            count = limit.count(report)
        if count > limit.most:
            return f"{count} {limit.unit}; at most {limit.most} are allowed"
    return ""


def cut_to_size(run: reports.RunStarted) -> reports.RunStarted:
    """A Hello's description of a run, what is too long in it shortened."""
    config, first = run.config, run.initial_control
    characters = len(write_json(config))
    if characters > reports.CONFIG_CHARACTERS:
        # Part of a JSON document is not JSON.
        config = {
            "left_out": f"{characters} characters of JSON, at most {reports.CONFIG_CHARACTERS} are"
            " kept"
        }
    if first is not None:
        first = replace(first, author=reports.cut(first.author, AUTHOR.most))
    capabilities = run.capabilities[: CAPABILITIES.most]
    return replace(
        run,
        config=config,
        tags=tuple(reports.cut(tag, reports.TAG_CHARACTERS) for tag in run.tags[: reports.TAGS]),
        capabilities=tuple(name for name in capabilities if len(name) <= CAPABILITY.most),
        probe_version=reports.cut(run.probe_version, VERSION.most),
        initial_control=first,
    )


_ALERT_KIND = "left_out"
_EVIDENCE = "series_per_run"
_NAMES_REMEMBERED = 200_000
"""Names remembered of runs other than the current one: a name may have 500 characters. Forgotten
ones are read from the database."""
_OF_THE_PROBE = frozenset(METRICS) | frozenset(HISTOGRAMS)


class SeriesLimit:
    """How many metrics and histograms a run may have: a name with a step in it would be a new one
    each step. Used on the writer's thread. It remembers the names of runs, so that an ordinary
    report costs one comparison. Names of a failed transaction stay remembered: the same report
    comes again. Of servers that share a database each counts what it has seen."""

    def __init__(self, series_per_run: int) -> None:
        """`series_per_run`: how many, besides those of the probe."""
        self._limit = series_per_run
        self._names: OrderedDict[str, set[str]] = OrderedDict()

    def drop_excess(
        self, connection: Connection, run_id: str, stream: Stream, arrivals: Sequence[Arrival]
    ) -> list[Arrival]:
        """Return the arrivals, their reports without the metrics that are too many."""
        known = self._known(connection, run_id, stream.run_key)
        kept: list[Arrival] = []
        is_reported: bool | None = None
        fits = rows.NO_LAYOUT
        for arrival in arrivals:
            # Mostly the very object that the report before had.
            if arrival.layout is fits or not isinstance(arrival.message, reports.StepReport):
                kept.append(arrival)
                continue
            dropped = self._dropped(known, arrival.message)
            if not dropped:
                fits = arrival.layout
                kept.append(arrival)
                continue
            if is_reported is None:
                is_reported = alerts.was_reported(
                    connection, stream.run_key, stream.key, _ALERT_KIND, evidence=_EVIDENCE
                )
            report = self._leave_out(arrival.message, dropped)
            if not is_reported:
                report = self._add_alert(report, dropped)
            kept.append(replace(arrival, message=report))
            is_reported = True
        return kept

    def _known(self, connection: Connection, run_id: str, run_key: int) -> set[str]:
        if run_id in self._names:
            self._names.move_to_end(run_id)
            return self._names[run_id]
        names: set[str] = set()
        for layout in rows.layouts_of(connection, run_key).values():
            names |= {*layout.names, *layout.histogram_names}
        self._names[run_id] = names
        while sum(map(len, self._names.values())) - len(names) > _NAMES_REMEMBERED:
            self._names.popitem(last=False)
        return names

    def _dropped(self, known: set[str], report: reports.StepReport) -> set[str]:
        """Names of a report beyond the limit; the others are remembered."""
        histograms = [histogram.name for histogram in report.histograms]
        if report.scalars.keys() <= known and known.issuperset(histograms):
            return set()
        new = {*report.scalars, *histograms} - known
        known |= new & _OF_THE_PROBE
        others = sorted(new - _OF_THE_PROBE)
        room = max(0, self._limit - (len(known) - len(known & _OF_THE_PROBE)))
        known.update(others[:room])
        return set(others[room:])

    @staticmethod
    def _leave_out(report: reports.StepReport, dropped: Collection[str]) -> reports.StepReport:
        """The report without these names, and with a label that says so."""
        kept = {name: value for name, value in report.scalars.items() if name not in dropped}
        drawn = [histogram for histogram in report.histograms if histogram.name not in dropped]
        label = {reports.DROPPED_SERIES: f"{len(dropped)}: {reports.first_of(dropped)}"}
        return replace(
            report, scalars=kept, histograms=tuple(drawn), labels={**report.labels, **label}
        )

    def _add_alert(
        self, report: reports.StepReport, dropped: Collection[str]
    ) -> reports.StepReport:
        alert = reports.Alert(
            kind=_ALERT_KIND,
            level=reports.AlertLevel.WATCH,
            message=(
                f"From step {report.step} on new metrics are dropped: the run has {self._limit},"
                " the most one may have (ISENTROPE_SERIES_PER_RUN of the server). Check whether"
                " names contain a number that changes with every step:"
                f" {reports.first_of(dropped)}."
            ),
            evidence={_EVIDENCE: float(self._limit), "left_out": float(len(dropped))},
        )
        # First: of many alerts in a report the first ones are kept.
        return replace(report, alerts=(alert, *report.alerts))

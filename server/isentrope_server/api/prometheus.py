"""The server's own figures in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib.metadata import version

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, Metric, generate_latest
from prometheus_client.core import GaugeMetricFamily

from isentrope_server.api.dependencies import BackendDep
from isentrope_server.backend import Backend
from isentrope_server.security.open_streams import OpenStreams
from isentrope_server.server_figures import ServerFigures
from isentrope_server.store.totals import Totals, totals

router = APIRouter(tags=["health"])


@router.get("/metrics", response_class=PlainTextResponse)
async def get_figures(request: Request, backend: BackendDep) -> PlainTextResponse:
    """What this server counts and times, and how much its database holds. No label names a run."""
    figures: ServerFigures = request.app.state.figures
    open_streams: OpenStreams = request.app.state.open_streams
    silent_after = backend.settings.silent_after_seconds
    stored = await backend.read(lambda connection: totals(connection, silent_after_seconds=silent_after))
    families = [*figures.registry.collect(), *_stored(stored), *_at_this_moment(backend, open_streams)]
    return PlainTextResponse(generate_latest(_Collected(families)), media_type=CONTENT_TYPE_LATEST)


class _Collected:
    """What `generate_latest` asks a registry for."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterator[Metric]:
        return iter(self._families)


def _stored(stored: Totals) -> Iterator[Metric]:
    by_status = GaugeMetricFamily("isentrope_runs", "Runs by their status.", labels=["status"])
    for status, count in stored.runs.items():
        by_status.add_metric([status], count)
    yield by_status
    by_state = GaugeMetricFamily("isentrope_controls", "Control versions by their state.", labels=["state"])
    for state, count in stored.controls.items():
        by_state.add_metric([state.lower()], count)
    yield by_state
    yield GaugeMetricFamily("isentrope_records_stored", "Records of all runs.", stored.records)
    yield GaugeMetricFamily("isentrope_records_quarantined", "Records kept aside.", stored.quarantined)
    yield GaugeMetricFamily("isentrope_gaps", "Ranges of records that shippers said are lost.", stored.gaps)
    yield GaugeMetricFamily("isentrope_records_in_gaps", "Records in those ranges.", stored.records_in_gaps)
    yield GaugeMetricFamily("isentrope_tokens", "Tokens in force.", stored.tokens_in_force)


def _at_this_moment(backend: Backend, open_streams: OpenStreams) -> Iterator[Metric]:
    yield GaugeMetricFamily("isentrope_writer_jobs_waiting", "Work the writer has not begun.", backend.writer.waiting)
    yield GaugeMetricFamily(
        "isentrope_live_listeners", "Live and Watch streams that listen.", backend.hub.listener_count
    )
    yield GaugeMetricFamily("isentrope_open_streams", "Requests and streams that are open.", open_streams.total)
    build = GaugeMetricFamily("isentrope_build", "Always 1.", labels=["version"])
    build.add_metric([version("isentrope")], 1)
    yield build

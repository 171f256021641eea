"""What a probe is made of: one of each for a run, shared by its steps, its checkpoint and its
end."""

from __future__ import annotations

from dataclasses import dataclass

from isentrope.config import ProbeConfig
from isentrope.control import ControlState
from isentrope.distributed import RankExchange, Ranks
from isentrope.guard import Guard, SafeLog, Stopwatch, Warnings
from isentrope.hold.controller import HoldController
from isentrope.methods.basis import SelectionBasis
from isentrope.statistics.texts import TokenTexts
from isentrope.steps.report import ReportBuilder
from isentrope.trackers import Trackers
from isentrope.transport.transport import Transport
from isentrope_wire.control import CAPABILITIES
from isentrope_wire.reports import ControlSnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """One of each; what a part does is said where it is defined."""

    config: ProbeConfig
    control: ControlState
    hold: HoldController
    basis: SelectionBasis
    ranks: RankExchange
    transport: Transport
    trackers: Trackers
    texts: TokenTexts
    reports: ReportBuilder
    guard: Guard
    stopwatch: Stopwatch
    """Counts the probe's own seconds of the open step."""
    warnings: Warnings


def assemble_parts(
    config: ProbeConfig,
    first_control: ControlSnapshot,
    ranks: Ranks,
    transport: Transport,
    texts: TokenTexts,
    page: str,
) -> Parts:
    """The parts of a new probe. `page` is the address of the run's page; empty: it has none."""
    basis = SelectionBasis(config.threshold_source)
    is_tracked = config.rank == 0 and config.mode != "disabled"
    if not config.texts:
        texts = TokenTexts(None)
    return Parts(
        config=config,
        control=ControlState(first_control, CAPABILITIES),
        hold=HoldController(),
        basis=basis,
        ranks=RankExchange(ranks, basis),
        transport=transport,
        trackers=Trackers(config.trackers if is_tracked else (), config.run_id),
        texts=texts,
        # Counted by the writer thread: on this one the look at the transport took as long as the
        # rest of a report.
        reports=ReportBuilder(
            texts, lambda: transport.statistics().scalars(), page=page, leads=config.rank == 0
        ),
        guard=Guard(),
        stopwatch=Stopwatch(),
        warnings=Warnings(SafeLog("isentrope.probe")),
    )

"""The transport for a mode."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from isentrope.transport.in_memory import InMemoryTransport
from isentrope.transport.shipper_supervisor import ShipperSupervisor
from isentrope.transport.spool import SpoolTransport
from isentrope.transport.spool_folder import SpoolFolder
from isentrope.transport.spool_writer import SpoolLimits
from isentrope.transport.transport import Transport
from isentrope_wire import environment
from isentrope_wire.messages import RunStarted

Mode = Literal["online", "offline", "disabled"]


def open_transport(
    run: RunStarted,
    *,
    mode: Mode,
    home: Path,
    grpc_target: str,
    token: str | None,
    limits: SpoolLimits | None = None,
) -> Transport:
    """Open what carries the reports of one rank of one incarnation.

    Args:
        mode: `online`: spool and shipper; `offline`: spool only; `disabled`: everything is taken and goes nowhere.
        home: ISENTROPE_HOME; the spool lies in it.
        grpc_target: host:port of the server's ingest. Nothing is connected here: the server may be away.
        token: what the shipper sends; None, or the one it finds by itself: ISENTROPE_TOKEN or, read anew at each
            attempt, the home's owner token.

    Raises:
        SpoolError: the home can't be written to or knows no locks, or this incarnation has a spool already.
        ConfigurationError: what is told of the run is larger than a record may be.
    """
    if mode == "disabled":
        return InMemoryTransport(keep_messages=False)
    folder = SpoolFolder.create(home, run, grpc_target)
    if home == environment.home() and token == environment.token():
        # Left to the shipper to find, so that an owner's token that changes later still takes effect.
        token = None
    supervisor = ShipperSupervisor(folder, home=home, token=token) if mode == "online" else None
    try:
        return SpoolTransport(folder, run, supervisor, limits)
    except OSError:
        # Else a `sync` would look at it for ever.
        folder.remove()
        raise

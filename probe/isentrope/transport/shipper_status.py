"""How far the shipper is, as a small file that the training process and `isentrope doctor` read."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from isentrope.atomic_file import write_atomically


class ShipperState(StrEnum):
    """What the shipper is doing."""

    STARTING = "starting"
    DELIVERING = "delivering"
    RETRYING = "retrying"
    """The server does not answer; tried again with growing pauses."""
    HOLDING = "holding"
    """The server refuses, e.g. the token; the data is kept, and tried again with growing pauses."""
    DRAINED = "drained"
    """The training process is gone and everything is stored."""
    GAVE_UP = "gave_up"
    """The training process is gone and the server stayed away; `isentrope sync` delivers the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShipperStatus:
    """One state of the shipper."""

    state: ShipperState = ShipperState.STARTING
    acked_through: int = 0
    error: str = ""
    pid: int = 0
    updated_at: float = 0.0
    reached: bool = False
    """The server has answered this shipper at least once; for whoever called it, not read back."""

    def write(self, path: Path) -> None:
        """
        Raises:
            OSError: the spool folder is gone, read-only or full.
        """
        write_atomically(path, json.dumps(asdict(self) | {"updated_at": time.time()}).encode())

    @classmethod
    def read(cls, path: Path) -> ShipperStatus | None:
        """The newest status; None when there is none that can be read."""
        try:
            document = json.loads(path.read_bytes())
            return cls(
                state=ShipperState(document["state"]),
                acked_through=int(document["acked_through"]),
                error=str(document["error"]),
                pid=int(document["pid"]),
                updated_at=float(document["updated_at"]),
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None

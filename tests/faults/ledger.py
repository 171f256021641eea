"""What a training process handed over, written down outside of everything that is made to fail.

One JSON object a line, appended with one write each, so that a killed process loses at most the
line it was at."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from isentrope_wire.codec import decode_payload, encode_payload, payload_hash
from isentrope_wire.reports import ControlOutcome, Payload, StepReport


class LedgerWriter:
    """The training process's side."""

    def __init__(self, path: Path, **who: object) -> None:
        """
        Args:
            who: run_id, incarnation, rank.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o600)
        self._write(started=who)

    def offer(self, message: Payload) -> None:
        """Before a message is put: from now on it may turn up at the server."""
        self._write(offered=encode_payload(message).hex(), at=time.monotonic())

    def answered(self, accepted: bool, seconds: float) -> None:
        """After it was put."""
        self._write(accepted=accepted, seconds=seconds, at=time.monotonic())

    def decided(self, outcome: ControlOutcome) -> None:
        self._write(version=outcome.version, state=str(outcome.state), step=outcome.step)

    def closed(self, **measured: object) -> None:
        self._write(closed=measured)

    def _write(self, **line: object) -> None:
        os.write(self._descriptor, json.dumps(line).encode() + b"\n")


@dataclass(slots=True, kw_only=True)
class Offer:
    """One message and what became of the attempt to hand it over."""

    payload: bytes
    at: float
    """Seconds on the clock that all processes of a machine share."""
    accepted: bool | None = None
    """None: the process ended before the answer."""
    seconds: float = 0.0

    @property
    def hash(self) -> bytes:
        return payload_hash(self.payload)

    @property
    def message(self) -> Payload:
        return decode_payload(self.payload)


@dataclass(slots=True, kw_only=True)
class Decision:
    """What the process decided about a control version."""

    version: int
    state: str
    step: int | None


@dataclass(slots=True, kw_only=True)
class Ledger:
    """One attempt of one rank, as the process itself reported it."""

    run_id: str
    incarnation: str
    rank: int
    offers: list[Offer] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    closed: dict[str, Any] | None = None
    """What it measured when it closed its spool; None: it never closed it."""

    @classmethod
    def read(cls, path: Path) -> Ledger | None:
        """The ledger as far as it is written; None: not begun."""
        # The last line may be half-written just now.
        written, _, _ = path.read_text().rpartition("\n") if path.exists() else ("", "", "")
        lines = written.splitlines()
        if not lines:
            return None
        ledger = cls(**json.loads(lines[0])["started"])
        for line in lines[1:]:
            ledger._take(json.loads(line))
        return ledger

    def _take(self, line: dict[str, Any]) -> None:
        if "offered" in line:
            self.offers.append(Offer(payload=bytes.fromhex(line["offered"]), at=line["at"]))
        elif "accepted" in line:
            self.offers[-1].accepted = line["accepted"]
            self.offers[-1].seconds = line["seconds"]
        elif "version" in line:
            self.decisions.append(Decision(**line))
        else:
            self.closed = line["closed"]

    @property
    def accepted_steps(self) -> list[int]:
        """The steps whose reports were accepted, in the order they were put."""
        return [
            message.step
            for offer in self.offers
            if offer.accepted and isinstance(message := offer.message, StepReport)
        ]

    @property
    def longest_put_seconds(self) -> float:
        return max((offer.seconds for offer in self.offers), default=0.0)

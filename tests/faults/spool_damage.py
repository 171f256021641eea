"""A spool's segment is cut off, or a bit of it flips. What the reader makes of each byte:
`tests/probe/transport`."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from isentrope.transport.files import write_document
from isentrope.transport.segments import SegmentWriter, encode_frame, list_segments
from isentrope.transport.shipper import ShipperSettings, ship
from isentrope.transport.spool_folder import ShipperState, SpoolEnd, SpoolFolder
from isentrope.transport.spool_reader import DAMAGED, NEVER_WRITTEN, TORN
from isentrope_wire.codec import encode_payload
from isentrope_wire.reports import Payload, RunFinished, RunStarted, StepReport
from tests.faults.ledger import Ledger, Offer
from tests.faults.oracle import Allowance, Verdict
from tests.faults.stage import Stage
from tests.probe.transport.fake_telemetry import RUN

RECORDS = 50
LOST = Allowance(gap_reasons=(DAMAGED, NEVER_WRITTEN, TORN))
QUICK = ShipperSettings(poll_seconds=0.01, drain_seconds=20.0, longest_pause_seconds=0.2)


def truncated_segment(stage: Stage) -> Verdict:
    """A segment of fifty records is cut off at some byte: whole records are stored, the rest is a
    gap."""
    whole = _segment(_run("whole"))
    return _deliver(
        stage, "cut", [whole[:size] for size in _places(stage, whole)], most_lost=RECORDS
    )


def flipped_bit(stage: Stage) -> Verdict:
    """One bit of a segment of fifty records flips: at most one record is lost, and shown as a
    gap."""
    whole = _segment(_run("whole"))
    return _deliver(
        stage, "flip", [_flipped(whole, place) for place in _places(stage, whole)], most_lost=1
    )


def _run(run_id: str) -> RunStarted:
    return replace(RUN, run_id=run_id)


def _messages(run: RunStarted) -> list[Payload]:
    reports = [
        StepReport(step=step, recorded_at=1.0, scalars={"e": step + 0.5})
        for step in range(RECORDS - 2)
    ]
    return [run, *reports, RunFinished(status="finished", finished_at=2.0, step=RECORDS - 3)]


def _segment(run: RunStarted) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        writer = SegmentWriter(Path(folder), 1)
        writer.append(
            encode_frame(seq, encode_payload(m)) for seq, m in enumerate(_messages(run), start=1)
        )
        writer.close()
        return writer.path.read_bytes()


def _flipped(whole: bytes, place: int) -> bytes:
    content = bytearray(whole)
    content[place] ^= 1 << random.randrange(8)
    return bytes(content)


def _places(stage: Stage, whole: bytes) -> list[int]:
    """Bytes at random, spread over the segment."""
    count = 6 if stage.short else 80
    return [round((i + random.random()) * (len(whole) - 1) / count) for i in range(count)]


def _deliver(stage: Stage, name: str, damaged: Sequence[bytes], *, most_lost: int) -> Verdict:
    """Put each damaged segment into a spool of its own, deliver it, and ask the oracle."""
    total = Verdict()
    for number, content in enumerate(damaged):
        run = _run(f"{name}-{number}")
        folder = SpoolFolder.create(stage.folder / "home", run, stage.server.grpc_target)
        # The first record names the run, and so differs from run to run; the damage is behind it in
        # nearly all.
        (folder.path / f"{1:020d}.seg").write_bytes(content)
        write_document(folder.end, SpoolEnd(RECORDS))
        status = ship(folder, QUICK, find_token=lambda: stage.server.token)
        assert status is not None
        total.require(
            status.state is ShipperState.DRAINED, f"{run.run_id} was not delivered: {status}"
        )
        left = list_segments(folder.path)
        total.require(not left, f"{run.run_id} left {left}")
        verdict = stage.oracle.judge([_ledger_of(run)], LOST)
        # The spool's end is known: what is not there must be in a gap.
        total.require(verdict.unwritten == 0, f"{run.run_id}: {verdict.unwritten} records vanished")
        total.require(verdict.in_gaps <= most_lost, f"{run.run_id} lost {verdict.in_gaps} records")
        total += verdict
    total.hold()
    return total


def _ledger_of(run: RunStarted) -> Ledger:
    offers = [
        Offer(payload=encode_payload(message), at=0.0, accepted=True)
        for message in _messages(run)[1:]
    ]
    return Ledger(run_id=run.run_id, incarnation=run.incarnation, rank=run.rank, offers=offers)

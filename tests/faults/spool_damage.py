"""A spool is cut off at any byte, or a bit of it flips."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from isentrope.transport.segments import SegmentWriter, encode_frame, list_segments
from isentrope.transport.shipper import ShipperSettings, ship
from isentrope.transport.spool_folder import ShipperState, SpoolEnd, SpoolFolder
from isentrope.transport.spool_reader import DAMAGED, NEVER_WRITTEN, TORN, SpoolReader
from isentrope_wire.codec import decode_payload, encode_payload
from isentrope_wire.reports import Gap, Payload, Record, RunFinished, RunStarted, StepReport
from tests.faults.ledger import Ledger, Offer
from tests.faults.oracle import Allowance, Verdict
from tests.faults.stage import Stage

RECORDS = 50
LOST = Allowance(gap_reasons=(DAMAGED, NEVER_WRITTEN, TORN))
QUICK = ShipperSettings(poll_seconds=0.01, drain_seconds=20.0, longest_pause_seconds=0.2)


def truncation_at_every_byte(stage: Stage) -> Verdict:
    """A segment of fifty records is cut off at each of its bytes; a sample goes through a real server."""
    whole = _segment(_run("whole"))
    verdict = Verdict()
    for size in range(0, len(whole), 5 if stage.short else 1):
        for closed in (True, False):
            _check_reading(verdict, stage.folder / "cut", whole[:size], closed=closed)
    samples = _spread(len(whole), 6 if stage.short else 40)
    _check_delivery(stage, verdict, (("cut", whole[:size]) for size in samples))
    verdict.hold()
    return verdict


def flipped_bits(stage: Stage) -> Verdict:
    """One bit of a segment of fifty records flips, at each byte in turn; a sample goes through a real server."""
    whole = _segment(_run("whole"))
    verdict = Verdict()
    for place in range(0, len(whole), 5 if stage.short else 1):
        content = _read_back(stage.folder / "flip", _flipped(whole, place), closed=True)
        _compare(verdict, content, f"bit flip at {place}")
        lost = sum(payload is None for payload in content)
        verdict.require(lost <= 1, f"a flipped bit at {place} cost {lost} records")
    samples = _spread(len(whole), 6 if stage.short else 40)
    _check_delivery(stage, verdict, (("flip", _flipped(whole, place)) for place in samples))
    verdict.hold()
    return verdict


def _run(run_id: str) -> RunStarted:
    return RunStarted(
        run_id=run_id, incarnation="first", rank=0, world_size=1, name="damaged", project="faults", started_at=0.0,
        probe_version="0.1.0",
    )  # fmt: skip


def _messages(run: RunStarted) -> list[Payload]:
    reports = [StepReport(step=step, recorded_at=1.0, scalars={"e": step + 0.5}) for step in range(RECORDS - 2)]
    return [run, *reports, RunFinished(status="finished", finished_at=2.0, step=RECORDS - 3)]


def _segment(run: RunStarted) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        writer = SegmentWriter(Path(folder), 1)
        writer.append(encode_frame(seq, encode_payload(m)) for seq, m in enumerate(_messages(run), start=1))
        writer.close()
        return writer.path.read_bytes()


def _flipped(whole: bytes, place: int) -> bytes:
    content = bytearray(whole)
    content[place] ^= 1 << random.randrange(8)
    return bytes(content)


def _spread(length: int, count: int) -> list[int]:
    return [round((i + random.random()) * (length - 1) / count) for i in range(count)]


def _read_back(folder: Path, content: bytes, *, closed: bool) -> list[bytes | None]:
    """The payload under each number, None where a gap covers it."""
    folder.mkdir(exist_ok=True)
    (folder / f"{1:020d}.seg").write_bytes(content)
    reader = SpoolReader(folder)
    records = list(_all_records(reader, SpoolEnd(RECORDS) if closed else None))
    found: list[bytes | None] = []
    for record in records:
        message = _gap_in(record.payload)
        assert record.seq == len(found) + 1 or message is not None, f"record {record.seq} comes after {len(found)}"
        found += [None] * (message.last_seq - message.first_seq + 1) if message is not None else [record.payload]
    return found


def _all_records(reader: SpoolReader, end: SpoolEnd | None) -> Iterator[Record]:
    while batch := reader.next_batch(1000, 1 << 24) or reader.missing_at_the_end(end):
        yield from batch


def _gap_in(payload: bytes) -> Gap | None:
    message = decode_payload(payload)
    return message if isinstance(message, Gap) else None


def _check_reading(verdict: Verdict, folder: Path, content: bytes, *, closed: bool) -> None:
    found = _read_back(folder, content, closed=closed)
    _compare(verdict, found, f"cut at {len(content)}")
    whole_frames = len([payload for payload in found if payload is not None])
    if closed:
        verdict.require(len(found) == RECORDS, f"cut at {len(content)}: {RECORDS - len(found)} records vanished")
    else:
        verdict.require(len(found) - whole_frames <= 1, f"cut at {len(content)}: more than the torn record is a gap")


def _compare(verdict: Verdict, found: list[bytes | None], what: str) -> None:
    expected = [encode_payload(message) for message in _messages(_run("whole"))]
    for seq, (payload, right) in enumerate(zip(found, expected, strict=False), start=1):
        verdict.require(payload is None or payload == right, f"{what}: record {seq} has another payload")
    verdict.require(len(found) <= len(expected), f"{what}: records were invented")


def _check_delivery(stage: Stage, verdict: Verdict, damaged: Iterable[tuple[str, bytes]]) -> None:
    """Put each damaged segment into a spool of its own, deliver it, and ask the oracle."""
    for number, (what, content) in enumerate(damaged):
        run = _run(f"{what}-{number}")
        folder = SpoolFolder.create(stage.folder / "home", run, stage.server.grpc_target)
        # The first record names the run, and so differs from run to run; the damage is behind it in nearly all.
        (folder.path / f"{1:020d}.seg").write_bytes(content)
        folder.write_end(SpoolEnd(RECORDS))
        status = ship(folder, QUICK, find_token=lambda: stage.server.token)
        assert status is not None
        verdict.require(status.state is ShipperState.DRAINED, f"{what} {number} was not delivered: {status}")
        left = list_segments(folder.path)
        verdict.require(not left, f"{what} {number} left {left}")
        verdict += stage.oracle.judge([_ledger_of(run)], LOST)


def _ledger_of(run: RunStarted) -> Ledger:
    offers = [Offer(payload=encode_payload(message), at=0.0, accepted=True) for message in _messages(run)[1:]]
    return Ledger(run_id=run.run_id, incarnation=run.incarnation, rank=run.rank, offers=offers)

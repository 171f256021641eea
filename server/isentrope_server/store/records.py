"""Records: every payload that counts, once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sqlalchemy import Connection, insert, select, update

from isentrope_server.store import alerts, driving_tokens, layouts, what_if_sums
from isentrope_server.store.tables import gaps, histograms, records
from isentrope_wire.messages import Gap, Payload, RunFinished, RunStarted, ScoreHistogram, StepReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A readable record on its way in."""

    seq: int
    payload: bytes
    payload_hash: bytes
    message: Payload


def stored_hashes(connection: Connection, stream_key: int, seqs: Sequence[int]) -> dict[int, bytes]:
    """The hashes of those of a stream's records that lie in the range of `seqs`."""
    if not seqs:
        return {}
    found = connection.execute(
        select(records.c.seq, records.c.payload_hash).where(
            records.c.stream_key == stream_key, records.c.seq.between(min(seqs), max(seqs))
        )
    )
    return {seq: bytes(payload_hash) for seq, payload_hash in found}


def append(
    connection: Connection,
    arrivals: Sequence[Arrival],
    *,
    run_key: int,
    stream_key: int,
    after_position: int,
    now: float,
) -> list[int]:
    """Store new records at the positions that follow `after_position`; returns these, in the order of `arrivals`."""
    positions = [after_position + 1 + index for index in range(len(arrivals))]
    reports = [
        (position, arrival.message)
        for position, arrival in zip(positions, arrivals, strict=True)
        if isinstance(arrival.message, StepReport)
    ]
    layout_keys = layouts.intern(connection, {layouts.names_of(report.scalars) for _, report in reports})
    rows = [
        {
            "run_key": run_key,
            "position": position,
            "stream_key": stream_key,
            "seq": arrival.seq,
            "payload_hash": arrival.payload_hash,
            "received_at": now,
            "kind": _KINDS[type(arrival.message)],
            **_report_columns(arrival.message, layout_keys),
        }
        for position, arrival in zip(positions, arrivals, strict=True)
    ]
    if rows:
        connection.execute(insert(records), rows)
    _append_histograms(connection, run_key, stream_key, reports)
    for module in (what_if_sums, driving_tokens, alerts):
        module.append(connection, run_key, stream_key, reports)
    _append_gaps(connection, stream_key, [a.message for a in arrivals if isinstance(a.message, Gap)])
    layouts.mark_used(
        connection, stream_key, {layout_keys[layouts.names_of(r.scalars)]: position for position, r in reports}
    )
    return positions


def _report_columns(message: Payload, layout_keys: dict[layouts.Names, int]) -> dict[str, object]:
    if not isinstance(message, StepReport):
        return dict.fromkeys(("step", "recorded_at", "control_version", "layout_key", "scalars", "labels"))
    names = layouts.names_of(message.scalars)
    return {
        "step": message.step,
        "recorded_at": message.recorded_at,
        "control_version": message.control_version,
        "layout_key": layout_keys[names],
        "scalars": layouts.pack(names, message.scalars),
        "labels": dict(message.labels),
    }


def _append_histograms(
    connection: Connection, run_key: int, stream_key: int, reports: Sequence[tuple[int, StepReport]]
) -> None:
    rows = [
        {
            "run_key": run_key,
            "name": histogram.name,
            "position": position,
            "stream_key": stream_key,
            "step": report.step,
            # SQLite would take NaN for NULL, PostgreSQL would not.
            "low": _finite_or_none(histogram.low),
            "high": _finite_or_none(histogram.high),
            "counts": np.asarray(histogram.counts, dtype="<u8").tobytes(),
            "not_finite": histogram.not_finite,
        }
        for position, report in reports
        for histogram in _by_name(report.histograms)
    ]
    if rows:
        connection.execute(insert(histograms), rows)


def _finite_or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _by_name(found: Sequence[ScoreHistogram]) -> list[ScoreHistogram]:
    """One histogram per name: a report that names one twice means the last."""
    return list({histogram.name: histogram for histogram in found}.values())


def _append_gaps(connection: Connection, stream_key: int, found: Sequence[Gap]) -> None:
    for gap in found:
        place = (gaps.c.stream_key == stream_key, gaps.c.first_seq == gap.first_seq)
        known = connection.execute(select(gaps.c.last_seq).where(*place)).scalar()
        if known is not None:
            connection.execute(update(gaps).where(*place).values(last_seq=max(known, gap.last_seq)))
        else:
            connection.execute(
                insert(gaps).values(
                    stream_key=stream_key, first_seq=gap.first_seq, last_seq=gap.last_seq, reason=gap.reason
                )
            )


_KINDS: dict[type[Payload], str] = {
    RunStarted: "run_started",
    StepReport: "step_report",
    RunFinished: "run_finished",
    Gap: "gap",
}

"""What comes with some reports: top contributing tokens, rollouts, what-if sums, alerts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sqlalchemy import Connection, Table, insert, select

from isentrope_server.store import streams
from isentrope_server.store.reports import series
from isentrope_server.store.reports.alerts import rows_of_report
from isentrope_server.store.reports.series import StepRange
from isentrope_server.store.streams import Timeline
from isentrope_server.store.tables import alerts, driving_tokens, rollouts, what_if_sums
from isentrope_wire import codec
from isentrope_wire.answers import Rollouts, TopTokens
from isentrope_wire.metrics import SCORE_VOCAB_CENTERED_STD
from isentrope_wire.reports import StepReport
from isentrope_wire.what_if import WhatIfSums

_NEWEST_LOOKED_AT = 256
"""Rows read to find the newest steps: more than the ranks and attempts that report one step."""
_PROMPTS_LOOKED_AT = 1000
"""Rows in which prompts are looked for."""


def append(
    connection: Connection,
    run_key: int,
    stream_key: int,
    reports: Sequence[tuple[int, StepReport]],
    clock_ahead: float = 0.0,
) -> None:
    """Store what-if sums, top contributing tokens, rollouts and alerts of reports, which come with
    their positions. Alerts get the time by the server's clock, which `clock_ahead` says."""
    rows: dict[Table, list[dict[str, Any]]] = {
        driving_tokens: [],
        rollouts: [],
        what_if_sums: [],
        alerts: [],
    }
    for position, report in reports:
        place = {
            "run_key": run_key,
            "position": position,
            "stream_key": stream_key,
            "step": report.step,
        }
        if report.tokens:
            rows[driving_tokens].append({**place, "packed": codec.encode_tokens(report.tokens)})
        if report.rollouts:
            rows[rollouts].append({**place, "packed": codec.encode_rollouts(report.rollouts)})
        # A step without tokens has no curve; it must not hide an older step that has one.
        if report.what_if is not None and report.what_if.tokens > 0:
            rows[what_if_sums].append({**place, "packed": codec.encode_what_if(report.what_if)})
        rows[alerts] += rows_of_report(place, report, clock_ahead)
    for table, new_rows in rows.items():
        if new_rows:
            connection.execute(insert(table), new_rows)


def top_tokens(
    connection: Connection,
    run_key: int,
    *,
    step: int | None = None,
    last: int | None = None,
    steps: int = 1,
) -> list[TopTokens]:
    """The top contributing tokens of the newest steps that have any, at most `steps`, by rising
    step: of `step` alone, or of none later than `last`."""
    shown = _shown_rows(connection, driving_tokens, run_key, step=step, last=last)[-steps:]
    packed, around = (
        _packed(connection, driving_tokens, run_key, shown),
        _read_surroundings(connection, run_key, shown),
    )
    return [
        TopTokens(step=at, items=list(codec.decode_tokens(packed[position])), **around[position])
        for at, position in shown
    ]


def rollouts_of(connection: Connection, run_key: int, step: int | None) -> Rollouts | None:
    """The rollouts of a step, or of the newest step that has any where `step` is None. None without
    any."""
    shown = _shown_rows(connection, rollouts, run_key, step=step)[-1:]
    packed, around = (
        _packed(connection, rollouts, run_key, shown),
        _read_surroundings(connection, run_key, shown),
    )
    for at, position in shown:
        return Rollouts(
            step=at, items=list(codec.decode_rollouts(packed[position])), **around[position]
        )
    return None


def steps_with_prompts(
    connection: Connection, run_key: int, found: Rollouts
) -> dict[str, list[int]]:
    """For each prompt of these rollouts the other steps, of the newest ones, whose rollouts have
    it; by rising step."""
    prompts = {item.prompt: item.prompt.encode() for item in found.items if item.prompt}
    shown = []
    if prompts:
        shown = _shown_rows(connection, rollouts, run_key, most=_PROMPTS_LOOKED_AT)
    packed = _packed(connection, rollouts, run_key, shown)
    also_in: dict[str, list[int]] = {prompt: [] for prompt in prompts}
    for step, position in shown:
        content = packed.get(position, b"")
        # Decoding takes a hundred times as long as looking for the text.
        if step != found.step and any(text in content for text in prompts.values()):
            for prompt in prompts.keys() & {item.prompt for item in codec.decode_rollouts(content)}:
                also_in[prompt].append(step)
    return also_in


def _read_surroundings(
    connection: Connection, run_key: int, shown: Sequence[tuple[int, int]]
) -> dict[int, dict[str, Any]]:
    """What answers about tokens say of their whole step, by position: `score_std`, `lowering` and
    `raising`."""
    if not shown:
        return {}
    between = StepRange(first=shown[0][0], last=shown[-1][0])
    stds = series.read(connection, run_key, [SCORE_VOCAB_CENTERED_STD], between)[
        SCORE_VOCAB_CENTERED_STD
    ]
    of_step = {
        at: std
        for at, std in zip(stds.steps.tolist(), stds.values.tolist(), strict=True)
        if 0 < std < np.inf
    }
    pulls = {
        position: codec.decode_what_if(content).pulls
        for position, content in _packed(connection, what_if_sums, run_key, shown).items()
    }
    found = {}
    for at, position in shown:
        lowering, raising = pulls.get(position, (None, None))
        found[position] = {"score_std": of_step.get(at), "lowering": lowering, "raising": raising}
    return found


def read_what_if(
    connection: Connection, run_key: int, *, last: int | None = None, steps: int
) -> list[tuple[int, WhatIfSums]]:
    """The newest `steps` steps that have what-if sums, none later than `last`, with these, by
    rising step."""
    shown = _shown_rows(connection, what_if_sums, run_key, last=last)[-steps:]
    packed = _packed(connection, what_if_sums, run_key, shown)
    return [(step, codec.decode_what_if(packed[position])) for step, position in shown]


def _shown_rows(
    connection: Connection,
    table: Table,
    run_key: int,
    *,
    step: int | None = None,
    last: int | None = None,
    most: int = _NEWEST_LOOKED_AT,
) -> list[tuple[int, int]]:
    """Step and position of the reports that are shown, one for each step, by rising step; of the
    newest rows only."""
    columns = table.c
    query = select(columns.step, columns.stream_key, columns.position).where(
        columns.run_key == run_key
    )
    if step is not None:
        query = query.where(columns.step == step)
    if last is not None:
        query = query.where(columns.step <= last)
    rows = connection.execute(query.order_by(columns.position.desc()).limit(most)).all()
    if not rows:
        return []
    shown = Timeline(streams.incarnations(connection, run_key)).shown(
        *(
            np.array([getattr(row, name) for row in rows], dtype=np.int64)
            for name in ("step", "stream_key", "position")
        )
    )
    return [(rows[int(index)].step, rows[int(index)].position) for index in shown]


def _packed(
    connection: Connection, table: Table, run_key: int, shown: Sequence[tuple[int, int]]
) -> dict[int, bytes]:
    """What is stored at some positions; nothing where there is no row."""
    positions = {position for _, position in shown}
    if not positions:
        return {}
    # A range, as in `rows.some_at_once`; few rows in it are not shown.
    inside = table.c.position.between(min(positions), max(positions))
    query = select(table.c.position, table.c.packed).where(table.c.run_key == run_key, inside)
    return {
        position: bytes(content)
        for position, content in connection.execute(query)
        if position in positions
    }

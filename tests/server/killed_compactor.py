"""A process that packs some rows and is killed at a named point, over and over; prints what each death left behind.

Run as a program: `python killed_compactor.py DATABASE_URL RUN_ID`. One JSON object a line.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from collections.abc import Callable

from sqlalchemy import Connection, event, func, select

from isentrope_server.store import runs
from isentrope_server.store.database import Database
from isentrope_server.store.reports import histograms, packing, series, steps
from isentrope_server.store.reports.series import StepRange
from isentrope_server.store.rows import RowSizes
from isentrope_server.store.tables import records
from isentrope_server.store.writer import Writer

SIZES = RowSizes(reports=40, fewest=1)
POINTS = (
    "joined",
    "begin",
    "DELETE FROM records",
    "INSERT INTO records",
    "commit",
    "committed",
)
"""The last lies behind the COMMIT, all others before it."""


def main(url: str, run_id: str) -> None:
    report("nothing", 0, url, run_id)
    for point in POINTS:
        child = os.fork()
        if child == 0:
            pack_and_die(url, point)
        _, status = os.waitpid(child, 0)
        report(point, os.waitstatus_to_exitcode(status), url, run_id)


def pack_and_die(url: str, point: str) -> None:
    database = Database(url)
    die_at(database, point)
    with database.reading() as connection:
        stream = packing.full_streams(connection, 0.0, SIZES)[0]
        row = packing.join_next(connection, stream, SIZES)
    assert row is not None
    if point == "joined":
        die()
    writer = Writer(database.writing_engine, lambda events: None)
    writer.start()
    writer.submit(lambda transaction: packing.replace_by(transaction.connection, row)).result()
    if point == "committed":
        die()
    os._exit(7)


def die_at(database: Database, point: str) -> None:
    engine = database.writing_engine
    if point in ("begin", "commit"):
        event.listen(engine, point, lambda *arguments: die())
        return

    def before(connection: Connection, cursor: object, statement: str, *more: object) -> None:
        if statement.startswith(point):
            die()

    event.listen(engine, "before_cursor_execute", before)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def report(point: str, status: int, url: str, run_id: str) -> None:
    database = Database(url)
    with database.reading() as connection:
        run_key = runs.key_of(connection, run_id)
        assert run_key is not None
        left = {
            "point": point,
            "status": status,
            "packed": reports_in(connection, run_key, packed=True),
            "loose": reports_in(connection, run_key, packed=False),
            "digest": hashlib.sha256(repr(everything(connection, run_key)).encode()).hexdigest(),
        }
    database.close()
    print(json.dumps(left), flush=True)


def everything(connection: Connection, run_key: int) -> list[object]:
    """All that the store can say of a run's reports."""
    names = sorted(series.names(connection, run_key))
    found: list[object] = [
        (name, one.steps.tolist(), one.values.tolist())
        for name, one in series.read(connection, run_key, names, StepRange()).items()
    ]
    for name in ("entropy/token", "score/discriminator"):
        found.append(histograms.read(connection, run_key, name, StepRange(), points=None))
    reports: Callable[..., list[object]] = steps.after  # type: ignore[assignment]
    return found + reports(connection, run_key, 0, 1000) + [steps.find(connection, run_key, 57)]


def reports_in(connection: Connection, run_key: int, *, packed: bool) -> int:
    of_run = (records.c.run_key == run_key) & (records.c.packed == packed)
    return int(connection.execute(select(func.coalesce(func.sum(records.c.reports), 0)).where(of_run)).scalar_one())


if __name__ == "__main__":
    main(*sys.argv[1:])

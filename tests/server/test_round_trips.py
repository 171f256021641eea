"""What a push asks of the database: little, however many reports it holds, for each question waits
for another process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import event

from isentrope_server.digests import renew_digests
from isentrope_wire.v1 import telemetry_pb2 as pb
from tests.server.conftest import MakeServer
from tests.server.in_thread import ServerInThread
from tests.server.rank import Rank, step_report

PER_PUSH = {"sqlite": 6, "postgresql": 5}
"""One look, the reports, and what changes of the stream, its layout and the run: SQLite makes these
three one by one after its BEGIN; PostgreSQL at once, with locks before and a word to other servers
after."""


PER_DIAGNOSIS = 18
"""Of a run without alerts and pushed controls, also of one with many steps."""


@contextmanager
def statements(server: ServerInThread, *, reading: bool = False) -> Iterator[list[str]]:
    """What the writer, or the readers, send while the block runs."""
    database, sent = server.backend.database, list[str]()
    engine = database.reading_engine if reading else database.writing_engine

    def note(connection: object, cursor: object, statement: str, *more: object) -> None:
        # Tokens are read again every second.
        if "FROM tokens" not in statement and not (reading and statement == "BEGIN"):
            sent.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    try:
        yield sent
    finally:
        event.remove(engine, "before_cursor_execute", note)


def test_a_push_of_many_reports_is_few_statements(
    make_server: MakeServer, database_kind: str
) -> None:
    server = make_server(sweep_interval_seconds=3_600, housekeeping_interval_seconds=3_600)
    rank = Rank(server)
    rank.report(0, x=1.0, y=2.0)
    with statements(server) as sent:
        rank.send(*(step_report(step, {"x": step * 1.0, "y": 2.0}) for step in range(1, 101)))
    assert len(sent) <= PER_PUSH[database_kind], sent
    assert server.http.get(rank.path).json()["step"] == 100
    columns = server.http.get(f"{rank.path}/metrics/series", params={"name": "x"}).json()["series"][
        "x"
    ]
    assert columns["value"] == [1.0, *(step * 1.0 for step in range(1, 101))]


def test_a_diagnosis_and_an_export_ask_the_same_of_every_run_however_long(
    make_server: MakeServer,
) -> None:
    server = make_server(sweep_interval_seconds=3_600, housekeeping_interval_seconds=3_600)
    answers, sent = [], []
    for steps in (40, 900):
        rank = Rank(server)
        for start in range(0, steps, 300):
            some = range(steps)[start : start + 300]
            rank.send(
                *(step_report(step, {"entropy/mean": 0.5 + 0.5 / (1 + step)}) for step in some)
            )
        before = server.http.get(f"{rank.path}/diagnosis").json()
        asyncio.run(renew_digests(server.backend, rest=0))
        with statements(server, reading=True) as found:
            answers.append((server.http.get(f"{rank.path}/diagnosis").json(), before))
            assert len(found) <= PER_DIAGNOSIS, found
            assert server.http.get(f"{rank.path}/export?format=jsonl").text.count("\n") == steps
        sent.append(found)
    # Statements are kept, by the hundred: one of its own for each run would fill the memory.
    assert sent[0] == sent[1]
    assert all(with_digest == without for with_digest, without in answers)


def test_a_push_of_refused_records_asks_the_database_no_more_often_than_one_record(
    make_server: MakeServer,
) -> None:
    server = make_server(sweep_interval_seconds=3_600, housekeeping_interval_seconds=3_600)
    rank = Rank(server)
    counts = []
    for seqs in (range(1, 2), range(2, 900)):
        unreadable = [
            pb.Record(seq=seq, payload=b"unreadable", payload_hash=b"x" * 16) for seq in seqs
        ]
        with statements(server) as sent:
            assert len(rank.push(unreadable).quarantined) == len(seqs)
        counts.append(len(sent))
    assert counts[1] <= counts[0]


def test_a_page_of_the_list_is_one_query(still_server: ServerInThread) -> None:
    for _ in range(5):
        Rank(still_server).report(0, entropy__mean=1.0)
    with statements(still_server, reading=True) as sent:
        still_server.http.get(
            "/api/v1/runs", params={"order": "attention", "level": "act", "tag": "x", "q": "y"}
        )
    assert len([one for one in sent if one.startswith("SELECT") and "runs" in one]) == 1

"""A server on a real PostgreSQL does what everybody needs of it; the files beside try the rest."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import create_engine, make_url

from tests.server.in_thread import ServerInThread
from tests.server.postgresql import PostgreSQL
from tests.server.rank import Rank
from tests.system.running_server import wait_for


def _cause_while_read_only(server: ServerInThread, url: str) -> str:
    """The cause that `/readyz` names while the database's administrator has it read only."""
    name = make_url(url).database
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    try:
        with engine.connect() as connection:
            for value in ("on", "off"):
                connection.exec_driver_sql(
                    f'ALTER DATABASE "{name}" SET default_transaction_read_only = {value}'
                )
                if value == "on":
                    # A new setting is a new session's.
                    connection.exec_driver_sql("SET default_transaction_read_only = off")
                    connection.exec_driver_sql(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                        f"WHERE datname = '{name}' AND pid <> pg_backend_pid()"
                    )
                    answer = wait_for(lambda: _not_ready(server), 20.0)
            connection.exec_driver_sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                f"WHERE datname = '{name}' AND pid <> pg_backend_pid()"
            )
            wait_for(lambda: server.http.get("/readyz").status_code == 200, 20.0)
    finally:
        engine.dispose()
    return str(answer)


def _not_ready(server: ServerInThread) -> str:
    answer = server.http.get("/readyz").json()
    cause = answer.get("error", {}).get("details", {}).get("cause", "")
    return cause if cause != "database_unreachable" else ""


def test_reports_and_controls_go_through_postgresql(postgresql: PostgreSQL, tmp_path: Path) -> None:
    with postgresql.empty_database() as url:
        with ServerInThread(tmp_path / "first", database_url=url, heartbeat_seconds=0.3) as server:
            rank = Rank(server)
            assert [rank.report(step, x=step / 2).acked_through for step in range(5)] == [
                1,
                2,
                3,
                4,
                5,
            ]
            series = server.http.get(f"{rank.path}/metrics/series", params={"name": "x"}).json()[
                "series"
            ]["x"]
            assert (series["step"], series["value"]) == ([0, 1, 2, 3, 4], [0.0, 0.5, 1.0, 1.5, 2.0])
            watching = rank.watch()
            put = server.http.put(
                f"{rank.path}/control", json={"method": "none"}, headers={"If-Match": '"0"'}
            )
            assert put.status_code == 202
            assert watching.next_control().version == 1
            watching.close()
            assert _cause_while_read_only(server, url) == "database_unwritable"
            rank.answer(5, 1, "APPLIED", active=1)
        with ServerInThread(tmp_path / "second", database_url=url) as server:
            assert rank.run_id in [
                run["id"] for run in server.http.get("/api/v1/runs").json()["items"]
            ]
            newest, *_ = server.http.get(f"{rank.path}/control/history").json()["items"]
            assert (newest["version"], newest["state"]) == (1, "APPLIED")

"""A database that an older version left gets what it lacks, and keeps what it has."""

from __future__ import annotations

from pathlib import Path

from alembic import command

from isentrope_server.store.database import Database, alembic_config
from tests.server import test_tokens_and_alerts as alerts
from tests.server import test_what_if as what_if
from tests.server.conftest import MakeServer
from tests.server.in_thread import ServerInThread
from tests.server.rank import Rank

DATABASES = ("sqlite", "postgresql")


def make_older(server: ServerInThread, revision: str) -> None:
    """Stop it, and leave its database as that revision had it."""
    server.stop()
    database = Database(server.backend.settings.resolved_database_url)
    with database.writing_engine.begin() as connection:
        command.downgrade(alembic_config(connection), revision)
    database.close()


def test_a_database_without_tokens_and_alerts_gets_room_for_them(make_server: MakeServer, tmp_path: Path) -> None:
    home = tmp_path / "old"
    before = make_server(home)
    rank = Rank(before)
    alerts.send(rank, 1)
    make_older(before, "0002")
    after = make_server(home)
    assert after.http.get(f"{rank.path}/steps/1").json()["scalars"] == {"entropy/mean": 1.0}
    assert after.http.get(f"{rank.path}/alerts").json()["items"] == []
    again = Rank(after, run_id=rank.run_id, incarnation="second")
    alerts.send(again, 2, alerts.token(), alerts=(alerts.alert(),))
    assert after.http.get(f"{rank.path}/tokens").json()["step"] == 2


def test_a_database_without_what_if_sums_gets_room_for_them(make_server: MakeServer, tmp_path: Path) -> None:
    home = tmp_path / "old"
    before = make_server(home)
    rank = Rank(before)
    what_if.send(rank, 1, None)
    make_older(before, "0001")
    after = make_server(home)
    assert after.http.get(f"{rank.path}/steps/1").json()["scalars"] == {"entropy/mean": 1.0}
    assert after.http.get(f"{rank.path}/what-if").json()["error"]["code"] == "what_if_missing"
    again = Rank(after, run_id=rank.run_id, incarnation="second")
    what_if.send(again, 2, what_if.sums())
    assert after.http.get(f"{rank.path}/what-if").json()["step"] == 2

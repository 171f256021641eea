"""Names that no text column keeps: what was reported under them is found, packed or not, and nothing else suffers."""

from __future__ import annotations

from isentrope_server.store.rows import RowSizes
from isentrope_wire.reports import RunFinished, ScoreHistogram
from tests.server.compaction import NEVER, pack_all, reports_of_rows
from tests.server.conftest import MakeServer
from tests.server.rank import Rank, step_report

REPORTED = {"a\0b": 1.0, "alone\0": 3.0, "plain": 4.0}
STORED = {"a\ufffdb": 1.0, "alone\ufffd": 3.0, "plain": 4.0}


def test_numbers_under_odd_names_are_found_and_packed(make_server: MakeServer) -> None:
    server = make_server(housekeeping_interval_seconds=NEVER)
    rank = Rank(server)
    histograms = [
        ScoreHistogram(name=name, low=0.0, high=1.0, counts=(int(value), 7)) for name, value in REPORTED.items()
    ]
    rank.send(*(step_report(step, REPORTED, histograms=histograms) for step in range(32)))
    for packed in (False, True):
        if packed:
            rank.send(RunFinished(status="finished", finished_at=2.0))
            pack_all(server, RowSizes(fewest=1))
            assert reports_of_rows(server, rank, packed=True) == [32]
        metrics = server.http.get(f"{rank.path}/metrics").json()["items"]
        assert {metric["name"]: metric["value"] for metric in metrics} == STORED
        found = server.http.get(f"{rank.path}/metrics/series", params={"name": list(STORED)}).json()["series"]
        assert {name: columns["value"] for name, columns in found.items()} == {
            name: [value] * 32 for name, value in STORED.items()
        }
        step = server.http.get(f"{rank.path}/steps/7").json()
        assert step["scalars"] == STORED
        assert {h["name"]: h["counts"] for h in step["histograms"]} == {n: [int(v), 7] for n, v in STORED.items()}

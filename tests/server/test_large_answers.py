"""Large answers are encoded beside the event loop, in pieces, and say what one piece would."""

from __future__ import annotations

import json
import math
import threading
from dataclasses import asdict
from typing import Any

import pytest
from fastapi import Response

from isentrope_server.api import metrics, responses, runs
from isentrope_server.api.responses import json_answer
from isentrope_wire.answers import LatestMetric, Page, SeriesAnswer, SeriesColumns
from isentrope_wire.numbers import Answer
from isentrope_wire.reports import ScoreHistogram
from tests.server.in_thread import ServerInThread
from tests.server.rank import Rank, step_report


@pytest.mark.parametrize("length", [0, 1, 999, 1_000, 1_001, 2_500])
def test_pieces_make_the_same_document(length: int) -> None:
    columns = SeriesColumns(
        step=list(range(length)), value=[index / 7 for index in range(length)], min=[math.inf, math.nan], max=None
    )
    made = json_answer(SeriesAnswer(series={'na"me': columns}, cursor="é\n", reset=True))
    expected = {
        "series": {'na"me': asdict(columns) | {"min": ["Infinity", "NaN"]}},
        "cursor": "é\n",
        "reset": True,
    }
    assert bytes(made.body) == json.dumps(expected, ensure_ascii=False, separators=(",", ":")).encode()
    assert made.headers["content-type"] == "application/json"


@pytest.mark.parametrize("length", [0, 1, 3])
def test_items_of_a_list_make_the_same_document(length: int) -> None:
    items = [LatestMetric(name=f"m{index}", step=index, value=0.5) for index in range(length)]
    made = json_answer(Page(items=items, next_cursor=None))
    assert json.loads(bytes(made.body)) == {"items": [asdict(item) for item in items], "next_cursor": None}


def test_no_call_encodes_many_numbers_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []

    class Counting(json.JSONEncoder):
        def encode(self, o: Any) -> str:
            lengths.append(len(o) if isinstance(o, list | str) else 1)
            return super().encode(o)

    monkeypatch.setattr(responses, "_JSON", Counting())
    columns = SeriesColumns(step=[1], value=[0.5] * 10_000, min=None, max=None)
    json_answer(SeriesAnswer(series={"a": columns}, cursor="", reset=True))
    assert len(lengths) > 9
    assert max(lengths) <= 1_000


@pytest.mark.parametrize(
    ("module", "path"),
    [(metrics, "{run}/metrics/series?name=x"), (metrics, "{run}/histograms/h"), (runs, "/api/v1/runs")],
    ids=["series", "histograms", "runs"],
)
def test_answers_are_encoded_where_they_are_read(
    server: ServerInThread, monkeypatch: pytest.MonkeyPatch, module: object, path: str
) -> None:
    rank = Rank(server)
    rank.send(step_report(3, {"x": 1.5}, histograms=[ScoreHistogram(name="h", low=0.0, high=1.0, counts=(1, 2))]))
    threads: list[threading.Thread] = []

    def noted(document: Answer) -> Response:
        threads.append(threading.current_thread())
        return json_answer(document)

    monkeypatch.setattr(module, "json_answer", noted)
    assert server.http.get(path.format(run=rank.path)).status_code == 200
    assert len(threads) == 1
    assert threads[0] is not server._thread

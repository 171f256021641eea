"""Large answers are encoded beside the event loop."""

from __future__ import annotations

import json
import math
import threading

import pytest
from fastapi import Response

from isentrope_server.api import metrics, runs
from isentrope_server.api.responses import json_answer
from isentrope_wire.answers import SeriesAnswer, SeriesColumns
from isentrope_wire.numbers import Answer
from isentrope_wire.reports import ScoreHistogram
from tests.server.in_thread import ServerInThread
from tests.server.rank import Rank, step_report


def test_numbers_that_are_not_finite_are_text() -> None:
    columns = SeriesColumns(step=[0, 1], value=[1 / 7, math.nan], min=[math.inf, -math.inf], max=None)
    made = json_answer(SeriesAnswer(series={'na"me': columns}, cursor="é\n", reset=True))
    assert json.loads(bytes(made.body)) == {
        "series": {'na"me': {"step": [0, 1], "value": [1 / 7, "NaN"], "min": ["Infinity", "-Infinity"], "max": None}},
        "cursor": "é\n",
        "reset": True,
    }
    assert made.headers["content-type"] == "application/json"


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

"""Lists: read page by page, nothing is listed twice or missed, whatever comes in meanwhile."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from isentrope_wire.reports import Alert, AlertLevel, Gap, StepReport
from tests.server.in_thread import ServerInThread
from tests.server.rank import Rank, step_report


def pages(
    server: ServerInThread, path: str, between: Any = lambda: None, **params: object
) -> list[list[dict[str, Any]]]:
    """All pages of a list; `between` is called after each."""
    found, cursor = [], None
    while True:
        more: dict[str, object] = {} if cursor is None else {"cursor": cursor}
        answer = server.http.get(path, params={**params, **more})  # type: ignore[dict-item]
        assert answer.status_code == 200, answer.text
        found.append(answer.json()["items"])
        cursor = answer.json()["next_cursor"]
        if cursor is None:
            return found
        between()


def test_runs_that_begin_meanwhile_shift_no_page(server: ServerInThread) -> None:
    project = f"pages-{uuid.uuid4().hex[:8]}"
    begun = [Rank(server, project=project).run_id for _ in range(7)]
    found = pages(
        server,
        "/api/v1/runs",
        between=lambda: Rank(server, project=project),
        project=project,
        limit=3,
    )
    assert [len(page) for page in found] == [3, 3, 1]
    assert [run["id"] for page in found for run in page] == begun[::-1]


def test_filters_hold_on_every_page(server: ServerInThread) -> None:
    project = f"pages-{uuid.uuid4().hex[:8]}"
    for index in range(6):
        rank = Rank(server, project=project, name=f"{'odd' if index % 2 else 'even'} run")
        rank.report(0, x=1.0)
    params = {"project": project, "q": "ODD", "status": "running", "limit": 2}
    names = [run["name"] for page in pages(server, "/api/v1/runs", **params) for run in page]
    assert names == ["odd run"] * 3
    assert pages(server, "/api/v1/runs", **(params | {"status": "failed"})) == [[]]


def alerting(step: int, count: int) -> StepReport:
    report = step_report(step, {"x": 1.0})
    alerts = tuple(
        Alert(kind="collapse", level=AlertLevel.ACT, message=f"{step}.{number}", evidence={})
        for number in range(count)
    )
    return StepReport(
        step=report.step, recorded_at=report.recorded_at, scalars=report.scalars, alerts=alerts
    )


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_alerts_come_page_by_page_without_those_a_resume_took_back(
    server: ServerInThread, limit: int
) -> None:
    first = Rank(server, started_at=1000.0)
    first.send(*(alerting(step, 2) for step in range(6)))
    second = Rank(server, run_id=first.run_id, incarnation="second", started_at=2000.0)
    second.send(alerting(4, 1), alerting(5, 3))
    found = pages(server, f"{first.path}/alerts", limit=limit)
    messages = [alert["message"] for page in found for alert in page]
    kept = [f"{step}.{number}" for step in (3, 2, 1, 0) for number in (1, 0)]
    assert messages == ["5.2", "5.1", "5.0", "4.0", *kept]
    assert all(len(page) == limit for page in found[:-1])


def lose(rank: Rank, count: int, reason: str) -> None:
    """Records that never come: the gap is at the last one's place."""
    first, rank.seq = rank.seq + 1, rank.seq + count - 1
    rank.send(Gap(first_seq=first, last_seq=first + count - 1, reason=reason))


def test_gaps_come_newest_first_with_their_reason_and_of_no_other_run(
    server: ServerInThread,
) -> None:
    other, rank = Rank(server), Rank(server)
    rank.report(1, entropy__mean=1.0)
    assert pages(server, f"{rank.path}/gaps") == [[]]
    lose(other, 1, "another run's")
    for number in range(3):
        lose(rank, 2, f"<b>loss {number}")
    found = pages(server, f"{rank.path}/gaps", limit=2)
    assert [[gap["reason"] for gap in page] for page in found] == [
        ["<b>loss 2", "<b>loss 1"],
        ["<b>loss 0"],
    ]
    assert found[1][0] == {
        "incarnation": "first",
        "rank": 0,
        "first_seq": 2,
        "last_seq": 3,
        "reason": "<b>loss 0",
    }


def test_the_history_of_a_control_comes_page_by_page(server: ServerInThread, rank: Rank) -> None:
    for version in range(5):
        put = server.http.put(
            f"{rank.path}/control",
            json={"method": "none", "reason": str(version)},
            headers={"If-Match": f'"{version}"'},
        )
        assert put.status_code == 202
    found = pages(server, f"{rank.path}/control/history", limit=2)
    assert [item["version"] for page in found for item in page] == [5, 4, 3, 2, 1, 0]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("émoji", ["ÉMOJI"]),
        ("GRÖße", ["ÉMOJI"]),
        ("ЗЕРК", ["зеркало"]),
        ("имя", ["plain"]),
        ("é%", []),
    ],
)
def test_a_search_ignores_the_case_of_all_letters(
    server: ServerInThread, text: str, names: list[str]
) -> None:
    """On PostgreSQL as the locale of its database does."""
    project = f"letters-{uuid.uuid4().hex[:8]}"
    for name, tag in (("ÉMOJI", "größe"), ("зеркало", "x"), ("plain", "ИМЯ")):
        Rank(server, project=project, name=name, tags=(tag,))
    answer = server.http.get("/api/v1/runs", params={"project": project, "q": text})
    assert [run["name"] for run in answer.json()["items"]] == names

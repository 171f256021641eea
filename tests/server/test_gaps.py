"""What a run's record lacks, and why: shown as the probe's spool reported it."""

from __future__ import annotations

from typing import Any

from isentrope_wire.reports import Gap
from tests.server.in_thread import ServerInThread
from tests.server.rank import Rank

HOSTILE = "<script>alert(1)</script> the queue was full"


def gaps(server: ServerInThread, rank: Rank, **asked: str | int) -> dict[str, Any]:
    answer = server.http.get(f"{rank.path}/gaps", params=asked)
    assert answer.status_code == 200
    body: dict[str, Any] = answer.json()
    return body


def lose(rank: Rank, count: int, reason: str) -> None:
    """Records that never come: the gap is at the last one's place."""
    first, rank.seq = rank.seq + 1, rank.seq + count - 1
    rank.send(Gap(first_seq=first, last_seq=first + count - 1, reason=reason))


def test_a_run_that_lost_nothing_has_no_gaps(server: ServerInThread) -> None:
    rank = Rank(server)
    rank.report(1, entropy__mean=1.0)
    assert gaps(server, rank) == {"items": [], "next_cursor": None}


def test_gaps_are_listed_newest_first_with_their_reason(server: ServerInThread) -> None:
    rank = Rank(server)
    rank.report(1, entropy__mean=1.0)
    lose(rank, 3, HOSTILE)
    rank.report(5, entropy__mean=1.0)
    lose(rank, 1, "the disk was full")
    newest, oldest = gaps(server, rank)["items"]
    assert newest == {"incarnation": "first", "rank": 0, "first_seq": 6, "last_seq": 6, "reason": "the disk was full"}
    assert (oldest["first_seq"], oldest["last_seq"], oldest["reason"]) == (2, 4, HOSTILE)


def test_gaps_are_read_on_page_by_page_and_no_other_run_s(server: ServerInThread) -> None:
    other, rank = Rank(server), Rank(server)
    lose(other, 1, "another run's")
    for number in range(3):
        lose(rank, 2, f"loss {number}")
    read: list[str] = []
    cursor: str | None = None
    for _ in range(2):
        page = gaps(server, rank, limit=2, **({} if cursor is None else {"cursor": cursor}))
        read += [item["reason"] for item in page["items"]]
        cursor = page["next_cursor"]
    assert read == ["loss 2", "loss 1", "loss 0"]
    assert cursor is None

"""The list of runs: filters, orders, counts, and the digests that it shows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

import pytest
from sqlalchemy import Connection, update

import isentrope
from isentrope.client import calls
from isentrope.client.client import Client
from isentrope.client.connection import ApiError
from isentrope_server import digests
from isentrope_server.backend import RetryPauses
from isentrope_server.digests import LINE_PARTS, renew_digests
from isentrope_server.store import runs
from isentrope_server.store.runs import Run
from isentrope_server.store.tables import run_digests
from isentrope_server.store.writer import Transaction
from isentrope_wire.answers import HealthLevel, RunDigest, RunSummary
from isentrope_wire.control import Control
from isentrope_wire.errors import ConfigurationError
from isentrope_wire.reports import ControlSnapshot, RunFinished
from tests.server.compaction import NEVER, pack_all
from tests.server.conftest import MakeServer
from tests.server.in_thread import ServerInThread
from tests.server.rank import Rank, age, report_slowly, step_report
from tests.system.running_server import wait_for

DATABASES = ("sqlite", "postgresql")

LOST = {"act": 0.4, "watch": 0.7, "healthy": 0.98}
"""Of the early entropy: what is left at each level."""


@pytest.fixture
def server(make_server: MakeServer) -> ServerInThread:
    """One that renews its digests on request."""
    return make_server(housekeeping_interval_seconds=NEVER)


def renew(server: ServerInThread) -> int:
    return asyncio.run(renew_digests(server.backend, rest=0))


def falling(server: ServerInThread, left: float, *, steps: int = 40, **described: object) -> Rank:
    """A run whose entropy falls steadily to this share of its early level; its reward is the step's
    share of them."""
    rank = Rank(server, **described)  # type: ignore[arg-type]
    fall = [1.0] * 3 + [1 - (1 - left) * (step - 2) / (steps - 3) for step in range(3, steps)]
    rank.send(
        *(
            step_report(step, {"entropy/mean": entropy, "reward/mean": step / steps})
            for step, entropy in enumerate(fall, start=1)
        )
    )
    return rank


def finish(rank: Rank, status: str = "finished", error: str = "") -> None:
    rank.send(RunFinished(status=status, finished_at=time.time(), error=error))


def digest_of(server: ServerInThread, rank: Rank) -> RunDigest:
    with Client(server.url, server.owner_token) as client:
        digest = client.run(rank.run_id).digest
    assert digest is not None
    return digest


def ids(runs: list[RunSummary]) -> list[str]:
    return [run.id for run in runs]


def test_digest_has_the_newest_values_and_a_line_over_the_whole_run(
    server: ServerInThread, client: Client
) -> None:
    rank = falling(server, 0.4, steps=108)
    assert client.runs()[0].digest is None
    assert renew(server) == 1
    digest = client.runs()[0].digest
    assert digest == digest_of(server, rank)
    diagnosis = client.diagnosis(rank.run_id)
    assert digest.entropy == diagnosis.entropy == pytest.approx(0.4 + 2 * 0.6 / 105)
    assert digest.reward == 106 / 108
    assert (len(digest.entropy_line), digest.entropy_line[0]) == (LINE_PARTS, 1.0)
    assert digest.reward_line[:2] == [
        pytest.approx(2 / 108, rel=1e-3),
        pytest.approx(5 / 108, rel=1e-3),
    ]
    assert digest.entropy_line == sorted(digest.entropy_line, reverse=True)  # type: ignore[type-var]
    assert digest.seconds_per_step == 1.0
    assert digest.level is HealthLevel.ACT
    assert digest.share_lost == pytest.approx(0.6, abs=0.04)


def test_a_digest_from_the_newest_steps_is_that_of_all_steps(
    server: ServerInThread, client: Client
) -> None:
    """A long run's lines are kept for some steps; the rest, and the lines of a resumed run, are
    always new."""
    rank = falling(server, 0.8, steps=400, started_at=1.0)
    renew(server)
    lines = digest_of(server, rank).entropy_line
    for step in range(401, 405):
        rank.report(step, entropy__mean=0.3 - 0.01 * step / 400, reward__mean=0.9)
    rank.report(405, entropy__mean=0.25)
    renew(server)
    digest = digest_of(server, rank)
    diagnosis = client.diagnosis(rank.run_id)
    assert digest.entropy == pytest.approx(diagnosis.entropy)
    assert digest.entropy == 0.3 - 0.01 * 403 / 400
    assert (digest.reward, digest.entropy_line) == (0.9, lines)
    # What fell by a jump, and does not clearly fall now, is to be watched.
    assert digest.level == diagnosis.level == HealthLevel.WATCH
    assert digest.share_lost == diagnosis.share_lost
    assert digest.steps_to_three_quarters_lost == diagnosis.steps_to_three_quarters_lost
    falling(server, 0.8, run_id=rank.run_id, incarnation="second", started_at=2.0, steps=380)
    renew(server)
    assert digest_of(server, rank).entropy == pytest.approx(0.8 + 2 * 0.2 / 377)
    finish(rank := Rank(server, run_id=rank.run_id, incarnation="third", started_at=3.0))
    renew(server)
    ended = digest_of(server, rank)
    assert len(ended.entropy_line) == LINE_PARTS
    assert ended.entropy_line[-1] == pytest.approx(0.8, abs=0.01)


def test_a_list_is_sorted_by_any_column(server: ServerInThread, client: Client) -> None:
    config = {
        "b": {"lr": 1e-6, "kind": "ppo"},
        "a": {"lr": 0.02, "kind": "grpo"},
        "c": {"lr": "none"},
        "D": {},
    }
    known = {name: Rank(server, name=name, config={"model": one}) for name, one in config.items()}
    for number, name in enumerate("acb"):
        known[name].report(
            1, entropy__mean=1.0, kl__mean=float("nan") if name == "b" else number - 1.5
        )
    renew(server)

    def names(sort: str) -> str:
        pages, cursor = "", None
        while not pages or cursor:
            page = client.ask(calls.runs(sort=sort, metric="kl/mean", cursor=cursor, limit=3))
            pages, cursor = pages + "".join(run.name for run in page.items), page.next_cursor
        return pages

    assert (names("name"), names("-name")) == ("abcD", "Dcba")
    assert (names("config.model.lr"), names("config.model.kind")) == ("bacD", "abDc")
    assert (names("metric.kl/mean"), names("-metric.kl/mean")) == ("acbD", "cabD")
    assert names("-last_report_at")[-1] == names("step")[-1] == "D"
    found = {
        run.name: run.digest.metrics
        for run in client.ask(calls.runs(metric=["kl/mean", "gone"])).items
        if run.digest
    }
    assert (found["a"], found["D"]) == ({"kl/mean": -1.5}, {})
    with pytest.raises(ApiError, match="sort"):
        client.ask(calls.runs(sort="no_column"))


@pytest.mark.parametrize(
    "name", ["optim.lr", "lr(x)", "mAP[0.5]", 'a"b', "größe", "lr, max", "a\\b", "a.b.c", "ключ"]
)
def test_a_list_is_sorted_by_any_name(server: ServerInThread, client: Client, name: str) -> None:
    for run, number in {"b": 0.5, "a": 0.25, "c": 10.0}.items():
        config = {name: number, "optim": {"lr": -number}, "a": "text", "b\0": "\0\\\0"}
        rank = Rank(server, name=run, config=config)
        rank.send(step_report(1, {"entropy/mean": 1.0, name: -number}))
    renew(server)
    for sort, expected in ((f"config.{name}", "abc"), (f"metric.{name}", "cba")):
        assert "".join(run.name for run in client.ask(calls.runs(sort=sort)).items) == expected


RATES = (1e-3, 3e-5, 1e-4, 2e-6)
ODD_NAMES = ("timing(s)/gen", "share, %", 'the "quoted"', "a.b.c", "x")


@pytest.mark.parametrize("name", ODD_NAMES)
def test_any_name_sorts_as_numbers(server: ServerInThread, client: Client, name: str) -> None:
    """Metrics, parameters, parameters below one with a dot in its name, and numbers as texts."""
    for rate in RATES:
        texts = {name: f"{rate:g}"}
        config = {name: rate, "optim.all": {name: rate}, "optim": texts, "text": name}
        Rank(server, name=f"{rate:g}", config=config).send(step_report(1, {name: rate}))
    renew(server)
    right = [f"{rate:g}" for rate in sorted(RATES)]
    for sort in (
        f"metric.{name}",
        f"config.{name}",
        f"config.optim.all.{name}",
        f"config.optim.{name}",
    ):
        assert [run.name for run in client.ask(calls.runs(sort=sort)).items] == right, sort
        largest_first = client.ask(calls.runs(sort=f"-{sort}")).items
        assert [run.name for run in largest_first] == right[::-1], sort
    assert len(client.ask(calls.runs(sort=f"config.text.{name}")).items) == len(RATES)


def test_values_beyond_a_digest_are_read(
    server: ServerInThread, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "_METRICS", 10)
    norms = {f"norm/{layer:03}": float(layer) for layer in range(30)}
    Rank(server).send(step_report(1, norms), step_report(2, {"norm/000": 5.0}))
    renew(server)
    (run,) = client.ask(calls.runs(metric=["norm/000", "norm/029", "gone"])).items
    assert run.digest is not None
    assert run.digest.metrics == {"norm/000": 5.0, "norm/029": 29.0}


def test_norms_of_many_layers_sort(server: ServerInThread, client: Client) -> None:
    for name, last in (("b", 2.0), ("a", 1.0)):
        norms = {f"norm/{layer:03}": 0.0 for layer in range(700)}
        Rank(server, name=name).send(step_report(1, {**norms, "z/last": last}))
    renew(server)
    listed = client.ask(calls.runs(sort="metric.z/last")).items
    assert [run.name for run in listed] == ["a", "b"]


def test_the_key_as_it_stands_wins(server: ServerInThread, client: Client) -> None:
    for name, own, nested in (("first", 1, 9), ("second", 2, 8)):
        Rank(server, name=name, config={"optim.lr": own, "optim": {"lr": nested}})
    assert [run.name for run in client.ask(calls.runs(sort="config.optim.lr")).items] == [
        "first",
        "second",
    ]


@pytest.mark.parametrize("sort", ["no_column", "config.", "metric", "-", "step.x"])
def test_a_column_that_is_none_is_named(client: Client, sort: str) -> None:
    with pytest.raises(ApiError, match=r"sort needs one of status, .* got"):
        client.ask(calls.runs(sort=sort))


def test_parts_of_a_line_without_a_value_are_null(server: ServerInThread, rank: Rank) -> None:
    scalars: Mapping[int, Mapping[str, float]] = {
        1: {"entropy/mean": 1.0},
        2: {"entropy/mean": float("nan"), "reward/mean": 0.25},
        4: {"entropy/mean": 0.5},
    }
    rank.send(*(step_report(step, values) for step, values in scalars.items()))
    renew(server)
    digest = digest_of(server, rank)
    assert (digest.entropy_line, digest.reward_line) == (
        [1.0, None, None, 0.5],
        [None, 0.25, None, None],
    )
    assert digest.entropy == pytest.approx(0.5**0.5)
    assert digest.reward == 0.25


@pytest.mark.parametrize("first", [0, 2**63 - 2])
def test_the_largest_step_has_a_digest(server: ServerInThread, rank: Rank, first: int) -> None:
    for step in (first, 2**63 - 1):
        rank.report(step, entropy__mean=1.0)
    renew(server)
    assert server.http.get(f"{rank.path}/diagnosis").status_code == 200
    assert [value for value in digest_of(server, rank).entropy_line if value is not None] == [
        1.0,
        1.0,
    ]


def test_a_run_without_reports_has_no_data(server: ServerInThread, rank: Rank) -> None:
    assert renew(server) == 1
    digest = digest_of(server, rank)
    assert (digest.level, digest.entropy, digest.entropy_line, digest.seconds_per_step) == (
        "no_data",
        None,
        [],
        None,
    )


def test_only_what_changed_is_computed_again(server: ServerInThread) -> None:
    ended, live, idle = (falling(server, 0.9) for _ in range(3))
    finish(ended)
    assert renew(server) == 3
    assert renew(server) == 0
    live.report(41, entropy__mean=0.1)
    age(server, idle, seconds=61)
    assert renew(server) == 2
    assert digest_of(server, live).entropy_line[-1] == 0.1
    idle.report(41, entropy__mean=0.2)  # it is heard again
    assert renew(server) == 1
    pack_all(server)
    assert renew(server) == 0


def test_digest_has_the_active_control(server: ServerInThread, client: Client) -> None:
    rank = Rank(
        server,
        initial_control=ControlSnapshot(
            version=0, control=Control(), author="trainer", requested_at=1.0
        ),
    )
    client.set_control(rank.run_id, method="clip_v", mu_low=1.0, mu_high=2.5, hold="75%")
    rank.report(1, entropy__mean=1.0)
    renew(server)
    before = digest_of(server, rank).control
    rank.answer(2, 1, "APPLIED", active=1)
    renew(server)
    after = digest_of(server, rank).control
    assert before is not None
    assert after is not None
    assert (before.method, before.hold_target) == ("none", None)
    assert (after.method, after.mu_low, after.mu_high, after.hold_target) == (
        "clip_v",
        1.0,
        2.5,
        "75%",
    )


def test_reason_is_the_error_in_a_line(server: ServerInThread) -> None:
    failed, finished = Rank(server), Rank(server)
    finish(
        failed,
        "failed",
        "Traceback (most recent call last):\n  ...\nRuntimeError: CUDA out of memory\n",
    )
    finish(finished)
    renew(server)
    assert digest_of(server, failed).reason == "RuntimeError: CUDA out of memory"
    assert digest_of(server, finished).reason == ""


def test_a_run_is_silent_by_its_own_steps(server: ServerInThread, client: Client) -> None:
    slow = Rank(server, run_id="slow", project="paced")
    quick = Rank(server, run_id="quick", project="paced")
    report_slowly(slow, seconds_per_step=150.0)
    report_slowly(quick, seconds_per_step=1.0)
    renew(server)

    def listed(status: str) -> list[str]:
        return ids(client.runs(project="paced", status=status))

    for heard_ago, silent in ((61, ["quick"]), (740, ["quick"]), (760, ["quick", "slow"])):
        for rank in (slow, quick):
            age(server, rank, seconds=heard_ago)
        assert client.run("slow").status == ("silent" if "slow" in silent else "running")
        assert client.run("quick").status == "silent"
        assert listed("silent") == silent
        assert listed("running") == [name for name in ("slow",) if name not in silent]
        counts = client.ask(calls.run_counts(project="paced"))
        assert counts.statuses["silent"] == len(silent)
        figures = server.http.get("/metrics").text
        assert f'isentrope_runs{{status="silent"}} {len(silent)}.0' in figures


def test_those_that_need_a_person_come_first(server: ServerInThread, client: Client) -> None:
    made = []
    for number in range(2):
        for level in ("silent", "act", "healthy", "finished", "watch", "failed"):
            rank = falling(server, LOST.get(level, 0.3), run_id=f"{level}-{number}")
            made.append(rank.run_id)
            if level == "finished":
                finish(rank)
            if level == "failed":
                rank.send(RunFinished(status="failed", finished_at=time.time()))
            if level == "silent":
                age(server, rank, seconds=61)
    expected = [
        f"{level}-{n}"
        for level in ("act", "failed", "silent", "watch", "healthy", "finished")
        for n in (1, 0)
    ]
    renew(server)
    assert ids(client.runs(order="attention")) == expected
    assert ids(client.runs()) == ids(client.runs(order="newest")) == made[::-1]
    read: list[str] = []
    page = server.http.get("/api/v1/runs", params={"order": "attention", "limit": 3}).json()
    while True:
        read += [item["id"] for item in page["items"]]
        if page["next_cursor"] is None:
            break
        query = {"order": "attention", "limit": 3, "cursor": page["next_cursor"]}
        page = server.http.get("/api/v1/runs", params=query).json()
    assert read == expected
    assert ids(client.runs(level="act")) == ["act-1", "act-0"]
    assert ids(client.runs(level=["watch", "healthy"], order="attention")) == expected[6:10]
    assert ids(client.runs(level="act", status="finished")) == []
    counts = client.ask(calls.run_counts())
    assert counts.levels == {"act": 2, "watch": 2, "healthy": 2, "no_data": 0, "holding": 0}
    assert counts.statuses == {"running": 6, "silent": 2, "finished": 2, "failed": 2, "ended": 0}
    assert counts.total == 12


def test_a_cursor_of_another_order_is_refused(server: ServerInThread) -> None:
    for _ in range(2):
        Rank(server)
    cursor = server.http.get("/api/v1/runs", params={"limit": 1}).json()["next_cursor"]
    answer = server.http.get("/api/v1/runs", params={"order": "attention", "cursor": cursor})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_cursor")


def test_filters_take_several_values_and_combine(server: ServerInThread, client: Client) -> None:
    for number, (project, tags) in enumerate(
        [
            ("math", ("7b", "sweep")),
            ("math", ("1.5b",)),
            ("code", ("7b",)),
            ("code", ("größe",)),
            ("web", ()),
        ]
    ):
        rank = Rank(server, run_id=f"r{number}", name=f"run {number}", project=project, tags=tags)
        if number == 4:
            finish(rank, "failed", "CUDA out of memory")
    assert ids(client.runs(project=["math", "web"])) == ["r4", "r1", "r0"]
    assert ids(client.runs(tag="7b")) == ["r2", "r0"]
    assert ids(client.runs(tag=["1.5b", "sweep"])) == ["r1", "r0"]
    assert ids(client.runs(tag="7")) == []
    assert ids(client.runs(tag="7b", project="code")) == ["r2"]
    assert ids(client.runs(status=["failed", "finished"])) == ["r4"]
    assert ids(client.runs(q="SWEE")) == ["r0"]
    assert ids(client.runs(q="größ")) == ["r3"]
    assert ids(client.runs(q="out of mem")) == ["r4"]
    assert ids(client.runs(q="[")) == ids(client.runs(q="r_n")) == ids(client.runs(q="%")) == []
    counts = client.ask(calls.run_counts(project="math", tag="7b"))
    assert counts.total == 1
    assert [(one.name, one.runs) for one in counts.projects] == [("code", 1), ("math", 1)]
    assert [(one.name, one.runs) for one in counts.tags] == [("1.5b", 1), ("7b", 1), ("sweep", 1)]
    assert counts.statuses["running"] == 1
    everything = client.ask(calls.run_counts())
    assert [(one.name, one.runs) for one in everything.projects] == [
        ("code", 2),
        ("math", 2),
        ("web", 1),
    ]
    assert everything.tags[0].name == "7b"
    with pytest.raises(ApiError) as refused:
        client.runs(order="oldest")
    assert refused.value.status == 422


def test_tags_that_no_database_reads_as_text_are_stored_as_text(
    server: ServerInThread, client: Client
) -> None:
    rank = Rank(server, tags=("nul\0", "twice", "twice"))
    assert client.run(rank.run_id).tags == ["nul\ufffd", "twice"]
    assert ids(client.runs(tag="nul\ufffd")) == [rank.run_id]
    client.ask(calls.edit_run(rank.run_id, tags=["a\0", "b"]))
    assert [(one.name, one.runs) for one in client.ask(calls.run_counts()).tags] == [
        ("a\ufffd", 1),
        ("b", 1),
    ]


def test_deleted_runs_are_neither_listed_nor_counted(
    server: ServerInThread, client: Client
) -> None:
    rank, other = falling(server, 0.4), falling(server, 0.4)
    finish(rank)
    renew(server)
    assert server.http.delete(rank.path).status_code == 204
    assert ids(client.runs(order="attention")) == [other.run_id]
    assert (client.ask(calls.run_counts()).total, client.ask(calls.run_counts()).levels["act"]) == (
        1,
        1,
    )
    assert renew(server) == 0


def test_a_run_whose_digest_fails_does_not_keep_others_from_theirs(
    server: ServerInThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = falling(server, 0.4), falling(server, 0.4)
    compute = digests.digest_of

    def fail(connection: Connection, run: Run) -> tuple[RunDigest, object]:
        if run.id == bad.run_id:
            raise ValueError("damaged")
        return compute(connection, run)

    monkeypatch.setattr(digests, "digest_of", fail)
    pauses = RetryPauses()
    assert [asyncio.run(renew_digests(server.backend, pauses, rest=0)) for _ in range(2)] == [1, 0]
    assert digest_of(server, good).level is HealthLevel.ACT


def test_an_unreadable_digest_leaves_the_list(server: ServerInThread) -> None:
    broken, healthy = falling(server, 0.9), falling(server, 0.9)
    renew(server)

    def damage(transaction: Transaction) -> None:
        of_run = run_digests.c.run_key == runs.key_of(transaction.connection, broken.run_id)
        transaction.connection.execute(
            update(run_digests).where(of_run).values(digest={"level": "no such level"})
        )

    asyncio.run(server.backend.write(damage, rows=1, run_id=broken.run_id))
    listed = {run["id"]: run["digest"] for run in server.http.get("/api/v1/runs").json()["items"]}
    assert listed[broken.run_id] is None
    assert listed[healthy.run_id]["level"] == "healthy"
    broken.report(41, entropy__mean=1.0)
    renew(server)
    assert server.http.get(broken.path).json()["digest"]["level"] != "no such level"


def test_digests_are_renewed_in_the_background(make_server: MakeServer) -> None:
    server = make_server(housekeeping_interval_seconds=0.02)
    rank = falling(server, 0.4)
    wait_for(lambda: (server.http.get(rank.path).json()["digest"] or {}).get("level") == "act", 30)


@pytest.mark.parametrize("name", [" ", "\u200b", "\t\n"])
def test_a_run_is_not_given_an_invisible_name(server: ServerInThread, name: str) -> None:
    rank = Rank(server)
    answer = server.http.patch(rank.path, json={"name": name})
    assert answer.status_code == 422
    assert "a visible character" in answer.text
    with pytest.raises(ConfigurationError, match="a visible character"):
        isentrope.Probe(name=name, mode="disabled")

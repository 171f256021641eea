"""The list of runs: what its rows show, how it is read block by block, and what is done with chosen
runs."""

from __future__ import annotations

import re
import time
from typing import Any

import httpx
import pytest
from playwright.sync_api import BrowserContext, Page, expect

from isentrope.client.connection import AsyncClient
from isentrope_dashboard.components import basics
from isentrope_dashboard.components.basics import sparkline
from isentrope_dashboard.formatting import MISSING
from isentrope_dashboard.pages import runs
from isentrope_dashboard.theme import color_of
from isentrope_dashboard.view import View
from isentrope_wire.answers import (
    DigestControl,
    HealthLevel,
    RunCounts,
    RunDigest,
    RunSummary,
    Status,
)
from isentrope_wire.reports import RunFinished
from tests.dashboard.conftest import OpenPage, Site, apart
from tests.dashboard.made_answers import words
from tests.server.rank import Rank

HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "<script>alert(1)</script>",
    "{{constructor}}",
    "javascript:alert(1)",
    "\"'`&lt;",
    "\u202egnp.exe",
    "a" * 300,
    "[x](javascript:alert(1))",
    "__proto__",
)


def digest(**known: Any) -> RunDigest:
    unknown: dict[str, Any] = dict.fromkeys(
        (
            "share_lost",
            "steps_to_three_quarters_lost",
            "entropy",
            "reward",
            "control",
            "seconds_per_step",
        )
    )
    empty = {"level": HealthLevel.NO_DATA, "entropy_line": [], "reward_line": [], "reason": ""}
    return RunDigest(**{**unknown, **empty, **known})


def summary(**known: Any) -> RunSummary:
    run: dict[str, Any] = {
        "id": "r1",
        "name": "a run",
        "project": "p",
        "status": Status.RUNNING,
        "step": None,
        "planned_steps": None,
        "created_at": 1.0,
        "last_report_at": None,
        "tags": [],
        "notes": "",
        "config": {},
    }
    return RunSummary(**{**run, **known})


@pytest.mark.parametrize(
    ("target", "words"),
    [("75%", "hold 75%"), ("0.46", "hold 0.46"), ("82:100% 382:40%", "hold 100% → 40%")],
)
def test_a_hold_in_the_list_is_short(target: str, words: str) -> None:
    held = DigestControl(method="none", mu_low=None, mu_high=None, hold_target=target)
    assert runs._control(held) == words


@pytest.mark.parametrize("known", [None, digest()])
def test_what_was_not_measured_is_a_dash(known: RunDigest | None) -> None:
    row = runs.run_row(summary(digest=known))
    measured = (
        "share_lost",
        "entropy",
        "reward",
        "step",
        "control",
        "tags",
        "last_report_at",
    )
    assert {row[name] for name in measured} == {MISSING}
    assert words(row["attention"]) == "No data"
    assert words(row["status"]) == "Live no report yet"


def test_a_row_shows_the_digest() -> None:
    row = runs.run_row(
        summary(
            step=108,
            planned_steps=300,
            last_report_at=5.0,
            tags=["7b"],
            digest=digest(
                level=HealthLevel.ACT,
                share_lost=0.716,
                entropy=0.0961,
                reward=0.0,
                entropy_line=[0.4, 0.1],
                control=DigestControl(method="clip_v", mu_low=None, mu_high=2.5, hold_target=None),
                seconds_per_step=3.6,
            ),
        )
    )
    expected = {
        "attention": "Act",
        "share_lost": "72\N{NO-BREAK SPACE}%",
        "entropy": "0.096",
        "reward": "0.000",
        "step": "108 / 300",
        "control": "Clip_V µ₊ 2.50",
    }
    assert {name: words(row[name]) for name in expected} == expected
    assert words(row["status"]) == "Live 3.60 s per step"
    assert row["last_report_at"].to_plotly_json()["props"]["data-since"] == 5.0


@pytest.mark.parametrize(
    ("known", "health", "status"),
    [
        (
            {"status": Status.FINISHED, "step": 300, "planned_steps": 300},
            "Ended",
            "Finished all 300 steps",
        ),
        (
            {"status": Status.FAILED, "digest": digest(reason="CUDA out of memory")},
            "Failed",
            "Failed CUDA out of memory",
        ),
        ({"status": Status.ENDED}, "Ended", "Ended the process ended without finishing"),
        (
            {"status": Status.SILENT, "digest": digest(level=HealthLevel.HEALTHY)},
            "Silent",
            "Silent no report yet",
        ),
        ({"digest": digest(level=HealthLevel.HOLDING)}, "Holding", "Live no report yet"),
        (
            {"status": Status.FAILED, "digest": digest(level=HealthLevel.ACT, share_lost=0.9)},
            "Failed, collapsed",
            "Failed",
        ),
        (
            {"status": Status.ENDED, "digest": digest(level=HealthLevel.WATCH, share_lost=-0.3)},
            "Ended, risen",
            "Ended the process ended without finishing",
        ),
    ],
)
def test_status_comes_with_its_reason(known: dict[str, Any], health: str, status: str) -> None:
    row = runs.run_row(summary(**known))
    assert (words(row["attention"]), words(row["status"])) == (health, status)


def test_a_rise_is_no_loss_and_chosen_columns_have_cells() -> None:
    rising = digest(share_lost=-0.534, metrics={"kl/mean": 0.25})
    run = summary(digest=rising, tags=["7b"], notes="bad <b>data", config={"optim": {"lr": 1e-6}})
    row = runs.run_row(run, ["config.optim.lr", "metric.kl/mean", "metric.gone"])
    assert words(row["share_lost"]) == "+53\N{NO-BREAK SPACE}%"
    assert (row["config.optim.lr"], row["metric.kl/mean"], row["metric.gone"]) == (
        "1e-06",
        "0.25",
        MISSING,
    )
    assert words(row["tags"]) == "7b bad <b>data"
    chosen = runs.columns(
        View(query={"sort": "-config.optim.lr"}, columns=("config.optim.lr", "step"))
    )
    assert [(one["headerName"], one.get("sort")) for one in chosen] == [
        ("Run", None),
        ("optim.lr", "desc"),
        ("Step", None),
    ]


def test_runs_of_a_project_have_one_scale() -> None:
    low, high = (summary(digest=digest(entropy=top, entropy_line=[top, top])) for top in (0.5, 1.0))
    half = words_of_line(runs.shown_row(low, (), runs._tops([low, high])))
    alone = words_of_line(runs.shown_row(low, (), runs._tops([low])))
    assert half == basics.sparkline([0.5, 0.5], 1.0) != alone == basics.sparkline([0.5, 0.5])


def test_a_projects_row_has_the_lines_of_its_runs() -> None:
    pair = [summary(id=name, digest=digest(entropy_line=[top, top])) for name, top in
            (("a", 0.5), ("b", 1.0))]  # fmt: skip
    counts = RunCounts(total=2, statuses={}, levels={HealthLevel.ACT: 1}, projects=[], tags=[])
    row = runs.project_row("p", counts, (), pair)["project"]
    assert words(row) == "p 2 runs · 1 needs you Entropy Charts"
    sparks = row.children[1].children[0].children[1].children
    assert [spark.style["--drawing"] for spark in sparks] == [
        basics.sparkline([top, top], 1.0) for top in (0.5, 1.0)
    ]
    assert [spark.style["--own"] for spark in sparks] == [color_of("a"), color_of("b")]


def words_of_line(row: dict[str, Any]) -> str:
    return str(row["entropy"].children[0].style["--drawing"])


def test_a_row_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    run = summary()
    monkeypatch.setattr(runs, "health", lambda run: 1 / 0)
    row = runs.shown_row(run, ["config.lr"])
    assert row["id"] == run.id
    assert run.name in words(row["name"])
    assert "ZeroDivisionError" in words(row["status"])
    assert row.keys() >= {column["field"] for column in runs.COLUMNS} | {"config.lr"}


def test_a_line_breaks_where_a_value_is_missing_and_begins_at_zero() -> None:
    path = sparkline([1.0, 0.5, None, 0.0, 1.0]).partition("d%3D%27")[2].partition("%27")[0]
    assert path.count("M") == 2
    assert path.startswith("M0.0%201.0L18.0%2011.0")
    assert "M54.0%2021.0" in path


def rows_of(site: Site, size: int, **query: str) -> list[dict[str, Any]]:
    """All rows, read in blocks."""

    async def read() -> list[dict[str, Any]]:
        headers = {"Authorization": f"Bearer {site.server.owner_token}"}
        async with httpx.AsyncClient(
            base_url=f"{site.url}/api/v1/", headers=headers, timeout=20
        ) as http:
            found: list[dict[str, Any]] = []
            at: Any = None
            while True:
                block, at = await runs.read_rows(AsyncClient(http), View(query=query), at, size)
                found += block
                if at is None:
                    return found
                assert len(block) == size

    return apart(read())


@pytest.fixture(scope="module")
def sweep(site: Site) -> list[str]:
    """Seven runs of two projects, with a tag of their own."""
    return [
        Rank(
            site.server, name=f"sweep {number}", project=f"block-{number % 2}", tags=["blocks"]
        ).run_id
        for number in range(7)
    ]


@pytest.mark.parametrize(("size", "order"), [(2, ""), (3, "newest"), (7, ""), (50, "newest")])
def test_blocks_join_to_the_whole_list(site: Site, sweep: list[str], size: int, order: str) -> None:
    assert [row["id"] for row in rows_of(site, size, tag="blocks", order=order)] == sweep[::-1]


@pytest.mark.parametrize("size", [2, 3, 4, 50])
def test_blocks_join_by_project(site: Site, sweep: list[str], size: int) -> None:
    for folded, expected in {
        "": [":project:block-0", *sweep[6::-2], ":project:block-1", *sweep[5::-2]],
        "block-0": [":project:block-0", ":project:block-1", *sweep[5::-2]],
        "block-1": [":project:block-0", *sweep[6::-2], ":project:block-1"],
        "block-0,block-1": [":project:block-0", ":project:block-1"],
    }.items():
        found = rows_of(site, size, tag="blocks", order="project", fold=folded)
        assert [row["id"] for row in found] == expected


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"q": "sweep 3"}, 1),
        ({"project": "block-1"}, 3),
        ({"status": "running"}, 7),
        ({"status": "failed"}, 0),
        ({"health": "act"}, 0),
        ({"health": "ended"}, 0),
        ({"health": "ended", "status": "running"}, 0),
        ({"health": "silent", "status": "no such"}, 0),
        ({"health": "no such", "status": "no such"}, 7),
    ],
)
def test_filters_of_the_address_choose_runs(
    site: Site, sweep: list[str], query: dict[str, str], found: int
) -> None:
    assert len(rows_of(site, 50, tag="blocks", **query)) == found


# ---- in a browser
# --------------------------------------------------------------------------------------------------


def choose(page: Page, run_id: str) -> None:
    page.locator(f'.ag-row[row-id="{run_id}"] input[type=checkbox]').check()


@pytest.mark.slow
@pytest.mark.browser
def test_every_run_is_reached_and_a_selection_survives(site: Site, open_page: OpenPage) -> None:
    ids = [
        Rank(site.server, name=f"many {number:03d}", project="many", tags=HOSTILE[:1]).run_id
        for number in range(120)
    ]
    page = open_page("/?project=many&order=newest", scheme="dark")
    expect(page.get_by_role("link", name="many 119", exact=True)).to_be_visible()
    choose(page, ids[-1])
    choose(page, ids[-2])
    expect(page.locator("#compare-runs")).to_have_attribute(
        "href", f"/compare?run={ids[-1]}&run={ids[-2]}"
    )
    rows = page.locator(".runs-grid .ag-body-viewport")
    last = page.get_by_role("link", name="many 000", exact=True)
    deadline = time.monotonic() + 30
    while not last.is_visible() and time.monotonic() < deadline:
        rows.evaluate("rows => rows.scrollBy(0, 1500)")
        page.wait_for_timeout(100)
    expect(last).to_be_visible()
    scrolled = rows.evaluate("rows => rows.scrollTop")
    with page.expect_response(
        lambda answer: "_dash-update-component" in answer.url, timeout=15_000
    ):
        pass  # the list is read again
    page.wait_for_timeout(500)
    assert rows.evaluate("rows => rows.scrollTop") == scrolled
    expect(page.locator("#compare-words")).to_have_text("Compare 2 runs")
    expect(page.locator(".runs-grid .chip").first).to_have_text(HOSTILE[0])


@pytest.mark.slow
@pytest.mark.browser
def test_filters_are_in_the_address(site: Site, sweep: list[str], open_page: OpenPage) -> None:
    page = open_page("/?tag=blocks&order=project")
    rows = page.locator(".ag-center-cols-container .ag-row")
    expect(rows).to_have_count(7)
    page.get_by_role("button", name="block-1").click()
    expect(rows).to_have_count(4)
    page.get_by_role("button", name="block-1").click()
    expect(rows).to_have_count(7)
    page.wait_for_load_state(
        "networkidle"
    )  # the address that the last click gave fills the fields once more
    page.keyboard.press("/")
    page.keyboard.type("sweep 4")
    expect(page.locator(".ag-center-cols-container .ag-row")).to_have_count(1)
    assert "q=sweep+4" in page.url
    page = open_page(page.url.removeprefix(site.url))
    expect(page.locator(".ag-center-cols-container .ag-row")).to_have_count(1)
    page.get_by_text("Ended 0").click()
    expect(page.locator(".ag-overlay-no-rows-center")).to_have_text("No run passes these filters")
    page.go_back()
    expect(page.locator(".ag-center-cols-container .ag-row")).to_have_count(1)
    expect(page.get_by_role("radio", name="All 1")).to_be_checked()


@pytest.mark.browser
def test_columns_are_chosen_and_sorted(site: Site, open_page: OpenPage) -> None:
    for lr in (2e-6, 3e-5, 1e-6):
        Rank(site.server, name=f"lr {lr}", tags=["sorted"], config={"lr": lr})
    page = open_page("/?tag=sorted")
    page.get_by_role("button", name="Columns").click()
    page.get_by_role("textbox", name="Columns").fill("lr")
    page.get_by_role("option", name="lr").click()
    page.keyboard.press("Escape")
    page.locator(".ag-header-cell", has_text="lr").click()
    names = page.locator(".ag-row .two-lines a")
    expect(names).to_have_text(["lr 3e-05", "lr 2e-06", "lr 1e-06"])
    assert "column=config.lr&sort=-config.lr" in page.url
    page = open_page(page.url.removeprefix(site.url))
    expect(page.locator(".ag-row .two-lines a")).to_have_text(["lr 3e-05", "lr 2e-06", "lr 1e-06"])
    top = page.locator(".ag-row").first.bounding_box()
    page.locator(".ag-row input[type=checkbox]").first.check()
    expect(page.get_by_role("button", name="Delete")).to_be_visible()
    assert page.locator(".ag-row").first.bounding_box() == top
    page.locator(".page-title").click()
    for key in "jjk":
        page.keyboard.press(key)
    expect(page.locator(".ag-row-focus .two-lines a")).to_have_text("lr 2e-06")
    page.keyboard.press("Control+k")
    page.keyboard.type("lr 2e-06")
    expect(page.locator(".palette a")).to_have_count(1)
    page.keyboard.press("Enter")
    page.wait_for_url("**/runs/*")


@pytest.mark.slow
@pytest.mark.browser
def test_who_looks_again_sees_what_changed(
    site: Site, open_page: OpenPage, window: BrowserContext
) -> None:
    # A hundred runs are looked at: those of other tests would push these out.
    window.route(
        "**/api/v1/runs?order=attention*",
        lambda route: route.continue_(url=f"{route.request.url}&project=looked"),
    )
    run = site.run(3, name="soon over", project="looked")
    page = open_page("/")
    # Its own row may be out of sight, below those of other tests.
    rows = ".ag-center-cols-container .ag-row"
    expect(page.locator(rows).first).to_be_visible()
    page.wait_for_load_state("networkidle")
    page.evaluate("Object.defineProperty(document, 'hidden', { get: () => window.away })")
    page.clock.install()

    def turn(is_away: bool, seconds: int) -> None:
        page.clock.fast_forward(1_000 * seconds)
        page.evaluate(f"window.away = {str(is_away).lower()}")
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")

    turn(is_away=True, seconds=4)
    site.rank(run).send(RunFinished(status="finished", finished_at=time.time()))
    site.run(1, name="just begun", project="looked")
    page.clock.fast_forward(31_000)
    expect(page).to_have_title(re.compile(r"^\(\d+\) Runs · Isentrope$"))
    turn(is_away=False, seconds=0)
    expect(page).to_have_title("Runs · Isentrope")
    line = page.locator("#since-looked")
    expect(line).to_have_text(re.compile(r"^Since \d\d:\d\d: .*1 ended, 1 started$"))
    expect(line.get_by_title("soon over")).to_have_attribute("href", f"/runs/{run}")
    turn(is_away=True, seconds=4)
    page = open_page("/")
    expect(page.locator(rows).first).to_be_visible()
    page.wait_for_load_state("networkidle")
    expect(page.locator("#since-looked")).not_to_contain_text("ended")
    window.unroute_all()


@pytest.mark.browser
def test_chosen_runs_are_deleted(site: Site, open_page: OpenPage) -> None:
    ended = site.run(
        3,
        name="to delete <b>",
        tags=("doomed",),
        finished=RunFinished(status="finished", finished_at=time.time()),
    )
    running = Rank(site.server, name="still there", tags=["doomed"]).run_id
    page = open_page("/?tag=doomed")
    choose(page, ended)
    choose(page, running)
    page.get_by_role("button", name="Delete").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("to delete <b>")
    expect(dialog).to_contain_text("still there")
    dialog.get_by_role("button", name="Delete").click()
    expect(dialog).to_contain_text("is still reporting")
    expect(page.locator(".ag-center-cols-container .ag-row")).to_have_count(1)
    assert [run.id for run in site.client.runs(tag="doomed")] == [running]


@pytest.mark.browser
def test_a_reader_can_compare_and_nothing_else(
    site: Site, sweep: list[str], open_page: OpenPage
) -> None:
    page = open_page("/?tag=blocks", token=site.server.token("read"), width=390, height=844)
    choose(page, sweep[0])
    choose(page, sweep[1])
    expect(page.locator("#compare-runs")).to_be_visible()
    expect(page.get_by_role("button", name="Delete")).to_have_count(0)
    assert page.evaluate("document.documentElement.scrollWidth") == 390


@pytest.mark.slow
@pytest.mark.browser
def test_the_list_goes_on_after_the_server_was_away(site: Site, window: BrowserContext) -> None:
    Rank(site.server, name="before", tags=["away"])
    window.clear_cookies()
    page = window.new_page()  # not `open_page`: the failed requests are what this test is about
    page.goto(f"{site.url}/?token={site.server.owner_token}&tag=away")
    expect(page.get_by_role("link", name="before")).to_be_visible()
    window.set_offline(True)
    expect(page.get_by_text("Connection lost")).to_be_visible()
    page.wait_for_timeout(6_000)
    Rank(site.server, name="meanwhile", tags=["away"])
    window.set_offline(False)
    expect(page.get_by_role("link", name="meanwhile")).to_be_visible()
    expect(page.get_by_text("Connection lost")).to_be_hidden()
    page.close()

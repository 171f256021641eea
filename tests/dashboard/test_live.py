"""What open pages are answered: only what changed, the same to equal tabs, and nothing that only
Dash could draw."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any, cast

import httpx
import pytest
from dash.development.base_component import Component
from playwright.sync_api import expect

from isentrope.client import calls
from isentrope.client.connection import AsyncClient
from isentrope_dashboard import live
from isentrope_dashboard.components.control_card import fields_of
from isentrope_dashboard.figures.panel import Panel, Shown
from isentrope_dashboard.formatting import number
from isentrope_dashboard.pages import charts, compare, overview, run, steps
from isentrope_dashboard.view import View
from isentrope_wire.control import Control
from isentrope_wire.diagnosis.outlook import offered_control
from tests.dashboard.conftest import OpenPage, Site
from tests.dashboard.made_answers import words
from tests.system.running_server import wait_for


def ask(
    site: Site,
    address: str,
    *,
    state: int | None = None,
    parts: str = "all",
    shown: dict[str, int] | None = None,
    form: dict[str, Any] | None = None,
) -> httpx.Response:
    path, _, search = address.partition("?")
    query = [pair.split("=") for pair in search.split("&")] if search else []
    asked = {"path": path, "query": query, "state": state, "parts": parts, "form": form}
    asked["shown"] = shown or {}
    return site.server.http.post(live.PATH, json=asked)


def settled(site: Site, steps: int) -> str:
    """A run whose level is known: half a second after its steps, it is news by itself."""
    run_id = site.run(steps)
    wait_for(lambda: site.client.run(run_id).digest is not None)
    return run_id


def test_only_what_changed_is_sent(site: Site) -> None:
    run_id = settled(site, 12)
    first = ask(site, f"/runs/{run_id}").json()
    assert first["run"]["step"] == 12
    assert {"health", "kpis", "chart-entropy", "run-state", "control-latest"} <= set(
        first["values"]
    )
    shown = {name: digest for name, (digest, *_) in first["values"].items()}
    assert ask(site, f"/runs/{run_id}", state=first["state"], shown=shown).status_code == 204
    site.more(run_id, 1)
    second = ask(site, f"/runs/{run_id}", state=first["state"], shown=shown).json()
    assert second["run"]["step"] == 13
    assert {"health", "kpis", "chart-entropy"} <= set(second["values"])
    assert not {"control-latest", "control-newest", "overview-refused"} & set(second["values"])
    site.more(run_id, 1)
    fast = ask(site, f"/runs/{run_id}", state=second["state"], parts="fast").json()
    assert "chart-entropy" in fast["values"]
    assert "run-state" not in fast["values"]


def test_the_form_is_answered_with_the_step_it_is_shown_at(site: Site) -> None:
    """Nothing is chosen: of what the page offers, which acts not and is in no chart."""
    run_id = settled(site, 30)
    base = {"version": 0, "document": Control().to_document(), "may_push": True}
    fields = asdict(fields_of(Control()))
    form = {"fields": fields, "base": base}
    values = ask(site, f"/runs/{run_id}", form=form).json()["values"]
    course = site.client.diagnosis(run_id).forecast
    assert course is not None
    ends = values["chart-entropy"][2]["layout"]["meta"]["ends"]
    assert course.entropy[-1] in [end["y"] for end in ends]
    offered = site.client.ask(calls.outlook(run_id, curves=True))
    assert offered.preview is not None
    assert offered.preview.forecast is not None
    assert values["control-entropy"][2] == number(offered.preview.forecast.entropy[-1])
    shown = values["control-preview"][2]
    control = offered_control(offered.diagnosis)
    assert Control.from_document(shown["offered"]["document"]) == control
    assert "not active" in values["control-offer"][2].lower()
    assert "lines" not in shown
    assert values["control-push"][2] is True
    fields |= {"method": "clip_v", "mu_low": "-"}
    values = ask(site, f"/runs/{run_id}", form=form).json()["values"]
    assert "mu_low" in values["control-note"][2]
    fields |= {"mu_low": 2.0}
    values = ask(site, f"/runs/{run_id}", form=form).json()["values"]
    assert values["control-offer"][2] == ""
    assert "offered" not in values["control-preview"][2]


def test_equal_questions_are_read_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    read = []

    async def counted(client: Any, view: View) -> live.Values:
        read.append(view.path)
        return await overview.read(client, view)

    tab = replace(run.TABS["overview"], parts=[replace(overview.PART, read=counted)])
    monkeypatch.setitem(run.TABS, "overview", tab)
    monkeypatch.setattr(live, "ANSWERED_FOR", 60.0)
    address = f"/runs/{settled(site, 8)}"
    answers = [ask(site, address).json()["values"] for _ in range(3)]
    assert len(read) == 1
    assert answers[0] == answers[2]
    ask(site, f"{address}?smooth=off")
    assert len(read) == 2


def test_who_may_not_read_is_answered_nothing(site: Site) -> None:
    assert ask(site, "/runs/no-such-run").json() == {"state": None, "run": None, "values": {}}
    asked = {"path": "/", "query": []}
    ingest = {"Authorization": f"Bearer {site.server.token('ingest')}"}
    assert httpx.post(site.url + live.PATH, json=asked, headers=ingest).status_code == 403
    assert httpx.post(site.url + live.PATH, json=asked).status_code == 401


def test_a_part_that_fails_says_why_and_the_others_stay(site: Site) -> None:
    values = ask(site, f"/runs/{site.run(3)}?tab=tokens&step=1").json()["values"]
    assert values["tokens-refused"][2] is None
    gone = site.values(
        replace(
            steps.PART, read=lambda client, view: steps.PART.values(client, View(path="/runs/gone"))
        ),
        "/",
    )
    assert "Not found" in str(gone["steps-refused"])


@pytest.mark.parametrize("unreadable", [{}, {"kpis": {1, 2}}], ids=["raises", "no JSON"])
def test_a_broken_part_is_named_and_alone(
    site: Site, monkeypatch: pytest.MonkeyPatch, unreadable: dict[str, Any]
) -> None:
    async def read(_client: Any, _view: View) -> live.Values:
        return unreadable or {"kpis": unreadable["kpis"]}

    parts = [replace(overview.PART, read=read), *run.TABS["overview"].parts[1:]]
    monkeypatch.setitem(run.TABS, "overview", replace(run.TABS["overview"], parts=parts))
    answer = ask(site, f"/runs/{site.run(3)}")
    assert answer.status_code == 200
    values = answer.json()["values"]
    assert "Error: " in str(values["overview-refused"])
    assert "run-state" in values


def test_a_part_whose_layout_fails_is_named() -> None:
    async def layout(_client: Any, _view: View) -> Component:
        raise ZeroDivisionError("a layout")

    part = replace(overview.PART, layout=layout)
    shown = asyncio.run(part.component(cast("AsyncClient", None), View()))
    assert "ZeroDivisionError: a layout" in words(shown)


@pytest.mark.slow
@pytest.mark.browser
def test_a_chart_that_plotly_refuses_is_alone(
    site: Site, open_page: OpenPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = charts.draw

    def draw(panel: Panel, shown: Shown) -> Any:
        figure = plain(panel, shown)
        if panel.name == "entropy" and isinstance(figure, dict):
            figure["layout"]["yaxis"]["range"] = [0.0, 1e-310]
        return figure

    monkeypatch.setattr(charts, "draw", draw)
    run_id = site.run(30)
    page = open_page(f"/runs/{run_id}", may_fail=True)
    expect(page.locator("#chart-entropy .refusal")).to_contain_text("can't draw this")
    expect(page.locator("#chart-reward .main-svg").first).to_be_visible()
    expect(page.locator("#chart-clip .main-svg").first).to_be_visible()
    expect(page.locator("body")).to_have_attribute("data-connection", "good")
    monkeypatch.undo()
    site.more(run_id, 1)
    expect(page.locator("#chart-entropy .main-svg").first).to_be_visible()


@pytest.mark.slow
@pytest.mark.browser
def test_a_failing_server_is_not_called_lost(
    site: Site, open_page: OpenPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = site.run(8)
    page = open_page(f"/runs/{run_id}", may_fail=True)
    expect(page.locator("#run-step")).to_have_text("8")

    async def fail(_news: Any, _view: View) -> Any:
        raise RuntimeError("planted")

    monkeypatch.setattr(live.News, "_state", fail)
    expect(page.locator(".connection .failed")).to_contain_text("failed to read this page (500)")
    expect(page.locator(".connection .lost")).to_be_hidden()
    monkeypatch.undo()
    expect(page.locator(".connection .failed")).to_be_hidden()


def drawn(value: Any) -> Iterator[str]:
    """Namespaces of the components in a value."""
    if isinstance(value, Component):
        yield value._namespace
        yield from drawn(getattr(value, "children", None))
    elif isinstance(value, list | tuple):
        for one in value:
            yield from drawn(one)


def test_values_have_nothing_that_only_dash_could_draw(site: Site) -> None:
    run_id = site.run(20)
    site.client.set_control(run_id, method="clip_v", mu_low=1.0, if_version=0)
    pages = {
        f"/runs/{run_id}?tab={name}": [run.STATE, *tab.parts] for name, tab in run.TABS.items()
    }
    for address, parts in {**pages, f"/compare?run={run_id}&run=gone": [compare.PART]}.items():
        for part in parts:
            for name, value in site.values(part, address).items():
                if name not in part.properties:
                    assert set(drawn(value)) <= {"dash_html_components"}, f"{address} {name}"


@pytest.mark.slow
@pytest.mark.browser
def test_a_hidden_page_asks_nothing(site: Site, open_page: OpenPage) -> None:
    run_id = site.run(8)
    page = open_page(f"/runs/{run_id}")
    expect(page.locator("#run-step")).to_have_text("8")
    asked: list[str] = []
    page.on(
        "request",
        lambda request: asked.append(request.url) if request.url.endswith(live.PATH) else None,
    )
    page.evaluate(
        "Object.defineProperty(document, 'hidden', { get: () => window.away }); window.away = true"
    )
    asked.clear()
    site.more(run_id, 1)
    page.wait_for_timeout(1_500)
    assert asked == []
    page.evaluate("window.away = false")
    expect(page.locator("#run-step")).to_have_text("9")
    level = site.client.diagnosis(run_id).level
    expect(page).to_have_title(re.compile(rf"^\({level}\) .* · Isentrope$", re.IGNORECASE))


@pytest.mark.slow
@pytest.mark.browser
def test_a_page_asks_by_the_runs_pace(site: Site, open_page: OpenPage) -> None:
    run_id = site.run(8)
    page = open_page(f"/runs/{run_id}")
    asked: list[str] = []
    page.on(
        "request",
        lambda request: asked.append(request.url) if request.url.endswith(live.PATH) else None,
    )
    for _ in range(8):
        site.more(run_id, 1)
        page.wait_for_timeout(1_000)
        if page.locator("#run-step").inner_text() == "11":
            asked.clear()  # by then it knows the pace
    expect(page.locator("#run-step")).to_have_text("16")
    assert 5 <= len(asked) <= 12


def test_what_only_the_list_shows_is_no_news(site: Site) -> None:
    run_id = settled(site, 12)
    for _ in range(5):
        site.more(run_id, 1)
        digest = site.client.run(run_id).digest
        state = ask(site, f"/runs/{run_id}").json()["state"]
        if site.client.run(run_id).digest != digest:
            continue  # it came meanwhile
        wait_for(lambda: site.client.run(run_id).digest != digest)  # noqa: B023  (called at once)
        after = site.client.run(run_id).digest
        if digest is None or after is None or after.level != digest.level:
            continue  # the tab's title shows it
        assert ask(site, f"/runs/{run_id}", state=state).status_code == 204
        return
    pytest.fail("the list's digest never came after the step")

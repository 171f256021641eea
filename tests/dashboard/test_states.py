"""The page of a run in each of its states: ended, without controls, empty; and for readers."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from playwright.sync_api import expect

from isentrope_dashboard.components.basics import plain
from isentrope_dashboard.pages import control, metrics, overview, run
from isentrope_wire.answers import Status
from isentrope_wire.reports import RunFinished
from tests.countdown import countdown_run
from tests.dashboard.conftest import OpenPage, Site
from tests.dashboard.made_answers import words
from tests.server.rank import Rank

WHAT_IF = "what thresholds would have done"


def finished(status: str, error: str = "") -> RunFinished:
    return RunFinished(status=status, finished_at=time.time(), error=error)


@pytest.mark.parametrize(
    ("status", "error", "flag", "sentence"),
    [
        ("finished", "", "Finished", "Entropy lost"),
        (
            "failed",
            "Traceback\n  File x\nOSError: disk full",
            "Failed",
            "OSError: disk full. Entropy lost",
        ),
        ("ended", "", "Ended", "Entropy lost"),
    ],
)
def test_a_run_that_is_over_states_how_it_ended(
    site: Site, status: str, error: str, flag: str, sentence: str
) -> None:
    run_id = site.run(40, name=status, finished=finished(status, error))
    line = site.values(overview.PART, f"/runs/{run_id}")["health"]
    assert words(line).split()[0] == flag
    assert sentence in words(line)
    assert line.className == ("health act" if status == "failed" else "health")
    closed = site.values(overview.PART, f"/runs/{run_id}")[control.CLOSED]
    assert f"This run has {status}" in plain(closed)
    if status == "failed":  # its error stands there instead
        assert "See the last output" in words(line)
        assert plain(closed).endswith(error)
        return
    assert WHAT_IF in closed
    fields = control.first_control(site.client.run(run_id), may_push=False)
    assert (fields.method, fields.mu_low, fields.mu_high) == ("clip_v", 2.0, 2.0)


def test_the_line_of_a_silent_run_says_what_its_badge_says(site: Site) -> None:
    run_id = site.run(40)
    silent = replace(site.client.run(run_id), status=Status.SILENT)
    assert words(overview.health_line(site.client.diagnosis(run_id), silent)).split()[0] == "Silent"


def test_a_run_that_only_observes_shows_what_thresholds_would_have_done(site: Site) -> None:
    rank = Rank(site.server, name="observes", capabilities=())
    for report in countdown_run().reports[:20]:
        rank.send(report)
    closed = site.values(overview.PART, f"/runs/{rank.run_id}")[control.CLOSED]
    assert "only observes" in closed
    assert WHAT_IF in closed


def test_an_empty_run_that_is_over_waits_for_nothing(site: Site) -> None:
    run_id = site.run(0, finished=finished("finished"))
    assert WHAT_IF not in site.values(overview.PART, f"/runs/{run_id}")[control.CLOSED]
    assert "before its first step" in words(
        site.values(metrics.PART, f"/runs/{run_id}?tab=metrics")["metrics"]
    )
    values = site.values(overview.PART, f"/runs/{run_id}")
    notes = {
        values[name]["layout"]["annotations"][0]["text"] for name in ("chart-entropy", "chart-clip")
    }
    assert notes == {"None was reported"}
    assert "rescore=" in plain(values["chart-change"]["layout"]["annotations"][0]["text"])
    assert words(site.values(run.STATE, f"/runs/{run_id}")["run-state"]).split()[0] == "Finished"


@pytest.mark.slow
@pytest.mark.browser
def test_the_what_if_of_a_finished_run_follows_its_handle(site: Site, open_page: OpenPage) -> None:
    run_id = site.run(40, name="over", finished=finished("finished"))
    page = open_page(f"/runs/{run_id}")
    clipped = page.locator("#control-clipped")
    expect(clipped).to_contain_text("%")
    before = clipped.inner_text()
    expect(page.get_by_role("button", name="Push")).to_have_count(0)
    page.locator("#control-mu-low").fill("0.2")
    page.locator("#control-mu-low").press("Enter")
    expect(clipped).not_to_have_text(before)

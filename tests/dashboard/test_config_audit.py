"""The Config and the Audit tab: parameters, what is editable and by whom, the history as a table
and as a file."""

from __future__ import annotations

import csv
import io
import math

import pytest
from playwright.sync_api import expect

from isentrope.client import calls
from isentrope_dashboard.pages import audit, config
from isentrope_dashboard.pages.audit import change_words, format_csv, history_rows
from isentrope_dashboard.pages.config import changes_of, flat, parameters, system_facts
from isentrope_wire.control import Control
from isentrope_wire.metrics import PROBE_DROPPED_REPORTS
from isentrope_wire.reports import RunFinished
from tests.dashboard.conftest import OpenPage, Site
from tests.dashboard.made_answers import BEGAN, columns, version

HOSTILE = "<img src=x onerror=alert(1)>"


def test_configuration_is_flattened() -> None:
    nested = {
        "lr": 1e-6,
        "policy": {"layers": 2, "rope": {"base": 1e4}},
        "betas": [0.9, 0.99],
        "empty": {},
        "sources": [{"name": "a"}, {"name": "b"}],
        "text": "x",
        "none": None,
    }
    assert flat(nested) == {
        "lr": "1e-06",
        "policy.layers": "2",
        "policy.rope.base": "10000.0",
        "betas": "[0.9, 0.99]",
        "empty": "{}",
        "sources.0.name": "a",
        "sources.1.name": "b",
        "text": "x",
        "none": "null",
    }


@pytest.mark.parametrize(
    ("find", "shown"), [("LAYERS", ["policy.layers"]), ("adam", ["optimizer"]), ("", None)]
)
def test_parameters_are_searched_by_name_and_value(find: str, shown: list[str] | None) -> None:
    known = {"policy": {"layers": 2}, "optimizer": "AdamW", HOSTILE: HOSTILE}
    names = [row.children[0].children for row in parameters(known, find).children[0].children]
    assert names == (shown or ["policy.layers", "optimizer", HOSTILE])


def test_probe_cost_is_a_share_of_the_step() -> None:
    shown = dict(
        system_facts(
            {PROBE_DROPPED_REPORTS: 3.0}, columns([1, 2], [2.0, 2.0]), columns([1, 2], [0.01, 0.03])
        )
    )
    assert shown["Share"] == "1.0\N{NO-BREAK SPACE}%"
    assert shown["Reports dropped"] == "3"
    assert "Records spooled" not in shown  # was not reported, which is not 0
    unknown = dict(system_facts({}, columns([], []), columns([1], [math.nan])))
    assert unknown["Share"] == "–"


def test_only_edited_fields_are_sent() -> None:
    known = {"name": "a", "tags": ["x"], "notes": ""}
    assert changes_of(known, {"name": "a", "tags": ["x"], "notes": ""}) == {}
    assert changes_of(known, {"name": "b", "tags": [], "notes": ""}) == {"name": "b", "tags": []}


def test_history_states_each_change_in_full_words() -> None:
    first = version(
        1, "APPLIED", Control(method="clip_v", mu_low=1.0), 20, author="anna", applied_at=12.5
    )
    second = version(
        2, "REJECTED", Control(method="clip_v", mu_low=2.0, scope="negative"), message="not now"
    )
    rows = history_rows([BEGAN, first, second])
    assert [row["version"] for row in rows] == ["v2", "v1", "v0"]
    assert rows[0]["change"] == "µ₋ 1.00 → 2.00, scope all → negative"
    assert (rows[1]["author"], rows[1]["applied"], rows[1]["latency"]) == ("anna", 20, 2.5)
    assert (rows[0]["latency"], rows[0]["outcome"]) == (None, "not now")


@pytest.mark.parametrize("cell", ["=1+1", "+1", "-1", "@a", "\t=1", "'=1"])
def test_file_has_no_formulas(cell: str) -> None:
    [row] = history_rows([version(1, "APPLIED", Control(), 3, author=cell, reason=f"fine {cell}")])
    written = next(csv.DictReader(io.StringIO(format_csv([row]))))
    assert (written["author"], written["reason"]) == (f"'{cell}", f"fine {cell}")


def test_audit_changes_are_read_as_old_and_new() -> None:
    change = {
        "old": {"mu_low": 1.0, "hold": None, "scope": "all"},
        "new": {"mu_low": None, "hold": {"mu_max": 2}, "scope": "all"},
    }
    assert change_words(change | {"step": 4}) == "mu_low 1.0 → null, hold.mu_max 2, step 4"
    assert change_words({"old": "PENDING", "new": "DELIVERED", "code": ""}) == "PENDING → DELIVERED"
    assert change_words({"new": {}, "claimed_at": 1.5}) == "claimed_at 1970-01-01 00:00:01 UTC"


def test_tabs_read_a_run_that_failed(site: Site) -> None:
    run = site.run(
        5, finished=RunFinished(status="failed", finished_at=2e9, error=f"Traceback\n  {HOSTILE}")
    )
    values = site.values(config.PART, f"/runs/{run}?tab=config&find=layers")
    assert HOSTILE in str(values["config-error"])
    assert [
        row["version"] for row in site.values(audit.PART, f"/runs/{run}?tab=audit")[audit.GRID]
    ] == ["v0"]


@pytest.mark.slow
@pytest.mark.browser
def test_notes_are_saved_and_the_trail_is_for_admins(site: Site, open_page: OpenPage) -> None:
    run = site.run(5, name=HOSTILE)
    page = open_page(f"/runs/{run}?tab=config")
    page.get_by_label("Notes").fill("restarted twice")
    page.get_by_label("Name").fill("renamed <b>")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_text("Saved", exact=True)).to_be_visible()
    assert (site.client.run(run).notes, site.client.run(run).name) == (
        "restarted twice",
        "renamed <b>",
    )
    expect(page.locator("#run-select")).to_have_value(f"renamed <b> · {run[-6:]}")
    page.get_by_role("tab", name="Audit").click()
    expect(page.get_by_role("cell", name="run.edited")).to_be_visible()
    expect(page.locator(".ag-row")).to_have_count(1)
    page.close()
    read_only = site.client.ask(calls.create_access_token("read", name="reader")).token
    page = open_page(f"/runs/{run}?tab=config", token=read_only)
    expect(page.get_by_text("restarted twice")).to_be_visible()
    expect(page.get_by_role("button", name="Save", exact=True)).to_have_count(0)
    page.get_by_role("tab", name="Audit").click()
    expect(page.get_by_text("Only tokens of scope admin")).to_be_visible()

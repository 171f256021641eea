"""Alerts and tokens are shown as text, whatever stands in them."""

from __future__ import annotations

from isentrope_dashboard import ids
from isentrope_dashboard.components.diagnosis import diagnosis_props, visible
from isentrope_dashboard.diagnosis import AlertRow, CountedTokens, TokenRow
from isentrope_dashboard.pages.run import run_page
from isentrope_dashboard.pages.snapshot import RunSnapshot, View
from tests.dashboard.test_run_content import RUN, words

TOKEN = {
    "text": " <img src=x onerror=alert(1)>\u202e\x00",
    "token_id": 42,
    "sequence": None,
    "position": 7,
    "logprob": "-Infinity",
    "entropy": 1.5,
    "vocab_centered_score": -0.25,
    "advantage": 1.0,
    "contribution": 0.25,
    "kept": False,
}


def test_a_tokens_row_says_what_was_measured_and_shows_hostile_text_character_by_character() -> None:
    props = diagnosis_props([], CountedTokens(step=1200, rows=[TokenRow.from_json(TOKEN)]))
    (cells,) = props[ids.TOKENS]["data"]["body"]
    assert cells == [
        "␣<img␣src=x␣onerror=alert(1)>\\u202e\\u0000", "42", "–", "7", "0.0000", "1.500", "−0.2500", "+1.000",
        "+0.2500", "left out",
    ]  # fmt: skip
    assert all(isinstance(cell, str) for cell in cells)
    assert "step 1,200" in props[ids.TOKENS_SUBTITLE]["children"]
    assert (visible(None), visible(""), visible("字")) == ("–", "(empty)", "字")


def test_alerts_stand_on_the_page_with_step_and_reason_and_none_is_said_too() -> None:
    found = AlertRow.from_json({"step": 1500, "kind": "collapse", "reason": "<b>soon</b>"})
    page = run_page(RunSnapshot(run=RUN, control=None, alerts=[found]), [RUN], View())
    (alert,) = page[ids.ALERTS].children
    assert (alert.title, alert.children) == ("Collapse ahead, step 1,500", "<b>soon</b>")
    empty = run_page(RunSnapshot(run=RUN, control=None), [RUN], View())
    assert words(empty[ids.ALERTS].children) == "None so far"
    assert empty[ids.TOKENS].data["body"] == []

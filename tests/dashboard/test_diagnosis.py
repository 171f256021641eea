"""Alerts and tokens are shown as text, whatever they contain."""

from __future__ import annotations

from isentrope_dashboard import ids
from isentrope_dashboard.components.diagnosis import diagnosis_props, visible
from isentrope_dashboard.pages.snapshot import SlowParts
from isentrope_wire.answers import AlertCause, TopToken, TopTokens
from isentrope_wire.control import Control
from isentrope_wire.numbers import read
from isentrope_wire.reports import AlertLevel
from tests.dashboard.made_answers import alert, page_of
from tests.dashboard.test_run_content import RUN, words

TOKEN = {
    "rank": 0,
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


def test_token_row_has_its_measurements_and_escaped_text() -> None:
    props = diagnosis_props([], TopTokens(step=1200, items=[read(TopToken, TOKEN)]))
    (cells,) = props[ids.TOKENS]["data"]["body"]
    assert cells == [
        "␣<img␣src=x␣onerror=alert(1)>\\u202e\\u0000", "42", "–", "7", "0.0000", "1.500", "−0.2500", "+1.000",
        "+0.2500", "clipped",
    ]  # fmt: skip
    assert all(isinstance(cell, str) for cell in cells)
    assert "step 1,200" in props[ids.TOKENS_SUBTITLE]["children"]
    assert (visible(None), visible(""), visible("字")) == ("–", "(empty)", "字")


def test_alerts_have_step_and_reason_and_their_absence_is_shown() -> None:
    page = page_of(RUN, SlowParts(step=1500, alerts=[alert(1500, "collapse", "<b>soon</b>")]))
    (shown,) = page[ids.ALERTS].children
    assert shown.title == "Watch: Entropy collapse, step 1,500"
    assert [line.children for line in shown.children] == ["<b>soon</b>"]
    empty = page_of(RUN)
    assert words(empty[ids.ALERTS].children) == "None so far"
    assert empty[ids.TOKENS].data["body"] == []


def test_alerts_show_cause_and_suggested_control() -> None:
    cause = AlertCause(quadrant="change/negative_low", mechanism=None, changes={}, message="Negative samples <pull>.")
    suggestion = Control(method="clip_v", mu_low=1.0, mu_high=1.0, scope="decreasing").to_document()
    made = alert(41, "collapse", "half is lost", AlertLevel.ACT, cause=cause, suggestion=suggestion)
    (shown,) = page_of(RUN, SlowParts(step=41, alerts=[made]))[ids.ALERTS].children
    assert shown.title == "Act: Entropy collapse, step 41"
    assert [line.children for line in shown.children] == [
        "half is lost",
        "Negative samples <pull>.",
        "Suggested control: Clip_V, µ₋ 1.00, µ₊ 1.00, scope decreasing.",
    ]

"""The form's own functions in a real browser: what was edited stays, the rest follows, each field shows which it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Page

import isentrope_dashboard
from isentrope_wire.methods import threshold_methods

pytestmark = pytest.mark.browser

FORM_SCRIPTS = [Path(isentrope_dashboard.__file__).parent / "assets" / name for name in ("form-marks.js", "form.js")]
FIELDS = (
    "method",
    "scope",
    "low_on",
    "low",
    "high_on",
    "high",
    "hold_on",
    "target",
    "change",
    "mu_min",
    "mu_max",
    "side",
    "guard",
)
FORMS = {
    "clip_v": {"max_fraction": {"kind": "number", "default": None, "minimum": 0, "maximum": 1}},
    "clip_cov": {"ratio": {"kind": "number", "default": 2e-4, "minimum": 0, "maximum": 1}},
}
PARAMETERS = [("clip_v", "max_fraction"), ("clip_cov", "ratio")]
CLIPPED: dict[str, Any] = {
    "method": "clip_v",
    "mu_low": None,
    "mu_high": 2.0,
    "scope": "all",
    "parameters": {},
    "hold": None,
}
MARKS = [
    *({"method": "", "field": name} for name in ("method", "mu_low", "mu_high", "scope", "hold")),
    *(
        {"method": "", "field": f"hold.{name}"}
        for name in ("target", "max_change_per_step", "mu_min", "side", "reward_guard")
    ),
    *({"method": method, "field": name} for method, name in PARAMETERS),
]
SHOWN = {
    "method": "clip_v", "scope": "all", "low_on": False, "low": 1, "high_on": True, "high": 2, "hold_on": False,
    "target": "", "change": "", "mu_min": "", "mu_max": "", "side": "both", "guard": True, "max_fraction": "", "ratio": "0.0002",
}  # fmt: skip
"""What the fields show of it."""
HOLD = {
    "target": "0.5",
    "max_change_per_step": 0.025,
    "mu_min": 0.0,
    "mu_max": 10.0,
    "side": "both",
    "reward_guard": True,
}
HELD = {"hold_on": True, "target": "0.5", "change": "0.025", "mu_min": "0", "mu_max": "10"}
"""What the fields show of it."""


@pytest.fixture(scope="module")
def scripted(window: BrowserContext) -> Page:
    """An empty page with the form's functions alone."""
    page = window.new_page()
    page.set_content(
        f"<meta name=threshold-methods content='{' '.join(threshold_methods())}'><meta name=hold-bounds content='0 10'>"
    )
    page.evaluate("window.dash_clientside = {no_update: null}")
    for path in FORM_SCRIPTS:
        page.add_script_tag(path=path)
    return page


@pytest.fixture
def script(scripted: Page) -> Page:
    """The same page as if nothing had been done on it: all that the functions read is given to them, but this."""
    scripted.evaluate("window.dash_clientside.callback_context = {triggered_id: 'control'}")
    return scripted


class Form:
    """The fields as a person sees them, and the control they started from."""

    def __init__(self, script: Page, reference: dict[str, Any], shown: dict[str, Any]) -> None:
        self._script, self.shown = script, shown
        self.base: dict[str, Any] = {"version": 1, "author": "me", "reference": reference, "meanwhile": {}}

    def follow(self, reference: dict[str, Any], *, author: str = "alice", versions: int = 1) -> dict[str, Any]:
        """Which fields change, and to what, when the control becomes `reference`."""
        control = {"version": self.base["version"] + versions, "author": author, "reference": reference}
        values = [self.shown[name] for _, name in PARAMETERS]
        ids = [{"method": method, "name": name} for method, name in PARAMETERS]
        given = [control, None, self.base, FORMS, ids, values, *(self.shown[name] for name in FIELDS)]
        *fields, parameters, self.base = self._call("followControl", given)
        answer = dict(zip((*FIELDS, "max_fraction", "ratio"), (*fields, *parameters), strict=True))
        changed = {name: value for name, value in answer.items() if value is not None}
        self.shown = {**self.shown, **changed}
        return changed

    def state(self) -> tuple[str, str]:
        """The badge and the words below the form."""
        values = [self.shown[name] for _, name in PARAMETERS]
        ids = [{"method": method, "name": name} for method, name in PARAMETERS]
        methods = [{"value": "clip_v", "label": "Clip_V"}, {"value": "clip_cov", "label": "Clip-Cov"}]
        given = [self.base, self.base, values, [*methods, {"value": "none", "label": "None"}], FORMS, ids, []]
        badge, _, _, _, hint, *_ = self._call("formState", [*(self.shown[name] for name in FIELDS), *given])
        return badge, hint

    def marks(self) -> dict[str, tuple[str, str]]:
        """Of each field that has one: its kind, and its words."""
        values = [self.shown[name] for _, name in PARAMETERS]
        ids = [{"method": method, "name": name} for method, name in PARAMETERS]
        methods = [{"value": "clip_v", "label": "Clip_V"}, {"value": "clip_cov", "label": "Clip-Cov"}]
        given = [self.base, values, methods, FORMS, ids, MARKS]
        kinds, words = self._call("mark", [*(self.shown[name] for name in FIELDS), *given], "isentropeMarks")
        named = zip((mark["field"] for mark in MARKS), kinds, words, strict=True)
        return {name: (kind.removeprefix("marked-field "), text) for name, kind, text in named if text}

    def revert(self, field: str) -> dict[str, Any]:
        """Which fields change, and to what, when the mark's button is pressed."""
        (mark,) = [mark for mark in MARKS if mark["field"] == field]
        self._script.evaluate("(mark) => { window.dash_clientside.callback_context.triggered_id = mark }", mark)
        values = [self.shown[name] for _, name in PARAMETERS]
        ids = [{"method": method, "name": name} for method, name in PARAMETERS]
        given = [[1], self.base, FORMS, ids, values, *(self.shown[name] for name in FIELDS)]
        *fields, parameters = self._call("revert", given, "isentropeMarks")
        answer = dict(zip((*FIELDS, "max_fraction", "ratio"), (*fields, *parameters), strict=True))
        changed = {name: value for name, value in answer.items() if value is not None}
        self.shown = {**self.shown, **changed}
        return changed

    def _call(self, name: str, given: list[Any], where: str = "isentropeForm") -> list[Any]:
        answer: list[Any] = self._script.evaluate(
            "([where, name, given]) => window.dash_clientside[where][name](...given)", [where, name, given]
        )
        return answer


def kept(*notes: str) -> str:
    return f"Kept as you entered it: {', '.join(notes)}."


@pytest.mark.parametrize(
    ("base", "shown", "edited", "theirs", "follows", "state"),
    [
        pytest.param(
            {}, {}, {"high": 3}, {"scope": "decreasing", "hold": HOLD},
            {"scope": "decreasing", **HELD}, ("1 change", ""), id="other fields changed: they follow, and mine stays",
        ),
        pytest.param(
            {}, {}, {"high": 3}, {"mu_high": 4.0, "mu_low": 0.5},
            {"low_on": True, "low": 0.5}, ("1 change", kept("µ₊ (changed meanwhile by alice to 4)")),
            id="the same threshold changed: mine stays and theirs is named",
        ),
        pytest.param({}, {}, {"high": 4}, {"mu_high": 4.0}, {}, ("in sync", ""), id="both chose the same"),
        pytest.param({}, {}, {"high": ""}, {"scope": "positive"}, {"scope": "positive"}, None, id="a half typed field stays"),
        pytest.param(
            {}, {}, {"scope": "positive"}, {"parameters": {"max_fraction": 0.01}},
            {"max_fraction": "0.01"}, ("1 change", ""), id="a parameter follows",
        ),
        pytest.param(
            {}, {}, {"max_fraction": "0.5"}, {"parameters": {"max_fraction": 0.01}},
            {}, ("1 change", kept("max fraction (changed meanwhile by alice to 0.01)")), id="the same parameter changed",
        ),
        pytest.param(
            {}, {}, {"method": "clip_cov"}, {"parameters": {"max_fraction": 0.01}, "scope": "positive"},
            {"scope": "positive", "max_fraction": "0.01"},
            ("2 changes", kept("max fraction (changed meanwhile by alice to 0.01)")),
            id="a parameter of the method that was left changed",
        ),
        pytest.param(
            {}, {"ratio": "0.3"}, {"scope": "positive"}, {"method": "clip_cov", "mu_high": None},
            {"method": "clip_cov", "high_on": False, "ratio": "0.0002"}, ("1 change", ""),
            id="the method follows, without what was once typed in its hidden field",
        ),
        pytest.param(
            {}, {}, {"high": 3}, {"method": "none", "mu_high": None, "scope": "positive"},
            {"scope": "positive"}, ("2 changes", kept("method (changed meanwhile by alice to None)")),
            id="a method that has no field for the edit does not swallow it",
        ),
        pytest.param(
            {"mu_low": 1.0}, {"low_on": True}, {"high": 3}, {"method": "none", "mu_low": None, "mu_high": None},
            {}, ("3 changes", kept("method (changed meanwhile by alice to None)")),
            id="a method that stays keeps its other threshold",
        ),
        pytest.param(
            {"hold": HOLD}, HELD, {"high": 3}, {"hold": None}, {"hold_on": False}, ("1 change", ""), id="a hold ends",
        ),
        pytest.param(
            {"hold": HOLD}, HELD, {"target": "0.7"}, {"hold": {**HOLD, "mu_min": 0.3, "target": "0.6"}},
            {"mu_min": "0.3"}, ("1 change", kept("target entropy (changed meanwhile by alice to 0.6)")),
            id="the fields of a hold follow one by one",
        ),
        pytest.param(
            {"hold": HOLD}, HELD, {"target": "0.7"}, {"hold": None},
            {}, ("1 change", kept("hold (changed meanwhile by alice to off)")), id="a hold whose target I edit ends",
        ),
        pytest.param(
            {"hold": HOLD}, HELD, {"hold_on": False}, {"hold": {**HOLD, "mu_max": 5.0}},
            {"target": "0.5", "change": "0.025", "mu_min": "0", "mu_max": "5", "side": "both"},
            ("1 change", kept("µ max (changed meanwhile by alice to 5)")), id="a hold that I switch off changes",
        ),
        pytest.param(
            {}, {}, {"hold_on": True, "target": "0.7"}, {"hold": HOLD},
            {name: HELD[name] for name in ("change", "mu_min", "mu_max")},
            ("1 change", kept("target entropy (changed meanwhile by alice to 0.5)")), id="both began a hold",
        ),
        pytest.param(
            {}, {"target": "1.2", "mu_min": "3", "side": "raise"}, {"high": 3}, {"hold": HOLD},
            {**HELD, "side": "both"}, ("1 change", ""), id="what a hold that is off left in its fields is nobody's edit",
        ),
    ],
)  # fmt: skip
def test_edited_fields_stay_and_the_others_follow(
    script: Page,
    base: dict[str, Any],
    shown: dict[str, Any],
    edited: dict[str, Any],
    theirs: dict[str, Any],
    follows: dict[str, Any],
    state: tuple[str, str] | None,
) -> None:
    before = {**CLIPPED, **base}
    form = Form(script, before, {**SHOWN, **shown, **edited})
    changed = form.follow({**before, **theirs})
    written = {name: value for name, value in changed.items() if value != {**SHOWN, **shown, **edited}[name]}
    assert written == {name: value for name, value in follows.items() if value != {**SHOWN, **shown, **edited}[name]}
    assert form.base["reference"] == {**before, **theirs}
    if state is not None:
        assert form.state() == state


def test_change_meanwhile_is_shown_until_reverted_or_taken_over(script: Page) -> None:
    form = Form(script, CLIPPED, {**SHOWN, "high": 3})
    form.follow({**CLIPPED, "mu_high": 4.0})
    form.follow({**CLIPPED, "mu_high": 4.0, "scope": "positive"}, author="bob")
    assert form.state() == ("1 change", kept("µ₊ (changed meanwhile by alice to 4)"))
    form.follow({**CLIPPED, "mu_high": 5.0, "scope": "all"}, versions=2)  # whose of the two it was is not known
    assert form.state() == ("1 change", kept("µ₊ (changed meanwhile to 5)"))
    form.shown["high"] = 5
    assert form.state() == ("in sync", "")
    form.shown["high"] = 3
    form.follow(CLIPPED, versions=0)  # theirs was refused: the form's own base is back
    assert form.state() == ("1 change", "")


@pytest.mark.parametrize(
    ("base", "shown", "edited", "marks"),
    [
        pytest.param({}, {}, {}, {}, id="nothing"),
        pytest.param({}, {}, {"high": 3}, {"mu_high": ("edited", "Edited; was 2")}, id="a threshold"),
        pytest.param({}, {}, {"low_on": True}, {"mu_low": ("edited", "Edited; was off")}, id="a threshold switched on"),
        pytest.param({}, {}, {"scope": "negative"}, {"scope": ("edited", "Edited; was all")}, id="the scope"),
        pytest.param({}, {}, {"max_fraction": "0.1"}, {"max_fraction": ("edited", "Edited; was off")}, id="a parameter"),
        pytest.param(
            {}, {}, {"method": "clip_cov", "ratio": "0.3"},
            {"method": ("edited", "Edited; was Clip_V"), "ratio": ("edited", "Edited; was 0.0002"),
             "mu_high": ("edited fixed", "Off with this method; was 2")},
            id="a method, and what goes with it",
        ),
        pytest.param({}, {}, {"hold_on": True, "target": "1"}, {"hold": ("edited", "Edited; was off")}, id="a hold"),
        pytest.param(
            {"hold": HOLD}, HELD, {"target": "0.7", "mu_min": ""},
            {"hold.target": ("edited", "Edited; was 0.5"), "hold.mu_min": ("edited", "Edited; was 0")},
            id="fields of a hold",
        ),
    ],
)  # fmt: skip
def test_field_that_differs_from_active_control_is_marked(
    script: Page,
    base: dict[str, Any],
    shown: dict[str, Any],
    edited: dict[str, Any],
    marks: dict[str, tuple[str, str]],
) -> None:
    form = Form(script, {**CLIPPED, **base}, {**SHOWN, **shown, **edited})
    assert form.marks() == marks
    assert form.state()[0] == ("in sync" if not marks else f"{len(marks)} change{'s' * (len(marks) > 1)}")


@pytest.mark.parametrize(
    ("base", "shown", "edited", "field", "back"),
    [
        pytest.param({}, {}, {"high": 3, "scope": "negative"}, "mu_high", {"high": 2}, id="a threshold"),
        pytest.param({}, {}, {"high": "", "scope": "negative"}, "mu_high", {"high": 2}, id="a half typed one"),
        pytest.param({}, {}, {"low_on": True, "low": 4}, "mu_low", {"low_on": False}, id="one that was off"),
        pytest.param({}, {}, {"high": 3, "scope": "negative"}, "scope", {"scope": "all"}, id="the scope"),
        pytest.param({}, {}, {"method": "none", "scope": "negative"}, "method", {"method": "clip_v"}, id="the method"),
        pytest.param({}, {}, {"max_fraction": "0.1", "high": 3}, "max_fraction", {"max_fraction": ""}, id="a parameter"),
        pytest.param({}, {}, {"method": "clip_cov", "ratio": "1"}, "ratio", {"ratio": "0.0002"}, id="to its default"),
        pytest.param({}, {}, {"hold_on": True, "target": "1"}, "hold", {"hold_on": False}, id="a hold"),
        pytest.param(
            {"hold": HOLD}, HELD, {"target": "0.7", "mu_min": "1"}, "hold.mu_min", {"mu_min": "0"}, id="a bound of a hold"
        ),
        pytest.param({"hold": HOLD}, HELD, {"side": "raise", "high": 3}, "hold.side", {"side": "both"}, id="its side"),
        pytest.param({"hold": HOLD}, HELD, {"guard": False}, "hold.reward_guard", {"guard": True}, id="its reward guard"),
    ],
)  # fmt: skip
def test_one_field_goes_back_alone(
    script: Page,
    base: dict[str, Any],
    shown: dict[str, Any],
    edited: dict[str, Any],
    field: str,
    back: dict[str, Any],
) -> None:
    form = Form(script, {**CLIPPED, **base}, {**SHOWN, **shown, **edited})
    assert field in form.marks()
    assert form.revert(field) == back
    assert field not in form.marks()


def test_fields_mark_own_others_and_common_changes(script: Page) -> None:
    form = Form(script, CLIPPED, {**SHOWN, "high": 3})
    form.follow({**CLIPPED, "mu_high": 4.0, "scope": "positive", "parameters": {"max_fraction": 0.1}})
    assert form.marks() == {
        "mu_high": ("edited contested", "Edited; alice set 4 meanwhile, was 2"),
        "scope": ("theirs", "Set by alice meanwhile; was all"),
        "max_fraction": ("theirs", "Set by alice meanwhile; was off"),
    }
    form.follow({**CLIPPED, "mu_high": 4.0, "scope": "negative", "parameters": {"max_fraction": 0.1}}, author="bob")
    assert form.marks()["scope"] == ("theirs", "Set by bob meanwhile; was all")
    form.shown["max_fraction"] = "0.2"
    assert form.marks()["max_fraction"] == ("edited", "Edited; was 0.1")
    assert form.revert("mu_high") == {"high": 4}  # theirs, which is active
    assert form.revert("max_fraction") == {"max_fraction": "0.1"}
    assert form.marks() == {}  # nothing of mine is left to tell theirs from


def test_what_followed_a_push_while_nothing_was_edited_carries_no_mark(script: Page) -> None:
    form = Form(script, CLIPPED, dict(SHOWN))
    form.follow({**CLIPPED, "mu_high": 4.0, "scope": "positive"})
    form.shown["max_fraction"] = "0.2"
    assert form.marks() == {"max_fraction": ("edited", "Edited; was off")}

"""A run as a picture in a notebook: its numbers are the run's, its sentence is the diagnosis's."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest

from isentrope.client.inline import RunHistory
from isentrope_wire.diagnosis.course import STEPS_READ
from isentrope_wire.reports import StepReport
from tests.probe.tiny_loop import TinyLoop, probe_and_transport, reports, run_steps

Points = list[tuple[float, float]]


def report(step: int, **scalars: float) -> StepReport:
    named = {name.replace("_", "/", 1): value for name, value in scalars.items()}
    return StepReport(step=step, recorded_at=0.0, scalars=named)


def lines_of(html: str) -> list[Points]:
    """The drawn lines without a dash: of the entropy, then of the reward."""
    found = re.search(r"<svg.*</svg>", html)
    assert found is not None
    drawn = [line for line in ElementTree.fromstring(found[0]).iter() if "points" in line.attrib]
    solid = [line for line in drawn if "stroke" in line.attrib["style"]]
    lines = [line for line in solid if "dasharray" not in line.attrib["style"]]
    return [[point_of(text) for text in line.attrib["points"].split()] for line in lines]


def point_of(text: str) -> tuple[float, float]:
    x, y = text.split(",")
    return float(x), float(y)


def test_loop_is_shown_without_server() -> None:
    probe, transport = probe_and_transport()
    assert str(probe.show()) == "No data yet: No step has been reported."
    run_steps(TinyLoop(), probe, 40)
    view = probe.show()
    entropies = {one.step: one.scalars["entropy/mean"] for one in reports(transport)}
    assert view.entropies == entropies
    early = sorted(list(entropies.values())[:3])[1]
    assert view.diagnosis.early_level == early
    lost = 1 - sorted(list(entropies.values())[-5:])[2] / early
    assert f"Entropy has lost {100 * lost:.0f} %" in str(view)
    assert probe.run_id in view._repr_html_()


def test_line_goes_through_the_values() -> None:
    history = RunHistory()
    values = [2.0, 1.5, math.nan, 1.0, 0.5]
    for step, entropy in enumerate(values, start=1):
        history.add(report(step, entropy_mean=entropy, reward_mean=step / 10))
    before, after, rewards = lines_of(history.view("a <b> run")._repr_html_())
    heights = [y for _, y in (*before, *after)]
    bottom, top = max(heights), min(heights)
    assert [len(before), len(after), len(rewards)] == [2, 2, 5]
    assert [(bottom - y) / (bottom - top) for y in heights] == pytest.approx(
        [1, 2 / 3, 1 / 3, 0], abs=0.01
    )
    assert [x for x, _ in (*before, *after)] == [x for x, _ in rewards if x != rewards[2][0]]
    assert "a &lt;b&gt; run" in history.view("a <b> run")._repr_html_()


def test_long_run_keeps_its_early_level() -> None:
    history = RunHistory()
    for step in range(3 * STEPS_READ):
        history.add(report(step, entropy_mean=2.0 - step / (3 * STEPS_READ)))
    view = history.view("long")
    assert len(view.entropies) == STEPS_READ
    assert view.diagnosis.early_level == pytest.approx(2.0, abs=0.01)
    assert "lost 50 %" in view.diagnosis.message

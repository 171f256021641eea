"""While a run reports, each number of one name on the page is that of REST at the step shown."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from playwright.sync_api import Route, expect

from isentrope.client import calls
from isentrope_dashboard import formatting
from isentrope_wire import metrics
from isentrope_wire.control import Control
from isentrope_wire.diagnosis.outlook import Outlook
from tests.dashboard.conftest import OpenPage, Site

pytestmark = [pytest.mark.slow, pytest.mark.browser]

TRIED = Control(method="clip_v", mu_low=2.5, mu_high=2.5, scope="decreasing")
PAUSES = [0.2] * 15 + [1.0] * 30
"""Seconds between two steps; the run ends when the page has shown ENOUGH of them."""
ENOUGH = 6
READ = """() => {
  const words = (name) => document.querySelector(name)?.textContent ?? "";
  const ends = (chart) => Object.fromEntries((document.querySelector(`#${chart} .js-plotly-plot`)
    ?.layout.meta?.ends ?? []).map(({ text, y }) => [text, y]));
  return {
    step: Number(words("#run-step").replace(/\\D/g, "")),
    why: words(".health .why"),
    kpis: Object.fromEntries([...document.querySelectorAll(".kpi")].map((card) =>
      [card.querySelector("h2").textContent,
       [".kpi-value", ".difference", ".small"].map((at) => card.querySelector(at).textContent)])),
    clipped: words("#control-clipped"), change: words("#control-change"),
    ahead: words("#control-entropy"),
    entropy: ends("chart-entropy"), pace: ends("chart-change"), share: ends("chart-clip"),
  };
}"""


def words_of(answer: tuple[Outlook, dict[metrics.Metric, float | None]]) -> dict[str, Any]:
    """What the page says, from the answers of REST at one step."""
    outlook, levels = answer
    diagnosis, preview = outlook.diagnosis, outlook.preview
    assert preview is not None
    assert preview.forecast is not None
    assert preview.pace is not None
    assert diagnosis.forecast is not None
    assert diagnosis.mean_pace is not None
    assert diagnosis.entropy is not None
    pace = diagnosis.mean_pace.value
    change = formatting.pace(pace, diagnosis.entropy)
    share = formatting.number(100 * pace / diagnosis.entropy, 1, signed=True)
    large, small = f"{share}\u00a0% a step", f"{change} nats a step"
    if diagnosis.pace is not None and not diagnosis.pace.direction:
        large, small = "unclear", f"about {small}"
    assert diagnosis.share_lost is not None
    lost = formatting.number(-100 * diagnosis.share_lost, 0, signed=True)
    with_it = preview.forecast.entropy[-1], preview.pace.value, preview.clip_fraction
    return {
        "why": diagnosis.message.replace(" %", "\u00a0%"),
        "entropy": (
            formatting.number(diagnosis.entropy),
            f"{lost}\u00a0%",
            f"vs early {formatting.number(diagnosis.early_level)}",
        ),
        "reward": formatting.number(levels[metrics.REWARD_MEAN]),
        "clipped": formatting.percent(levels[metrics.CLIP_FRACTION]),
        "pace": (large, "", small),
        "asNow": (diagnosis.forecast.entropy[-1], pace),
        "drawn": with_it,
        "card": (
            formatting.percent(preview.clip_fraction),
            formatting.pace(preview.pace.value, preview.entropy),
            formatting.number(preview.forecast.entropy[-1]),
        ),
    }


def read_words(sample: dict[str, Any]) -> dict[str, Any]:
    """The same of what the browser shows; the ends of lines as numbers."""

    def end(chart: str, label: str) -> float:
        ends: dict[str, float] = sample[chart]
        return next(y for text, y in ends.items() if text.startswith(f"<b>{label}"))

    charts = ("entropy", "pace", "share")
    return {
        "why": sample["why"],
        "entropy": tuple(sample["kpis"]["Entropy"]),
        "reward": sample["kpis"]["Reward"][0],
        "clipped": sample["kpis"]["Clipped"][0],
        "pace": tuple(sample["kpis"]["Pace"]),
        "asNow": (end("entropy", "as now"), end("pace", "as now")),
        "drawn": tuple(end(chart, "with Clip_V") for chart in charts),
        "card": (sample["clipped"], sample["change"], sample["ahead"]),
    }


def test_page_and_rest_agree_through_a_run(site: Site, open_page: OpenPage) -> None:
    run = site.run(40)
    page = open_page(f"/runs/{run}")
    page.get_by_label("Method", exact=True).first.click()
    page.get_by_role("option", name="Clip_V").click()
    # What belongs to the method arrives first: it would take the place of what is typed.
    for side in ("low", "high"):
        expect(page.locator(f"#control-mu-{side}")).not_to_have_value("")
    for side in ("low", "high"):
        page.locator(f"#control-mu-{side}").fill("2.5")
        expect(page.locator(f"#control-mu-{side}")).to_have_value("2.5")
    expect(page.locator("#control-form")).not_to_have_attribute("data-older", "")
    page.wait_for_function(f"() => Object.keys(({READ})().share).length === 1")
    answers: dict[int, tuple[Outlook, dict[metrics.Metric, float | None]]] = {}
    samples: list[dict[str, Any]] = []
    seen: set[int] = set()

    def ask() -> None:
        outlook = site.client.ask(calls.outlook(run, TRIED))
        assert outlook.diagnosis.step is not None
        shown = (metrics.REWARD_MEAN, metrics.CLIP_FRACTION)
        series = site.client.series(run, shown, from_step=outlook.diagnosis.step - 10).series
        levels = {name: metrics.newest_level(series[name].value) for name in shown}
        answers[outlook.diagnosis.step] = outlook, levels

    def report() -> None:
        for pause in PAUSES:
            site.more(run, 1)
            ask()
            time.sleep(pause)
            if pause == PAUSES[-1] and len(seen) >= ENOUGH:
                return

    ask()
    by = time.monotonic() + 15  # what was typed is on its way
    while read_words(page.evaluate(READ)) != words_of(answers[40]) and time.monotonic() < by:
        page.wait_for_timeout(50)
    reporting = threading.Thread(target=report)
    reporting.start()
    while reporting.is_alive():
        samples.append(page.evaluate(READ))
        seen.add(samples[-1]["step"])
        page.wait_for_timeout(50)
    reporting.join()
    assert len(seen) >= ENOUGH
    for sample in samples:
        assert read_words(sample) == words_of(answers[sample["step"]]), sample["step"]


def test_an_older_answer_is_grey(site: Site, open_page: OpenPage) -> None:
    page = open_page(f"/runs/{site.run(60)}")
    form, numbers = page.locator("#control-form"), page.locator("#control-numbers")
    page.get_by_label("Method", exact=True).first.click()
    page.get_by_role("option", name="Clip_V").click()
    # What the page offered before is gone with the first answer to the form.
    expect(page.locator("#control-offer")).to_be_hidden()
    expect(form).not_to_have_attribute("data-older", "")
    expect(numbers).to_have_css("opacity", "1")
    before = numbers.inner_text()
    waiting: list[Route] = []
    page.route("**/news", lambda route: waiting.append(route))
    page.locator("#control-mu-low").fill("3")
    expect(form).to_have_attribute("data-older", "")
    expect(numbers).to_have_css("opacity", "0.45")
    expect(numbers).to_have_text(before, use_inner_text=True)
    page.unroute("**/news")
    expect(form).not_to_have_attribute("data-older", "")
    expect(numbers).not_to_have_text(before, use_inner_text=True)

"""The whole way on the reference run, which really trains: see it fall, try the cure, push it, read
the verdict."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import BrowserContext, expect

import isentrope
from isentrope_dashboard.components.control_card import METHOD, PUSH
from isentrope_dashboard.components.control_effects import LATEST
from isentrope_dashboard.pages.overview import TRY
from tests.trainer.running_demo import login_address, running_demo

SECONDS = 400
"""For some 45 steps of two to ten seconds, as busy as the machine is."""


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.timeout(SECONDS + 200)
def test_the_collapse_is_seen_tried_cured_and_judged(
    window: BrowserContext,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ISENTROPE_HOME", str(tmp_path_factory.mktemp("journey")))
    with running_demo("--steps", "90", longest_seconds=SECONDS + 60) as (_, origin, _, run):
        page = window.new_page()
        page.set_viewport_size({"width": 1440, "height": 900})
        page.request.get(login_address(origin), max_redirects=0)
        page.goto(f"{origin}/runs/{run}")
        health = page.locator(".health")
        expect(health).to_have_class(re.compile(r"\b(watch|act)\b"), timeout=1000 * SECONDS)
        expect(health.locator(".why")).to_contain_text(re.compile(r"lost \d+\s%"))
        expect(health.locator(".cure")).to_contain_text("would s", timeout=1000 * SECONDS)
        page.locator(f"#{TRY}").click(timeout=1000 * SECONDS)
        expect(page.locator(f"#{METHOD}")).to_have_value(re.compile("Clip_[BV]"))
        page.locator(f"#{PUSH}").click()
        latest = page.locator(f"#{LATEST}")
        expect(latest).to_contain_text("v1")
        expect(latest).to_contain_text("Applied", timeout=1000 * SECONDS)
        expect(latest).to_contain_text("nats after 20 steps; promised", timeout=1000 * SECONDS)
        client = isentrope.Client(origin)
        pushed = client.control(run)
        assert pushed.version == 1
        assert pushed.predicted is not None
        assert pushed.verdict is not None
        assert pushed.verdict.clip_fraction.realised is not None
        page.close()

"""Take the README's pictures: `make pictures`.

    python -m tests.pictures [FOLDER]

The small model of `isentrope demo` collapses; the control that the page suggests is tried, pushed
and judged. The tokens are those of the recorded language model, `isentrope demo --replay`. The
list's runs are the recorded one, bent until each is in another state.
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

from playwright.sync_api import Browser, Page, ViewportSize, expect

from isentrope_dashboard.components.control_card import PUSH
from isentrope_dashboard.pages.overview import TRY
from isentrope_dashboard.theme import COLOURS, Scheme
from isentrope_wire.metrics import (
    ENTROPY_MEAN,
    ENTROPY_OBSERVED_CHANGE,
    ENTROPY_PREDICTED_CHANGE,
    HOLD_TARGET,
    REWARD_MEAN,
)
from isentrope_wire.reports import ControlOutcome, OutcomeState, RunFinished, StepReport
from tests.browsing import chromium
from tests.countdown import countdown_run
from tests.dashboard.conftest import Site
from tests.server.in_thread import ServerInThread
from tests.server.rank import age
from tests.trainer.running_demo import login_address, running_demo

FOLDER = Path(__file__).parents[1] / "docs" / "pictures"
STEPS_A_SECOND = 2.0
"""Of the recorded run."""
AT_THE_FALL, AFTER_THE_PUSH = 20, 30
"""A step of the recorded run, and steps of the small model from the push to the verdict."""
LONGEST_SECONDS = 900
SIZE: ViewportSize = {"width": 1440, "height": 900}
IN_COLOUR = """(color) => [...document.querySelectorAll(".js-plotly-plot")]
  .every(({ layout }) => layout.template.layout.font.color === color)"""
"""Whether all charts are drawn in the scheme that has this colour of texts."""
SCHEMES: tuple[Scheme, ...] = ("light", "dark")


def _wait_for_step(page: Page, step: int) -> None:
    page.wait_for_function(
        f"() => Number(document.querySelector('#run-step')?.textContent) >= {step}",
        timeout=1000 * LONGEST_SECONDS,
    )
    page.wait_for_timeout(2_000)


def _log_in(browser: Browser, origin: str, run: str) -> Page:
    context = browser.new_context(viewport=SIZE, color_scheme="dark", device_scale_factor=1)
    context.set_default_timeout(1000 * LONGEST_SECONDS)
    context.request.get(login_address(origin), max_redirects=0)
    while not context.request.get(f"{origin}/api/v1/runs/{run}/steps/5").ok:
        time.sleep(0.5)
    page = context.new_page()
    page.goto(f"{origin}/runs/{run}")
    return page


def _small_model(browser: Browser, folder: Path) -> None:
    """See it fall, try the cure, push it, read the verdict."""
    with running_demo("--steps", "140", longest_seconds=LONGEST_SECONDS) as (_, origin, _, run):
        page = _log_in(browser, origin, run)
        wait = 1000 * LONGEST_SECONDS
        expect(page.locator(".health .cure")).to_contain_text("would stop", timeout=wait)
        page.locator(f"#{TRY}").click()
        expect(page.locator("#control-status")).to_contain_text("Not pushed", timeout=wait)
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme)
            page.wait_for_function(IN_COLOUR, arg=COLOURS[scheme]["text"])
            page.wait_for_timeout(1_000)
            page.wait_for_selector("#control-form:not([data-older])")
            page.screenshot(path=folder / f"overview-{scheme}.png")
        step = int(page.locator("#run-step").inner_text())
        page.locator(f"#{PUSH}").click()
        _wait_for_step(page, step + AFTER_THE_PUSH)
        page.screenshot(path=folder / "verdict-dark.png")


@dataclass(frozen=True, kw_only=True)
class Bent:
    """The recorded run, bent."""

    name: str
    project: str
    steps: int
    falls: float = 1.0
    """Of the recorded loss."""
    scale: float = 1.0
    """Of its entropies, and of its rewards half as much."""
    seconds: float = 4.0
    """A step."""
    tags: tuple[str, ...] = ()
    status: str = "running"
    error: str = ""
    pushed: Mapping[str, Any] | None = None
    silent_minutes: int = 0

    def bend(self, report: StepReport) -> StepReport:
        early = countdown_run().reports[1].scalars[ENTROPY_MEAN]
        scalars = dict(report.scalars)
        scalars[ENTROPY_MEAN] = self.scale * (early + self.falls * (scalars[ENTROPY_MEAN] - early))
        scalars[REWARD_MEAN] *= 0.5 + 0.5 * self.scale
        for name in (ENTROPY_OBSERVED_CHANGE, ENTROPY_PREDICTED_CHANGE):
            if name in scalars:
                scalars[name] *= self.falls * self.scale
        ago = self.seconds * (self.steps - report.step) + 60 * self.silent_minutes
        alerts = report.alerts if self.falls >= 1 else ()
        return replace(report, recorded_at=time.time() - ago, scalars=scalars, alerts=alerts)

    def hold(self, report: StepReport) -> StepReport:
        """The report of a step at which the pushed hold acts: 2 % above its target."""
        bent = self.bend(report)
        target = 0.7 * self.scale * countdown_run().reports[1].scalars[ENTROPY_MEAN]
        level = target * (1.02 + 0.01 * math.sin(report.step))
        outcomes: tuple[ControlOutcome, ...] = ()
        if report.step == self.steps + 1:
            outcomes = (
                ControlOutcome(
                    version=1, state=OutcomeState.APPLIED, at=time.time(), step=report.step
                ),
            )
        return replace(
            bent,
            scalars={**bent.scalars, ENTROPY_MEAN: level, HOLD_TARGET: target},
            control_version=1,
            outcomes=outcomes,
        )


LISTED = (
    Bent(name="grpo-7b s3", project="math", steps=58, tags=("7b", "sweep-4")),
    Bent(name="grpo-7b s2", project="math", steps=24, scale=0.9, tags=("7b", "sweep-4")),
    Bent(name="grpo-7b s1", project="math", steps=70, falls=0.25, tags=("7b", "sweep-4")),
    Bent(name="grpo-7b base", project="math", steps=80, falls=1.3, tags=("7b",), status="finished"),
    Bent(name="grpo-1.5b lr 3e-6", project="math", steps=50, scale=0.7, tags=("1.5b",),
         status="failed", error="torch.OutOfMemoryError: CUDA out of memory"),
    Bent(name="dapo-14b", project="code", steps=72, scale=1.4, seconds=11, tags=("14b",)),
    Bent(name="dapo-14b hold", project="code", steps=60, falls=0.5, scale=1.5, seconds=11,
         tags=("14b", "hold"), pushed={"hold": "70%"}),
    Bent(name="ppo-7b kl 0.01", project="code", steps=44, falls=0.6, scale=1.2, seconds=9,
         tags=("7b", "kl"), silent_minutes=14),
    Bent(name="grpo-8b web", project="agents", steps=32, falls=0.1, scale=1.8, seconds=28,
         tags=("8b",)),
    Bent(name="grpo-8b shell", project="agents", steps=40, falls=-0.9, scale=1.6, seconds=27,
         tags=("8b",)),
    Bent(name="grpo-8b smoke", project="agents", steps=20, falls=0.05, scale=1.7, tags=("smoke",),
         status="finished"),
)  # fmt: skip


def _list_of_runs(browser: Browser, folder: Path, home: Path) -> None:
    """Runs of three projects, each in another state."""
    with ServerInThread(home, dashboard=True) as server:
        site = Site(server)
        for bent in LISTED:
            run = site.run(
                bent.steps, name=bent.name, project=bent.project, tags=bent.tags, change=bent.bend
            )
            if bent.pushed is not None:
                site.client.set_control(run, if_version=0, **bent.pushed)
                site.more(run, 20, change=bent.hold)
            if bent.status != "running":
                end = RunFinished(status=bent.status, finished_at=time.time(), error=bent.error)
                site.rank(run).send(end)
            if bent.silent_minutes:
                age(server, site.rank(run), seconds=60 * bent.silent_minutes)
        context = browser.new_context(viewport=SIZE, color_scheme="dark", device_scale_factor=1)
        context.request.get(f"{site.url}/?token={server.owner_token}", max_redirects=0)
        page = context.new_page()
        page.goto(f"{site.url}/?order=project")
        for word in ("1 needs you", "Holding", "Silent"):
            expect(page.locator("#runs")).to_contain_text(word, timeout=1000 * LONGEST_SECONDS)
        page.wait_for_timeout(4_000)
        page.screenshot(path=folder / "runs-dark.png")


def _language_model(browser: Browser, folder: Path) -> None:
    """The tokens of a language model, in their text."""
    arguments = ("--replay", "--speed", str(STEPS_A_SECOND))
    with running_demo(*arguments, longest_seconds=LONGEST_SECONDS) as (_, origin, _, run):
        page = _log_in(browser, origin, run)
        _wait_for_step(page, AT_THE_FALL)
        page.goto(f"{origin}/runs/{run}?tab=tokens")
        page.wait_for_timeout(4_000)
        page.screenshot(path=folder / "tokens-dark.png")


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as home,
        mock.patch.dict(os.environ, {"ISENTROPE_HOME": home}),
        chromium() as browser,
    ):
        _list_of_runs(browser, folder, Path(home) / "list")
        _small_model(browser, folder)
        _language_model(browser, folder)
    for path in sorted(folder.glob("*.png")):
        print(
            f"{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path} "
            f" {os.path.getsize(path):,} bytes"
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)

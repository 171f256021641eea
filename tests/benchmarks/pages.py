"""A run's page as a reader meets it, in Chromium against a real server and a live run: `python -m
tests.benchmarks.pages`.

Opening cold (nothing in the browser's cache) and warm, to drawn charts; bytes over the wire,
compressed; the server's CPU time for one page. From the return of `probe.step` to the step painted,
at one and at five steps a second; what a tab takes of a core meanwhile, and by how much it grows in
a minute (`--minutes`, after a collection of garbage). Five tabs at once. `server`: the server's CPU
with more and more readers, on runs of a step a second and of one in ten."""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import psutil  # type: ignore[import-untyped]
from playwright.sync_api import Browser, Page

from tests.benchmarks.measuring import cpu_seconds
from tests.browsing import chromium
from tests.system.running_server import RunningServer

DRAWN = """() => ['chart-entropy', 'chart-reward', 'chart-change', 'chart-clip'].every((id) => {
  const plot = document.querySelector('#' + id + ' .js-plotly-plot');
  return plot && plot.querySelector('.scatterlayer .trace path');
})"""

WATCH = """() => {
  window.painted = { number: {}, point: {} };
  const look = () => {
    const now = Date.now() / 1000;
    const step = document.querySelector('#run-step');
    const plot = document.querySelector('#chart-entropy .js-plotly-plot');
    const line = plot && plot.data && plot.data.find((trace) => trace.name === 'entropy');
    if (step) window.painted.number[step.textContent.replace(/\\D/g, '')] ??= now;
    if (line) window.painted.point[line.x.at(-1)] ??= now;
  };
  setInterval(look, 20); // each frame would keep the browser painting
}"""


class Run:
    """A live run in a process of its own."""

    def __init__(self, server: RunningServer, name: str, pace: float, steps: int) -> None:
        self.returned: dict[int, float] = {}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.benchmarks.page_run", name, str(pace), str(steps)],
            env=server.environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            step, at = line.split()
            self.returned[int(step)] = float(at)

    def wait_for(self, step: int) -> None:
        while step not in self.returned:
            if self._process.poll() is not None:
                raise RuntimeError("the run ended")
            time.sleep(0.1)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()


@contextmanager
def running(server: RunningServer, name: str, pace: float, *, first: int = 30) -> Iterator[Run]:
    """A run that has some steps already."""
    run = Run(server, name, pace, 1_000_000)
    try:
        run.wait_for(first)
        headers = {"Authorization": f"Bearer {server.token}"}
        while not httpx.get(
            f"{server.url}/api/v1/runs/{name}/steps/{first}", headers=headers
        ).is_success:
            time.sleep(0.2)
        yield run
    finally:
        run.stop()


def renderers() -> list[int]:
    """The ids of the processes in which Chromium runs the pages."""
    return [
        child.pid
        for child in psutil.Process().children(recursive=True)
        if "--type=renderer" in child.cmdline()
    ]


def _open(page: Page, server: RunningServer, name: str) -> float:
    began = time.perf_counter()
    page.goto(f"{server.url}/runs/{name}", wait_until="commit")
    page.wait_for_function(DRAWN, polling="raf", timeout=60_000)
    return time.perf_counter() - began


def opening(browser: Browser, server: RunningServer, name: str, repetitions: int = 5) -> list[str]:
    cold, warm, received, cpu = [], [], [], []
    for _ in range(repetitions):
        context = browser.new_context(viewport={"width": 1440, "height": 900})
        page = context.new_page()
        page.request.get(f"{server.url}/?token={server.token}", max_redirects=0)
        counter = context.new_cdp_session(page)
        counter.send("Network.enable")
        total: list[float] = []
        counter.on(
            "Network.loadingFinished",
            lambda event, total=total: total.append(event["encodedDataLength"]),
        )
        cold.append(_open(page, server, name))
        received.append(sum(total))
        page.close()
        before = cpu_seconds(server.pid)
        page = context.new_page()
        warm.append(_open(page, server, name))
        cpu.append(cpu_seconds(server.pid) - before)
        context.close()
    return [
        "| opening a run's page, median of five | |",
        "|---|---|",
        f"| cold, to drawn charts | {statistics.median(cold):.2f} s |",
        f"| received, compressed | {statistics.median(received) / 1e6:.2f} MB |",
        f"| warm, to drawn charts | {statistics.median(warm):.2f} s |",
        (
            "| the server's CPU, warm, with what the live run takes meanwhile |"
            f" {statistics.median(cpu):.2f} s |"
        ),
    ]


def _percentiles(painted: dict[str, float], returned: dict[int, float], since: float) -> str:
    """Median and 95th percentile of the waits; a step that was passed over was painted with the
    next one."""
    known = sorted((int(step), at) for step, at in painted.items() if step.isdigit())
    waits = []
    for step, at in sorted(returned.items()):
        shown = next((when for number, when in known if number >= step), None)
        if at > since and shown is not None:
            waits.append(shown - at)
    if len(waits) < 5:
        return "too few | "
    return f"{statistics.median(waits):.2f} | {statistics.quantiles(waits, n=20)[-1]:.2f}"


def following(
    browser: Browser, server: RunningServer, seconds: float, tabs: int, pace: float
) -> list[str]:
    """A row for each tab count and pace: waits until painted, share of a core, growth."""
    name = f"live-{tabs}-{pace:g}".replace(".", "-")
    with running(server, name, pace, first=10) as run:
        context = browser.new_context(viewport={"width": 1440, "height": 900})
        pages = [context.new_page() for _ in range(tabs)]
        pages[0].request.get(f"{server.url}/?token={server.token}", max_redirects=0)
        for page in pages:
            _open(page, server, name)
        meters = [context.new_cdp_session(page) for page in pages]
        for meter in meters:
            meter.send("Performance.enable")
        pages[0].wait_for_timeout(10_000 if seconds < 60 else 30_000)
        for page in pages:
            page.evaluate(WATCH)
        since = time.time()

        def measured() -> list[dict[str, float]]:
            metrics = []
            for page, meter in zip(pages, meters, strict=True):
                page.evaluate("window.gc()")
                answer = meter.send("Performance.getMetrics")["metrics"]
                metrics.append({metric["name"]: metric["value"] for metric in answer})
            return metrics

        before = measured()
        server_cpu = cpu_seconds(server.pid)
        pages_cpu = sum(map(cpu_seconds, renderers()))
        pages[0].wait_for_timeout(1000 * seconds)
        passed = time.time() - since
        pages_cpu = sum(map(cpu_seconds, renderers())) - pages_cpu
        server_cpu = cpu_seconds(server.pid) - server_cpu
        painted = [page.evaluate("window.painted") for page in pages]
        after = measured()
        context.close()
        grown = [
            (b["JSHeapUsedSize"] - a["JSHeapUsedSize"]) / 1e6 / (passed / 60)
            for a, b in zip(before, after, strict=True)
        ]
        waits = (
            _percentiles(painted[-1][what], run.returned, since) for what in ("number", "point")
        )
        shares = (
            f"{100 * pages_cpu / passed / tabs:.0f} % | {statistics.mean(grown):.1f} MB |"
            f" {100 * server_cpu / passed:.0f} %"
        )
        return [f"| {tabs} | {pace:g} | {' | '.join(waits)} | {shares} |"]


def of_the_server(
    browser: Browser, server: RunningServer, seconds: float, readers: int, pace: float
) -> str:
    """A row for each count of readers and pace: CPU of the server alone, without the browser."""
    name = f"counted-{readers}-{pace:g}".replace(".", "-")
    with running(server, name, pace, first=3) as run:
        # A session of its own each: equal questions of one session are answered together.
        contexts = [
            browser.new_context(viewport={"width": 1440, "height": 900}) for _ in range(readers)
        ]
        for context in contexts:
            page = context.new_page()
            page.request.get(f"{server.url}/?token={server.token}", max_redirects=0)
            _open(page, server, name)
        time.sleep(10)
        before, since, first = cpu_seconds(server.pid), time.monotonic(), len(run.returned)
        time.sleep(seconds)
        passed = time.monotonic() - since
        used = cpu_seconds(server.pid) - before
        steps = len(run.returned) - first
        for context in contexts:
            context.close()
    return f"| {readers} | {steps / passed:.2f} | {1e3 * used / passed:.0f} |"


def main(minutes: float, parts: Sequence[str]) -> None:
    with ExitStack() as stack:
        server = RunningServer(
            Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pages-"))) / "server"
        )
        server.more_environment = {"ISENTROPE_DASHBOARD": "true"}
        stack.enter_context(server)
        browser = stack.enter_context(chromium("--js-flags=--expose-gc"))
        if "open" in parts:
            with running(server, "opened", 1.0):
                print("\n".join(opening(browser, server, "opened")), "\n", flush=True)
        if "follow" in parts:
            print(
                "| tabs | steps/s | number p50, s | p95 | point p50, s | p95 | a core | growth a"
                " minute | server |"
            )
            print("|---|---|---|---|---|---|---|---|---|")
            for tabs, pace, seconds in ((1, 1.0, 30.0), (1, 5.0, 60.0 * minutes), (5, 5.0, 30.0)):
                print("\n".join(following(browser, server, seconds, tabs, pace)), flush=True)
        if "server" in parts:
            print("| readers, a visible tab each | steps/s | the server's CPU, ms a second |")
            print("|---|---|---|")
            for readers, pace in ((0, 1.0), (1, 1.0), (4, 1.0), (0, 0.1), (4, 0.1)):
                print(of_the_server(browser, server, 30.0, readers, pace), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=["open", "follow"], help="open, follow, server")
    parser.add_argument(
        "--minutes",
        type=float,
        default=1.0,
        help="how long one tab is followed at five steps a second",
    )
    chosen = parser.parse_args()
    main(chosen.minutes, chosen.parts)

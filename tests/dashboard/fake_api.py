"""A small REST API that answers as the contract says, for the dashboard's tests: invented numbers, all in memory.

Steps come when a test asks for them, or on their own every `period_seconds`. A control moves on with the steps: pending,
delivered one step later, applied (or rejected) one step after that.
"""

from __future__ import annotations

import asyncio
import math
import random
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from tests.dashboard.fake_predictions import law_answer, what_if_answer

TOKEN = "fake-token"
SESSION_COOKIE = "isentrope_session_fa4e"
CAPABILITIES = ["method:none", "method:clip_b", "method:clip_v", "method:clip_cov", "hold"]
POLICY = (
    "default-src 'self'; script-src 'self' {hashes}; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "font-src 'self' data:; connect-src 'self' ws: wss:; worker-src 'self' blob:; object-src 'none'; base-uri 'none'"
)
"""What the real server sends with every answer."""
SCOPES = ("negative", "positive", "all", "decreasing", "increasing")


class FakeRun:
    """One run with invented numbers."""

    def __init__(self, run_id: str, name: str, *, planned_steps: int | None = 2000, seed: int = 7) -> None:
        self.id, self.name, self.planned_steps = run_id, name, planned_steps
        self.status = "running"
        self.created_at = time.time() - 600
        self.rows: list[dict[str, Any]] = []
        self.histograms: list[dict[str, Any]] = []
        self.refuse_next: str | None = None
        self.author = "owner"
        self.labels: dict[str, str] = {}
        self.gaps: list[dict[str, Any]] = []
        self.pushed: list[dict[str, Any]] = []
        """Every body that was PUT, as it came."""
        self.tokens: list[dict[str, Any]] = []
        self.alerts: list[dict[str, Any]] = []
        self.measures_what_if = True
        self._random = random.Random(seed)
        self._entropy = 2.2
        self._change = 0.0
        self.controls: list[dict[str, Any]] = [
            control_item(0, "APPLIED", {"method": "none", "scope": "all"}, author="trainer", applied_step=0)
        ]

    @property
    def step(self) -> int | None:
        return self.rows[-1]["step"] if self.rows else None

    @property
    def active(self) -> dict[str, Any]:
        return [item for item in self.controls if item["state"] == "APPLIED"][-1]

    def add_step(self) -> None:
        """One more optimiser update."""
        self._move_controls_on((self.step or 0) + 1)
        clipping = self.active["method"] != "none"
        noise = self._random.gauss
        target = 1.25 if clipping else 0.35
        self._change = 0.55 * self._change + 0.45 * (-0.012 * (self._entropy - target)) + noise(0, 0.0035)
        predicted = self._change + noise(0, 0.0012)
        self._entropy = max(0.02, self._entropy + self._change)
        step = (self.step or 0) + 1
        scalars = {
            "entropy/mean": self._entropy + noise(0, 0.01),
            "entropy/observed_change": self._change,
            "entropy/predicted_change": predicted,
            "entropy/predicted_change_low": predicted - 0.002,
            "entropy/predicted_change_high": predicted + 0.002,
            "entropy/interval_coverage": 0.9,
            "entropy/unit_predicted_change": predicted / 0.42,
            "entropy/gain": 0.42 + noise(0, 0.004),
            "entropy/prediction_r2": 0.71 + noise(0, 0.01),
            "entropy/prediction_sign_agreement": 0.91 + noise(0, 0.005),
            "clip/fraction": abs(0.078 + noise(0, 0.006)) if clipping else 0.0,
            "clip/fraction_positive": 0.05 if clipping else 0.0,
            "clip/fraction_negative": 0.1 if clipping else 0.0,
            "reward/mean": 0.15 + 0.4 * (1 - math.exp(-step / 300)) + noise(0, 0.02),
            "change/positive_high": -0.0072 + noise(0, 0.001),
            "change/positive_low": 0.0041 + noise(0, 0.001),
            "change/negative_high": 0.0029 + noise(0, 0.001),
            "change/negative_low": -0.0034 + noise(0, 0.001),
            "time/step_seconds": 0.62 + noise(0, 0.02),
        }
        scalars |= self._hold_scalars()
        if step <= 20:  # the calibration needs a past
            for name in list(scalars):
                if name.startswith(("entropy/predicted_change", "entropy/prediction_r2", "entropy/gain")):
                    scalars.pop(name)
        row = {
            "step": step,
            "recorded_at": time.time(),
            "control_version": self.active["version"],
            "rank": 0,
            "scalars": scalars,
        }
        self.rows.append(row)
        self.histograms.append(self._histogram(step))

    def _hold_scalars(self) -> dict[str, float]:
        """A controller that clips the harder the farther the entropy is from its target."""
        hold = self.active["hold"]
        if hold is None:
            return {}
        self._entropy += 0.15 * (hold["target_entropy"] - self._entropy)
        mu = max(0.2, 3 - 20 * abs(self._entropy - hold["target_entropy"]) + self._random.gauss(0, 0.2))
        chosen = {"hold/mu": mu, "control/mu_low": mu, "control/mu_high": mu}
        went_by = {"hold/gain": 1.9, "hold/drift": -0.002, "hold/resting_point": self._entropy - 0.01}
        return {"hold/target": hold["target_entropy"], **chosen, **went_by}

    def request_control(self, body: dict[str, Any]) -> dict[str, Any]:
        item = control_item(
            len(self.controls),
            "PENDING",
            body,
            author=self.author,
            requested_step=self.step,
            reason=body.get("reason", ""),
        )
        self.controls.append(item)
        return item

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "name": self.name,
            "project": "demo",
            "status": self.status,
            "step": self.step,
            "planned_steps": self.planned_steps,
            "created_at": self.created_at,
            "last_report_at": self.rows[-1]["recorded_at"] if self.rows else None,
            "tags": [],
            "config": {},
            "digest": None,
            "capabilities": CAPABILITIES,
            "incarnations": 1,
            "notes": "",
            "finished_at": None,
            "error": "",
            "world_size": 1,
            "probe_version": "0.1.0",
            "control": {**self.controls[-1], "active": self.active, "outcomes": []},
        }

    def report(self, step: int) -> dict[str, Any]:
        """The whole report of a step."""
        row = next((row for row in self.rows if row["step"] == step), None)
        scalars = {} if row is None else {name: _json_number(value) for name, value in row["scalars"].items()}
        known = {"recorded_at": 0.0, "received_at": 0.0, "control_version": 0, "incarnation": "a", "rank": 0}
        return {"step": step, **known, "scalars": scalars, "histograms": [], "labels": self.labels}

    def _move_controls_on(self, step: int) -> None:
        for item in self.controls:
            if item["state"] == "PENDING":
                item["state"] = "DELIVERED"
            elif item["state"] == "DELIVERED" and self.refuse_next:
                item.update(state="REJECTED", code=self.refuse_next, message="the probe said no")
                self.refuse_next = None
            elif item["state"] == "DELIVERED":
                item.update(state="APPLIED", applied_step=step, applied_at=time.time())

    def _histogram(self, step: int) -> dict[str, Any]:
        reach = 0.5 if step > 60 else 1.0
        spread = 0.05 + 0.12 * math.exp(-step / 400)
        centres = [-reach + (index + 0.5) * reach / 32 for index in range(64)]
        density = [
            0.85 * math.exp(-0.5 * (c / spread) ** 2) / spread + 0.15 * math.exp(-0.5 * ((c - 0.15) / 0.09) ** 2) / 0.09
            for c in centres
        ]
        total = sum(density)
        counts = [round(20000 * d / total * (1 + self._random.gauss(0, 0.05))) for d in density]
        return {"step": step, "low": -reach, "high": reach, "counts": [max(0, c) for c in counts]}


def control_item(version: int, state: str, body: dict[str, Any], **known: Any) -> dict[str, Any]:
    """A history item with every field of the contract."""
    return {
        "version": version,
        "state": state,
        "method": body.get("method", "none"),
        "mu_low": body.get("mu_low"),
        "mu_high": body.get("mu_high"),
        "scope": body.get("scope", "all"),
        "parameters": body.get("parameters") or {},
        "hold": body.get("hold"),
        "reason": "",
        "author": "owner",
        "requested_at": time.time(),
        "requested_step": None,
        "applied_step": None,
        "applied_at": None,
        "expires_at": None,
        "ended_at": None,
        "predicted": None,
        "verdict": None,
        "code": "",
        "message": "",
        **known,
    }


class FakeApi:
    """The fake server: `app` holds its routes, `runs` its data, `requests` what it was asked."""

    def __init__(self, *, period_seconds: float | None = None, require_token: bool = True) -> None:
        self.runs: dict[str, FakeRun] = {}
        self.period_seconds = period_seconds
        self.require_token = require_token
        self.requests: list[tuple[str, str, str | None]] = []
        """Method, path and the token of every API call."""
        self.failing: dict[str, int] = {}
        """What the path of a call that must fail ends with, and the status it is answered with."""
        self.held: set[str] = set()
        """What the path of a call ends with that is answered only when this no longer holds it."""
        self.waiting: list[str] = []
        """The calls that are held now."""
        self.server: uvicorn.Server | None = None
        """What answers for it, while it is served."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self.app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, lifespan=self._lifespan)
        self._add_gate()
        self._add_routes()

    def forget(self) -> None:
        """As if it had just been started: no runs, no calls, nothing that fails."""
        self.runs.clear()
        self.requests.clear()
        self.held.clear()
        self.failing, self.period_seconds, self.require_token = {}, None, True

    def add_run(self, run_id: str = "run-000001", name: str = "countdown", *, steps: int = 0, **known: Any) -> FakeRun:
        run = self.runs[run_id] = FakeRun(run_id, name, **known)
        for _ in range(steps):
            run.add_step()
        return run

    def add_steps(self, run: FakeRun, count: int = 1) -> None:
        """More steps of a run, from any thread."""

        def add() -> None:
            for _ in range(count):
                run.add_step()

        self._in_loop(add)

    def _in_loop(self, work: Callable[[], object]) -> None:
        assert self._loop is not None, "the fake API is not running"
        done = threading.Event()
        self._loop.call_soon_threadsafe(work)
        self._loop.call_soon_threadsafe(done.set)
        assert done.wait(5)

    @asynccontextmanager
    async def _lifespan(self, _app: FastAPI) -> AsyncIterator[None]:
        self._loop = asyncio.get_running_loop()
        ticking = asyncio.create_task(self._tick())
        yield
        ticking.cancel()

    async def _tick(self) -> None:
        while self.period_seconds is not None:
            await asyncio.sleep(self.period_seconds)
            for run in self.runs.values():
                if run.status == "running":
                    run.add_step()

    def stop(self) -> None:
        """Answer nothing more, from any thread, as a server that died."""
        assert self.server is not None, "the fake API is not running"
        self.server.force_exit = self.server.should_exit = True

    def _add_gate(self) -> None:
        @self.app.middleware("http")
        async def gate(request: Request, call_next: Any) -> Any:
            if not request.url.path.startswith("/api/"):
                return await call_next(request)
            token = request.cookies.get(SESSION_COOKIE) or request.headers.get("authorization", "")[7:] or None
            self.requests.append((request.method, request.url.path, token))
            if self.require_token and token != TOKEN:
                return problem(401, "unauthenticated", "Send a token.")
            await self._wait_while_held(request.url.path)
            for ending, status in self.failing.items():
                if request.url.path.endswith(ending):
                    return problem(status, "made_to_fail", f"{ending} answers {status}.")
            return await call_next(request)

        @self.app.middleware("http")
        async def policy(request: Request, call_next: Any) -> Any:
            answer = await call_next(request)
            hashes = " ".join(getattr(self.app.state, "script_hashes", ()))
            answer.headers["content-security-policy"] = POLICY.format(hashes=hashes)
            return answer

    async def _wait_while_held(self, path: str) -> None:
        if any(path.endswith(ending) for ending in self.held):
            self.waiting.append(path)
            while any(path.endswith(ending) for ending in self.held):
                await asyncio.sleep(0.02)
            self.waiting.remove(path)

    def _add_routes(self) -> None:
        app, api = self.app, "/api/v1"

        @app.get(api + "/runs")
        async def runs() -> Any:
            return {"items": [run.to_json() for run in reversed(self.runs.values())], "next_cursor": None}

        @app.get(api + "/runs/{run_id}")
        async def run(run_id: str) -> Any:
            if run_id not in self.runs:
                return problem(404, "run_not_found", f"There is no run {run_id}.")
            return self.runs[run_id].to_json()

        @app.get(api + "/runs/{run_id}/metrics/series")
        async def series(run_id: str, request: Request, points: int = 2000, from_step: int = 0, since: int = 0) -> Any:
            known = self.runs[run_id].rows
            rows = [row for row in known[since:] if row["step"] >= from_step][-points:]
            answer = {}
            for name in request.query_params.getlist("name"):
                has = [row for row in rows if name in row["scalars"]]
                values = [_json_number(row["scalars"][name]) for row in has]
                answer[name] = {"step": [row["step"] for row in has], "value": values, "min": None, "max": None}
            return {"series": answer, "cursor": str(len(known)), "reset": since > len(known)}

        @app.get(api + "/runs/{run_id}/histograms/{name:path}")
        async def histograms(run_id: str, name: str, points: int = 160, from_step: int = 0) -> Any:
            kept = [h for h in self.runs[run_id].histograms if h["step"] >= from_step]
            kept = kept[:: max(1, math.ceil(len(kept) / points))]
            columns = {key: [h[key] for h in kept] for key in ("step", "low", "high", "counts")}
            return {"name": name, **columns, "not_finite": [0] * len(kept)}

        @app.get(api + "/runs/{run_id}/what-if")
        async def what_if(
            run_id: str,
            method: str,
            scope: str,
            mu_low: float | None = None,
            mu_high: float | None = None,
            max_fraction: float | None = None,
        ) -> Any:
            run = self.runs[run_id]
            if not run.rows or not run.measures_what_if:
                return problem(404, "what_if_missing", f"Run {run_id} has no step with what-if sums.")
            return what_if_answer(run.rows[-1], method, scope, mu_low, mu_high, max_fraction)

        @app.get(api + "/runs/{run_id}/law")
        async def law(run_id: str) -> Any:
            return law_answer(self.runs[run_id].rows, run_over=self.runs[run_id].status == "finished")

        @app.get(api + "/runs/{run_id}/tokens")
        async def tokens(run_id: str) -> Any:
            named = self.runs[run_id].tokens
            return {"step": self.runs[run_id].step if named else None, "items": named, "next_cursor": None}

        @app.get(api + "/runs/{run_id}/alerts")
        async def alerts(run_id: str, limit: int = 50) -> Any:
            return {"items": self.runs[run_id].alerts[:limit], "next_cursor": None}

        @app.get(api + "/runs/{run_id}/control")
        async def control(run_id: str, response: Response) -> Any:
            newest = self.runs[run_id].controls[-1]
            response.headers["ETag"] = f'"{newest["version"]}"'
            return {**newest, "active": self.runs[run_id].active, "outcomes": []}

        @app.put(api + "/runs/{run_id}/control")
        async def put_control(run_id: str, request: Request) -> Any:
            run, body = self.runs[run_id], await request.json()
            match = request.headers.get("if-match")
            run.pushed.append(body)
            if match is None:
                return problem(428, "precondition_required", "Send If-Match.")
            if match != f'"{run.controls[-1]["version"]}"':
                return problem(412, "precondition_failed", f"The control is at another version than {match}.")
            if body["scope"] not in SCOPES or f"method:{body['method']}" not in CAPABILITIES:
                return problem(422, "invalid_control", f"This probe can't do {body['method']}.")
            item = run.request_control(body)
            return JSONResponse(item, status_code=202)

        @app.get(api + "/runs/{run_id}/metrics")
        async def metrics(run_id: str) -> Any:
            newest: dict[str, dict[str, Any]] = {}
            for row in self.runs[run_id].rows:
                for name, value in row["scalars"].items():
                    newest[name] = {"name": name, "step": row["step"], "value": _json_number(value)}
            return {"items": [newest[name] for name in sorted(newest)], "next_cursor": None}

        @app.get(api + "/runs/{run_id}/gaps")
        async def gaps(run_id: str) -> Any:
            return {"items": self.runs[run_id].gaps, "next_cursor": None}

        @app.get(api + "/runs/{run_id}/steps/{step}")
        async def step(run_id: str, step: int) -> Any:
            return self.runs[run_id].report(step)

        @app.get(api + "/runs/{run_id}/control/history")
        async def history(run_id: str, limit: int = 100) -> Any:
            return {"items": self.runs[run_id].controls[::-1][:limit], "next_cursor": None}

        @app.api_route(api + "/{rest:path}", methods=["GET", "PUT", "POST"])
        async def nothing(rest: str) -> Any:
            return problem(404, "not_found", f"There is no route {rest}.")


def problem(status: int, code: str, message: str) -> JSONResponse:
    return JSONResponse({"error": {"code": code, "message": message, "details": {}}}, status_code=status)


def _json_number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


@contextmanager
def serving(fake: FakeApi, port: int) -> Iterator[str]:
    """Serve the fake on this port, in a thread of its own; yields its URL."""
    server = fake.server = uvicorn.Server(
        uvicorn.Config(fake.app, host="127.0.0.1", port=port, log_level="warning", timeout_graceful_shutdown=1)
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until = time.monotonic() + 20
    while not server.started:
        if time.monotonic() > until:
            raise TimeoutError("The fake API did not start within 20 s.")
        time.sleep(0.02)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(10)

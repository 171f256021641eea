"""Ranks as a server sees them: one run, one truth, and a control that all of them applied."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

import isentrope
from isentrope_wire.control import Method
from tests.faults.stage import wait_for
from tests.probe.ranks.gang import run_ranks
from tests.probe.ranks.loops import Sequences, gate
from tests.system.running_server import RunningServer

RUN_ID = "two-ranks"


def steps_until_clipped(rank: int, environment: dict[str, str]) -> tuple[int, int]:
    """Train until a control has been in force for three steps; the first such step, and how many steps there were.

    The end of the loop depends on it: ranks that switched at different steps would wait for each other in vain.
    """
    # Compiling the kernels into a new home would take longer than the rest.
    os.environ.update(environment, ISENTROPE_KERNELS="reference")
    clipped_from = None
    with isentrope.Probe("ranks", run_id=RUN_ID) as probe:
        for step in range(2000):
            gate(probe, Sequences.of_step(step % 5).rows(slice(6 * rank, 6 * rank + 6)))
            if clipped_from is None and probe.control.method == Method.CLIP_V:
                clipped_from = step
            time.sleep(0.02)
            probe.step(step)
            if clipped_from is not None and step == clipped_from + 2:
                return clipped_from, step + 1
    raise AssertionError("no control came")


@pytest.mark.slow
def test_two_ranks_are_one_run_to_the_server_and_both_apply_a_control(server: RunningServer) -> None:
    with ThreadPoolExecutor(1) as beside:
        given = {name: value for name, value in server.environment.items() if name.startswith("ISENTROPE_")}
        loops = beside.submit(run_ranks, 2, steps_until_clipped, given)
        with httpx.Client(
            base_url=f"{server.url}/api/v1/runs/{RUN_ID}", headers={"Authorization": f"Bearer {server.token}"}
        ) as api:
            etag = wait_for(lambda: api.get("/control").headers.get("etag"), 30.0, "the run has a control")
            document = {"method": "clip_v", "mu_low": 1.0, "mu_high": 1.0, "reason": "test"}
            assert api.put("/control", json=document, headers={"If-Match": etag}).status_code < 300
            of_rank_0, of_rank_1 = loops.result()
            assert of_rank_0 == of_rank_1
            clipped_from, steps = of_rank_0

            def settled() -> dict[str, Any] | None:
                item: dict[str, Any] = api.get("/control/history").json()["items"][0]
                return item if item["state"] not in ("PENDING", "DELIVERED") else None

            item = wait_for(settled, 30.0, "the control has ended")
            assert (item["state"], item["applied_step"]) == ("APPLIED", clipped_from)
            outcomes = api.get("/control").json()["outcomes"]
            assert [(word["rank"], word["state"]) for word in sorted(outcomes, key=lambda word: word["rank"])] == [
                (0, "APPLIED"),
                (1, "APPLIED"),
            ]

            def counted() -> dict[str, Any] | None:
                answer = api.get("/metrics/series", params={"name": ["token/count", "clip/fraction"]}).json()["series"]
                return answer if len(answer["token/count"]["step"]) == steps else None

            series = wait_for(counted, 30.0, "all steps are stored")
            assert series["token/count"]["value"] == [int(Sequences.of_step(s % 5).mask.sum()) for s in range(steps)]
            assert [value > 0 for value in series["clip/fraction"]["value"]] == [
                s >= clipped_from for s in range(steps)
            ]

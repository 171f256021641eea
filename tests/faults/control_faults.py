"""Changes of the control that race, come late, cannot be applied, or meet a failing network or a
wrong clock."""

from __future__ import annotations

import threading
import time
from typing import Any

import httpx

from tests.faults.faulty_libc import shifted_clock
from tests.faults.network import TcpProxy
from tests.faults.oracle import OracleError, Verdict
from tests.faults.stage import Stage
from tests.system.running_server import wait_for

OPEN = ("PENDING", "DELIVERED")
HOUR = 3600


def push(api: httpx.Client, run_id: str, etag: str, **document: object) -> httpx.Response:
    return api.put(f"/runs/{run_id}/control", json=document, headers={"If-Match": etag})


def etag_of(api: httpx.Client, run_id: str) -> str:
    return str(api.get(f"/runs/{run_id}/control").headers["etag"])


def history(api: httpx.Client, run_id: str) -> dict[int, dict[str, Any]]:
    items = api.get(f"/runs/{run_id}/control/history", params={"limit": 200}).json()["items"]
    return {item["version"]: item for item in items}


def ended(api: httpx.Client, run_id: str, version: int) -> dict[str, Any]:
    """A version once it has ended."""

    def look() -> dict[str, Any] | None:
        item = history(api, run_id).get(version)
        return item if item is not None and item["state"] not in OPEN else None

    return wait_for(look, 60.0, f"control {version} ended")


def expect(holds: bool, promise: str) -> None:
    """
    Raises:
        OracleError: it does not hold.
    """
    if not holds:
        raise OracleError(promise)


def push_successfully(api: httpx.Client, run_id: str, **document: object) -> int:
    """Push on the newest version; returns the version it became.

    Raises:
        OracleError: The server refused it.
    """
    answer = push(api, run_id, etag_of(api, run_id), **document)
    expect(answer.is_success, f"the push failed: {answer.text}")
    return int(answer.json()["version"])


def two_clients_racing(stage: Stage) -> Verdict:
    """Two clients push as fast as they can on the version they saw; each version has one author,
    one end."""
    trainer = stage.running_trainer("raced")
    pushed: dict[str, list[int]] = {"ada": [], "bob": []}
    rounds = 8 if stage.short else 40

    def race(name: str) -> None:
        with httpx.Client(
            base_url=stage.api.base_url, headers=stage.api.headers, timeout=30
        ) as api:
            for round_number in range(rounds):
                answer = push(
                    api,
                    "raced",
                    etag_of(api, "raced"),
                    method="clip_v",
                    mu_low=1 + round_number,
                    reason=name,
                )
                if answer.is_success:
                    pushed[name].append(int(answer.json()["version"]))
                else:
                    assert answer.status_code == 412, answer.text
                time.sleep(0.03)

    racers = [threading.Thread(target=race, args=(name,)) for name in pushed]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    won = sorted(pushed["ada"] + pushed["bob"])
    expect(
        won == list(range(1, len(won) + 1)),
        f"versions were given out twice or not at all: {pushed}",
    )
    last = ended(stage.api, "raced", won[-1])
    expect(last["state"] == "APPLIED", f"the last version ended {last['state']}")
    for version, item in history(stage.api, "raced").items():
        if version:
            expect(version in pushed[item["reason"]], f"version {version} has the wrong author")
    stage.expect_a_fresh_report(trainer)
    return stage.judge(trainer)


def stale_invalid_and_late_control(stage: Stage) -> Verdict:
    """A change whose time is over, one that cannot be applied, one on an old version, one after the
    end: none takes effect."""
    proxy = stage.enter(TcpProxy(stage.server.grpc_target))
    trainer = stage.running_trainer("late", grpc_target=proxy.address)
    tag = etag_of(stage.api, "late")
    refused = [
        push(stage.api, "late", tag, method="kl_cov").status_code,
        push(stage.api, "late", tag, method="clip_v", mu_low=-1).status_code,
        push(stage.api, "late", '"17"', method="clip_v", mu_low=1).status_code,
    ]
    expect(refused == [422, 422, 412], f"what can't be was answered by {refused}")
    proxy.black_hole = True
    push_successfully(
        stage.api, "late", method="clip_v", mu_low=1, expires_in_seconds=2, reason="stale"
    )
    time.sleep(3.5)
    proxy.black_hole = False
    stage.expect_a_fresh_report(trainer)
    item = ended(stage.api, "late", 1)
    expect(item["state"] == "EXPIRED", f"the stale change ended {item['state']}")
    version = push_successfully(stage.api, "late", method="clip_v", mu_low=2, reason="in time")
    expect(
        ended(stage.api, "late", version)["state"] == "APPLIED", "a change in time was not applied"
    )
    verdict = stage.judge(trainer)
    late = push(
        stage.api, "late", etag_of(stage.api, "late"), method="clip_v", mu_low=3
    ).status_code
    expect(late == 409, f"a change after the end was answered by {late}")
    expect(
        [d.version for d in trainer.ledger.decisions if d.state == "APPLIED"] == [2],
        "the stale change was applied",
    )
    return verdict


def control_over_a_breaking_connection(stage: Stage) -> Verdict:
    """Connections break while controls are pushed and the server is killed: each is applied once,
    each ends once."""
    proxy = stage.enter(TcpProxy(stage.server.grpc_target))
    trainer = stage.running_trainer("broken", grpc_target=proxy.address)
    for number in range(3 if stage.short else 10):
        version = push_successfully(
            stage.api, "broken", method="clip_v", mu_low=1 + number, reason=str(number)
        )
        proxy.reset_all()
        if number == 1:
            stage.server.kill()
            stage.server.start()
        ended(stage.api, "broken", version)
        proxy.reset_all()
    stage.expect_a_fresh_report(trainer)
    return stage.judge(trainer)


def trainers_clock_an_hour_off(stage: Stage) -> Verdict:
    """The trainer's clock is an hour ahead, then jumps to an hour behind: controls expire when they
    should."""
    offset = stage.folder / "offset"
    offset.write_text(str(HOUR))
    trainer = stage.running_trainer("shifted", environment=shifted_clock(offset))
    _expect_applied(stage, "shifted", 1)
    offset.write_text(str(-HOUR))
    stage.expect_a_fresh_report(trainer)
    _expect_applied(stage, "shifted", 2)
    offset.write_text("0")
    stage.expect_a_fresh_report(trainer)
    return stage.judge(trainer)


def servers_clock_an_hour_off(stage: Stage) -> Verdict:
    """The server's clock jumps an hour ahead and an hour back, with a restart between."""
    offset = stage.folder / "offset"
    offset.write_text("0")
    stage.server.kill()
    stage.server.more_environment = shifted_clock(offset)
    stage.server.start()
    trainer = stage.running_trainer("adrift")
    for version, seconds in enumerate((HOUR, -HOUR), start=1):
        offset.write_text(str(seconds))
        stage.expect_a_fresh_report(trainer)
        if version == 1 or not stage.short:
            stage.server.kill()
            stage.server.start()
        stage.expect_a_fresh_report(trainer)
        _expect_applied(stage, "adrift", version)
    return stage.judge(trainer)


def _expect_applied(stage: Stage, run_id: str, version: int) -> None:
    push_successfully(stage.api, run_id, method="clip_v", mu_low=version, expires_in_seconds=60)
    item = ended(stage.api, run_id, version)
    expect(item["state"] == "APPLIED", f"control {version} ended {item['state']}: {item}")

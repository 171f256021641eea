"""Clocks that are wrong by an hour, and jump."""

from __future__ import annotations

from tests.faults.control_faults import ended, etag_of, expect, push
from tests.faults.lying_libc import shifted_clock
from tests.faults.oracle import Verdict
from tests.faults.stage import Stage

HOUR = 3600


def trainers_clock_an_hour_off(stage: Stage) -> Verdict:
    """The trainer's clock is an hour ahead, then jumps to an hour behind: controls live as long as they should."""
    offset = stage.folder / "offset"
    offset.write_text(str(HOUR))
    plan = stage.plan("shifted", steps=100_000, step_seconds=0.02)
    trainer = stage.start_trainer(plan, environment=shifted_clock(offset))
    trainer.wait_until_acknowledged()
    _push_and_see_it_applied(stage, "shifted", 1)
    offset.write_text(str(-HOUR))
    stage.expect_a_fresh_report(trainer)
    _push_and_see_it_applied(stage, "shifted", 2)
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
    trainer = stage.start_trainer(stage.plan("adrift", steps=100_000, step_seconds=0.02))
    trainer.wait_until_acknowledged()
    for version, seconds in enumerate((HOUR, -HOUR), start=1):
        offset.write_text(str(seconds))
        stage.expect_a_fresh_report(trainer)
        if version == 1 or not stage.short:
            stage.server.kill()
            stage.server.start()
        stage.expect_a_fresh_report(trainer)
        _push_and_see_it_applied(stage, "adrift", version)
    return stage.judge(trainer)


def _push_and_see_it_applied(stage: Stage, run_id: str, version: int) -> None:
    answer = push(stage.api, run_id, etag_of(stage.api, run_id), method="clip_v", mu_low=version, expires_in_seconds=60)
    expect(answer.is_success, f"the push failed: {answer.text}")
    item = ended(stage.api, run_id, version)
    expect(item["state"] == "APPLIED", f"control {version} ended {item['state']}: {item}")

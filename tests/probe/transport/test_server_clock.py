"""A time to live means the same on a machine whose clock is wrong."""

from __future__ import annotations

import time

import pytest

from isentrope.transport.connection import ServerClock

HOUR = 3600.0


@pytest.mark.parametrize("ahead_seconds", [HOUR, 0.0, -HOUR])
def test_the_servers_times_become_this_machines(ahead_seconds: float) -> None:
    clock = ServerClock()
    now = time.time()
    clock.set(asked_at=now, server_time=now - ahead_seconds)
    assert clock.here(now - ahead_seconds + 60.0) == pytest.approx(now + 60.0, abs=0.01)
    assert not clock.disagrees(now - ahead_seconds)


def test_a_slow_answer_makes_a_time_to_live_shorter_and_never_longer() -> None:
    clock = ServerClock()
    asked_at = time.time() - 4.0
    clock.set(asked_at=asked_at, server_time=time.time())
    assert clock.here(time.time() + 60.0) == pytest.approx(time.time() + 56.0, abs=0.01)


def test_a_clock_that_is_set_later_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ServerClock()
    now = time.time()
    clock.set(asked_at=now, server_time=now)
    monkeypatch.setattr(time, "time", lambda: now + HOUR)
    assert clock.here(now + 60.0) == pytest.approx(now + HOUR + 60.0, abs=0.5)
    assert not clock.disagrees(now)


def test_a_heartbeat_far_from_the_expected_time_is_noticed() -> None:
    clock = ServerClock()
    now = time.time()
    clock.set(asked_at=now, server_time=now)
    assert clock.disagrees(now - HOUR)
    assert clock.disagrees(now + HOUR)
    assert not clock.disagrees(now - 10.0)

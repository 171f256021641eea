"""Rank 0's control, clock and hold action reach every rank at the same step, however long the
control is."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

import isentrope
from isentrope.distributed import FIRST_CAPACITY, RankExchange, Ranks, StepStart
from isentrope.methods.basis import SelectionBasis
from isentrope_wire.codec import encode_control
from isentrope_wire.hold_action import Action, HoldStatus
from isentrope_wire.reports import ControlSnapshot
from tests.probe.tiny_loop import pushed

LONG = pushed(2, isentrope.Control(method="clip_v", mu_low=1.0, reason="x" * 2 * FIRST_CAPACITY))


class Channel:
    """Carries rank 0's message of each step to all; the ranks must agree on its size."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []


class TwoRanks(Ranks):
    """One of two ranks whose sums nobody looks at."""

    size = 2

    def __init__(self, rank: int, channel: Channel) -> None:
        self.rank = rank
        self._channel = channel
        self._steps = 0

    def broadcast(self, message: bytes, size: int) -> Callable[[], bytes]:
        if self.rank == 0:
            self._channel.messages.append(message.ljust(size, b"\0"))
        received = self._channel.messages[self._steps]
        assert len(received) == size
        self._steps += 1
        return lambda: received


def exchange(ranks: Ranks) -> RankExchange:
    return RankExchange(ranks, SelectionBasis("auto"))


def close_step(
    of: RankExchange, requested: ControlSnapshot | None, action: Action | None = None
) -> None:
    of.close_step(
        torch.zeros(5000, dtype=torch.float64), failures=0, requested=requested, action=action
    )


def action(why: str) -> Action:
    return Action(version=1, status=HoldStatus.HOLDING, reason=why)


def received_by_two(
    requested: list[ControlSnapshot | None],
    actions: list[Action | None],
    monkeypatch: pytest.MonkeyPatch,
) -> list[list[StepStart]]:
    """Per rank and step what it begins with, when these are rank 0's."""
    channel = Channel()
    received: list[list[StepStart]] = []
    for rank in (0, 1):
        of_rank = exchange(TwoRanks(rank, channel))
        received.append([])
        for step, (control, decided) in enumerate(zip(requested, actions, strict=True)):
            monkeypatch.setattr(time, "time", lambda at=100.0 * (rank + 1) + step: at)
            close_step(
                of_rank,
                control if rank == 0 else pushed(99),
                decided if rank == 0 else action("not this"),
            )
            received[-1].append(of_rank.begin_step(pushed(98)))
    return received


def versions(starts: list[StepStart]) -> list[Any]:
    return [(None if one.requested is None else one.requested.version, one.now) for one in starts]


def test_before_a_step_was_closed_nothing_is_requested() -> None:
    start = exchange(TwoRanks(1, Channel())).begin_step(pushed(1))
    assert (start.requested, start.action) == (None, None)


def test_an_action_reaches_every_rank_also_beside_a_control_that_has_no_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    actions = [action("first"), None, action("third")]
    for starts in received_by_two([LONG] * 3, actions, monkeypatch):
        assert [(one.requested, one.action) for one in starts] == [
            (None, actions[0]),
            (LONG, None),
            (LONG, actions[2]),
        ]


def test_a_control_that_fits_alone_but_not_beside_an_action_waits_for_a_longer_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    control = pushed(1, isentrope.Control(method="clip_v", mu_low=1.0))
    room = FIRST_CAPACITY - len(encode_control(control)) - 30
    snug = pushed(1, isentrope.Control(method="clip_v", mu_low=1.0, reason="x" * room))
    for starts in received_by_two([snug, snug], [action("a"), action("b")], monkeypatch):
        assert [one.requested for one in starts] == [None, snug]

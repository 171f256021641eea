"""What rank 0 was asked for reaches every rank at the same step, however long it is."""

from __future__ import annotations

from collections.abc import Callable

import isentrope
from isentrope.distributed import FIRST_CAPACITY, ControlRelay
from isentrope_wire.codec import encode_control
from isentrope_wire.reports import ControlSnapshot
from tests.probe.tiny_loop import pushed


class Air:
    """Carries rank 0's message of each step to all; the ranks must agree on its size."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []

    def of_rank(self, rank: int) -> Callable[[bytes, int], Callable[[], bytes]]:
        steps = 0

        def broadcast(message: bytes, size: int) -> Callable[[], bytes]:
            nonlocal steps
            if rank == 0:
                self.messages.append(message.ljust(size, b"\0"))
            received = self.messages[steps]
            assert len(received) == size
            steps += 1
            return lambda: received

        return broadcast


def heard_by_two(desired: list[ControlSnapshot | None]) -> list[list[tuple[int | None, float]]]:
    """Per rank and step the version heard and rank 0's clock, when rank 0 is asked for `desired` at each step."""
    air = Air()
    heard: list[list[tuple[int | None, float]]] = []
    for rank in (0, 1):
        relay = ControlRelay(air.of_rank(rank))
        heard.append([])
        for step, snapshot in enumerate(desired):
            relay.tell(snapshot if rank == 0 else pushed(99), now=100.0 * (rank + 1) + step)
            control, now, _ = relay.hear(0.0)
            heard[-1].append((None if control is None else control.version, now))
    return heard


def test_every_rank_hears_rank_0_and_its_clock() -> None:
    first, second = heard_by_two([None, pushed(1), pushed(1), pushed(2)])
    assert first == second == [(None, 100.0), (1, 101.0), (1, 102.0), (2, 103.0)]


def test_a_control_longer_than_the_message_comes_one_step_later_to_all() -> None:
    long = pushed(2, isentrope.Control(method="clip_v", mu_low=1.0, reason="x" * 2 * FIRST_CAPACITY))
    first, second = heard_by_two([pushed(1), long, long, long])
    assert first == second == [(1, 100.0), (1, 101.0), (2, 102.0), (2, 103.0)]


def test_before_rank_0_has_told_anything_nothing_is_wanted() -> None:
    assert ControlRelay(Air().of_rank(0)).hear(7.0) == (None, 7.0, b"")


def test_a_note_of_rank_0_reaches_every_rank_in_its_step_also_beside_a_control_that_has_no_room() -> None:
    air, long = Air(), pushed(1, isentrope.Control(method="clip_v", mu_low=1.0, reason="x" * 2 * FIRST_CAPACITY))
    for rank in (0, 1):
        relay, heard = ControlRelay(air.of_rank(rank)), []
        for note in (b"first", b"", b"third"):
            relay.tell(long, 0.0, note if rank == 0 else b"not this")
            told = relay.hear(0.0)
            heard.append((told.desired, told.note))
        assert heard == [(None, b"first"), (long, b""), (long, b"third")]


def test_a_control_that_fits_alone_but_not_beside_a_note_waits_for_a_longer_message() -> None:
    air = Air()
    snapshot = pushed(1, isentrope.Control(method="clip_v", mu_low=1.0))
    room = FIRST_CAPACITY - len(encode_control(snapshot)) - 30
    snug = pushed(1, isentrope.Control(method="clip_v", mu_low=1.0, reason="x" * room))
    for rank in (0, 1):
        relay = ControlRelay(air.of_rank(rank))
        relay.tell(snug, 0.0, b"a note of some length")
        assert relay.hear(0.0) == (None, 0.0, b"a note of some length")
        relay.tell(snug, 1.0, b"another")
        assert relay.hear(0.0) == (snug, 1.0, b"another")

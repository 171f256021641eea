"""The transport for tests and for mode `disabled`."""

from __future__ import annotations

from isentrope.transport.transport import InMemoryTransport, Message, Transport
from isentrope_wire.control import Control
from isentrope_wire.reports import ControlSnapshot, StepReport


def report(step: int) -> StepReport:
    return StepReport(step=step, recorded_at=1.0, scalars={"entropy/mean": 0.5})


def test_it_keeps_messages_in_order() -> None:
    transport: Transport = (in_memory := InMemoryTransport())
    assert all(transport.put(lambda step=step: report(step)) for step in (1, 2, 3))  # type: ignore[misc]
    assert in_memory.messages == [report(1), report(2), report(3)]
    assert transport.statistics().accepted == 3


def test_the_control_it_is_told_is_the_control_it_tells() -> None:
    transport = InMemoryTransport()
    assert transport.requested_control() is None
    wish = ControlSnapshot(version=2, control=Control(), author="ada", requested_at=0.0)
    transport.set_control(wish)
    assert transport.requested_control() is wish


def test_disabled_does_not_even_build_the_message() -> None:
    transport = InMemoryTransport(keep_messages=False)

    def never() -> Message:
        raise AssertionError("built a message nobody wants, and may have waited for the device")

    assert transport.put(never)
    assert transport.messages == []


def test_what_comes_after_the_close_is_counted_as_dropped() -> None:
    transport = InMemoryTransport()
    transport.close()
    assert not transport.put(lambda: report(1))
    assert (transport.statistics().accepted, transport.statistics().dropped) == (0, 1)

"""The queue between loop and writer: bounded, in order, and exact about what it refused."""

from __future__ import annotations

import threading
import time

from isentrope.transport.spool_writer import MessageQueue, Refused
from isentrope.transport.transport import MakeMessage, Message
from isentrope_wire.reports import StepReport


def making(step: int) -> MakeMessage:
    def make() -> Message:
        return StepReport(step=step, recorded_at=0.0)

    return make


def as_steps(entries: list[MakeMessage | Refused]) -> list[int | Refused]:
    steps: list[int | Refused] = []
    for entry in entries:
        if isinstance(entry, Refused):
            steps.append(entry)
        else:
            message = entry()
            assert isinstance(message, StepReport)
            steps.append(message.step)
    return steps


def test_a_full_queue_refuses_and_tells_how_many_at_which_place() -> None:
    queue = MessageQueue(max_messages=2, max_bytes=1000)
    assert [queue.put(making(step)) for step in range(5)] == [True, True, False, False, False]
    assert as_steps(queue.take(1)) == [0]
    assert queue.put(making(5))
    assert not queue.put(making(6))
    assert as_steps(queue.take(9)) == [1, Refused(3), 5, Refused(1)]
    assert queue.empty
    assert queue.put(making(7))
    assert as_steps(queue.take(9)) == [7]
    assert (queue.accepted, queue.refused) == (4, 4)


def test_it_is_bounded_by_bytes_as_well() -> None:
    queue = MessageQueue(max_messages=1000, max_bytes=1000)
    queue.largest_bytes = 300
    assert [queue.put(making(step)) for step in range(6)] == [True, True, True, True, False, False]


def test_between_two_threads_every_message_comes_out_once_or_is_counted_as_refused() -> None:
    queue = MessageQueue(max_messages=50, max_bytes=10**9)
    total = 20_000
    taken: list[int | Refused] = []

    def put_all() -> None:
        for step in range(total):
            queue.put(making(step))

    producer = threading.Thread(target=put_all)
    producer.start()
    while producer.is_alive():
        taken += as_steps(queue.take(7))
        time.sleep(0)
    while rest := as_steps(queue.take(7)):
        taken += rest
    producer.join()
    steps = [entry for entry in taken if isinstance(entry, int)]
    refused = sum(entry.count for entry in taken if isinstance(entry, Refused))
    assert steps == sorted(set(steps))
    assert len(steps) == queue.accepted
    assert refused == queue.refused == total - len(steps)

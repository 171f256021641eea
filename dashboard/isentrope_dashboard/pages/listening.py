"""A run's live stream as a queue, and the events of one moment from it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from isentrope_dashboard.api_client import ApiClient
from isentrope_dashboard.errors import ApiError, ApiUnreachableError
from isentrope_dashboard.records import LiveEvent

COALESCE_SECONDS = 0.25
IDLE_SECONDS = 0.5
QUEUE_EVENTS = 10_000


class StreamEnd:
    """Stands in the queue behind the last event."""

    def __init__(self, error: ApiError | ApiUnreachableError) -> None:
        self.error = error


Queue = asyncio.Queue["LiveEvent | StreamEnd"]


@asynccontextmanager
async def listening(api: ApiClient, run_id: str) -> AsyncIterator[Queue]:
    """Subscribe before anything is read, so that nothing falls between."""
    queue: Queue = asyncio.Queue(QUEUE_EVENTS)
    subscribed = asyncio.Event()

    async def listen() -> None:
        try:
            async for event in api.live(run_id):
                subscribed.set()
                await queue.put(event)
            await queue.put(StreamEnd(ApiUnreachableError(f"The live stream of run {run_id} ended.")))
        except (ApiError, ApiUnreachableError) as error:
            await queue.put(StreamEnd(error))
        finally:
            subscribed.set()

    task = asyncio.create_task(listen())
    try:
        await subscribed.wait()
        yield queue
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def next_batch(queue: Queue) -> list[LiveEvent]:
    """The events of the next moment; none when it is quiet.

    Raises:
        ApiError, ApiUnreachableError: the stream ended.
    """
    try:
        items = [await asyncio.wait_for(queue.get(), IDLE_SECONDS)]
    except TimeoutError:
        return []
    await asyncio.sleep(COALESCE_SECONDS)
    while not queue.empty():
        items.append(queue.get_nowait())
    events = []
    for item in items:
        if isinstance(item, StreamEnd):
            raise item.error
        if item.step or item.control or item.run:
            events.append(item)
    return events

"""The page at the other end of a WebSocket callback: ask it for properties, and set them."""

from __future__ import annotations

import time
from typing import Any

from isentrope_dashboard import ids
from isentrope_dashboard.pages.run import Props
from isentrope_dashboard.pages.snapshot import View

PAGE_TIMEOUT_SECONDS = 30.0
"""A page on a busy machine may draw for long; one that was closed is silent for ever."""


class PageSocket:
    """The page at the other end of the socket."""

    def __init__(self, websocket: Any) -> None:
        self._websocket = websocket

    @property
    def closed(self) -> bool:
        return bool(self._websocket.is_shutdown)

    async def ask(self, component_id: str, name: str) -> Any:
        """A property as the page has it now.

        Raises:
            TimeoutError: the page is gone.
        """
        return await self._websocket.get_prop(component_id, name, timeout=PAGE_TIMEOUT_SECONDS)

    async def view(self) -> View:
        """What the reader looks at. Tells the browser, too, that updates arrive."""
        self.show({ids.LIVE_BEAT: {"data": time.time()}})
        return View.from_json(await self.ask(ids.VIEW, "data"))

    def show(self, content: Props) -> None:
        for component_id, properties in content.items():
            for name, value in properties.items():
                self._websocket.set_prop_sync(component_id, name, value)

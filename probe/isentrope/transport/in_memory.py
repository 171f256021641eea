"""A transport that keeps messages in a list: for tests, and for mode `disabled` (which keeps nothing)."""

from __future__ import annotations

from isentrope.transport.transport import MakeMessage, Message, TransportStatistics
from isentrope_wire.messages import ControlSnapshot


class InMemoryTransport:
    """Builds each message at once, on the caller's thread, and lets its exceptions through: a test wants to see them."""

    def __init__(self, *, keep_messages: bool = True) -> None:
        """
        Args:
            keep_messages: False makes it a transport that takes everything and goes nowhere; messages are not even
                built, since that could wait for the device.
        """
        self.messages: list[Message] = []
        self.closed = False
        self._keep_messages = keep_messages
        self._desired: ControlSnapshot | None = None
        self._accepted = 0
        self._dropped = 0

    def put(self, make: MakeMessage) -> bool:
        if self.closed:
            self._dropped += 1
            return False
        if self._keep_messages:
            self.messages.append(make())
        self._accepted += 1
        return True

    def set_control(self, snapshot: ControlSnapshot | None) -> None:
        """Say what a server would have asked for."""
        self._desired = snapshot

    def desired_control(self) -> ControlSnapshot | None:
        return self._desired

    def statistics(self) -> TransportStatistics:
        return TransportStatistics(accepted=self._accepted, dropped=self._dropped)

    def close(self, timeout_seconds: float = 1.0) -> None:
        self.closed = True

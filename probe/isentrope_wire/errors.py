"""The root of every error Isentrope raises on purpose."""


class IsentropeError(Exception):
    """What was expected, what came, what to do: one sentence each, in the message."""


class ControlError(IsentropeError, ValueError):
    """A control document that no probe could apply."""


class CodecError(IsentropeError, ValueError):
    """Bytes or messages that are not what the wire's version promises."""

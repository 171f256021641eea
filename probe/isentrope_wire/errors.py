"""The root of every error Isentrope raises on purpose."""


class IsentropeError(Exception):
    """What was expected, what came, what to do: one sentence each, in the message."""


class ConfigurationError(IsentropeError, ValueError):
    """A setting or a control that cannot work, found where it is built."""


class CodecError(IsentropeError, ValueError):
    """Bytes or messages that are not what the wire's version promises."""

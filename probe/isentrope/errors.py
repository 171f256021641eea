"""The probe's errors: each message states what was expected, what came and what to do."""

from __future__ import annotations

from isentrope_wire.errors import CodecError, ConfigurationError, IsentropeError

__all__ = ["CheckpointError", "CodecError", "ConfigurationError", "InputError", "IsentropeError"]


class InputError(IsentropeError, ValueError):
    """Tensors the equations can't be applied to: shapes, types, token ids or values."""


class CheckpointError(IsentropeError, ValueError):
    """A state that `Probe.load_state_dict` can't continue from."""

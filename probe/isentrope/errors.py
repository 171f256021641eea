"""The probe's errors: each says what was expected, what came and what to do."""

from __future__ import annotations

from isentrope_wire.errors import CodecError, ControlError, IsentropeError

__all__ = ["CheckpointError", "CodecError", "ConfigurationError", "ControlError", "InputError", "IsentropeError"]


class ConfigurationError(IsentropeError, ValueError):
    """A setting that can't work, found where the probe is built."""


class InputError(IsentropeError, ValueError):
    """Tensors the equations can't be applied to: shapes, types, token ids or values."""


class CheckpointError(IsentropeError, ValueError):
    """A state that `Probe.load_state_dict` can't go on from."""

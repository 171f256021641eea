"""What an import refuses."""

from __future__ import annotations

from isentrope_wire.errors import IsentropeError


class ImportRefused(IsentropeError, ValueError):
    """The file is no history this version can read; nothing of it was sent."""

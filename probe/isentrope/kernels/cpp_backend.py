"""Not there yet: the reference takes its place."""

from __future__ import annotations

from isentrope.kernels.reference import logit_gradient, row_moments, supports

__all__ = ["logit_gradient", "row_moments", "supports", "unavailable_because"]


def unavailable_because() -> str | None:
    """Why these kernels can't work here."""
    return "they are not part of this version"

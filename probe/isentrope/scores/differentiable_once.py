"""Backward passes that can't themselves be differentiated, and say so."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from isentrope.errors import InputError

Backward = Callable[..., tuple[Tensor | None, ...]]


def differentiable_once(backward: Backward) -> Backward:
    """A backward that refuses `create_graph=True`.

    torch's own `once_differentiable` lets a second derivative pass as zero where the upstream gradient is a constant,
    as it is for any loss linear in the scores: a gradient penalty would silently do nothing.

    Raises, from within backward:
        InputError: backward was asked to be differentiable.
    """

    @functools.wraps(backward)
    def checked(ctx: Any, *upstream: Tensor | None) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise InputError(
                "Token scores are differentiable once, and backward was called with create_graph=True. For second "
                "derivatives, compute log-probs with torch's own functions."
            )
        return backward(ctx, *upstream)

    return checked

"""What a backend provides, and which one scores a tensor: by its device, unless another is asked
for.

    ISENTROPE_KERNELS=auto|reference|cpp|triton

A backend that can't work here (no compiler, no Triton) is replaced by the reference, and one log
line says why. A tensor it can't read (float64, odd strides) goes to the reference silently: that is
how it is meant."""

from __future__ import annotations

import functools
import logging
import os
from typing import Protocol

from torch import Tensor

from isentrope.kernels import cpp_backend, reference, triton_backend
from isentrope.kernels.moments import Moments, RowScores, Temperature, Upstream, finish
from isentrope_wire.errors import ConfigurationError

logger = logging.getLogger(__name__)


class Backend(Protocol):
    """Two passes over logits, one formula; `reference.py` is the specification of both."""

    def supports(self, logits: Tensor) -> bool:
        """Whether this backend can read such a tensor (type, device, layout); looks at no value."""

    def row_moments(
        self,
        logits: Tensor,
        token_ids: Tensor,
        temperature: Temperature,
        start: int = 0,
        *,
        squared: bool = False,
    ) -> Moments:
        """One pass over a slice of the vocabulary; the logits are only read, and never copied
        whole.

        Args:
            logits: [..., columns], any strides the backend `supports`.
            token_ids: [...], int64, counted over the whole vocabulary; may lie outside the slice.
            temperature: T, positive.
            start: the token of the slice's first column.
            squared: also keep Q2, which sum_i S_i^2 needs.
        Returns: float64 moments, one row per token id.
        """

    def logit_gradient(
        self, logits: Tensor, upstream: Upstream, temperature: Temperature, start: int = 0
    ) -> Tensor:
        """What gradients g of the log-probs and h of the entropies become for the logits of a
        slice:

            (g (1[i = k] - p_i) - h p_i (H + log p_i)) / T,    p_i = e^(z_i / T - L)

        Returns: one new tensor of the logits' shape and dtype; 0 in rows without upstream gradient,
        whatever they hold."""


BACKENDS: dict[str, Backend] = {
    "reference": reference,
    "cpp": cpp_backend,
    "triton": triton_backend,
}
OF_DEVICE = {"cpu": "cpp", "cuda": "triton", "xpu": "triton"}
"""ROCm devices are called cuda by torch."""


def backend_for(logits: Tensor) -> Backend:
    """The backend that reads `logits`; ConfigurationError: one was asked for by name that can't
    work here, or there is none of that name."""
    name = os.environ.get("ISENTROPE_KERNELS") or "auto"
    if name not in (names := ("auto", *BACKENDS)):
        raise ConfigurationError(
            f"ISENTROPE_KERNELS takes one of {', '.join(names)}; got {name!r}."
        )
    if name == "auto":
        name = OF_DEVICE.get(logits.device.type, "reference")
        if _why_not(name) is not None:
            _say_once(name)
            return reference
    elif (reason := _why_not(name)) is not None:
        raise ConfigurationError(f"The {name} kernels were asked for and can't work here: {reason}")
    backend = BACKENDS[name]
    if backend.supports(logits):
        return backend
    return reference


def row_scores(
    backend: Backend,
    logits: Tensor,
    token_ids: Tensor,
    temperature: Temperature,
    *,
    squared: bool = False,
) -> RowScores:
    """Scores of whole rows; where launches are what costs, in as few of them as the backend has."""
    if backend is BACKENDS["triton"]:
        return triton_backend.row_scores(logits, token_ids, temperature, squared=squared)
    return finish(backend.row_moments(logits, token_ids, temperature, squared=squared))


def _why_not(name: str) -> str | None:
    if name == "cpp":
        return cpp_backend.unavailable_because()
    if name == "triton":
        return triton_backend.unavailable_because()
    return None


@functools.cache
def _say_once(name: str) -> None:
    logger.warning("Isentrope scores tokens with plain torch, %s", f"not {name}: {_why_not(name)}")

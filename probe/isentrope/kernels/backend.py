"""What a backend provides. The modules reference.py, cpp_backend.py and triton_backend.py are backends themselves."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from isentrope.kernels.moments import Moments, Temperature


class Backend(Protocol):
    """Two passes over logits, one formula; `reference.py` is the specification of both."""

    def supports(self, logits: Tensor) -> bool:
        """Whether this backend can read such a tensor (type, device, layout); looks at no value."""

    def row_moments(
        self, logits: Tensor, token_ids: Tensor, temperature: Temperature, start: int = 0, *, squared: bool = False
    ) -> Moments:
        """One pass over a slice of the vocabulary; the logits are only read, and never copied whole.

        Args:
            logits: [..., columns], any strides the backend `supports`.
            token_ids: [...], int64, counted over the whole vocabulary; may lie outside the slice.
            temperature: T, positive.
            start: the token of the slice's first column.
            squared: also keep Q2, which sum_i S_i^2 needs.
        Returns: float64 moments, one row per token id.
        """

    def logit_gradient(
        self,
        logits: Tensor,
        token_ids: Tensor,
        log_normalizer: Tensor,
        temperature: Temperature,
        logprob_gradient: Tensor | None,
        entropy_gradient: Tensor | None,
        entropies: Tensor | None,
        start: int = 0,
    ) -> Tensor:
        """What upstream gradients g of the log-probs and h of the entropies become for the logits of a slice:

            (g (1[i = k] - p_i) - h p_i (H + log p_i)) / T,    p_i = e^(z_i / T - L)

        Args:
            logits, token_ids, temperature, start: as for `row_moments`.
            log_normalizer: L of the whole vocabulary, float64, one per row.
            logprob_gradient: g, one per row; None is 0.
            entropy_gradient: h, one per row; None is 0.
            entropies: H in nats, one per row; needed with `entropy_gradient`.
        Returns: one new tensor of the logits' shape and dtype; 0 in rows without upstream gradient, whatever they hold.
        """

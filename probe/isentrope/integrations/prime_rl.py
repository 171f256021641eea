"""prime-rl: its own loss with the log-probs gated, named by two lines of its configuration and no
line of code.

    [trainer.loss]
    type = "custom"
    import_path = "isentrope.integrations.prime_rl.loss"

prime-rl imports the path in every rank, once the model is built. That wraps the fused head, where
hidden states, weight, labels and temperatures meet: they are scored there. `loss` is called for
each sample of a pack, and the optimiser's step closes the step. Read at commit 559b447 (2026-08):
src/prime_rl/trainer/models/layers/lm_head.py and lm_head_gemma.py, trainer/rl/loss.py
(`compute_loss`, `setup_rl_loss_fn`) and trainer/rl/train.py. prime-rl has no release to pin: what
is used is checked by its parameters."""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from isentrope.integrations.attachment import Attachment, check_parameters, in_worker, refuse
from isentrope.scores import TokenScores, each_field
from isentrope_wire.errors import ConfigurationError

FRAMEWORK = "prime-rl (read at commit 559b447)"
HEADS = (
    ("prime_rl.trainer.models.layers.lm_head", "FusedOutputLinear"),
    ("prime_rl.trainer.models.layers.lm_head_gemma", "GemmaFusedOutputLinear"),
)
"""Modules and classes of the heads that compute log-probs without logits."""
LOSSES = {
    "default": ("default_loss_fn", "DefaultLossConfig"),
    "ipo": ("ipo_loss_fn", "IPOLossConfig"),
}
"""prime-rl's own: function of trainer/rl/loss.py, and class of its settings."""
FUSED = "fused_lm_head_token_chunk_size"


def loss(inputs: Any, loss: str = "default", **settings: Any) -> Any:
    """prime-rl's `LossOutputs` of one sample, computed from gated log-probs.

    Args:
        inputs: prime-rl's `LossInputs`.
        loss: `default`, `ipo`, or the import path of a custom loss.
        **settings: of that loss, from `[trainer.loss.kwargs]`.

    Raises:
        ConfigurationError: a set-up that can't be followed.
    """
    if _training is None:
        raise ConfigurationError(
            f"Can't attach to prime-rl: its fused head was not used. Set {FUSED} to a number."
        )
    inputs = dataclasses.replace(inputs, trainer_logprobs=_training.gated(inputs))
    return _loss_of(loss, tuple(sorted(settings.items())))(inputs)


@functools.cache
def _loss_of(name: str, settings: tuple[tuple[str, Any], ...]) -> Callable[[Any], Any]:
    if name in LOSSES:
        function, config = LOSSES[name]
        known = getattr(importlib.import_module("prime_rl.configs.trainer"), config)(
            **dict(settings)
        )
        own = getattr(importlib.import_module("prime_rl.trainer.rl.loss"), function)
        return lambda inputs: own(inputs, known)
    module, _, function = name.rpartition(".")
    return functools.partial(getattr(importlib.import_module(module), function), **dict(settings))


class _Training:
    """The probe of one rank, the pack under way, and the step that is open."""

    def __init__(self) -> None:
        self.attachment = Attachment(in_worker(config={"framework": "prime-rl"}, name="prime-rl"))
        self._scores: TokenScores | None = None
        """Scores of the current pack, [tokens], laid out as prime-rl's log-probs: place i has the
        token at place i."""
        self._tokens = 0
        """In that pack."""
        self._is_open = False
        register_optimizer_step_post_hook(self._updated)

    def pack(self, head: Any, hidden: Tensor, labels: Tensor, temperature: Tensor) -> None:
        """Score a pack where its hidden states are, [1, tokens, width]; labels, the tokens that
        follow, and T are [1, tokens]."""
        self._is_open, self._tokens = True, labels.numel()
        softcap = getattr(head, "softcap", None)
        scores = self.attachment.score(
            lambda: self.attachment.probe.score_hidden(
                hidden.detach(),
                head.weight.detach(),
                labels,
                temperature=temperature,
                softcap=softcap,
            )
        )
        if scores is None:
            self._scores = None
        else:
            self._scores = each_field(scores, _shifted)

    def gated(self, inputs: Any) -> Tensor:
        """The log-probs of one sample, gated, [tokens of the sample]."""
        own: Tensor = inputs.trainer_logprobs
        # A sample without a token to learn from is skipped, so its place is not the number of calls
        # before it; but each sample is a part of the pack's log-probs in memory.
        if own.untyped_storage().nbytes() != self._tokens * own.element_size():
            refuse(
                "prime-rl",
                ["context parallelism leaves each rank a part of a pack. Train with cp = 1."],
            )
        start, scores = own.storage_offset(), self._scores
        if scores is not None:
            scores = each_field(scores, lambda field: field[start : start + len(own)].unsqueeze(0))
        return self.attachment.gate(
            own.unsqueeze(0),
            inputs.advantages.unsqueeze(0),
            inputs.loss_mask.unsqueeze(0),
            scores,
            # prime-rl's loss takes its ratio to the sampler.
            old_logprobs=inputs.inference_logprobs.unsqueeze(0),
            sampler_logprobs=inputs.inference_logprobs.unsqueeze(0),
            ref_logprobs=None if inputs.ref_logprobs is None else inputs.ref_logprobs.unsqueeze(0),
        ).squeeze(0)

    def _updated(self, optimizer: Any, arguments: object, settings: object) -> None:
        if not self._is_open:  # an optimiser of something else
            return
        self._is_open = False
        ranks = 1
        if torch.distributed.is_initialized():
            ranks = torch.distributed.get_world_size()
        # prime-rl divides by the tokens of all ranks and adds their gradients up, where others
        # average them.
        self.attachment.close(optimizer, loss_scale=1.0 / ranks)


def _shifted(field: Tensor) -> Tensor:
    """As prime-rl's log-probs are: [1, tokens] of the following tokens -> [tokens]; the first place
    has none."""
    return torch.cat([field.new_zeros(1), field.flatten()[:-1]])


_training: _Training | None = None
"""None before the process's first forward pass."""


def _wrap_heads() -> None:
    for path, name in HEADS:
        kind = getattr(importlib.import_module(path), name)
        check_parameters(kind, "forward", ("hidden_states", "labels", "temperature"), FRAMEWORK)
        if not hasattr(kind.forward, "__wrapped__"):
            kind.forward = _scored(kind.forward)


def _scored(theirs: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(theirs)
    def forward(
        head: Any,
        hidden_states: Tensor,
        labels: Tensor | None = None,
        temperature: Tensor | None = None,
    ) -> Any:
        global _training
        if torch.is_grad_enabled() and labels is not None and temperature is not None:
            # Here, for every rank comes by: a rank without a token to learn from calls no loss.
            if _training is None:
                _training = _Training()
            _training.pack(head, hidden_states, labels, temperature)
        return theirs(head, hidden_states, labels, temperature)

    return forward


_wrap_heads()

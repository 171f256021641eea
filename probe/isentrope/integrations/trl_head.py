"""Our head inside TRL's fused forward, on one model only.

TRL replaces the forward of the policy by a function that ends in
`_ChunkedLogProbFunction.apply(hidden, weight, ...)`. That function is run with its closure, and
with a copy of its module's globals in which this one name is `FusedHead`. So the scale, the
soft-cap, the fp32 cast and the gathering of sharded weights stay TRL's, and neither its module nor
any other model in the process changes. `self_check` compares the two heads before training.

Below it: scores, mask, groups and log-probs of the old policy, read from the inputs of TRL's loss
as `Probe.gate` takes them."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from isentrope.guard import Guard
from isentrope.scores import TokenScores, each_field
from isentrope.scores.linear_token_scores import linear_token_scores
from isentrope.scores.token_scores import SCORE_FIELDS, wants_entropy_gradient
from isentrope.statistics.tokens import detached
from isentrope_wire.errors import ConfigurationError

Head = Literal["replace", "observe"]

HEAD_NAME, COMPACT_NAME = "_ChunkedLogProbFunction", "_use_triton"
"""TRL's names of its head, and of the function that decides whether the head gets the labelled
positions only. TRL 1.15 has no such function."""
COMPUTED = {"log_probs", "entropy"}
"""The outputs that our head has too; a caller that asks for others gets TRL's head."""
ROUND_OFF, LOW_PRECISION_ROUND_OFF = 1e-3, 0.1
"""Nats by which two heads may differ: float32 logits, and bfloat16, float16 or TF32 ones (half a
unit at a logit of 16)."""


class FusedHead:
    """The fused forward of one model, with our head instead of TRL's or beside it."""

    def __init__(
        self, model: nn.Module, head: Head, guard: Guard, *, entropy_gradient: bool
    ) -> None:
        """`model` is the one whose forward TRL patched (under PEFT: the base model); `guard`
        catches failures of our head, TRL's is used then; `entropy_gradient`: TRL's loss has an
        entropy bonus."""
        self.model, self._guard, self._entropy_gradient = model, guard, entropy_gradient
        self._theirs = fused_forward_of(model)
        self._their_globals = self._theirs.__func__.__globals__
        self._asks_about_compact = COMPACT_NAME in self._theirs.__func__.__code__.co_names
        self._fused = _replace_globals(self._theirs, {HEAD_NAME: self, COMPACT_NAME: self._compact})
        self._ours = self._forward()
        self._active = True
        self._alone = head == "replace"
        self._records: list[TokenScores] | None = None
        self._label_mask: Tensor | None = None
        self._scored: TokenScores | None = None

    def install(self) -> None:
        self.model.forward = self._ours

    def remove(self) -> None:
        """Bind TRL's method to the model again.

        In mixed precision, accelerate wraps the forward that it finds when training starts. Ours
        stays inside that wrapper, and calls TRL's from now on.
        """
        self._active = False
        for name in ("forward", "_original_forward"):
            if self.model.__dict__.get(name) is self._ours:
                self.model.__dict__[name] = self._theirs

    @contextmanager
    def recording(self, *, alone: bool | None = None) -> Iterator[list[TokenScores]]:
        """Collect detached scores, [rows, tokens - 1] and 0 where there is no label, of each fused
        forward made inside: by our head alone, or TRL's with ours beside it; None: as
        attached."""
        records: list[TokenScores] = []
        attached, self._records = self._alone, records
        self._alone = attached if alone is None else alone
        try:
            yield records
        finally:
            self._alone, self._records = attached, None

    def apply(self, *arguments: Any) -> tuple[Tensor | None, ...]:
        """What TRL's fused forward calls in the place of its own head, with hidden [N, width],
        weight, bias, targets [N], temperature, chunk size, soft-cap, scale and the names of the
        wanted outputs: log-probs and entropies, [N] float32, and None for the others."""
        in_their_place = self._alone and set(arguments[-1]) <= COMPUTED
        if in_their_place:
            with self._guard.protect("scoring instead of TRL's head"):
                scores = self._score(*arguments, entropy_gradient=self._entropy_gradient)
                if wants_entropy_gradient(False):
                    self._scored = scores
                else:
                    self._scored = detached(scores)
                return scores.logprobs.float(), scores.entropies.float(), None, None, None
        theirs: tuple[Tensor | None, ...] = self._their_globals[HEAD_NAME].apply(*arguments)
        if self._records is not None and not in_their_place:
            with self._guard.protect("scoring beside TRL's head"), torch.no_grad():
                self._scored = self._score(
                    *self._labelled(*arguments), entropy_gradient=self._entropy_gradient
                )
        return theirs

    def _score(
        self,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperature: float,
        chunk_size: int,
        softcap: float | None,
        scale: float,
        outputs: tuple[str, ...],
        *,
        entropy_gradient: bool = False,
    ) -> TokenScores:
        """Score with TRL's arguments; the chunk size is not used, for tiles have a width of their
        own."""
        return linear_token_scores(
            hidden,
            weight,
            targets,
            bias,
            temperature,
            softcap,
            scale,
            entropy_gradient=entropy_gradient,
        )

    def _labelled(
        self, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, *rest: Any
    ) -> Any:
        """The arguments of the labelled positions, where TRL passed all of them."""
        if not self._compact(hidden.device) and self._label_mask is not None:
            rows = self._label_mask.reshape(-1).to(hidden.device)
            hidden, targets = hidden[rows], targets[rows]
        return hidden, weight, bias, targets, *rest

    def _compact(self, device: torch.device) -> bool:
        """Whether the head gets the labelled positions only: where TRL decides so, and on the CPU
        for our head alone.

        TRL 1.15 never passes others. TRL 1.16 scores prompt and padding too on devices that compile
        a program per shape; the CPU is none of them.
        """
        if not self._asks_about_compact:
            return True
        return bool(self._their_globals[COMPACT_NAME](device)) or (
            self._alone and device.type == "cpu"
        )

    def _forward(self) -> types.MethodType:
        # `generate` checks its arguments against the signature of the model's class: ours must have
        # it, as TRL's does.
        @functools.wraps(type(self.model).forward)
        def forward(
            _model: nn.Module, *args: Any, fused_lm_head: bool = False, **kwargs: Any
        ) -> Any:
            if not (fused_lm_head and self._active):
                return self._theirs(*args, fused_lm_head=fused_lm_head, **kwargs)
            self._label_mask = _label_mask(kwargs)
            try:
                output = self._fused(*args, fused_lm_head=True, **kwargs)
                if self._records is not None and self._scored is not None:
                    self._records.append(_scatter_scores(self._scored, output.label_mask))
                return output
            finally:
                self._label_mask = self._scored = None

        return types.MethodType(forward, self.model)


def fused_forward_of(model: nn.Module) -> types.MethodType:
    """The bound method that TRL replaced the model's forward by; ConfigurationError: there is none,
    or something else has replaced it."""
    forward = model.__dict__.get("forward")
    code = getattr(getattr(forward, "__func__", None), "__code__", None)
    if not isinstance(forward, types.MethodType) or HEAD_NAME not in getattr(code, "co_names", ()):
        raise ConfigurationError(
            f"The forward of {type(model).__name__} is not the one TRL gives a model, in which"
            f" {HEAD_NAME} is called. Attach before trainer.train(), and before anything else"
            " replaces the forward."
        )
    return forward


def _replace_globals(method: types.MethodType, replaced: Mapping[str, object]) -> types.MethodType:
    """A copy of the method with other objects under a few global names."""
    function = method.__func__
    copy = types.FunctionType(
        function.__code__,
        {**function.__globals__, **replaced},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return types.MethodType(copy, method.__self__)


def _label_mask(kwargs: Mapping[str, Any]) -> Tensor | None:
    """True where TRL's fused forward scores a position, [rows, tokens - 1] (all tokens where the
    labels come shifted)."""
    shifted, labels = kwargs.get("shift_labels"), kwargs.get("labels")
    if shifted is None and labels is not None:
        shifted = labels[:, 1:]
    return None if shifted is None else shifted != -100


def _scatter_scores(scores: TokenScores, label_mask: Tensor) -> TokenScores:
    """Scores of the labelled positions, in order, at their positions; 0 elsewhere."""

    def placed(values: Tensor) -> Tensor:
        return values.new_zeros(label_mask.shape).masked_scatter(label_mask, values)

    return each_field(scores, placed)


def self_check(trainer: Any, head: FusedHead) -> None:
    """Compare log-probs and entropies of 2 x 9 random tokens, ours and TRL's from the same hidden
    states; module modes and random states are restored. ConfigurationError: they differ by more
    than round-off, or TRL's method never ran the fused forward."""
    model = head.model
    training = [module for module in model.modules() if module.training]
    device = next(model.parameters()).device
    ids = random_ids(model).to(device)
    try:
        model.eval()
        devices = []
        if device.type == "cuda":
            devices = [device]
        with (
            torch.no_grad(),
            torch.random.fork_rng(devices=devices),
            head.recording(alone=False) as records,
        ):
            logprobs, entropies, _ = trainer._get_per_token_logps_and_entropies(
                trainer.model, ids, torch.ones_like(ids), ids.shape[1] - 1, compute_entropy=True
            )
    finally:
        for module in training:
            module.training = True
    if len(records) != 1:
        raise ConfigurationError(
            f"{type(trainer).__name__} does not get its log-probs from one fused forward of its"
            " model, or that forward could not be scored (see the log). Log-probs computed"
            " elsewhere can't be observed."
        )
    ours = completion_scores(records, records[0].logprobs[:, -logprobs.shape[1] :])
    allowed = LOW_PRECISION_ROUND_OFF
    if _computes_in_float32(trainer, model):
        allowed = ROUND_OFF
    for name, mine, theirs in (
        ("log-prob", ours.logprobs, logprobs),
        ("entropy", ours.entropies, entropies),
    ):
        _compare(name, mine, theirs, allowed)


def _compare(name: str, ours: Tensor, theirs: Tensor, allowed: float) -> None:
    difference = (ours.float() - theirs.float()).abs().flatten()
    # NaN agrees with NaN alone.
    difference = torch.where(
        ours.isnan().flatten() & theirs.isnan().flatten(), 0.0, difference
    ).nan_to_num(torch.inf)
    worst = int(difference.argmax())
    if difference[worst] > allowed:
        raise ConfigurationError(
            f"The self-check failed: for the same token TRL's {name} is"
            f" {float(theirs.flatten()[worst]):.6f} nats and ours"
            f" {float(ours.flatten()[worst]):.6f}, more than {allowed:g} apart. Please report the"
            " model's type; until then only IsentropeCallback can be used with it."
        )


def _computes_in_float32(trainer: Any, model: nn.Module) -> bool:
    low = (torch.bfloat16, torch.float16)
    cast = (
        trainer.args.bf16
        or trainer.args.fp16
        or any(parameter.dtype in low for parameter in model.parameters())
    )
    return not (cast or torch.backends.cuda.matmul.allow_tf32)


def random_ids(model: Any) -> Tensor:
    """[2, 9] token ids from a generator of their own that the model has embeddings of, whatever its
    configuration says; no special ones, such as those of an image."""
    config, text = model.config, model.config.get_text_config()
    special = {*_special_ids(config), *_special_ids(text)}
    known = min(text.vocab_size, len(model.get_input_embeddings().weight), 1000)
    usual = [token for token in range(known) if token not in special]
    generator = torch.Generator("cpu").manual_seed(0)
    drawn = torch.randint(0, len(usual), (2, 9), generator=generator, device="cpu")
    return torch.tensor(usual, device="cpu")[drawn]


def _special_ids(config: Any) -> Iterator[int]:
    """A config may name one id, none, or several that mean the same (Llama 3's ends of a turn)."""
    for name, value in vars(config).items():
        if name.endswith(("_token_id", "_token_ids", "_token_index")):
            yield from value if isinstance(value, list | tuple) else (value,)


SAMPLED = "sampling_per_token_logps"
"""Among the inputs of TRL's loss: log-probs that vLLM, or a `rollout_func`, drew the tokens with,
[batch, completion]; NaN where vLLM had none."""

Inputs = Mapping[str, Any]
"""The inputs of TRL's `_compute_loss`: prompt and completion ids and masks, advantages and
others."""


def completion_scores(
    records: Sequence[TokenScores], logprobs: Tensor, entropies: Tensor | None = None
) -> TokenScores:
    """The scores of the completions, without token ids, from those of each chunk of rows, [rows,
    tokens - 1]. Log-probs [batch, completion], and entropies where TRL returned some, are kept
    themselves."""

    def joined(parts: Sequence[Tensor]) -> Tensor:
        return torch.cat([part[:, -logprobs.shape[1] :] for part in parts])

    squared = [record.squared_scores for record in records if record.squared_scores is not None]
    others = (joined([getattr(record, name) for record in records]) for name in SCORE_FIELDS[2:])
    if entropies is None:
        entropies = joined([record.entropies for record in records])
    scores = TokenScores(logprobs, entropies, *others)
    # TRL has one temperature, a number.
    return replace(
        scores,
        squared_scores=joined(squared) if squared else None,
        temperature=records[0].temperature,
    )


def token_mask(inputs: Inputs) -> Tensor:
    """Non-zero where a token counts in TRL's loss: completion tokens, no padding, none that a tool
    wrote."""
    mask: Tensor = inputs["completion_mask"]
    return mask if inputs.get("tool_mask") is None else mask * inputs["tool_mask"]


def old_logprobs(inputs: Inputs, logprobs: Tensor, level: str) -> Tensor | None:
    """Log-probs such that log-prob minus these is the logarithm of TRL's importance ratio; None: it
    has none, so that it is 1.

    Where a sampler's log-probs are known a ratio of 1 is written out: without one the gate would
    take the ratio to the sampler, which is no part of TRL's loss.

    Args:
        logprobs: of the policy, [batch, completion].
        level: "token"; "sequence" where GRPO takes the mean over a sequence (GSPO).

    Returns:
        [batch, completion]. RLOO's ratio is that of whole sequences: all tokens of one share it.
    """
    logprobs, mask = logprobs.detach(), token_mask(inputs)
    old_sums: Tensor | None = inputs.get("old_logps")
    old: Tensor | None = inputs.get("old_per_token_logps")
    if old_sums is not None:
        return logprobs - ((logprobs * mask).sum(1) - old_sums).unsqueeze(1)
    if old is None:
        if inputs.get(SAMPLED) is None:
            return None
        return logprobs
    if level == "token":
        return old
    lengths = mask.sum(1).clamp(min=1)
    return logprobs - (((logprobs - old) * mask).sum(1) / lengths).unsqueeze(1)


def add_kl_part(trainer: Any, inputs: Inputs) -> Inputs:
    """The inputs with reference log-probs that get a gradient, where TRL's loss has a KL term of
    which it tells the share.

    The term is a function of log p_ref - log p alone: its gradient by log p is minus that by log
    p_ref. With `use_bias_correction_kl` it depends on the ratio too, and its share is not known.
    RLOO's KL is part of the reward."""
    reference: Tensor | None = inputs.get("ref_per_token_logps")
    corrected = getattr(trainer.args, "use_bias_correction_kl", False)
    if reference is None or "old_logps" in inputs or not trainer.beta or corrected:
        return inputs
    return {**inputs, "ref_per_token_logps": reference.detach().requires_grad_()}


@contextmanager
def switch_dropout_on(model: nn.Module) -> Iterator[None]:
    """Switch dropout on, as in the forward that was scored first: after an evaluation the model is
    in eval mode."""
    evaluating = []
    if not model.training:
        evaluating = [module for module in model.modules() if not module.training]
    for module in evaluating:
        module.training = True
    try:
        yield
    finally:
        for module in evaluating:
            module.training = False

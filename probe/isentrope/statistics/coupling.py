"""The coupled prediction: the gradient of the mean entropy, times the way that the optimiser moved
the weights.

    predicted_t = <h, theta_t> - <h, theta_(t-1)>     h = dH/dtheta at theta_(t-1), in nats

The theory of free logits knows neither that tokens share weights nor what an optimiser makes of a
gradient. This product has both inside, with momentum, weight decay, clipping and the learning rate,
for any optimiser: it is first order in the step, and known before the step's change is observed. h
is taken after each update, by one more backward pass over entropies that are scored then anyway. Of
the step's own tokens it is averaged with those of earlier steps, for each batch moves its own
tokens most; of unseen tokens it is taken as it is, for an older gradient is too steep. How much too
steep, their own changes tell (`statistics/calibration.py`, `Bend`).

Of Adam, AdamW and SGD two parts of the next prediction are known before the next batch is: what
momentum and decoupled weight decay would do to H in an update whose gradient is 0. The rest is the
batch's."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from isentrope.scores.token_scores import TokenScores, score_with_entropy_gradient
from isentrope.statistics.calibration import SeveralOptimizers
from isentrope_wire.errors import ConfigurationError

if TYPE_CHECKING:
    from torch.optim import Optimizer

OWN_WEIGHT = 0.4
"""Weight of the newest gradient in the average over the steps' own tokens."""
_PIECE = 1 << 22
_RUNS = 16
"""Runs of neighbouring tokens that the error of a change is counted from."""


class EntropyGradient:
    """Keeps h and the products; belongs to the training thread and never waits for the device.

    With coupling a run makes the same steps: no `.grad` that the loop reads is changed, and the
    weights never."""

    def __init__(self, coupling: str, every: int = 1) -> None:
        """`coupling` says whose weights h is of, "last_block" or "model"; `every`, how many steps
        lie between two gradients."""
        self._coupling, self._every = coupling, every
        self.steps = 0  # updates so far
        self._blocks: tuple[nn.Module, nn.Module] | None = None
        """The first and the last of the repeated blocks; None: not known yet, or not asked for."""
        self._called: _Called | None = None
        """What the last scoring called, where it served to find them."""
        self._trained: list[int] = []
        """Identities of what the optimiser changes."""
        self._weights: list[Tensor] = []
        self._gradient: list[Tensor] = []
        self._product: Tensor | None = None
        """<h, theta> after the last step."""
        self._age = 0
        """Updates since h was taken."""
        self._optimizers: list[Any] = []
        self._coming: Sequence[Tensor] = ()
        """See `_drift_without_gradient`."""

    def change(self, optimizer: Optimizer | SeveralOptimizers | None) -> Tensor | None:
        """The prediction of the step whose update was just made, its parts by momentum and by
        weight decay (NaN: not known), in nats, how many updates were made with h before it, and 1:
        [5] float64 on the device. The mean over ranks is the prediction, of shards and of whole
        weights. None before there is a gradient.

        Raises:
            ConfigurationError: there is no gradient to be had of this optimiser's weights.
        """
        self.steps += 1
        trained = _weights_of(optimizer)
        if [*map(id, trained)] != self._trained:
            self._begin_with(trained)
        several: Sequence[Any] = [optimizer]
        if isinstance(optimizer, SeveralOptimizers):
            several = optimizer.optimizers
        # accelerate wraps it.
        self._optimizers = [getattr(wrapped, "optimizer", wrapped) for wrapped in several]
        if self._product is None:
            return None
        before, self._product = self._product, self._project_update()
        age, one = torch.full_like(before, self._age), torch.ones_like(before)
        self._age += 1
        return torch.stack([self._product - before, *self._coming, age, one])

    def _begin_with(self, trained: list[Tensor]) -> None:
        """Forget h, which has no part for weights that were thawed, frozen or replaced."""
        self._trained, self._weights = [*map(id, trained)], trained
        if self._blocks is not None:
            self._weights = _select_block(trained, self._blocks[1])
        self._gradient, self._product = [], None

    def skip_update(self) -> None:
        """Predict nothing over an update after which the weights are not to be had."""
        self._product = None

    @property
    def is_due(self) -> bool:
        """Whether this step takes a gradient."""
        return (self.steps - 1) % self._every == 0 or not self._gradient

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Score inside, and the entropies carry gradient to the weights; the grad mode is as before
        afterwards."""
        enabled, handles = torch.is_grad_enabled(), list[Any]()
        try:
            if self._coupling == "model":
                torch.set_grad_enabled(True)
            elif self._blocks is None:
                self._called = _Called()
                handles.append(nn.modules.module.register_module_forward_pre_hook(self._called))
            else:
                first, last = self._blocks
                handles.append(first.register_forward_pre_hook(lambda *_: _set_grad_enabled(False)))
                handles.append(last.register_forward_pre_hook(lambda *_: _set_grad_enabled(True)))
            with score_with_entropy_gradient():
                yield
        finally:
            for handle in handles:
                handle.remove()
            torch.set_grad_enabled(enabled)

    def learn(self, entropy: Tensor | None, weight: float) -> None:
        """Take the gradient of a mean entropy that was scored inside `recorded` (None: nothing
        was), with its weight in the average, and start the next step's product. ConfigurationError:
        it carries none, or the model has no last block."""
        if self._called is not None:
            self._blocks, self._called = self._called.blocks(), None
            self._weights = _select_block(self._weights, self._blocks[1])
            return
        if entropy is None:
            return
        if not entropy.requires_grad:
            raise ConfigurationError(
                "the scores of rescore, or unseen, carry no gradient to the weights. Score them"
                " with probe.score outside torch.no_grad() and inference_mode; with gradient"
                " checkpointing, let it be non-reentrant."
            )
        if self._coupling == "model":
            gradients = self._gradient_by_backward(entropy)
        else:
            # By this rank's tokens alone: the products, not the gradients, are averaged over ranks.
            gradients = [*torch.autograd.grad(entropy, self._weights, allow_unused=True)]
        if all(gradient is None for gradient in gradients):
            raise ConfigurationError("backward reached none of the weights that the optimiser has.")
        is_first = not self._gradient
        for place, gradient in enumerate(gradients):
            if gradient is None:
                gradient = torch.zeros_like(_local(self._weights[place]))
            if is_first:
                self._gradient.append(gradient)
            else:
                self._gradient[place].lerp_(gradient, weight)
        self._product, self._age = self._project_update(), 0

    def look_ahead(self) -> None:
        """After a step's gradient, if it took one: what is known of the next prediction already."""
        if self._gradient:
            self._coming = self._drift_without_gradient().unbind()

    def _gradient_by_backward(self, entropy: Tensor) -> list[Tensor | None]:
        """By the loop's own way, so that DDP and FSDP average it as they do the loss's; what the
        loop has in `.grad` is put back."""
        kept = [weight.grad for weight in self._weights]
        inputs: list[Tensor] | None = self._weights
        if any(map(is_sharded, self._weights)):
            # The leaves that FSDP computes with are not the shards that the optimiser has.
            inputs = None
        try:
            for weight in self._weights:
                weight.grad = None
            entropy.backward(inputs=inputs)
            gradients = [weight.grad for weight in self._weights]
            return [None if grad is None else _local(grad).detach().clone() for grad in gradients]
        finally:
            for weight, gradient in zip(self._weights, kept, strict=True):
                weight.grad = gradient

    def _project_update(self) -> Tensor:
        """<h, theta>, float64; this rank's shard counts as often as there are shards, so that the
        mean over ranks is the whole."""
        total = torch.zeros((), dtype=torch.float64, device=self._gradient[0].device)
        with torch.no_grad():
            for weight, gradient in zip(self._weights, self._gradient, strict=True):
                for left, right in zip(_split(weight), _split(gradient), strict=True):
                    product = torch.dot(left.double(), right.double())
                    total += _shards(weight) * product.to(total.device)
        return total

    def parts(self) -> Iterator[tuple[Any, Mapping[str, Any], Tensor, Tensor]]:
        """The optimiser of each weight, its group of settings, the weight and h of it; nothing
        before there is a gradient."""
        if not self._gradient:
            return
        groups: dict[int, tuple[Any, Mapping[str, Any]]] = {}
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                groups |= {id(weight): (optimizer, group) for weight in group["params"]}
        for weight, gradient in zip(self._weights, self._gradient, strict=True):
            yield *groups[id(weight)], weight, gradient

    def _drift_without_gradient(self) -> Tensor:
        """What momentum, and what decoupled weight decay, would do to H in an update whose gradient
        is 0: [2] float64, nats; this rank's share as in `_project_update`, NaN where the
        optimiser's momentum is not known."""
        total = torch.zeros(2, dtype=torch.float64, device=self._gradient[0].device)
        with torch.no_grad():
            for optimizer, group, weight, gradient in self.parts():
                momentum = _momentum(optimizer, group, optimizer.state.get(weight, {}))
                if momentum is None:
                    return total.fill_(torch.nan)
                kept, step = momentum
                rate = 0.0
                if group.get("decoupled_weight_decay"):
                    rate = group["lr"] * group["weight_decay"]
                pieces = map(_split, (weight, gradient, *kept))
                for theta, h, *numbers in zip(*pieces, strict=True):
                    if numbers:
                        by_momentum = torch.dot(h, step(*numbers).to(h.dtype))
                    else:
                        by_momentum = h.new_zeros(())
                    parts = torch.stack(
                        [by_momentum.double(), -rate * torch.dot(h, theta.to(h.dtype)).double()]
                    )
                    total += _shards(weight) * parts.to(total.device)
        return total


def _momentum(
    optimizer: object, group: Mapping[str, Any], state: Mapping[str, Any]
) -> tuple[Sequence[Tensor], Callable[..., Tensor]] | None:
    """What Adam, AdamW or SGD of torch keeps of a weight, and how it moves from pieces of that
    where the gradient is 0; None: another."""
    if isinstance(optimizer, torch.optim.Adam) and not group["amsgrad"] and "exp_avg" in state:
        (first, second), updates = group["betas"], state["step"] + 1
        scale = group["lr"] * first / (1 - first**updates)
        spread = second / (1 - second**updates)
        kept = state["exp_avg"], state["exp_avg_sq"]
        return kept, lambda mean, square: -scale * mean / ((spread * square).sqrt() + group["eps"])
    if isinstance(optimizer, torch.optim.SGD):
        buffer = state.get("momentum_buffer")
        factor = group["lr"] * group["momentum"] ** (2 if group["nesterov"] else 1)
        return () if buffer is None else (buffer,), lambda mean: -factor * mean
    return None


def _set_grad_enabled(enabled: bool) -> None:
    torch.set_grad_enabled(enabled)


class _Called:
    """A forward hook for all modules: which were called, in order."""

    def __init__(self) -> None:
        self._modules: dict[nn.Module, None] = {}

    def __call__(self, module: nn.Module, _: object) -> None:
        self._modules.setdefault(module)

    def blocks(self) -> tuple[nn.Module, nn.Module]:
        """The first and the last called of the class that holds most weights in several modules
        with parts of their own."""
        kinds: dict[type[nn.Module], list[nn.Module]] = {}
        for module in self._modules:
            if next(module.children(), None) is not None:
                kinds.setdefault(type(module), []).append(module)
        repeated = [modules for modules in kinds.values() if len(modules) > 1]
        if not repeated:
            raise ConfigurationError(
                'coupling="last_block" needs a model with several blocks of one class that rescore'
                ' calls; found none. Use coupling="model".'
            )
        blocks = max(repeated, key=_count_weights)
        return blocks[0], blocks[-1]


def _count_weights(modules: Sequence[nn.Module]) -> int:
    return sum(weight.numel() for module in modules for weight in module.parameters())


def _weights_of(optimizer: Optimizer | SeveralOptimizers | None) -> list[Tensor]:
    """What the optimiser changes."""
    if optimizer is None:
        raise ConfigurationError(
            "it needs the optimiser. Pass it to probe.step(step, optimizer, rescore)."
        )
    weights = [
        weight
        for group in optimizer.param_groups
        for weight in group["params"]
        if weight.requires_grad
    ]
    reason = ""
    if type(optimizer).__module__.startswith("deepspeed") or any(
        hasattr(weight, "ds_id") for weight in weights
    ):
        reason = "DeepSpeed shards and flattens the weights"
    elif any(getattr(weight, "_is_flat_param", False) for weight in weights):
        reason = "FSDP1 flattens the weights (FSDP2 does not)"
    elif any(getattr(weight, "_post_accumulate_grad_hooks", False) for weight in weights):
        reason = "the weights are updated while backward runs (post-accumulate hooks)"
    elif not weights:
        reason = "no weights require gradient"
    if reason:
        raise ConfigurationError(f"with this optimiser {reason}.")
    return weights


def _select_block(weights: Sequence[Tensor], block: nn.Module) -> list[Tensor]:
    """The weights of one block."""
    own = {id(weight) for weight in block.parameters()}
    chosen = [weight for weight in weights if id(weight) in own]
    if not chosen or any(map(is_sharded, chosen)):
        came = "none"
        if chosen:
            came = "shards"
        raise ConfigurationError(
            'coupling="last_block" needs whole, trained weights in the last'
            f' {type(block).__name__}; found {came}. Use coupling="model".'
        )
    return chosen


def is_sharded(weight: Tensor) -> bool:
    return hasattr(weight, "to_local")


def _local(values: Any) -> Tensor:
    """This rank's part of a sharded tensor, or all of another."""
    if is_sharded(values):
        values = values.to_local()
    tensor: Tensor = values
    return tensor


def _split(values: Tensor) -> Sequence[Tensor]:
    """This rank's part in pieces that are computed with one after the other."""
    pieces: Sequence[Tensor] = _local(values).reshape(-1).split(_PIECE)
    return pieces


def _shards(weight: Any) -> int:
    """In how many parts it lies on the ranks; replicas do not count."""
    if not is_sharded(weight):
        return 1
    mesh, placements = weight.device_mesh, weight.placements
    return math.prod(
        mesh.size(dim) for dim, placement in enumerate(placements) if placement.is_shard()
    )


def mean_entropy(entropies: Sequence[Tensor], masks: Sequence[Tensor]) -> Tensor | None:
    """Mean over the tokens that count and are finite, in nats, of the parts that carry gradient, or
    of all where none does."""
    parts = [*zip(entropies, masks, strict=True)]
    chosen = [part for part in parts if part[0].requires_grad] or parts
    if not chosen:
        return None
    counted = [(values, mask & values.isfinite()) for values, mask in chosen]
    total = torch.stack([torch.where(mask, values, 0.0).sum() for values, mask in counted]).sum()
    return total / torch.stack([mask.sum() for _, mask in counted]).sum().clamp(min=1)


class _Panel(NamedTuple):
    """Scores of some tokens that no update is fitted to."""

    ids: Tensor
    entropies: Tensor
    """In nats, float64, without gradient."""


class UnseenTokens:
    """The entropies of tokens that no update is fitted to, from each step to the next.

    A prediction must not be judged by the tokens that it is made from, for it knows their noise.
    So tokens judge an update before they give their gradient. Tokens that never change do both."""

    def __init__(self) -> None:
        self._before: list[_Panel] = []
        self._gave: list[tuple[Tensor, Tensor]] = []
        """Tokens that were scored for the last gradient, and whether they gave it: bool []."""

    def learn_from(self, scored: Sequence[TokenScores]) -> list[Tensor]:
        """Which tokens give the gradient for the next prediction: a mask for each of `scored`. All
        that were scored in the step before, or at the last gradient; where none was, all."""
        ids = [panel.ids for panel in self._before] + [ids for ids, _ in self._gave]
        were_scored = [_is_among(part.token_ids, ids, part.logprobs.device) for part in scored]
        none = ~torch.stack(were_scored).any()
        gives = [were | none for were in were_scored]
        return [one.expand(part.logprobs.shape) for one, part in zip(gives, scored, strict=True)]

    def change(
        self, scored: Sequence[TokenScores], gave_gradient: Sequence[Tensor] | None
    ) -> Tensor | None:
        """What `_change_sums` gives of the changes of H since the step before, of the tokens that
        judge the prediction and of those that it was made from, in nats, [6] float64 on the device,
        from scores without padding under the weights as they are. Scores of other tokens than
        before give none yet. Where the prediction was made from all, all judge.

        Args:
            gave_gradient: What `learn_from` gave, where it was followed; None: the prediction
                stays that of an earlier step.
        """
        now = []
        changes, gave = [], []
        for part in scored:
            if part.token_ids is None:
                continue
            entropies = part.entropies.detach().double()
            has_given = torch.zeros((), dtype=torch.bool, device=entropies.device)
            for ids, gave_once in self._gave:
                has_given = has_given | (_are_equal(part.token_ids, ids) & gave_once)
            for before in self._before:
                if part.token_ids.shape != before.ids.shape:
                    continue
                is_same = _are_equal(part.token_ids, before.ids)
                change = torch.where(is_same, entropies - before.entropies, torch.nan)
                changes.append(change.flatten())
                gave.append(has_given.expand(change.numel()))
            now.append(_Panel(part.token_ids, entropies))
        self._before = now
        if gave_gradient is not None:
            self._gave = [
                (part.token_ids, mask.any())
                for part, mask in zip(scored, gave_gradient, strict=True)
                if part.token_ids is not None
            ]
        if not changes:
            return None
        change, has_given = torch.cat(changes), torch.cat(gave)
        judges = ~has_given | ~(change.isfinite() & ~has_given).any()
        return torch.cat(
            [_change_sums(torch.where(one, change, torch.nan)) for one in (judges, has_given)]
        )


def _is_among(ids: Tensor | None, others: Sequence[Tensor], device: torch.device) -> Tensor:
    """bool [], on the device: nothing waits for it."""
    equal = [_are_equal(ids, other) for other in others]
    if equal:
        return torch.stack(equal).any()
    return torch.zeros((), dtype=torch.bool, device=device)


def _are_equal(ids: Tensor | None, before: Tensor) -> Tensor:
    """bool [], on the device: nothing waits for it."""
    if ids is None or ids.shape != before.shape:
        return torch.zeros((), dtype=torch.bool, device=before.device)
    return (ids == before).all()


def _change_sums(changes: Tensor) -> Tensor:
    """Sum of the finite changes, their number, and the variance of that sum about the mean.

    Tokens of one completion move together, so the variance is counted from runs of neighbouring
    tokens: of independent tokens it would be too small."""
    counts = changes.isfinite()
    changes = torch.where(counts, changes, 0.0)
    total, number = changes.sum(), counts.sum().double()
    centred = changes - torch.where(counts, total / number.clamp(min=1), 0.0)
    place = (counts.cumsum(0) - 1).clamp(min=0)
    run = (place * _RUNS / number.clamp(min=1)).long().clamp(max=_RUNS - 1)
    sums = changes.new_zeros(_RUNS).index_add_(0, run, centred)
    return torch.stack([total, number, sums.square().sum() * _RUNS / (_RUNS - 1)])


def scores_in(returned: object) -> list[TokenScores]:
    """What `unseen` returned, as a list."""
    parts = returned
    if isinstance(returned, TokenScores):
        parts = [returned]
    if not isinstance(parts, Sequence) or not all(isinstance(one, TokenScores) for one in parts):
        raise ConfigurationError(
            f"unseen must return TokenScores, such as probe.score gives, got {returned!r:.100}."
        )
    return list(parts)

"""The tokens of a step: the micro-batches collected while it is open, and the matrix they become
when it closes.

The ledger holds references to detached tensors, freed when the step closes. `StepTokens` is what
every declared sum
measures: one row per quantity, zeros where a token does not count. What several sums need is
computed there, once: on an accelerator every small operation is a launch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from isentrope.guard import SafeLog
from isentrope.scores import TokenScores
from isentrope.scores.layouts import Packing
from isentrope.scores.loss_gradient import WATCHED, LossGradient
from isentrope.statistics.moments import ThresholdStatistics, device_number, finite, flat
from isentrope_wire.control import Scope
from isentrope_wire.reports import ADVANTAGES, LOSS_GRADIENT

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Float64, Int, Shaped

    from isentrope.statistics.influence import Slopes

logger = SafeLog(__name__)

THRESHOLD_SOURCES = ("first_pass", "previous_step", "micro_batch")
"""What the thresholds of a keep-mask may be counted from: the best first, the one that always
exists last."""

MAX_TOKENS = 1 << 25
"""More than a rank gates in a step; they take about a gigabyte."""


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """One micro-batch; every tensor has the token ids' shape and is detached."""

    scores: TokenScores
    advantages: Float[Tensor, "*tokens"]
    mask: Bool[Tensor, "*tokens"]
    """True where the token counts: no padding, prompt or tool token."""
    importance_ratios: Float[Tensor, "*tokens"] | None = None
    """r to the old policy, else to the sampler; None when the loop passed no log-probs of either,
    and r is taken as 1."""
    gradient_factors: Shaped[Tensor, "*tokens"] | None = None
    """Factor of the token's gradient under an intervention; None with none."""
    gradient_added: Float[Tensor, "*tokens"] | None = None
    """What an intervention added to it beside the factor; None: nothing."""
    takes_entropy_gradient: bool = False
    """Whether the scores carry the gradient of the entropies for the gate."""
    entropy_gradient_added: Float[Tensor, "*tokens"] | None = None
    """What an intervention added to the gradient of the entropies; None: nothing."""
    threshold_source: str | None = None
    """Which of THRESHOLD_SOURCES the factors were counted from; None when they were counted from
    nothing."""
    selected: Bool[Tensor, "*tokens"] | None = None
    """True where the intervention selected the token; None with no intervention."""
    token_ids: Int[Tensor, "*tokens"] | None = None
    """None where the loop made its scores without them."""
    differences: Mapping[str, Float[Tensor, "*tokens"]] = field(default_factory=dict)
    """log p of the loss's log-probs minus that of the "sampler", the "old" policy and the
    "reference", as far as passed."""
    completions: Mapping[str, Tensor] = field(default_factory=dict)
    """Numbers of each sequence, [batch], that the loop passed."""
    gradient: LossGradient | Mapping[str, Tensor] | None = None
    """What backward brings to the log-probs after the gate; None, or empty: nothing was read. A
    mapping once it is copied."""
    group_ids: Float64[Tensor, " sequences"] | None = None
    """Rollouts of one prompt share a number. None: not known."""
    old_entropies: Float[Tensor, "*tokens"] | None = None
    """H under the old policy, nats; None: not known."""
    rescore: Callable[[], TokenScores] | None = None
    """Scores the same tokens after the update."""
    packing: Packing | None = None
    """Which sequence each token is of, where they are laid end to end; else rows are sequences, or
    it is not known."""
    step: int = 0
    rank: int = 0
    call: int = 0
    """Which of the step's `gate` calls it was, from 0."""
    first_position: int = 0
    """How many tokens of this step, padding included, this rank gated before."""

    @property
    def ratio_is_to_sampler(self) -> bool:
        """Whether the importance ratios are to the sampler: the loop passed no log-probs of the old
        policy. Of one policy computed twice they are round-off."""
        return "sampler" in self.differences and "old" not in self.differences

    def find_gradient(self, name: str) -> Tensor | None:
        """dL/d of what a `LossGradient` watches under this name; None: not read."""
        if self.gradient is None:
            return None
        return self.gradient.get(name)

    @property
    def keep_mask(self) -> Bool[Tensor, "*tokens"]:
        """True where the token's gradient takes part, with any weight."""
        if self.gradient_factors is None:
            return self.mask
        return self.gradient_factors != 0

    @property
    def has_sequences(self) -> bool:
        """Whether it is known which tokens make a sequence."""
        return self.packing is not None or self.mask.dim() == 2

    def sequence_sums(self, values: Shaped[Tensor, "*tokens"]) -> Shaped[Tensor, " sequences"]:
        """Sum over each sequence of one value per token, also of a flat view of them."""
        if self.packing is not None:
            return self.packing.sums(values)
        return values.reshape(self.mask.shape).sum(1)

    def spread_sequences(self, values: Shaped[Tensor, " sequences"]) -> Shaped[Tensor, "*tokens"]:
        """A number of each sequence where its tokens are."""
        if self.packing is not None:
            return self.packing.spread(values)
        return values.unsqueeze(1).expand(self.mask.shape)

    def is_in_scope(self, scope: Scope) -> Bool[Tensor, "*tokens"]:
        """True where a method of this scope acts.

        The update of a token lowers the entropy where A S_c > 0 and raises it where A S_c < 0.
        """
        match scope:
            case Scope.ALL:
                return torch.ones_like(self.advantages, dtype=torch.bool)
            case Scope.NEGATIVE:
                return self.advantages < 0
            case Scope.POSITIVE:
                return self.advantages > 0
            case Scope.DECREASING:
                return self.advantages * self.scores.vocab_centered_scores > 0
            case Scope.INCREASING:
                return self.advantages * self.scores.vocab_centered_scores < 0

    @property
    def passed_by(self) -> bool:
        """Whether backward reached the log-probs, but not by way of the gate: a method that is
        active acts on nothing."""
        return self.find_gradient("logprobs") is not None and self.find_gradient("gated") is None


@dataclass(slots=True)
class TokenLedger:
    """The micro-batches gated since the last optimiser step; up to fourteen numbers per token,
    never logits.

    A loop that closes no step must not fill the memory: the tokens of a step with more than
    MAX_TOKENS are dropped."""

    batches: list[TokenBatch] = field(default_factory=list)
    tokens: int = 0
    calls: int = 0
    """`gate` calls of the step so far."""
    discarded: int = 0
    """Tokens gated since the last step that are of no step: see `discard`."""
    _warned: bool = False

    @property
    def overflowed(self) -> bool:
        return self.tokens > MAX_TOKENS

    def add(self, batch: TokenBatch) -> None:
        self.tokens += batch.mask.numel()
        self.calls += 1
        if not self.overflowed:
            self.batches.append(batch)
            return
        self.batches = []
        if not self._warned:
            self._warned = True
            logger.warning(
                "A step of more than %d tokens is not measured. Call probe.step() after each"
                " optimiser update.",
                MAX_TOKENS,
            )

    def take(self) -> tuple[TokenBatch, ...]:
        """The step's batches, none if it overflowed; the next step starts empty."""
        batches, self.batches, self.tokens, self.calls = tuple(self.batches), [], 0, 0
        for batch in batches:
            if isinstance(batch.gradient, LossGradient):
                batch.gradient.close()
        return batches

    def discard(self) -> None:
        """Drop the step's batches: the loop has made no update of them."""
        self.discarded += self.tokens
        self.take()

    def trained(self) -> tuple[TokenBatch, ...]:
        """The step's batches, as `take`, without those that no backward has reached, where one has
        reached others: their update was not made."""
        batches = self.take()
        trained = tuple(batch for batch in batches if batch.gradient)
        if not trained or len(trained) == len(batches):
            return batches
        dropped = (batch for batch in batches if not batch.gradient)
        self.discarded += sum(batch.mask.numel() for batch in dropped)
        return trained


def detached(scores: TokenScores) -> TokenScores:
    """Scores outside of the graph, without token ids, so that the logits can be freed.

    Log-probs and entropies are copies: loops change theirs in place.
    """
    return TokenScores(
        logprobs=scores.logprobs.detach().clone(),
        entropies=scores.entropies.detach().clone(),
        discriminator_scores=scores.discriminator_scores.detach(),
        expected_scores=scores.expected_scores.detach(),
        vocab_centered_scores=scores.vocab_centered_scores.detach(),
        squared_scores=None if scores.squared_scores is None else scores.squared_scores.detach(),
        temperature=scores.temperature,
    )


def weight_of_loss(
    gradient: Float[Tensor, "*tokens"], advantages: Float[Tensor, "*tokens"]
) -> Float64[Tensor, ""]:
    """w of a loss -w A log p, a scalar, from its gradient by the log-probs: by least squares over
    the tokens that have one; 0 where none has. A is 0 where a token does not count."""
    products, squares = _products_and_squares(gradient.double(), advantages.double())
    return (-products.sum() / squares.sum()).nan_to_num(0.0)


def _products_and_squares(gradient: Tensor, advantages: Tensor) -> tuple[Tensor, Tensor]:
    """g A and A^2 of the tokens that have a gradient, 0 of the others."""
    counts = finite(gradient) & finite(advantages) & (gradient != 0)
    advantages = torch.where(counts, advantages, 0.0)
    return torch.where(counts, gradient, 0.0) * advantages, advantages.square()


class RowLayout:
    """Which quantity is in which row of the matrix of `StepTokens`.

    The rows of `own` come first. Then, where the loop passed the old policy's log-probs, r and
    r S_c. The last ones are "valid", 1 or 0; g, the strength with which the loss raises the token's
    log-prob, over T^2; and g S_c, what that takes from the entropy."""

    own = ("S_c", "S*", "H", "p", "log p", "A")
    filled_in = ("valid", "g", "g S_c")

    def __init__(self, *, with_ratios: bool) -> None:
        ratios = ("r", "r S_c") if with_ratios else ()
        self.names = (*self.own, *ratios, *self.filled_in)
        self.place = {name: row for row, name in enumerate(self.names)}
        self.measured = slice(len(self.names) - len(self.filled_in))
        """The rows whose products are wanted."""
        if not with_ratios:
            # r is 1.
            self.place["r S_c"] = self.place["S_c"]


WITHOUT_RATIOS = RowLayout(with_ratios=False)
WITH_RATIOS = RowLayout(with_ratios=True)

CODES = 9
"""How many values `StepTokens.codes` has; no token has 3 or 5."""


class StepTokens:
    """The tokens of a step on this rank, one column each, float64, 0 where a token does not count.
    Never waits for the device."""

    def __init__(
        self,
        batches: Sequence[TokenBatch],
        entropies_after: Sequence[Tensor] | None = None,
        *,
        thresholds: ThresholdStatistics | None = None,
        centre: tuple[Tensor, Tensor] | None = None,
        loss_scale: float | Tensor = 1.0,
        unseen: Tensor | None = None,
        coupled: Tensor | None = None,
        slopes: Slopes | None = None,
    ) -> None:
        """
        Args:
            batches: The step's micro-batches, with at least one token between them, padding
                included.
            entropies_after: H of the same tokens after the update, nats, one tensor per batch;
                None: not scored again.
            thresholds: What the what-if sums are counted from; NaN where it is of no token: nothing
                lies beyond any threshold then. None: the tokens of each micro-batch themselves.
            centre: Mean log p and mean A of the step before over all ranks, scalars; None, or NaN:
                these tokens' own.
            loss_scale: What the gradients that were read are to be divided by.
            unseen: Of tokens that the step was not fitted to: of those that judge the prediction,
                and of those that it is made from, sum of the changes of H in nats, number,
                variance of the sum.
            coupled: The coupled prediction, in nats, and what it counts as beside that of other
                ranks.
            slopes: For the influence of each token.
        """
        self._loss_scale = loss_scale
        self._differences: dict[str, tuple[Tensor, Tensor]] = {}
        self.unseen, self.coupled, self.slopes = unseen, coupled, slopes
        self.batches, self.entropies_after = batches, entropies_after
        self.thresholds, self.centre = thresholds, centre
        mask = flat([batch.mask for batch in batches])
        logprobs = flat([batch.scores.logprobs for batch in batches]).double()
        rows = [
            flat([batch.scores.vocab_centered_scores for batch in batches]),
            flat([batch.scores.discriminator_scores for batch in batches]),
            flat([batch.scores.entropies for batch in batches]),
            logprobs.exp(),
            logprobs,
            flat([batch.advantages for batch in batches]),
        ]
        # A ratio missing from one call must not count as 1 beside those of the others: then there
        # is none.
        passed = [
            batch.importance_ratios for batch in batches if batch.importance_ratios is not None
        ]
        has_ratios = len(passed) == len(batches)
        if has_ratios:
            # The second is multiplied by S_c below.
            rows += [flat(passed).double()] * 2
        if has_ratios:
            self._layout = WITH_RATIOS
        else:
            self._layout = WITHOUT_RATIOS
        # Those to be filled in are overwritten below; until then they are the mask in float64.
        values = torch.stack([*rows, *[mask] * len(RowLayout.filled_in)])
        self.mask = mask
        self.valid = mask & finite(values.sum(0))
        """True where the mask is and all numbers are finite."""
        # Padding may hold anything, NaN included: nothing outside `valid` enters a sum.
        self._values = values.masked_fill_(~self.valid, 0.0)
        unbound = values.unbind()
        self._rows = {name: unbound[row] for name, row in self._layout.place.items()}
        self.ones, self.effects = self["valid"], self["g S_c"]
        """1 where a token is valid; and g S_c: what a token's update takes from the entropy before
        an intervention."""
        if has_ratios:
            self["r S_c"].mul_(self["S_c"])
        if any(batch.gradient for batch in batches):
            self.basis = LOSS_GRADIENT
        else:
            self.basis = ADVANTAGES
        self._fill_strengths()
        sums = values.sum(1)
        self._totals = sums.unbind()
        self.count = self.total("valid")
        self.not_finite = mask.sum() - self.count
        """How many tokens the mask names that are not valid."""
        means = sums / self.count.clamp(min=1)
        self._means = means.unbind()
        # Not kept: with what is computed from them later they would be the most that a step needs.
        measured = self._layout.measured
        deviations = (values[measured] - means[measured].unsqueeze(1)).mul_(self.ones)
        self._products = deviations @ deviations.T

    def _fill_strengths(self) -> None:
        """g = -dL/dlog p of the tokens that count, of the loss that was used; r A where it was not
        read; over T^2."""
        strengths = self["g"]
        if self.basis == ADVANTAGES:
            if "r" in self:
                torch.mul(self["A"], self["r"], out=strengths)
            else:
                strengths.copy_(self["A"])
        else:
            gradient = self.finite_gradient("gated")
            strengths.zero_()
            if gradient is not None:
                strengths.sub_(gradient)
        self._divide_by_squared_temperatures(strengths)
        torch.mul(strengths, self["S_c"], out=self.effects)

    @cached_property
    def loss_weights(self) -> Float64[Tensor, " tokens"]:
        """w of the loss -w A log p of each token's `gate` call, over T^2 (`weight_of_loss`); 1
        where the gradient was not read."""
        gradient = self.finite_gradient("gated")
        if gradient is None:
            return self._divide_by_squared_temperatures(self.ones.clone())
        sizes = [batch.mask.numel() for batch in self.batches]
        # Two sums a call: all else is computed of all tokens at once, for each is a launch.
        products, squares = (
            torch.stack([of_call.sum() for of_call in values.split(sizes)])
            for values in _products_and_squares(gradient, self["A"])
        )
        weights = (-products / squares).nan_to_num(0.0)
        of_tokens = [weight.expand(size) for weight, size in zip(weights, sizes, strict=True)]
        return self._divide_by_squared_temperatures(torch.cat(of_tokens))

    def differences(self, name: str) -> tuple[Tensor, Tensor] | None:
        """log p minus the log-probs passed as "sampler", "old" or "reference" ("ratio": the old, or
        the sampler where no old one was passed), 0 where a token does not count, and 1 where it
        does, else 0; float64 [tokens]. None where a call passed none."""
        names = [name] * len(self.batches)
        if name == "ratio":
            names = ["old" if "old" in batch.differences else "sampler" for batch in self.batches]
            if len(set(names)) == 1:
                return self.differences(names[0])
        if name in self._differences:
            return self._differences[name]
        parts = []
        for batch, own in zip(self.batches, names, strict=True):
            if own not in batch.differences:
                return None
            parts.append(batch.differences[own])
        values = flat(parts).double()
        counts = self.valid & finite(values)
        self._differences[name] = torch.where(counts, values, 0.0), counts.double()
        return self._differences[name]

    def gradient(self, name: str) -> Float64[Tensor, " tokens"] | None:
        """dL/d of what a `LossGradient` watches under this name, 0 where a call has none; None
        where none has."""
        return self._join([batch.find_gradient(name) for batch in self.batches])

    def _join(self, parts: Sequence[Tensor | None]) -> Tensor | None:
        """One float64 per token; 0 for `gate` calls without it, None if no call has it."""
        if all(part is None for part in parts):
            return None
        filled = []
        for part, batch in zip(parts, self.batches, strict=True):
            if part is None:
                filled.append(torch.zeros_like(batch.mask, dtype=torch.float64))
            else:
                filled.append(part.double())
        return flat(filled)

    @cached_property
    def bad_gradients(self) -> Bool[Tensor, " tokens"] | None:
        """True where a gradient that was read is NaN or infinite, also where no token counts: one
        is enough to spoil the weights. None where none was read."""
        read = [self.gradient(name) for name in WATCHED]
        # One sum of all: NaN stays NaN, and of an infinity NaN or the infinity is left.
        known = [gradient for gradient in read if gradient is not None]
        if known:
            return ~finite(torch.stack(known).sum(0))
        return None

    @cached_property
    def gradient_not_finite(self) -> Float64[Tensor, ""]:
        """How many tokens have a gradient that is not finite, those of padding included."""
        bad = self.bad_gradients
        if bad is None:
            return self.none
        return bad.sum(dtype=torch.float64)

    def finite_gradient(self, name: str) -> Float64[Tensor, " tokens"] | None:
        """The gradient without the loss's scale; 0 where it is not finite or a token is masked."""
        gradient = self.gradient(name)
        if gradient is None:
            return None
        if isinstance(self._loss_scale, Tensor) or self._loss_scale != 1:
            gradient = gradient / self._loss_scale
        return torch.where(self.valid & finite(gradient), gradient, 0.0)

    @cached_property
    def inverse_squared_temperatures(self) -> Float64[Tensor, " tokens"] | float | None:
        """1 / T^2, by which a step on the logits changes the entropy; None where T is 1."""
        temperatures = [batch.scores.temperature for batch in self.batches]
        numbers = {value for value in temperatures if not isinstance(value, Tensor)}
        if len(numbers) == 1 and not any(isinstance(value, Tensor) for value in temperatures):
            (number,) = numbers
            if number == 1:
                return None
            return 1 / number**2
        spread = []
        for batch, temperature in zip(self.batches, temperatures, strict=True):
            if not isinstance(temperature, Tensor):
                temperature = device_number(temperature, self.valid.device)
            spread.append(temperature.double().expand(batch.mask.shape))
        # Padding has none.
        return torch.where(self.valid, flat(spread), 1.0).square().reciprocal()

    @cached_property
    def bonus_effects(self) -> Float64[Tensor, " tokens"] | None:
        """-c sum_i S_i^2 / T^2, c = -dL/dH: what an entropy bonus takes from the entropy; None
        without one."""
        return self._count_bonus_effects(self.finite_gradient("entropies"))

    @cached_property
    def gate_bonus_effects(self) -> Float64[Tensor, " tokens"] | None:
        """`bonus_effects` of an exact bonus at the gate, nats per unit gain; None without one."""
        return self._count_bonus_effects(self.entropy_gradient_added)

    @cached_property
    def entropy_gradient_added(self) -> Float64[Tensor, " tokens"] | None:
        """What an intervention added to dL/dH of each token; None: nothing."""
        added = self._join([batch.entropy_gradient_added for batch in self.batches])
        if added is None:
            return None
        return torch.where(self.valid & finite(added), added, 0.0) / self._loss_scale

    def _count_bonus_effects(self, gradient: Tensor | None) -> Tensor | None:
        squares = self._join([batch.scores.squared_scores for batch in self.batches])
        if gradient is None or squares is None:
            return None
        return self._divide_by_squared_temperatures(
            torch.where(self.valid, gradient * squares, 0.0)
        )

    @cached_property
    def kl_effects(self) -> Float64[Tensor, " tokens"] | None:
        """g_KL S_c / T^2: what the KL term takes, before an intervention; None where the loop did
        not give it apart."""
        gradient = self.finite_gradient("kl_penalty")
        if gradient is None:
            return None
        return self._divide_by_squared_temperatures(gradient.neg_().mul_(self["S_c"]))

    def _divide_by_squared_temperatures(self, effects: Tensor) -> Tensor:
        scale = self.inverse_squared_temperatures
        if scale is None:
            return effects
        return effects.mul_(scale)

    def influences(self, name: str) -> Float64[Tensor, " tokens"] | None:
        """g_t <grad log p_t, P h>, and what an entropy bonus adds, in nats on this rank; None: not
        measured. With g as it is before an intervention ("gated"), or behind it ("logprobs")."""
        if self.slopes is None:
            return None
        gradient = self.finite_gradient(name)
        if gradient is None:
            return None
        influences = -gradient * flat(self.slopes.logprobs)
        bonus = self.finite_gradient("entropies")
        if bonus is not None:
            influences = influences - bonus * flat(self.slopes.entropies)
        if name == "logprobs" and self.entropy_gradient_added is not None:
            influences = influences - self.entropy_gradient_added * flat(self.slopes.entropies)
        return torch.where(self.valid, influences, 0.0)

    @property
    def parts(self) -> tuple[bool, bool]:
        """Whether the KL term and an entropy bonus are known on this rank."""
        return self.kl_effects is not None, self.bonus_effects is not None

    @cached_property
    def all_effects(self) -> Float64[Tensor, " tokens"]:
        """What a token's update takes from the entropy, by every way the loss has to it."""
        effects = self.effects
        if self.factors is not None:
            behind = self.finite_gradient("logprobs")
            # Behind the gate arrives what passed it, and what the loss made of log-probs that did
            # not.
            if behind is None:
                effects = torch.where(self.kept, effects * self.factors, 0.0)
            else:
                effects = self._divide_by_squared_temperatures(behind.neg_().mul_(self["S_c"]))
        for bonus in (self.bonus_effects, self.gate_bonus_effects):
            if bonus is not None:
                effects = effects + bonus
        return effects

    def __contains__(self, name: str) -> bool:
        return name in self._layout.place

    def __getitem__(self, name: str) -> Float64[Tensor, " tokens"]:
        row: Tensor = self._rows[name]
        return row

    def rows(self, first: str, last: str) -> Float64[Tensor, "rows tokens"]:
        """The rows from one to another, both included; a view."""
        return self._values[self._layout.place[first] : self._layout.place[last] + 1]

    def select(self, chosen: Int[Tensor, " chosen"]) -> dict[str, Float64[Tensor, " chosen"]]:
        """The rows of some tokens alone, by name."""
        rows = self._values.index_select(1, chosen).unbind()
        return {name: rows[row] for name, row in self._layout.place.items()}

    @cached_property
    def intervention_effect(self) -> Float64[Tensor, ""]:
        """Sum of (f - 1) g S_c, and of what was added beside the factors: what the intervention
        adds to what the step takes from the entropy."""
        if self.factors is None:
            return self.none
        changed = torch.where(self.kept, self.effects * self.factors, 0.0) - self.effects
        added = self._join([batch.gradient_added for batch in self.batches])
        if added is not None:
            added = torch.where(self.valid & finite(added), added, 0.0) / self._loss_scale
            changed = changed - self._divide_by_squared_temperatures(added.mul_(self["S_c"]))
        if self.gate_bonus_effects is not None:
            changed = changed + self.gate_bonus_effects
        return changed.sum()

    @cached_property
    def covariances(self) -> Float64[Tensor, " tokens"]:
        """c_t = (log p - mean(log p)) (A - mean(A)), the means those of `centre`; arXiv:2505.22617,
        eq. 10.

        A token that does not count has one, too.
        """
        mean_logprob, mean_advantage = self.mean("log p"), self.mean("A")
        if self.centre is not None:
            logprob, advantage = self.centre
            mean_logprob = torch.where(logprob.isfinite(), logprob, mean_logprob)
            mean_advantage = torch.where(advantage.isfinite(), advantage, mean_advantage)
        return (self["log p"] - mean_logprob) * (self["A"] - mean_advantage)

    @cached_property
    def codes(self) -> Int[Tensor, " tokens"]:
        """3 (sign of A) + (sign of A S_c) + 4 of each token."""
        return self._codes_by(self["A"])

    @cached_property
    def change_codes(self) -> Int[Tensor, " tokens"]:
        """`codes`, with the sign of g where A is 0: a KL term moves such a token."""
        if self.basis == ADVANTAGES:
            return self.codes
        # A token that only an entropy bonus moves, or a KL term beside the gate, has neither: it
        # counts as positive.
        moved = torch.where(self["g"] == 0, 1.0, self["g"])
        return self._codes_by(torch.where(self["A"] == 0, moved, self["A"]))

    def _codes_by(self, signs: Tensor) -> Tensor:
        codes: Tensor = torch.add((signs * self["S_c"]).sign(), signs.sign(), alpha=3) + 4
        return codes.long()

    @cached_property
    def factors(self) -> Float64[Tensor, " tokens"] | None:
        """Factor of each token's gradient; None where no intervention was active."""
        if all(batch.gradient_factors is None for batch in self.batches):
            return None
        return flat(
            [b.mask if b.gradient_factors is None else b.gradient_factors for b in self.batches]
        ).double()

    @cached_property
    def kept(self) -> Bool[Tensor, " tokens"]:
        """True where the token's gradient takes part, whether or not the token is valid."""
        return flat([batch.keep_mask for batch in self.batches])

    @cached_property
    def one(self) -> Float64[Tensor, ""]:
        return device_number(1.0, self.count.device)

    @cached_property
    def none(self) -> Float64[Tensor, ""]:
        """0, a scalar; not to be changed in place."""
        return device_number(0.0, self.count.device)

    def total(self, name: str) -> Float64[Tensor, ""]:
        return self._totals[self._layout.place[name]]

    def mean(self, name: str) -> Float64[Tensor, ""]:
        return self._means[self._layout.place[name]]

    def product_sum(self, left: str, right: str) -> Float64[Tensor, ""]:
        """Sum of the products of two rows' deviations from their means."""
        return self._products[self._layout.place[left], self._layout.place[right]]

    def moments(self, name: str) -> tuple[Tensor, Tensor, Tensor]:
        """Count, mean and sum of squared deviations; zeros where the loop did not pass the row."""
        if name not in self:
            return self.none, self.none, self.none
        return self.count, self.mean(name), self.product_sum(name, name)

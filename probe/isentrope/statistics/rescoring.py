"""What an update did to the entropy: tokens are scored again after it, under the weights as they
are then.

- the step's own tokens (`rescore`): the observed change
- tokens that no update is fitted to (`unseen`): the change of the entropy itself
- the entropy's own gradient, taken in one of these passes, from which the next step is predicted
(`statistics/coupling.py`)"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from isentrope.guard import Guard, Stopwatch, is_of_signal_handler
from isentrope.scores import TokenScores
from isentrope.statistics.coupling import (
    OWN_WEIGHT,
    EntropyGradient,
    UnseenTokens,
    mean_entropy,
    scores_in,
)
from isentrope.statistics.influence import Slopes, TokenInfluence
from isentrope.statistics.tokens import TokenBatch
from isentrope_wire.errors import ConfigurationError, InputError

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from isentrope.statistics.calibration import SeveralOptimizers

RescoredTokens = TokenScores | Sequence[TokenScores]
Rescore = Callable[[], RescoredTokens]
T = TypeVar("T")


class AfterUpdate(NamedTuple):
    """What was measured after an update, on this rank and its device."""

    entropies: Sequence[Tensor] | None
    """Of the step's tokens, nats, one tensor per batch; None: they were not scored again."""
    unseen: Tensor | None
    """See `UnseenTokens.change`."""
    coupled: Tensor | None
    """See `EntropyGradient.change`."""
    slopes: Slopes | None
    """For the influence of each token."""


class Rescoring:
    """Scores again after each update; belongs to the training thread."""

    def __init__(
        self,
        coupling: EntropyGradient | None,
        guard: Guard,
        stopwatch: Stopwatch,
        warn: Callable[[str, str], None],
        influence_every: int = 0,
    ) -> None:
        """`coupling` takes the entropy's gradient, None: there is no coupled prediction;
        `stopwatch` has the probe's own time, which a forward pass of the model is not; `warn` logs
        a message once, by what it is about."""
        self._coupling, self._guard, self._stopwatch, self._warn = coupling, guard, stopwatch, warn
        if coupling is None:
            self._influence = None
        else:
            self._influence = TokenInfluence(coupling, influence_every)
        self._unseen = UnseenTokens()
        self.seconds = 0.0
        """That scoring again took, until someone sets it back."""

    def measure(
        self,
        batches: Sequence[TokenBatch],
        rescore: Rescore | None,
        unseen: Rescore | None,
        optimizer: Optimizer | SeveralOptimizers | None,
    ) -> AfterUpdate:
        """Score again what there is to score, as `Probe.step` was given it."""
        if _holds_averages(optimizer):
            self._warn(
                "averages",
                "A step was closed while the optimiser had averaged weights in place (its eval()):"
                " what such a step does to the entropy is not measured. Call optimizer.train()"
                " before probe.step.",
            )
            self._unseen = UnseenTokens()
            self._coupled(lambda coupling: coupling.skip_update())
            return AfterUpdate(None, None, None, None)
        coupled = self._coupled(lambda coupling: coupling.change(optimizer))
        has_rescore = rescore is not None or any(batch.rescore is not None for batch in batches)
        slopes = self._slopes(rescore, batches)
        after = None
        if has_rescore:
            after = self._own_tokens(rescore, batches, takes_gradient=unseen is None)
        if unseen is None:
            change = None
        else:
            change = self._unseen_change(unseen)
        self._coupled(lambda coupling: coupling.look_ahead())
        return AfterUpdate(after, change, coupled, slopes)

    @property
    def will_take_slopes(self) -> bool:
        """Whether the step that is open is to have the influence of each token."""
        return (
            self._coupling is not None
            and self._influence is not None
            and self._influence.is_due(ahead=1)
        )

    def _slopes(self, rescore: Rescore | None, batches: Sequence[TokenBatch]) -> Slopes | None:
        """Before another gradient is learnt: those of the prediction of this step."""
        if self._influence is None or self._coupling is None or not self._influence.is_due():
            return None
        has_all = rescore is not None or all(batch.rescore is not None for batch in batches)
        with self._scoring_again("measuring the influence of each token"):
            try:
                return self._influence.slopes(
                    batches, (lambda: scored_again(rescore, batches)) if has_all else None
                )
            except (ConfigurationError, RuntimeError) as error:
                if is_of_signal_handler(error):
                    raise
                self._influence = None
                self._warn("influence", f"The influence of each token is not measured: {error}")
        return None

    def _own_tokens(
        self, rescore: Rescore | None, batches: Sequence[TokenBatch], *, takes_gradient: bool
    ) -> Sequence[Tensor] | None:
        """Entropies after the update; of them the gradient for the next prediction, where no unseen
        tokens give it."""
        coupling = None
        if takes_gradient:
            coupling = self._due()
        with self._scoring_again("re-scoring a step"):
            after = entropies_after_update(
                rescore, batches, nullcontext if coupling is None else coupling.recorded
            )
            if coupling is not None:
                # A rank without tokens takes part in the backward pass of a model that the ranks
                # share.
                masks = [batch.mask for batch in batches] or [one.isfinite() for one in after]
                mean = mean_entropy(after, masks)
                self._coupled(lambda due: due.learn(mean, OWN_WEIGHT))
            return [one.detach() for one in after]
        return None

    def _unseen_change(self, unseen: Rescore) -> Tensor | None:
        """See `UnseenTokens.change`; the gradient for the next prediction is of the tokens that it
        will not be judged by."""
        coupling = self._due()
        with self._scoring_again("scoring unseen tokens"):
            with observing(), nullcontext() if coupling is None else coupling.recorded():
                scored = scores_in(unseen())
            gave_gradient = None
            if scored and coupling is not None:
                gave_gradient = self._unseen.learn_from(scored)
                mean = mean_entropy([part.entropies for part in scored], gave_gradient)
                self._coupled(lambda due: due.learn(mean, 1.0))
            return self._unseen.change(scored, gave_gradient)
        return None

    def _due(self) -> EntropyGradient | None:
        """What takes a gradient in this step, if anything does."""
        if self._coupling is not None and self._coupling.is_due:
            return self._coupling
        return None

    def _coupled(self, work: Callable[[EntropyGradient], T]) -> T | None:
        """Do a part of the coupled prediction; what can't be done ends it, and the theory's
        prediction goes on."""
        if self._coupling is not None:
            try:
                return work(self._coupling)
            # A lack of memory, too: what is observed must not be lost with it.
            except (ConfigurationError, RuntimeError) as error:
                if is_of_signal_handler(error):
                    raise
                self._coupling = None
                self._warn(
                    "coupling", f"No coupled prediction from here on, the theory's goes on: {error}"
                )
        return None

    @contextmanager
    def _scoring_again(self, what: str) -> Iterator[None]:
        """Another forward pass of the model is not the probe's own time, also where this probe
        scored it; `step` counts it, so it is taken off."""
        started, seconds = time.perf_counter(), self._stopwatch.seconds
        with self._guard.protect(what):
            yield
        took = time.perf_counter() - started
        self.seconds += took
        self._stopwatch.seconds = seconds - took


def _holds_averages(optimizer: Optimizer | SeveralOptimizers | None) -> bool:
    """Whether a schedule-free optimiser has put averages in the place of the weights that it
    updates, as for an evaluation."""
    groups = getattr(optimizer, "param_groups", [])
    return any(group.get("train_mode") is False for group in groups)


@contextmanager
def observing() -> Iterator[None]:
    """Score inside without gradient; the state of the random generators is restored, so that
    observing does not change the run."""
    devices = []
    if torch.cuda.is_initialized():
        devices = [torch.cuda.current_device()]
    with torch.no_grad(), torch.random.fork_rng(devices=devices):
        yield


def entropies_after_update(
    rescore: Rescore | None,
    batches: Sequence[TokenBatch],
    recorded: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> list[Tensor]:
    """What `scored_again` gives as entropies, in nats, of the batches' tokens; NaN where one was
    not scored again. Without batches, what was scored."""
    parts = scored_again(rescore, batches, recorded)
    if not batches:
        return [part.entropies for part in parts if part is not None]
    return [_entropies(part, batch) for part, batch in zip(parts, batches, strict=True)]


def scored_again(
    rescore: Rescore | None,
    batches: Sequence[TokenBatch],
    recorded: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Sequence[TokenScores | None]:
    """Scores of the step's tokens under the weights as they are, by batch; without batches, what
    was scored. `recorded` makes the context of `rescore`, or of the first batch's own. InputError:
    `rescore` returned something else, or the scores from before the update."""
    # A rank without tokens re-scores too: a model whose layers are shared out needs all ranks in
    # its forward pass.
    rescored: Any = []
    with observing():
        if rescore is not None:
            with recorded():
                rescored = rescore()
        for batch in batches if rescore is None else ():
            # One micro-batch: the others' activations are not kept beside its own.
            with recorded() if batch.rescore and not any(rescored) else nullcontext():
                rescored.append(batch.rescore and batch.rescore())
    parts = rescored
    if isinstance(rescored, TokenScores):
        parts = [rescored]
    if not batches:
        return parts or ()
    if not isinstance(parts, Sequence) or not all(
        isinstance(part, TokenScores | None) for part in parts
    ):
        raise InputError(
            f"rescore must return TokenScores, such as probe.score gives, got {rescored!r}."
        )
    expected = [list(batch.mask.shape) for batch in batches]
    if len(parts) != len(expected):
        raise InputError(
            f"rescore must return TokenScores for each of the {len(expected)} gate calls since the "
            f"last step, got {len(parts)}. Score every micro-batch again; a batch that was given "
            "up is left out by probe.discard()."
        )
    shapes = [
        shape if part is None else list(part.entropies.shape)
        for part, shape in zip(parts, expected, strict=True)
    ]
    if shapes != expected:
        raise InputError(
            "rescore must return TokenScores of the tokens gated in this step, shapes "
            f"{expected}, got {shapes}."
        )
    # Of any batch: a helper that keeps its scores may keep those of the last one.
    gated = {
        batch.scores.discriminator_scores.data_ptr()
        for batch in batches
        if batch.scores.entropies.numel()
    }
    if any(part is not None and part.discriminator_scores.data_ptr() in gated for part in parts):
        raise InputError(
            "rescore returned the scores that were gated, from before the update: every change"
            " would be 0. Let it score again; gradients are off during the call."
        )
    return parts


def rescore_of_calls(rescore: Rescore, calls: Sequence[int], of: int) -> Rescore:
    """A `rescore` for some `gate` calls, from one that may score all of them."""

    def rescored() -> RescoredTokens:
        parts = rescore()
        if isinstance(parts, Sequence) and len(parts) == of:
            return [parts[call] for call in calls]
        return parts

    return rescored


def _entropies(scores: TokenScores | None, batch: TokenBatch) -> Tensor:
    if scores is None:
        return torch.full_like(batch.scores.entropies, torch.nan)
    return scores.entropies

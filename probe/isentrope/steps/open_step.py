"""The step that is open on a rank: its tokens, what the loop logged, and the control it runs
under."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from isentrope.methods.base import Selection
from isentrope.methods.gate import DecisionOfGradient
from isentrope.statistics.tokens import TokenBatch, TokenLedger
from isentrope.steps.parts import Parts
from isentrope_wire.metrics import TOKEN_DISCARDED, TOKEN_NOT_RECORDED
from isentrope_wire.reports import ControlSnapshot


class OpenStep:
    """Collects what the loop hands over between two optimiser updates; belongs to the training
    thread."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.ledger = TokenLedger()
        self.logged: dict[str, float | Tensor] = {}
        """Since the last step. One dict for the whole run: its end sends what is left."""
        self.awaits_gate = False
        """Whether tokens were scored that `gate` was not given."""
        self.gated = self.has_gated = False
        """Whether `gate` was called in the open step, and in any."""
        self.bypassed = False
        """Whether steps were closed, and none has called `gate`."""
        self.ranks_gate: bool | None = None
        """Whether tokens of any of several ranks have passed it, as rank 0 knew when the step
        began; None: not known."""
        self._begun_under: ControlSnapshot | None = None

    def note_gate(self) -> None:
        """Note that `gate` was called."""
        self.awaits_gate = self.bypassed = False
        self.gated = self.has_gated = True

    def begin(self) -> None:
        """Begin a step unless it has begun: the only moment at which the active control may
        change."""
        control, ranks, hold = self._parts.control, self._parts.ranks, self._parts.hold
        if not control.open_step():
            return
        start = ranks.begin_step(self._parts.transport.requested_control())
        if not ranks.alone:
            self.ranks_gate = start.has_gated
            self.bypassed = start.has_gated is False and not self.has_gated
        # A process on its own whose step gates nothing has nothing to apply a control to: it waits.
        if self.gated or self.bypassed or not ranks.alone:
            control.decide(start.requested, now=start.now, bypassed=self.bypassed)
        active = control.active
        if active is not self._begun_under or active.control.hold is not None:
            if ranks.alone:
                action = hold.decide(active)
            else:
                action = start.action
            hold.begin_step(active, action)
            self._begun_under = active

    def select(self, batch: TokenBatch) -> tuple[Tensor, DecisionOfGradient | None]:
        """Record a micro-batch with what the active control selects in it: the factors of its
        tokens' gradients, and those of a method that decides again in backward."""
        source, selection = self._parts.basis.select(self._parts.hold.control, batch)

        def apply(selection: Selection) -> TokenBatch:
            return replace(
                batch,
                gradient_factors=selection.factors,
                gradient_added=selection.added,
                entropy_gradient_added=selection.added_to_entropies,
                selected=selection.selected,
                threshold_source=source,
            )

        self.ledger.add(apply(selection))
        select_again = selection.in_backward
        if select_again is None:
            return selection.factors, None
        return selection.factors, self._select_in_backward(select_again, apply)

    def _select_in_backward(
        self,
        select_again: Callable[[Tensor], Selection],
        apply: Callable[[Selection], TokenBatch],
    ) -> DecisionOfGradient:
        """Replace the batch recorded last by what is decided from the loss's gradient."""
        batches, place = self.ledger.batches, len(self.ledger.batches) - 1
        guard, stopwatch = self._parts.guard, self._parts.stopwatch

        def read_decision(gradient: Tensor) -> Selection | None:
            with guard.protect("selecting by the loss's gradient", stopwatch):
                decision = select_again(gradient)
                if place >= 0:
                    batches[place] = apply(decision)
                return decision
            return None

        return read_decision

    def take_batches(self) -> tuple[TokenBatch, ...]:
        """The micro-batches that the update was made of; the next step starts without any."""
        ledger = self.ledger
        if not ledger.calls and not ledger.discarded:
            return ()
        if ledger.overflowed:
            self.logged[TOKEN_NOT_RECORDED] = float(ledger.tokens)
        batches = ledger.trained()
        if ledger.discarded:
            self.logged[TOKEN_DISCARDED] = float(ledger.discarded)
            ledger.discarded = 0
        return batches

    def discard(self) -> None:
        """Drop the micro-batches: the loop makes no update of them."""
        self.awaits_gate = self.gated = False
        self.ledger.discard()

    def end(self) -> None:
        """Let the next step begin. What was scored after the update is not meant for a gate."""
        self.awaits_gate = self.gated = False

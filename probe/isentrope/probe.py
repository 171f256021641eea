"""The probe: score -> gate -> report. Attaches to any torch training loop.

    probe = isentrope.Probe(name="countdown", project="demo")
    ...
    scores = probe.score(logits, token_ids, temperature=1.0)
    logprobs = probe.gate(scores, advantages, mask)          # same values; gradient only where kept
    loss = -(advantages * logprobs)[mask].mean(); loss.backward(); optimizer.step()
    probe.log({"reward/mean": rewards.mean()})
    probe.step(step, optimizer, rescore=lambda: probe.score(model(ids), token_ids))
    ...
    probe.finish()

It opens no socket, waits for no device and keeps no logits. With no intervention active `gate`
returns the very tensor it was given. Reports go to a folder on disk, from where a side process
ships them; controls come back the same way and change only between two steps.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

import torch
from torch import Tensor

from isentrope import inputs
from isentrope.checkpoint import resume, state_of
from isentrope.client.inline import RunView
from isentrope.config import Coupling, ProbeConfig, ThresholdSource
from isentrope.distributed import Ranks, ranks_of
from isentrope.lifecycle import RunEnd, announce, begin_run, error_text, page_of
from isentrope.methods.gate import gated_logprobs
from isentrope.methods.targets import adds_to_entropies
from isentrope.scores import (
    TokenScores,
    linear_token_scores,
    sharded_token_scores,
    token_scores,
)
from isentrope.scores.layouts import Packing
from isentrope.scores.linear_heads import AdaptedWeight
from isentrope.scores.loss_gradient import LossGradient
from isentrope.scores.token_scores import scores_for_gate
from isentrope.statistics.moments import threshold_sums
from isentrope.statistics.rescoring import Rescore
from isentrope.statistics.samples import completions_of
from isentrope.statistics.texts import Decode, Tokenizer, TokenTexts
from isentrope.statistics.tokens import TokenBatch, detached
from isentrope.steps.closing import StepCloser, Update
from isentrope.steps.open_step import OpenStep
from isentrope.steps.parts import assemble_parts
from isentrope.transport.spool import open_transport
from isentrope.transport.transport import Transport
from isentrope_wire.control import Control, Method
from isentrope_wire.errors import InputError
from isentrope_wire.reports import StepReport

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.optim import Optimizer

FLOAT = {float}
T = TypeVar("T")
MOST_KNOWN_NAMES = 10_000
"""Names of logged scalars that are remembered as checked; a loop may make a new one in each
step."""


class Probe:
    """Measures, gates and reports one rank of one run. Not thread-safe: it belongs to the training
    thread."""

    def __init__(
        self,
        name: str | None = None,
        project: str | None = None,
        config: object = None,
        *,
        control: Control | None = None,
        hold: Mapping[str, object] | float | str | None = None,
        run_id: str | None = None,
        planned_steps: int | None = None,
        mode: str | None = None,
        threshold_source: ThresholdSource = "auto",
        coupling: Coupling | None = None,
        coupling_samples: int | None = None,
        coupling_every: int = 1,
        influence_every: int = 0,
        tags: Sequence[str] = (),
        group: ProcessGroup | None = None,
        counts: bool = True,
        tokenizer: Tokenizer | Decode | None = None,
        trackers: object = None,
        transport: Transport | None = None,
    ) -> None:
        """
        Args:
            name: the run's name. Default: `ISENTROPE_NAME`, or "run".
            project: what it belongs to. Default: `ISENTROPE_PROJECT`, or "default".
            config: the run's hyper-parameters, shown with it; at most 256 KiB as JSON.
            control: the intervention the run starts with. Default: none.
            hold: the entropy to hold, in the place of the control's: a number of nats such as 0.46,
                a share of the early level such as "75%", or the field `hold` of a control.
            run_id: continue this run. Default: `ISENTROPE_RUN_ID`, or a new one; all ranks take
                rank 0's.
            planned_steps: for the progress shown.
            mode: online, offline or disabled. Default: `ISENTROPE_MODE`, or online.
            threshold_source: see `ProbeConfig.threshold_source`.
            coupling: predict each step from the entropy's own gradient, which needs an `optimizer`
                and scores after the update in `step`: by the weights of the model's last block
                ("last_block"), or by all ("model"). Default: `ISENTROPE_COUPLING`, or none: from
                the theory of free logits.
            coupling_samples: completions that this gradient is taken from, where `attach` or the
                reference trainer chooses them: more are truer and cost more. Default: their own
                share. A loop of its own gives as many as it likes to `step` as `unseen`.
            coupling_every: steps from one such gradient to the next: one more backward pass over
                what is scored.
            influence_every: steps from one measurement of each token's influence on the entropy to
                the next, with `coupling="model"` and a `rescore` of all tokens: two more calls of
                it. 0: never.
            tags: words to find the run by; at most 50 of 100 characters.
            group: the ranks that gate tokens of one step; every one of them builds a probe.
                Default: the default process group of torch.distributed, where it is initialised.
            counts: False on a rank whose tokens another rank of the group has, too, and counts:
                then this one gates them and takes no part in the report. Not on rank 0.
            tokenizer: its `decode` (or a function of ids -> text in its place) gives the texts of
                the top contributing tokens, and of rollouts around them; both are reported.
                Default, and with `ISENTROPE_TEXTS=off`: no text is, only the ids of the top
                contributing tokens.
            trackers: a tracker whose active run gets the scalars too, as `isentrope/...`: "wandb",
                "trackio", "mlflow", "tensorboard" or "tensorboard:FOLDER", a run of theirs, a
                SummaryWriter, a function of (step, scalars); or several. Default:
                `ISENTROPE_TRACKERS`, or none.
            transport: where reports go instead of the spool (tests).

        Raises:
            ConfigurationError: a setting that can't work.
        """
        texts = TokenTexts(tokenizer)
        ranks = ranks_of(group)
        if ranks is None:
            rank_and_world_size = None
        else:
            rank_and_world_size = (ranks.rank, ranks.size)
        self.config, initial, started = begin_run(
            ranks or Ranks(),
            lambda: ProbeConfig.read_environment(
                name=name,
                project=project,
                run_id=run_id,
                mode=mode,
                planned_steps=planned_steps,
                threshold_source=threshold_source,
                coupling=coupling,
                coupling_samples=coupling_samples,
                coupling_every=coupling_every,
                influence_every=influence_every,
                rank_and_world_size=rank_and_world_size,
                trackers=trackers,
                control=control,
                hold=hold,
                counts=counts,
                config=config,
                tags=tags,
            ),
        )
        page = ""
        is_announced = transport is None
        if transport is None:
            transport = open_transport(
                started,
                mode=self.config.mode,
                home=self.config.home,
                grpc_target=self.config.grpc_target,
            )
            page = page_of(self.config)
        self._parts = assemble_parts(self.config, initial, ranks or Ranks(), transport, texts, page)
        self._control, self._hold = self._parts.control, self._parts.hold
        self._ranks, self._transport = self._parts.ranks, self._parts.transport
        self._reports, self._guard = self._parts.reports, self._parts.guard
        self._stopwatch = self._parts.stopwatch
        self._open = OpenStep(self._parts)
        self._end = RunEnd(self._parts, self._open.logged)
        self._closer = StepCloser(self._parts, self._open)
        self._gating = self._guard.protect("gating a batch", self._stopwatch)
        # Without memory the loop may have a way out, and would have needed it without a probe.
        self._scoring = self._guard.protect(
            "scoring a batch", self._stopwatch, passes=torch.OutOfMemoryError
        )
        self._logging = self._guard.protect("logging scalars", self._stopwatch)
        self._closing = self._guard.protect("closing a step")
        self._checked_names: set[str] = set()
        """Of logged scalars, at most MOST_KNOWN_NAMES."""
        self._process = os.getpid()
        self.reports_scalars_only = False
        """Set where nothing is meant to pass the gate, and no warning is due."""
        if is_announced:
            announce(self.config)

    def __repr__(self) -> str:
        about = self.config
        return (
            f"Probe(run_id={about.run_id!r}, project={about.project!r}, mode={about.mode!r},"
            f" rank={about.rank}, step={self._control.last_step},"
            f" control={str(self.control.method)!r})"
        )

    @property
    def run_id(self) -> str:
        """What the server, the CLI and the pages call this run."""
        return self.config.run_id

    @property
    def control(self) -> Control:
        """The active control, as it was pushed; a held entropy moves its thresholds from step to
        step."""
        return self._control.active.control

    @property
    def measures_influence(self) -> bool:
        """Whether the step that is open is to have each token's influence, for which its `rescore`
        scores all tokens."""
        return self._closer.measures_influence

    @property
    def last_step(self) -> int | None:
        """Number of the step closed last, by the checkpoint's run where this one continues it. None
        before the first."""
        return self._control.last_step

    @property
    def latest(self) -> StepReport:
        """The last report that is complete, e.g. for a progress bar; it may lag a step behind.
        Before the first, and where none is built (mode disabled), one of step -1 without
        scalars."""
        return self._reports.latest or StepReport(step=-1, recorded_at=0.0)

    def show(self) -> RunView:
        """The run as a picture, for the last line of a notebook's cell: health line and chart of
        the newest steps, at most 500. It needs no server. Elsewhere it prints as the health
        line."""
        about = self.config
        return self._reports.history.view(f"{about.name}  {about.run_id}", page_of(about))

    def score(
        self,
        logits: Tensor,
        token_ids: Tensor,
        *,
        temperature: float | Tensor = 1.0,
        entropy_gradient: bool = False,
    ) -> TokenScores:
        """Score sampled tokens: `isentrope.scores.token_scores`, plus a check of the values at the
        first call.

        Args:
            logits: [..., vocabulary]; row t is the distribution token_ids[t] was drawn from.
            token_ids: [...], integer.
            temperature: T of the sampler: a number, or a tensor that broadcasts to the tokens'
                shape, such as [batch, 1].
            entropy_gradient: let `entropies` carry gradient too, for a loss with an entropy term,
                and compute `squared_scores`.

        Returns:
            Scores of the token ids' shape; `logprobs` is differentiable.

        Raises:
            InputError: in the first step: shapes or types that cannot be meant, a token id outside
                the vocabulary, logits that are NaN in every row. In later steps what can't be
                scored is NaN, counted in `probe/failures` and logged once; ids on an accelerator
                are not looked at any more, which would wait for the device.
        """
        return self._scored(
            lambda: token_scores(logits, token_ids, temperature, entropy_gradient=entropy_gradient),
            logits,
            token_ids,
            lambda: logits.shape[-1],
            entropy_gradient,
        )

    def score_hidden(
        self,
        hidden: Tensor,
        lm_head_weight: Tensor | AdaptedWeight,
        token_ids: Tensor,
        *,
        bias: Tensor | None = None,
        temperature: float | Tensor = 1.0,
        softcap: float | None = None,
        scale: float = 1.0,
        entropy_gradient: bool = False,
        logits_dtype: torch.dtype | None = None,
    ) -> TokenScores:
        """Score sampled tokens without holding their logits:
        `isentrope.scores.linear_token_scores`, which says more of the arguments, plus `score`'s
        check. Of hidden states [..., width], a head's weight [vocabulary, width] and bias
        [vocabulary], and token ids [...], whose shape the scores have; entropies in nats.

        Raises:
            InputError: as for `score`.
        """
        if isinstance(lm_head_weight, AdaptedWeight):
            weight = lm_head_weight.base
        else:
            weight = lm_head_weight
        return self._scored(
            lambda: linear_token_scores(
                hidden,
                lm_head_weight,
                token_ids,
                bias,
                temperature,
                softcap,
                scale,
                entropy_gradient=entropy_gradient,
                logits_dtype=logits_dtype,
            ),
            hidden,
            token_ids,
            lambda: weight.shape[0],
            entropy_gradient,
        )

    def score_sharded(
        self,
        logits_shard: Tensor,
        token_ids: Tensor,
        *,
        start: int,
        group: ProcessGroup | None = None,
        temperature: float | Tensor = 1.0,
        entropy_gradient: bool = False,
    ) -> TokenScores:
        """Score sampled tokens whose vocabulary is split over ranks:
        `isentrope.scores.sharded_token_scores`, which says more of the arguments, plus `score`'s
        check. Of this rank's slice of the logits [..., columns], whose first column is token
        `start`, and token ids [...] of the whole vocabulary; the scores have their shape and are
        the same on every rank of `group`.

        Raises:
            InputError: as for `score`.
        """
        return self._scored(
            lambda: sharded_token_scores(
                logits_shard,
                token_ids,
                start,
                temperature,
                group=group,
                entropy_gradient=entropy_gradient,
            ),
            logits_shard,
            token_ids,
            lambda: None,
            entropy_gradient,
        )

    def _scored(
        self,
        score: Callable[[], TokenScores],
        source: Tensor,
        token_ids: Tensor,
        vocabulary: Callable[[], int | None],
        entropy_gradient: bool,
    ) -> TokenScores:
        """What `score` gives, checked. Once a step was closed a failure is counted, and NaN is
        given; where only the check fails, the scores as they are."""
        if not self._guard.settled:
            with self._stopwatch:
                return self._checked(self._score_for_gate(score, entropy_gradient), vocabulary())
        scores: TokenScores | None = None
        with self._scoring:
            scores = self._score_for_gate(score, entropy_gradient)
            return self._checked(scores, vocabulary())
        if scores is None:
            return inputs.not_scored(source, token_ids)
        return scores

    def _score_for_gate(
        self, score: Callable[[], TokenScores], entropy_gradient: bool
    ) -> TokenScores:
        """The scores, with the entropy's gradient where the gate is to add to it. A hold's decision
        about the open step is made in its first `gate`: here counts that of the step before."""
        if adds_to_entropies(self._hold.control) or adds_to_entropies(self.control):
            return scores_for_gate(score, entropy_gradient)
        return score()

    def _checked(self, scores: TokenScores, vocabulary: int | None) -> TokenScores:
        self._open.awaits_gate |= scores.logprobs.numel() > 0
        inputs.check_scored(scores, vocabulary, first=not self._guard.settled)
        self._hold.vocabulary = vocabulary
        return scores

    def first_pass(
        self,
        scores: TokenScores | Sequence[TokenScores],
        mask: Tensor | Sequence[Tensor] | None = None,
    ) -> None:
        """Count thresholds from the whole batch that the next step or steps are made from.

        Call it once per generation, on every rank, with the scores of the old log-probs' forward
        pass; it counts until the next call.

        Args:
            scores: of all tokens of this rank, one or several parts; an empty list on a rank
                without tokens.
            mask: one per part, True (or non-zero) where the token counts. None: everywhere.

        Raises:
            InputError: shapes that don't fit; before the first step has closed only, later it is
                counted and logged.
        """
        if self._inactive():
            return
        with self._guard.protect("reading a first pass", self._stopwatch):
            self._open.awaits_gate = False
            sums: Tensor | None = None
            try:
                parts, masks = inputs.first_pass_parts(scores, mask)
                if parts:
                    sums = threshold_sums(parts, masks)
            finally:
                # Also when this rank's can't be read: the others wait for it.
                self._ranks.first_pass(sums)

    def gate(
        self,
        scores: TokenScores,
        advantages: Tensor,
        mask: Tensor | None = None,
        *,
        logprobs: Tensor | None = None,
        old_logprobs: Tensor | None = None,
        sampler_logprobs: Tensor | None = None,
        ref_logprobs: Tensor | None = None,
        groups: Tensor | int | None = None,
        old_entropies: Tensor | None = None,
        completions: Mapping[str, Tensor | Sequence[object]] | None = None,
        cu_seqlens: Tensor | Sequence[int] | None = None,
        rescore: Callable[[], TokenScores] | None = None,
    ) -> Tensor:
        """Record a micro-batch, and let gradient through only where, and as much as, the active
        control allows.

        What the loss makes of each token is read from its own gradient when backward passes the
        returned tensor: compute the loss from that one. Every backward counts, as it does for the
        parameters.

        Args:
            scores: of `score`, shape [batch, tokens] (or any).
            advantages: same shape, or one per sequence: [batch] or [batch, 1]. A token whose
                advantage is not finite is counted in `token/not_finite`, and excluded from all else
                that is measured.
            mask: same shape, True (or non-zero) where the token counts. None: everywhere.
                Floating-point masks hold 0 and 1; other numbers are an error in the first step.
            logprobs: the loop's own log-probs of these tokens, same shape, where the loss is not
                computed from those of `scores`: they are gated and returned. Default:
                `scores.logprobs`.
            old_logprobs: log-probs under the policy that the loss's ratio is taken to, same shape.
            sampler_logprobs: log-probs that the sampler drew the tokens with, same shape. The
                methods that look at the importance ratio take it to the old policy, or to the
                sampler where no old log-probs are passed.
            ref_logprobs: log-probs under the reference policy of the loss's KL term, same shape.
                Where they require grad (`.requires_grad_()`, and the term is computed from this
                very tensor), the term's part of the prediction is reported apart: it is a function
                of log p_ref - log p, whose two gradients are opposite.
            groups: which sequences are rollouts of one prompt, for the covariance within groups and
                the method `rank_reward`: a whole number per sequence, [batch], the same on every
                rank; or how many rows that follow each other make a group.
            old_entropies: entropies of the old policy at the same positions, same shape, in nats,
                for the method `entropy_ratio_clip`.
            completions: what is shown with a rollout, one per sequence: "reward", [batch], and at
                most four parts of it, "reward/NAME", the same on every rank; "truncated", [batch],
                whether the length limit cut it; "prompt_ids", [batch,
                tokens], negative on padding, of which the last 96 are kept; "answer", the expected
                one, a list of texts of which 48 bytes are kept. The last two only with a tokenizer.
            cu_seqlens: where each sequence begins in tokens that are packed end to end, and the
                last one ends, [batch + 1], best on the CPU. All other arguments stay packed,
                [tokens]; what there is one of per sequence is [batch].
            rescore: as that of `step`, for this micro-batch alone: `step` calls it where it is not
                given one itself. What it refers to is kept until then. Micro-batches without one
                are not part of the observed change.

        Returns:
            The log-probs with the same values. The very same tensor when no intervention is active.

        Raises:
            InputError: shapes that don't fit, or scores that are NaN where the mask counts them;
                before the first step has closed only, later it is counted and logged. `groups`,
                `ref_logprobs` and `completions`, without which a loop can do, then count as not
                known, and the batch is gated all the same.
        """
        if logprobs is None:
            own = scores.logprobs
        else:
            own = logprobs
        if self._is_unheard():
            return own
        with self._gating:
            self._open.note_gate()
            inputs.check_not_in_backward()
            self._open.begin()
            inputs.matching("logprobs", own, scores.logprobs)
            packing, sequences = None, own
            if cu_seqlens is not None:
                packing = Packing.read(cu_seqlens, own)
                sequences = packing.empty_rows()
            gradient = LossGradient(self._guard)
            gradient.watch("entropies", scores.entropies)
            kept = detached(scores)
            logprobs = own.detach()
            advantages = inputs.broadcast_advantages(advantages, logprobs, packing)
            given_mask = mask
            mask = inputs.valid_mask(given_mask, logprobs)
            if not self._guard.settled:
                inputs.check_first_mask(given_mask)
                inputs.check_first_values(kept, mask)
                self._parts.warnings.warn_once(
                    "advantages", inputs.not_finite_advantages(advantages, mask)
                )
            reference = self._optional(
                "ref_logprobs",
                lambda: inputs.require_token_shape("ref_logprobs", ref_logprobs, own),
            )
            if reference is not None:
                gradient.watch("kl_penalty", reference, negated=True)
            if old_logprobs is not None:
                # With a ratio to the old policy the sampler serves the diagnosis alone.
                sampler_logprobs = self._optional(
                    "sampler_logprobs",
                    lambda: inputs.require_token_shape(
                        "sampler_logprobs", sampler_logprobs, logprobs
                    ),
                )
            differences = inputs.differences_of(
                logprobs, {"old_logprobs": old_logprobs, "sampler_logprobs": sampler_logprobs}
            )
            of_reference = inputs.differences_of(logprobs, {"reference": reference})
            old = inputs.require_token_shape("old_entropies", old_entropies, logprobs)
            entropies = scores.gate_entropies
            if entropies is not None and (
                not entropies.requires_grad or entropies.shape != own.shape
            ):
                entropies = None
            batch = TokenBatch(
                kept,
                advantages,
                mask,
                next((difference.exp() for difference in differences.values()), None),
                differences=differences | of_reference,
                completions=self._optional(
                    "completions",
                    lambda: completions_of(completions, sequences, texts=self._parts.texts.known),
                )
                or {},
                token_ids=self._optional(
                    "token_ids",
                    lambda: inputs.require_token_shape("token_ids", scores.token_ids, logprobs),
                ),
                gradient=gradient,
                takes_entropy_gradient=entropies is not None,
                old_entropies=None if old is None else old.detach(),
                group_ids=self._optional(
                    "groups",
                    lambda: inputs.group_ids_of(
                        groups, sequences, self.config.rank, self._open.ledger.tokens
                    ),
                ),
                rescore=rescore,
                packing=packing,
                step=self._control.next_step,
                rank=self.config.rank,
                call=self._open.ledger.calls,
                first_position=self._open.ledger.tokens,
            )
            if self._hold.control.method == Method.NONE:
                self._open.ledger.add(batch)
                gradient.watch("gated", own)
                return own
            gated = gated_logprobs(own, *self._open.select(batch), entropies=entropies)
            gradient.watch("logprobs", own)
            gradient.watch("gated", gated)
            return gated
        return own

    def discard(self) -> None:
        """Drop what was gated since the last step: the loop makes no update of it, as after a
        gradient that is not finite, a lack of memory or an interruption.

        Call it where the loop throws the batch away, beside `optimizer.zero_grad()`. The next
        report counts the tokens in `token/discarded`. What was logged stays for that report.
        """
        if self._inactive():
            return
        with self._guard.protect("discarding a batch", self._stopwatch):
            self._open.discard()

    def log(self, scalars: Mapping[str, float | Tensor]) -> None:
        """Add scalars to the report of the step that is open. Tensors of one element are read
        later, off this thread.

        What is logged after the last step, such as a final evaluation, is reported by `finish` as
        of that step. Where a value is no number, the others of the same call count all the same.
        """
        if self._is_unheard():
            return
        started = time.perf_counter()
        if (
            type(scalars) is dict
            and self._checked_names.issuperset(scalars)
            and {*map(type, scalars.values())} == FLOAT
        ):
            # As nearly all calls are, and `loggable` would give each value back.
            self._open.logged |= scalars
            self._stopwatch.seconds += time.perf_counter() - started
            return
        with self._logging:
            if not isinstance(scalars, Mapping):
                raise InputError(
                    f"log takes names and numbers, such as {{'reward/mean': 0.4}}; got {scalars!r}."
                )
            problem: InputError | None = None
            for name, value in scalars.items():
                try:
                    self._open.logged[name] = inputs.loggable(name, value)
                except InputError as error:
                    problem = problem or error
            if problem is not None:
                raise problem
            if len(self._checked_names) < MOST_KNOWN_NAMES:
                self._checked_names.update(scalars)

    def step(
        self,
        step: int,
        optimizer: Optimizer | Sequence[Optimizer] | None = None,
        rescore: Rescore | None = None,
        *,
        unseen: Rescore | None = None,
        learning_rates: inputs.LearningRates | None = None,
        loss_scale: float | Tensor = 1.0,
        clip_factor: float | Tensor | None = None,
    ) -> None:
        """Close a step after its optimiser update, and send its report.

        Args:
            step: the number of the optimiser update, counted from 0 or 1. It may go backwards (a
                resume): nothing is overwritten, and a warning is logged once.
            optimizer: its beta_1 (or momentum) makes the prediction momentum-aware, and its
                learning rate is followed: call `scheduler.step()` after this, for the rate is that
                of the update just made. Of several, as with Muon for the matrices and AdamW for the
                rest, a list: what counts is the group with the most trainable parameters.
            rescore: called under no_grad, or with gradient for a coupled prediction; returns
                TokenScores of the same tokens under the updated policy, one per `gate` call in the
                same order (or the only one). Gives the observed entropy change. Default: what the
                `gate` calls were given.
            unseen: called likewise; returns TokenScores of tokens that no update is fitted to,
                without padding: of a few dozen completions of other prompts, say, drawn every ten
                steps from the policy as it is. Gives the change of the entropy itself, where the
                same tokens were scored in the step before; a list may hold the old ones and the new
                ones when they are renewed. Gain, interval and coupled prediction are then of these.
            learning_rates: what the update was made with, where a scheduler has been called since.
                Default: the optimiser's as they are.
            loss_scale: what the loss was multiplied by before backward, and the gradients divided
                by after it, as a GradScaler does: its `get_scale()` before `update()`. A number, or
                a tensor of one element.
            clip_factor: what clipping multiplied the update's gradient by, one number or a tensor
                of one, which is read off this thread: `(max_norm / (norm + 1e-6)).clamp(max=1)`
                with the norm that `torch.nn.utils.clip_grad_norm_` returned. Default: 1.
        """
        if self._is_unheard():
            return
        with self._closing:
            update = Update(
                step=step,
                optimizer=optimizer,
                rescore=rescore,
                unseen=unseen,
                learning_rates=learning_rates,
                loss_scale=loss_scale,
                clip_factor=clip_factor,
            )
            self._closer.close(
                update, expects_gate=not self.reports_scalars_only, is_over=self._end.finished
            )
            self._end.step_closed()

    def state_dict(self) -> dict[str, Any]:
        """What the probe keeps from step to step, for the training's checkpoint. Call it after
        `step` and before the next `gate`; it may wait for the device and the last report.

        Returns:
            Plain values, as torch.save and JSON take them. Empty where it failed; to load that is
            to start afresh.
        """
        state: dict[str, Any] = {}
        if not self._inactive():
            with self._guard.protect("collecting the probe's state"):
                state = state_of(self._parts)
        return state

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Continue from a checkpoint, as a new attempt of the run. Call it before the first `gate`,
        on every rank.

        The checkpoint's control is active from the first step on, unless a newer version was
        requested since; it is not applied, nor acknowledged, a second time. A run of another id
        continues with what was learnt, but under its own control, which it has announced. Rank 0's
        state counts for all.

        Args:
            state: what `state_dict` gave, on this rank or on rank 0. None or empty: this rank has
                none.

        Raises:
            CheckpointError: on all ranks, when one of them can't continue from what it was given:
                it is something else, of another layout or damaged, or the probe has begun a step.
                The probe is then as it was.
        """
        if not self._inactive():
            resume(self._parts, state, self._transport.requested_control())

    def finish(self, status: str = "finished", error: str = "") -> None:
        """End the run. What was logged since the last step is reported as of that step, and what is
        spooled is delivered without this process. Safe to repeat: the first call counts.

        A process that ends without it ends the run with the status `failed` after an error that
        nothing handled, else `ended`; a process that is killed sends nothing
        (`isentrope.lifecycle`).

        Args:
            status: of the run, `finished` or `failed`.
            error: what ended it; empty where nothing did.
        """
        if not self._inactive():
            self._end.finish(status, error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.finish()
        else:
            self.finish("failed", error_text(error))

    def _optional(self, name: str, read: Callable[[], T | None]) -> T | None:
        """An input for the diagnosis alone; None where it can't be read, for no control may fail by
        it."""
        with self._guard.protect(f"reading {name}"):
            return read()
        return None

    def _inactive(self) -> bool:
        """Whether this is a forked child (a DataLoader worker, say), which must not report for its
        parent."""
        return os.getpid() != self._process

    def _is_unheard(self) -> bool:
        """Whether a call of the loop is ignored; warns once, as after the run's end."""
        inactive = self._inactive()
        if inactive:
            self._parts.warnings.warn_once(
                "forked",
                f"This process ({os.getpid()}) was forked from the one that built the Probe"
                f" ({self._process}), which alone reports: what is logged, gated and stepped here"
                " is not reported, and no control acts on it. Build the Probe in the process that"
                " trains.",
            )
        elif self._end.finished:
            self._parts.warnings.warn_once(
                "ended",
                "The run has ended: what is logged, gated and stepped from now on is not reported."
                " Another training needs a new Probe. A loop of your own calls finish last; a"
                " trainer's run ends with train(), and eval_strategy='steps' evaluates within it,"
                " after the last step, too.",
            )
        return inactive

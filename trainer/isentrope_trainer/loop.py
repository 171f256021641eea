"""The training loop: sample, judge, then score, gate, learn and report, once for each optimiser
update.

Read it second, after `isentrope/probe.py`: `update` is the worked example of the probe. A batch of
rollouts is collected with the weights as they are (`experience.py`); each update takes its own
share of the batch's prompts. With one update a batch, training is strictly on-policy; with more,
the log-probs from before the first of them stay what ratios are taken to."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor
from torch.nn.utils import clip_grad_norm_

import isentrope
from isentrope_trainer.algorithms.advantages import zero_advantage_groups
from isentrope_trainer.algorithms.losses import aggregated, reference_kl, surrogate, value_loss
from isentrope_trainer.experience import Batch, Panel, collect, evaluate, score
from isentrope_trainer.models.policy import Policy
from isentrope_trainer.settings import TrainingConfig
from isentrope_trainer.tasks.base import Task
from isentrope_trainer.training_state import Ranks, TrainingState
from isentrope_wire import metrics


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a progress bar shows of a step."""

    step: int
    reward_mean: float
    step_seconds: float


def train(
    policy: Policy,
    task: Task,
    probe: isentrope.Probe,
    config: TrainingConfig,
    on_step: Callable[[StepResult], None] = lambda result: None,
    *,
    state: TrainingState | None = None,
    go_on: Callable[[TrainingState], bool] = lambda state: True,
) -> None:
    """Reinforce `policy` in place. The same task, seed and starting weights give the same run, bit
    for bit. `on_step` is called after each step's report, `go_on` before each batch, the moment for
    a checkpoint: False ends the training. Given a state, it continues from there, in place."""
    if state is None:
        state = TrainingState(policy, config, Ranks())
    policy.model.train()
    panel = Panel(task)
    while state.step < config.steps and go_on(state):
        # With several updates a batch, at the first batch after each multiple of `every`.
        if (
            config.evaluation is not None
            and state.step % config.evaluation.every < config.updates_per_batch
        ):
            probe.log(evaluate(policy, task, config.evaluation))
        started = time.perf_counter()
        batch = collect(state, task, probe, config)
        # An update with the whole batch takes it as it is: a copy would be read again.
        for share in (
            batch.shares(config.updates_per_batch) if config.updates_per_batch > 1 else [batch]
        ):
            on_step(
                update(
                    state, share, probe, config, panel, max_tokens=task.max_tokens, started=started
                )
            )
            started = time.perf_counter()


def update(
    state: TrainingState,
    batch: Batch,
    probe: isentrope.Probe,
    config: TrainingConfig,
    panel: Panel,
    *,
    max_tokens: int,
    started: float,
) -> StepResult:
    """One optimiser update and its report; the step began at `started`, in seconds of
    `time.perf_counter`."""
    rollouts, mask, loss_config = batch.rollouts, batch.rollouts.mask, config.effective_loss()
    bonus = loss_config.entropy_coefficient
    if state.adaptive_entropy is not None:
        bonus = state.adaptive_entropy.applied
    if batch.ref_logprobs is None:
        ref_logprobs = None
    else:
        ref_logprobs = batch.ref_logprobs.detach().requires_grad_()
    scores, values = score(state, rollouts, probe, config)
    logprobs = probe.gate(
        scores,
        batch.advantages,
        mask,
        old_logprobs=batch.old_logprobs,
        sampler_logprobs=rollouts.sampler_logprobs,
        ref_logprobs=ref_logprobs,
        groups=config.group_size,
        old_entropies=batch.old_entropies,
        completions={"reward": batch.rewards.reshape(-1), **rollouts.samples()},
    )

    tokens = state.ranks.mean(mask.sum())

    def mean(of_tokens: Tensor) -> Tensor:
        return aggregated(
            of_tokens, mask, loss_config.aggregation, max_tokens=max_tokens, tokens=tokens
        )

    losses = surrogate(
        logprobs,
        logprobs.detach() if batch.old_logprobs is None else batch.old_logprobs,
        batch.advantages,
        clip_low=loss_config.clip_low,
        clip_high=loss_config.clip_high,
    )
    if ref_logprobs is not None:
        divergence = reference_kl(logprobs, ref_logprobs)
        probe.log({"train/reference_kl": mean(divergence.detach())})
        losses = losses + loss_config.kl_coefficient * divergence
    loss = mean(losses)
    if config.has_entropy_bonus():
        entropy = mean(scores.entropies)
        loss = loss - bonus * entropy
        probe.log({"train/entropy_coefficient": bonus})
        if state.adaptive_entropy is not None:
            state.adaptive_entropy.step(state.ranks.mean(entropy).item())
    if values is not None and batch.value_targets is not None:
        of_values = mean(value_loss(values, batch.value_targets))
        probe.log({"train/value_loss": of_values.detach()})
        loss = loss + config.value.coefficient * of_values
    state.optimizer.zero_grad()
    loss.backward()
    parameters = state.parameters()
    state.ranks.average_gradients(parameters)
    gradient_norm = clip_grad_norm_(parameters, config.max_gradient_norm)
    state.optimizer.step()
    if state.stale_sampler is not None:
        state.stale_sampler.follow(state.policy.model)
    state.step += 1

    result = StepResult(
        state.step, state.ranks.mean(batch.rewards.mean()).item(), time.perf_counter() - started
    )
    probe.log(
        {
            metrics.REWARD_MEAN: result.reward_mean,
            metrics.ADVANTAGE_ZERO_GROUP_FRACTION: state.ranks.mean(
                zero_advantage_groups(batch.rewards).float().mean()
            ),
            metrics.COMPLETION_LENGTH_MEAN: state.ranks.mean(mask.sum(dim=1).float().mean()),
            metrics.TRAIN_LOSS: state.ranks.mean(loss.detach()),
            metrics.TRAIN_GRAD_NORM: gradient_norm,
            metrics.TIME_STEP_SECONDS: result.step_seconds,
        }
    )
    clip_factor = (config.max_gradient_norm / (gradient_norm + 1e-6)).clamp(max=1.0)
    probe.step(
        state.step,
        state.optimizer,
        rescore=lambda: score(state, rollouts, probe, config)[0],
        unseen=(lambda: panel.scores(state, probe, config)) if config.unseen else None,
        clip_factor=clip_factor,
    )
    return result

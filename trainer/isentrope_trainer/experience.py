"""What an update learns from: rollouts sampled and judged with the weights as they are, their
advantages and old log-probs. And what it does not learn from, which measures it: a panel, and an
evaluation on held-out problems."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor

import isentrope
from isentrope_trainer.algorithms.advantages import ADVANTAGES, JudgedRollouts, unnormalised_gae
from isentrope_trainer.models.policy import Policy
from isentrope_trainer.models.sampling import Rollouts
from isentrope_trainer.settings import ALGORITHMS, EvaluationConfig, TrainingConfig
from isentrope_trainer.tasks.base import SOLVED, Problem, Task
from isentrope_trainer.training_state import TrainingState
from isentrope_wire.metrics import EVAL_AVG_AT_K, EVAL_PASS_AT_K


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Judged rollouts. What is None is not needed by the algorithm or, of the old policy, is the
    policy's own."""

    rollouts: Rollouts
    rewards: Tensor
    """[prompts, group size]."""
    advantages: Tensor
    """[rollouts, tokens], as are all others."""
    old_logprobs: Tensor | None = None
    old_entropies: Tensor | None = None
    ref_logprobs: Tensor | None = None
    value_targets: Tensor | None = None

    def shares(self, count: int) -> Iterator[Batch]:
        """The batch in `count` parts of as many whole prompts each."""
        for prompts in torch.arange(len(self.rewards), device=self.rewards.device).chunk(count):
            rows = self.rollouts.rows_of_prompts(prompts)
            of_tokens = (
                self.advantages,
                self.old_logprobs,
                self.old_entropies,
                self.ref_logprobs,
                self.value_targets,
            )
            parts = (None if values is None else values[rows] for values in of_tokens)
            yield Batch(self.rollouts.select_prompts(prompts), self.rewards[prompts], *parts)  # type: ignore[arg-type]


def collect(
    state: TrainingState, task: Task, probe: isentrope.Probe, config: TrainingConfig
) -> Batch:
    """Sample a batch of rollouts, judge them, and compute their advantages."""
    policy, algorithm = state.policy, ALGORITHMS[config.algorithm]
    rollouts, rewards = draw(state, task, config)

    old_logprobs = old_entropies = ref_logprobs = values = token_rewards = value_targets = None
    with torch.no_grad():
        if state.reference is not None:
            ref_logprobs = policy.logprobs(
                rollouts, temperature=config.temperature, model=state.reference
            )
        if not config.on_policy() or state.value_head is not None:
            scores, values = score(state, rollouts, probe, config)
            # Of a stale sampler's tokens the old policy is the one that drew them.
            if not config.on_policy():
                if state.stale_sampler is not None:
                    old_logprobs = rollouts.sampler_logprobs
                else:
                    old_logprobs = scores.logprobs
                old_entropies = scores.entropies
    if state.process_reward is not None:
        probe.log({"train/process_reward_loss": state.process_reward.learn(rollouts, rewards)})
        token_rewards = state.process_reward.token_rewards(rollouts)
    judged = JudgedRollouts(
        rewards=rewards,
        mask=rollouts.mask,
        values=values,
        token_rewards=token_rewards,
        discount=config.value.discount,
        gae_lambda=config.value.gae_lambda,
        sum_over_ranks=state.ranks.sum,
    )
    advantages = ADVANTAGES[algorithm.advantage](judged)
    if values is not None and state.value_head is not None:
        value_targets = unnormalised_gae(judged) + values
    return Batch(
        rollouts, rewards, advantages, old_logprobs, old_entropies, ref_logprobs, value_targets
    )


def draw(state: TrainingState, task: Task, config: TrainingConfig) -> tuple[Rollouts, Tensor]:
    """Rollouts of this rank's share of the next prompts, and their rewards [prompts, group
    size]."""
    problems = [
        task.problem(state.next_problem + index) for index in state.ranks.share(config.prompts)
    ]
    state.next_problem += config.prompts
    rollouts = state.policy.sample(
        [problem.prompt for problem in problems],
        config.group_size,
        state.generator,
        temperature=config.temperature,
        max_tokens=task.max_tokens,
        model=None if state.stale_sampler is None else state.stale_sampler.model,
    )
    rollouts = replace(
        rollouts, answers=tuple(str(problem.entry["answer"]) for problem in problems)
    )
    return rollouts, judge(task, problems, state.policy.texts(rollouts)).to(rollouts.mask.device)


def score(
    state: TrainingState, rollouts: Rollouts, probe: isentrope.Probe, config: TrainingConfig
) -> tuple[isentrope.TokenScores, Tensor | None]:
    """Scores of the rollouts' tokens under the policy, and the value head's estimates before each,
    where there is one."""
    reading = state.policy.read(rollouts, hidden=state.value_head is not None)
    scores = probe.score(
        reading.logits,
        rollouts.completions,
        temperature=config.temperature,
        entropy_gradient=config.has_entropy_bonus(),
    )
    return scores, (
        None
        if state.value_head is None or reading.hidden is None
        else state.value_head(reading.hidden)
    )


GRADIENT_EVERY = 4
"""Updates from one gradient of the entropy to the next, and from one block of the panel to the
next. Each costs as much as a block's part of an update."""
MADE_FROM = 3
"""Blocks that the gradient is taken from."""
FEWEST_DRAWN = 64
"""Completions of a block; of a small update half of its completions."""
_OF_A_PROMPT = 2
"""Of the scatter of a change one half lies between prompts: a second completion of each costs a
fifth more."""
_FIRST_PROBLEM = 1 << 30
"""Far from the problems that are trained on."""


class Panel:
    """Completions that no update learns from: they show what an update does to the policy's
    entropy, and not to its own tokens.

    They are drawn in blocks, one after each `GRADIENT_EVERY` updates, as often as the probe takes a
    gradient. The newest block judges the predictions, and is scored after each update. Those before
    it make them: they are scored where a gradient is taken, and one update before that."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._blocks: deque[Rollouts] = deque(maxlen=1 + MADE_FROM)
        self._updates = 0

    def scores(
        self, state: TrainingState, probe: isentrope.Probe, config: TrainingConfig
    ) -> list[isentrope.TokenScores]:
        """As `unseen` of `Probe.step` takes them, once after each update."""
        every = probe.config.coupling_every
        turn, self._updates = self._updates % every, self._updates + 1
        if turn == 0:
            return self._renewed(state, probe, config)
        if turn == every - 1:
            blocks = [*self._blocks]
        else:
            blocks = [self._blocks[-1]]
        return [_scored(block, state, probe, config) for block in blocks]

    def _renewed(
        self, state: TrainingState, probe: isentrope.Probe, config: TrainingConfig
    ) -> list[isentrope.TokenScores]:
        """Scores with a new block. It gives no gradient before it has judged, and the block that
        goes gives none any more; the first block has to."""
        before = [*self._blocks]
        self._blocks.append(self._draw(state, config))
        going = before[:-MADE_FROM]
        with torch.no_grad():
            scores = [_scored(block, state, probe, config) for block in going]
        scores += [_scored(block, state, probe, config) for block in before[len(going) :]]
        with torch.no_grad() if before else nullcontext():
            return [*scores, _scored(self._blocks[-1], state, probe, config)]

    def _draw(self, state: TrainingState, config: TrainingConfig) -> Rollouts:
        """With a generator of its own: the run's own makes the same draws without."""
        prompts = max(_completions_drawn(config) // (_OF_A_PROMPT * state.ranks.size), 1)
        first = _FIRST_PROBLEM + (state.step * state.ranks.size + state.ranks.rank) * prompts
        return state.policy.sample(
            [self._task.problem(first + index).prompt for index in range(prompts)],
            _OF_A_PROMPT,
            torch.Generator(state.generator.device).manual_seed(first + config.seed),
            temperature=config.temperature,
            max_tokens=self._task.max_tokens,
        )


def _scored(
    block: Rollouts, state: TrainingState, probe: isentrope.Probe, config: TrainingConfig
) -> isentrope.TokenScores:
    return probe.score(
        state.policy.read(block).logits[block.mask],
        block.completions[block.mask],
        temperature=config.temperature,
    )


def _completions_drawn(config: TrainingConfig) -> int:
    """Of a block, by all ranks."""
    if config.coupling_samples is not None:
        return -(-config.coupling_samples // MADE_FROM)
    of_update = config.prompts * config.group_size // config.updates_per_batch
    return max(of_update // config.unseen, min(FEWEST_DRAWN, of_update // 2))


PASS_RATE_BINS = ("0", "0-25", "25-50", "50-75", "75-100", "100")
"""Bins of the pass rate in percent. Never right and always right have bins of their own; elsewhere
a bin contains its lower end, and 0-25 begins above 0."""

EVAL_RIGHT_ANSWERS, EVAL_TRIGRAMS = "eval/right_answers", "eval/trigrams"
_EVALUATION_SEED = 20_250_522
"""Seed of the sampler: every evaluation of every run draws with the same random numbers."""


def evaluate(policy: Policy, task: Task, config: EvaluationConfig) -> dict[str, float]:
    """Sample answers to the problems that the task holds out. Returns `eval/avg_at_k`,
    `eval/pass_at_k`, and `eval/pass_rate/BIN`, the share of the problems in each bin, and
    `EVAL_RIGHT_ANSWERS` and `EVAL_TRIGRAMS`. A generator of its own draws the answers, so that
    evaluating a run does not change it. ConfigurationError: the task holds out fewer problems than
    are wanted."""
    problems = [task.problem(index, "held_out") for index in range(config.problems)]
    rollouts = policy.sample(
        [problem.prompt for problem in problems],
        config.samples,
        torch.Generator(policy.model.device).manual_seed(_EVALUATION_SEED),
        temperature=config.temperature,
        max_tokens=task.max_tokens,
    )
    texts = policy.texts(rollouts)
    right = judge(task, problems, texts) >= SOLVED
    shares = pass_rate_shares(right)
    return {
        EVAL_AVG_AT_K: right.double().mean().item(),
        EVAL_PASS_AT_K: pass_at_k(right, config.k),
        **{f"eval/pass_rate/{name}": share for name, share in shares.items()},
        EVAL_RIGHT_ANSWERS: right_answers(right, texts),
        EVAL_TRIGRAMS: trigrams(rollouts),
    }


def right_answers(right: Tensor, texts: Sequence[str | None]) -> float:
    """How many of the texts of a problem's samples are right and differ, averaged over the problems
    of bool [problems, samples]."""
    solved = right.flatten().tolist()
    return len(
        {(row // right.shape[1], texts[row]) for row in range(len(texts)) if solved[row]}
    ) / len(right)


def trigrams(rollouts: Rollouts) -> float:
    """Share of the runs of three tokens in the samples of a problem that differ, of all problems
    together; NaN: there are none."""
    found = [
        (row // rollouts.group_size, *ids[first : first + 3])
        for row, (ids, mask) in enumerate(
            zip(rollouts.completions.tolist(), rollouts.mask.tolist(), strict=True)
        )
        for first in range(sum(mask) - 2)
    ]
    if found:
        return len(set(found)) / len(found)
    return math.nan


def judge(task: Task, problems: Sequence[Problem], texts: Sequence[str | None]) -> Tensor:
    """Rewards [problems, group size] of the completions' texts, by the task's verifier."""
    group_size = len(texts) // len(problems)
    rewards = [task.reward(problems[row // group_size], text) for row, text in enumerate(texts)]
    return torch.tensor(rewards).reshape(len(problems), group_size)


def pass_at_k(right: Tensor, k: int) -> float:
    """Probability that at least one of `k` samples of bool [problems, samples] is right, averaged
    over the problems.

        1 - C(n - c, K) / C(n, K)      n samples, of which c are right       arXiv:2107.03374, eq. 1

    The mean over all ways to choose K of the n samples: unbiased, which 1 - (1 - c/n)^K is
    not."""
    samples = right.shape[1]
    chances = [
        1.0 - math.comb(samples - passed, k) / math.comb(samples, k)
        for passed in range(samples + 1)
    ]
    return torch.tensor(chances, dtype=torch.float64)[right.sum(dim=1)].mean().item()


def pass_rate_shares(right: Tensor) -> dict[str, float]:
    """Share of the problems of bool [problems, samples] in each of `PASS_RATE_BINS`, in their
    order; they sum to 1."""
    samples = right.shape[1]
    passed = right.sum(dim=1)
    quarters = 1 + 4 * passed // samples
    bins = quarters.masked_fill(passed == 0, 0).masked_fill(
        passed == samples, len(PASS_RATE_BINS) - 1
    )
    shares = bins.bincount(minlength=len(PASS_RATE_BINS)).double() / len(right)
    return dict(zip(PASS_RATE_BINS, shares.tolist(), strict=True))

"""What becomes of training loops that are not ours when the suggestion of their health line is
followed: `python -m tests.benchmarks.followed_suggestions [LOOPS] [FIRST SEED]`; some 12 seconds of
one core a loop.

Each loop is drawn from its seed: GRPO, PPO or REINFORCE, five tasks, vocabularies of 12 to 200
tokens, short and long answers, random and warm starts, a recurrent or an attention model,
learning rates over a factor of ten. It is trained once without a control. At three moments, from
the first step with a suggestion on, a copy of it goes on under what is suggested then. Compared is
the mean reward of the last steps."""

from __future__ import annotations

import copy
import logging
import math
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

import torch
from torch import Tensor, nn

import isentrope
from isentrope.transport import InMemoryTransport
from isentrope_wire import metrics
from isentrope_wire.control import Control
from isentrope_wire.diagnosis.course import STEPS_READ
from isentrope_wire.diagnosis.effect import EFFECT_STEPS, LastSteps
from isentrope_wire.diagnosis.health import Diagnosis, Measured, Suggestion, diagnose
from isentrope_wire.reports import HOLD_STATE, HOLD_WHY, ControlSnapshot, StepReport

STEPS, ENDS = 120, 15
"""Steps of a loop; those of its end whose reward is compared."""
MOMENTS = (0.0, 0.25, 0.5)
"""Shares of what is left after the first suggestion, from which on one is followed."""
FIRST, LAST = 10, STEPS - 2 * ENDS
"""Batches between which a suggestion is asked for."""
CALM, ALIKE = 0.01, 1.25
"""A step that moves the entropy by less than this share leaves the situation as it is; thresholds,
and held levels, within this factor are the same."""
KEPT, RUINED = 0.9, 0.5
"""Shares of the reward without the push: asked for, and what a ruin has lost."""
PROMPT, WARM_STEPS, HIDDEN = 4, 60, 48
END = 0
"""The token that ends an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """A loop as it was drawn."""

    seed: int
    algorithm: str
    task: str
    vocabulary: int
    tokens: int
    is_warm: bool
    model: str
    learning_rate: float
    groups: int
    samples: int
    clips_gradient: bool

    @classmethod
    def drawn(cls, seed: int) -> Settings:
        draw = random.Random(seed)
        return cls(
            seed=seed,
            algorithm=draw.choice(("grpo", "ppo", "reinforce")),
            task=draw.choice(tuple(TASKS)),
            vocabulary=draw.choice((12, 29, 64, 200)),
            tokens=draw.choice((4, 8, 24)),
            is_warm=draw.random() < 0.5,
            model=draw.choice(("recurrent", "attention")),
            learning_rate=math.exp(draw.uniform(math.log(5e-4), math.log(5e-3))),
            groups=draw.choice((4, 8)),
            samples=8,
            clips_gradient=draw.random() < 0.5,
        )

    def __str__(self) -> str:
        start = "warm" if self.is_warm else "random"
        return (
            f"{self.seed}: {self.algorithm}, {self.task}, {self.vocabulary} tokens, answers of "
            f"{self.tokens}, {start}, {self.model}, {self.learning_rate:.1e}"
        )


# ---- tasks: answers [batch, tokens], their mask and prompts [batch, PROMPT] -> rewards in [0, 1]


def _share(right: Tensor, mask: Tensor) -> Tensor:
    return (right & mask).sum(1) / mask.sum(1).clamp(min=1)


def _members(answers: Tensor, mask: Tensor, prompts: Tensor) -> Tensor:
    return _share(answers % 5 == 1, mask)


def _rising(answers: Tensor, mask: Tensor, prompts: Tensor) -> Tensor:
    before = torch.cat([prompts[:, -1:], answers[:, :-1]], dim=1)
    return _share(answers > before, mask)


def _copied(answers: Tensor, mask: Tensor, prompts: Tensor) -> Tensor:
    return _share((answers.unsqueeze(2) == prompts.unsqueeze(1)).any(2), mask)


def _alternating(answers: Tensor, mask: Tensor, prompts: Tensor) -> Tensor:
    before = torch.cat([prompts[:, -1:], answers[:, :-1]], dim=1)
    return _share((answers + before) % 2 == 1, mask)


def _ended(answers: Tensor, mask: Tensor, prompts: Tensor) -> Tensor:
    """All or nothing: the answer ends, and its first token has the parity of the prompt's."""
    ends = ((answers == END) & mask).any(1)
    return (ends & (answers[:, 0] % 2 == prompts[:, 0] % 2)).float()


TASKS = {
    "members": _members,
    "rising": _rising,
    "copied": _copied,
    "alternating": _alternating,
    "ended": _ended,
}


class Policy(nn.Module):
    """A causal model of HIDDEN numbers a token; ids [batch, n] -> logits [batch, n, vocabulary]."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.embedding = nn.Embedding(settings.vocabulary, HIDDEN)
        self.places = nn.Parameter(0.1 * torch.randn(PROMPT + settings.tokens, HIDDEN))
        self.head = nn.Linear(HIDDEN, settings.vocabulary)
        self.body: nn.Module
        if settings.model == "recurrent":
            self.body = nn.GRU(HIDDEN, HIDDEN, batch_first=True)
        else:
            self.body = nn.TransformerEncoderLayer(
                HIDDEN, 4, 2 * HIDDEN, dropout=0.0, batch_first=True, norm_first=True
            )

    def forward(self, ids: Tensor) -> Tensor:
        length = ids.shape[1]
        hidden = self.embedding(ids) + self.places[:length]
        if isinstance(self.body, nn.GRU):
            hidden, _ = self.body(hidden)
        else:
            causal = nn.Transformer.generate_square_subsequent_mask(length)
            hidden = self.body(hidden, src_mask=causal, is_causal=True)
        logits: Tensor = self.head(hidden)
        return logits


class Loop:
    """One training run with a probe, which can be copied as it stands."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        torch.manual_seed(settings.seed)
        self.policy = Policy(settings)
        if settings.is_warm:
            self._warm_up()
        self.optimizer = torch.optim.AdamW(self.policy.parameters(), lr=settings.learning_rate)
        self.updates = 0
        self.rewards: list[float] = []
        """Of each batch."""
        self._attach()

    def _attach(self) -> None:
        self.transport = InMemoryTransport()
        self.probe = isentrope.Probe(
            name="loop", run_id=f"loop-{self.settings.seed}", transport=self.transport
        )

    def copied(self) -> Loop:
        """The same run once more, with a probe that continues from this one's state."""
        other = copy.copy(self)
        other.policy = copy.deepcopy(self.policy)
        other.optimizer = torch.optim.AdamW(
            other.policy.parameters(), lr=self.settings.learning_rate
        )
        other.optimizer.load_state_dict(copy.deepcopy(self.optimizer.state_dict()))
        other.rewards = [*self.rewards]
        other._attach()
        other.transport.messages = [*self.transport.messages]
        other.probe.load_state_dict(self.probe.state_dict())
        return other

    @property
    def reports(self) -> list[StepReport]:
        return [one for one in self.transport.messages if isinstance(one, StepReport)]

    @property
    def end(self) -> float:
        return fmean(self.rewards[-ENDS:])

    def _warm_up(self) -> None:
        """Learn to imitate the better half of random answers: a start with some reward."""
        settings = self.settings
        optimizer = torch.optim.AdamW(self.policy.parameters(), lr=3e-3)
        for _ in range(WARM_STEPS):
            prompts, answers = (
                torch.randint(1, settings.vocabulary, (128, length))
                for length in (PROMPT, settings.tokens)
            )
            if settings.task == "ended":
                answers[torch.rand(answers.shape) < 0.2] = END
            rewards = TASKS[settings.task](answers, mask_of(answers), prompts)
            best = rewards.topk(32).indices
            ids, mask = torch.cat([prompts, answers], dim=1)[best], mask_of(answers[best])
            logits = self.policy(ids[:, :-1])[:, PROMPT - 1 :]
            losses = nn.functional.cross_entropy(
                logits.transpose(1, 2), answers[best], reduction="none"
            )
            optimizer.zero_grad()
            losses[mask].mean().backward()
            optimizer.step()

    @torch.no_grad()
    def _sample(self) -> tuple[Tensor, Tensor]:
        settings = self.settings
        prompts = torch.randint(1, settings.vocabulary, (settings.groups, PROMPT))
        ids = prompts = prompts.repeat_interleave(settings.samples, 0)
        for _ in range(settings.tokens):
            chances = self.policy(ids)[:, -1].softmax(-1)
            ids = torch.cat([ids, torch.multinomial(chances, 1)], dim=1)
        return prompts, ids

    def _advantages(self, rewards: Tensor) -> Tensor:
        settings = self.settings
        if settings.algorithm == "reinforce":
            return rewards - rewards.mean()
        grouped = rewards.view(settings.groups, settings.samples)
        centred = grouped - grouped.mean(1, keepdim=True)
        spread = grouped.std(1, keepdim=True) if settings.algorithm == "grpo" else grouped.std()
        return (centred / (spread + 1e-4)).flatten()

    def batch(self) -> None:
        """Sample once; PPO makes two updates of it, the others one."""
        prompts, ids = self._sample()
        answers = ids[:, PROMPT:]
        mask = mask_of(answers)
        rewards = TASKS[self.settings.task](answers, mask, prompts)
        self.rewards.append(float(rewards.mean()))
        advantages, old = self._advantages(rewards), None
        for _ in range(2 if self.settings.algorithm == "ppo" else 1):
            old = self._update(ids, answers, mask, advantages, rewards, old)

    def _update(
        self,
        ids: Tensor,
        answers: Tensor,
        mask: Tensor,
        advantages: Tensor,
        rewards: Tensor,
        old: Tensor | None,
    ) -> Tensor:
        scores = self._scored(ids, answers)
        kept = scores.logprobs.detach() if old is None else old
        logprobs = self.probe.gate(
            scores, advantages, mask, groups=self.settings.samples, old_logprobs=old
        )
        ratio = (logprobs - kept).exp()
        gains = advantages.unsqueeze(1) * ratio
        if self.settings.algorithm == "ppo":
            gains = torch.minimum(gains, advantages.unsqueeze(1) * ratio.clamp(0.8, 1.2))
        self.optimizer.zero_grad()
        (-gains[mask].mean()).backward()
        factor = None
        if self.settings.clips_gradient:
            norm = nn.utils.clip_grad_norm_(self.policy.parameters(), 0.5)
            factor = (0.5 / (norm + 1e-6)).clamp(max=1)
        self.optimizer.step()
        self.updates += 1
        self.probe.log({"reward/mean": float(rewards.mean())})
        self.probe.step(
            self.updates,
            self.optimizer,
            rescore=lambda: self._scored(ids, answers),
            clip_factor=factor,
        )
        return kept

    def _scored(self, ids: Tensor, answers: Tensor) -> Any:
        return self.probe.score(self.policy(ids[:, :-1])[:, PROMPT - 1 :], answers)


def mask_of(answers: Tensor) -> Tensor:
    """Up to the token that ends an answer, which counts."""
    ends = (answers == END).long()
    return ends.cumsum(1) - ends == 0


def measured(reports: Sequence[StepReport]) -> Measured:
    """What a run's diagnosis is made of, as the server reads it, of a run without a control."""
    newest = reports[-STEPS_READ:]

    def column(name: str) -> dict[int, float]:
        return {one.step: one.scalars[name] for one in newest if name in one.scalars}

    last, gains = newest[-1], column(metrics.ENTROPY_GAIN)
    with_sums = [one for one in newest if one.what_if is not None][-EFFECT_STEPS:]
    gain = gains.get(last.step)
    entropies = [one.scalars[metrics.ENTROPY_MEAN] for one in reports[: metrics.EARLY_STEPS]]
    return Measured(
        step=last.step,
        first_step=reports[0].step,
        early_entropies=entropies,
        entropies=column(metrics.ENTROPY_MEAN),
        observed=column(metrics.ENTROPY_OBSERVED_CHANGE),
        explained=column(metrics.ENTROPY_PREDICTION_R2),
        rewards=column(metrics.REWARD_MEAN),
        hold_state=last.labels.get(HOLD_STATE, ""),
        hold_why=last.labels.get(HOLD_WHY, ""),
        last=LastSteps(
            sums=[one.what_if for one in with_sums if one.what_if is not None],
            gain=gain,
            gains=[] if gain is None else [gains.get(one.step, gain) for one in with_sums],
            gain_error=last.scalars.get(metrics.ENTROPY_GAIN_ERROR),
            active=Control(),
            scalars=last.scalars,
        ),
    )


@dataclass(kw_only=True)
class Push:
    """A suggestion that was followed, and what came of it."""

    loop: Loop
    batch: int
    suggestion: Suggestion
    share: float = math.nan
    """Of the reward at the end of the run without it."""
    alarms: list[str] = field(default_factory=list)

    def follow(self) -> None:
        """Train on to the end under what was suggested."""
        control = Control.from_document(self.suggestion.control)
        self.loop.transport.set_control(
            ControlSnapshot(version=1, control=control, author="benchmark", requested_at=0.0)
        )
        seen = len(self.loop.reports)
        while len(self.loop.rewards) < STEPS:
            self.loop.batch()
        kinds = [alert.kind for one in self.loop.reports[seen:] for alert in one.alerts]
        self.alarms = [kind for kind in ("overshoot", "hold_ended") if kind in kinds]


@dataclass(kw_only=True)
class Trained:
    """A loop without a control, the pushes that were made of it, and what was suggested."""

    loop: Loop
    pushes: list[Push]
    same: list[bool]
    """For two neighbouring steps in the same situation: whether the suggestion was."""


def train(settings: Settings) -> Trained:
    """A loop to its end, and copies of it at the moments of its suggestions."""
    loop, pushes, same = Loop(settings), list[Push](), list[bool]()
    before: Diagnosis | None = None
    due = 0.0
    while len(loop.rewards) < STEPS:
        loop.batch()
        if not FIRST <= len(loop.rewards) <= LAST:
            continue
        now = diagnose(measured(loop.reports))
        if before is not None and (now.suggestion or before.suggestion) and is_calm(before, now):
            same.append(are_alike(before.suggestion, now.suggestion))
        before = now
        if now.suggestion is None or len(pushes) == len(MOMENTS) or len(loop.rewards) < due:
            continue
        push = Push(loop=loop.copied(), batch=len(loop.rewards), suggestion=now.suggestion)
        state = torch.get_rng_state()
        push.follow()
        torch.set_rng_state(state)
        pushes.append(push)
        if len(pushes) < len(MOMENTS):
            first = pushes[0].batch
            due = first + MOMENTS[len(pushes)] * (LAST - first)
    for push in pushes:
        push.share = push.loop.end / loop.end if loop.end else math.nan
    return Trained(loop=loop, pushes=pushes, same=same)


def is_calm(before: Diagnosis, now: Diagnosis) -> bool:
    if not before.entropy or now.entropy is None:
        return False
    return abs(now.entropy / before.entropy - 1) < CALM


def are_alike(before: Suggestion | None, now: Suggestion | None) -> bool:
    if before is None or now is None:
        return before is now
    left, right = (Control.from_document(one.control) for one in (before, now))
    if (left.method, left.scope) != (right.method, right.scope):
        return False
    left_size, right_size = (
        one.mu_low if one.held is None else one.held.target_entropy for one in (left, right)
    )
    if left_size is None or right_size is None:
        return False
    return 1 / ALIKE <= left_size / right_size <= ALIKE


def table(trained: Sequence[Trained]) -> list[str]:
    """The lines of a Markdown table."""
    lines = [
        "| suggested | followed | kept 0.9 of the reward without it | median | least | ruined |",
        "|---|---|---|---|---|---|",
    ]
    every = [push for one in trained for push in one.pushes if not math.isnan(push.share)]
    holds = [push for push in every if push.suggestion.control["hold"] is not None]
    thresholds = [push for push in every if push.suggestion.control["hold"] is None]
    for name, pushes in (("a threshold", thresholds), ("a hold", holds), ("both", every)):
        shares = [push.share for push in pushes]
        if shares:
            lines.append(
                f"| {name} | {len(shares)} | {sum(share >= KEPT for share in shares)} | "
                f"{median(shares):.2f} | {min(shares):.2f} | "
                f"{sum(share < RUINED for share in shares)} |"
            )
    same = [one for each in trained for one in each.same]
    with_some = sum(bool(one.pushes) for one in trained)
    summary = (
        f"{len(trained)} loops, {with_some} with a suggestion; the same as a step before in "
        f"{sum(same)} of {len(same)} calm steps."
    )
    return [*lines, "", summary]


def in_words(trained: Trained) -> list[str]:
    """A loop, and a line for each of its pushes."""
    loop = trained.loop
    lines = [
        f"{loop.settings}: reward {fmean(loop.rewards[:5]):.2f} to {loop.end:.2f}, {nats(loop)}"
    ]
    for push in trained.pushes:
        then = fmean(loop.rewards[push.batch - 5 : push.batch])
        came = f"Reward {then:.2f} to {push.loop.end:.2f}, {push.share:.2f} of that without"
        words = f"{push.suggestion.message} {came}; {nats(push.loop)} {' '.join(push.alarms)}"
        lines.append(f"    {push.batch}: {words}".rstrip())
    return lines


def nats(loop: Loop) -> str:
    entropies = [one.scalars[metrics.ENTROPY_MEAN] for one in loop.reports]
    return f"entropy {median(entropies[:3]):.2f} to {median(entropies[-5:]):.2f}"


def main(loops: int = 50, first: int = 0) -> None:
    torch.set_num_threads(1)
    logging.getLogger("isentrope").setLevel(logging.ERROR)
    trained = []
    for seed in range(first, first + loops):
        trained.append(train(Settings.drawn(seed)))
        print("\n".join(in_words(trained[-1])), flush=True)
    print("\n".join(table(trained)))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

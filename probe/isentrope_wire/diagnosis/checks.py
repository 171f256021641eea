"""CHECKS: the known ways in which a run does not learn, one row each.

A row names its rule, a function of `isentrope_wire.diagnosis.rules`, what that reads, what to do,
and what it is told apart from. What is not measured is not judged: `missing` names it. A test of a
check is one row of `tests/wire/test_checks.py`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from isentrope_wire import metrics
from isentrope_wire.diagnosis.course import DIRECTIONS
from isentrope_wire.diagnosis.measures import Measures
from isentrope_wire.diagnosis.rules import (
    completions,
    divergence,
    groups,
    held_out,
    rewards,
    updates,
)
from isentrope_wire.diagnosis.rules.finding import Finding
from isentrope_wire.numbers import fixed, percent


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One row."""

    kind: str
    find: Callable[[Measures], Finding | None]
    reads: tuple[tuple[metrics.Metric, ...], ...]
    """What must be measured: of each entry one; empty where the names are patterns."""
    needs: str
    """What would give it data, in words."""
    cures: dict[str, str]
    """What to do, by the finding's cause."""
    apart: str
    """What it is told apart from, and by what."""
    explains: frozenset[str] = frozenset()
    """Kinds that follow from it, so that they do not ring after it."""
    has_patterns: Callable[[Measures], bool] = lambda measures: True
    """Whether what no row of the metrics names is measured."""

    def is_measured(self, measures: Measures) -> bool:
        """Whether there is anything to judge."""
        is_known = all(measures.traces.keys() & {*names} for names in self.reads)
        return is_known and self.has_patterns(measures)


def missing(measures: Measures) -> list[Check]:
    """The checks that have no data."""
    return [check for check in CHECKS if not check.is_measured(measures)]


_OF_THE_ENTROPY = (
    "Lower the learning rate, hold the entropy, or push a control that clips; the alert may"
    " suggest one."
)


def cure_of(kind: str, cause: str) -> str:
    """What to do about a finding; empty where nothing is known."""
    if kind in DIRECTIONS:
        return _OF_THE_ENTROPY
    for check in CHECKS:
        if check.kind == kind:
            return check.cures.get(cause) or check.cures[""]
    return ""


def reason_for_health(measures: Measures) -> str:
    """Why a run without findings is healthy, in a sentence; empty where nothing is known."""
    said = []
    span = max(30, round(measures.age / 3))
    change = measures.change(metrics.REWARD_MEAN, measures.age - span)
    reward = measures.trace(metrics.REWARD_MEAN)
    if change is not None and reward is not None:
        if change.rises:
            said.append(f"the reward still rises ({change.value:+.2g} in {span} steps)")
        else:
            said.append(f"the reward is at {reward.level:.3g}")
    entropy = measures.trace(metrics.ENTROPY_MEAN)
    change = measures.change(metrics.ENTROPY_MEAN, measures.age - span)
    if entropy is not None and change is not None and entropy.level > 0:
        share = change.value / span / entropy.level
        if change.falls:
            half = math.log(2) / -share
            said.append(f"half of today's entropy would last {half:.0f} steps at its pace")
        else:
            said.append(f"the entropy keeps its {fixed(entropy.level, 3)} nats")
    zero = measures.trace(metrics.ADVANTAGE_ZERO_GROUP_FRACTION)
    if zero is not None:
        said.append(f"{percent(1 - zero.level)} of the groups teach")
    if not said:
        return ""
    text = ", ".join(said)
    return f"{text[:1].upper()}{text[1:]}."


_STANDSTILL = frozenset({"plateau", "decline"})

CHECKS: tuple[Check, ...] = (
    Check(
        kind="not_finite",
        find=updates.not_finite,
        reads=((metrics.REWARD_MEAN, metrics.ENTROPY_MEAN, metrics.KL_REFERENCE, metrics.KL_OLD),),
        needs="reward, entropy or KL",
        cures={
            "": (
                "Look at the rewards (a verifier that fails, a division by 0) and at the forward "
                "pass; go back to the last checkpoint with finite weights."
            )
        },
        apart="`gradient`, which is about the norm and the loss",
        explains=_STANDSTILL | {"gradient", "kl", "zero_advantage"},
    ),
    Check(
        kind="gradient",
        find=updates.gradient,
        reads=((metrics.TRAIN_GRAD_NORM, metrics.TRAIN_NOT_FINITE, metrics.TRAIN_LOSS),),
        needs="the gradient's norm (grad_norm)",
        cures={
            "": "Clip the gradient's norm, and look at the batch of that step.",
            "not_finite": (
                "Go back to the last checkpoint; look for an empty mask, an overflow of "
                "exp, or a NaN advantage in the step before."
            ),
            "vanishing": "Look at the learning rate, at groups without spread and at the clip.",
            "zero": (
                "Look whether weights require gradients, adapters are attached, and the loss "
                "reaches them."
            ),
            "growing": "Lower the learning rate, or clip the gradient's norm.",
        },
        apart="a small gradient of groups that teach nothing: `zero_advantage` comes first",
        explains=_STANDSTILL | {"kl", "clip_saturation"},
    ),
    Check(
        kind="zero_advantage",
        find=groups.zero_advantage,
        reads=(
            (
                metrics.ADVANTAGE_ZERO_GROUP_FRACTION,
                metrics.ADVANTAGE_ZERO_FRACTION,
                metrics.GROUP_ALL_RIGHT,
                metrics.ADVANTAGE_STD,
                metrics.REWARD_GROUP_STD,
                metrics.REWARD_STD,
            ),
        ),
        needs="groups (`groups=` of gate), or frac_reward_zero_std",
        cures={
            "": "Choose problems whose completions differ in reward.",
            "too_easy": "Take harder problems, or drop those that are always solved.",
            "too_hard": (
                "Take easier problems first, give partial reward, or draw more completions."
            ),
            "identical": "Raise the sampler's temperature; look at its top-p, top-k and seed.",
            "cut": "Raise the length limit; look whether completions end by themselves.",
            "lost": (
                "Go back to a checkpoint whose completions were right, with a lower learning rate; "
                "look at the sign of loss and advantage."
            ),
            "constant": "Look at the reward function: it pays every completion the same.",
            "same_score": (
                "Let the reward tell completions of a group apart, or raise the temperature."
            ),
        },
        apart="its causes by the reward's place in its range and by the token ids of a group",
        explains=_STANDSTILL | {"gradient", "collapse"},
    ),
    Check(
        kind="truncation",
        find=completions.truncation,
        reads=((metrics.COMPLETION_TRUNCATED,),),
        needs=(
            'the share of cut completions (own loop: `completions={"truncated": ...}`; TRL: '
            "completions/clipped_ratio)"
        ),
        cures={
            "": (
                "Raise the length limit, leave cut completions out of the loss, or give overlong "
                "ones a soft penalty."
            ),
            "never_ends": (
                "Nothing ends by itself: compare the sampler's end token with the tokenizer's and "
                "the chat template's; else raise the length limit."
            ),
        },
        apart="`length` by whether the limit is reached, `repetition` by token ids",
        explains=_STANDSTILL | {"length", "explosion", "throughput", "repetition"},
    ),
    Check(
        kind="length",
        find=completions.length,
        reads=((metrics.COMPLETION_LENGTH_MEAN,),),
        needs="the mean length of completions",
        cures={
            "": (
                "Compare lengths at equal correctness; take the length out of the reward, or "
                "normalise the loss by tokens."
            ),
            "short": "Look whether the reward or an end-of-text bonus pays for short answers.",
        },
        apart="longer reasoning, by held-out score and by reward against length within a group",
        explains=_STANDSTILL | {"reward_hacking", "throughput", "truncation"},
    ),
    Check(
        kind="repetition",
        find=completions.repetition,
        reads=((metrics.COMPLETION_REPETITION,),),
        needs="token ids (`gate`), or rollout/repetition_frac",
        cures={
            "": (
                "Look at the completions; raise the temperature, and give no reward to the looping "
                "ones."
            )
        },
        apart="`length`, which grows with new text",
        explains=_STANDSTILL | {"length", "truncation", "throughput", "collapse"},
    ),
    Check(
        kind="reward_hacking",
        find=held_out.reward_hacking,
        reads=((metrics.REWARD_MEAN,),),
        needs="a held-out score (eval/...)",
        cures={
            "": (
                "Read completions with high reward; mend the reward, or stop at the best held-out "
                "score."
            ),
            "score_falls": "Read completions beside their rewards, and mend the verifier.",
        },
        apart="`length`, which names what is paid for, and `zero_advantage`",
        explains=_STANDSTILL | {"length", "reward_parts", "zero_advantage", "collapse"},
        has_patterns=lambda measures: bool(measures.held_out),
    ),
    Check(
        kind="reward_parts",
        find=rewards.reward_parts,
        reads=(),
        needs="two parts of the reward or more (rewards/NAME/mean)",
        cures={
            "": (
                "Lower the weight of the part that is earned already, or pay it only with a right "
                "answer."
            )
        },
        apart="`reward_hacking`, which needs a held-out score",
        explains=_STANDSTILL | {"reward_hacking"},
        has_patterns=lambda measures: len(measures.parts) > 1,
    ),
    Check(
        kind="kl",
        find=divergence.kl,
        reads=(
            (
                metrics.KL_REFERENCE,
                metrics.KL_OLD,
                metrics.SAMPLER_KL_K3,
                metrics.SAMPLER_LOGPROB_DIFFERENCE_MEAN,
            ),
        ),
        needs="a KL to the reference, the old policy or the sampler",
        cures={
            "": "Lower the learning rate, or raise the KL's weight.",
            "reference": "Lower the learning rate, raise the KL's weight, or renew the reference.",
            "old_policy": "Lower the learning rate, or make fewer updates of one batch.",
            "sampler": "Renew the sampler's weights more often; compare its precision.",
            "positions": "Look at the first tokens: a new opening is learnt, often a format.",
            "negative": "Compare temperature, top-k, top-p and mask of the sampler.",
            "stale_reference": (
                "Load the reference from the checkpoint that the run begins with, or renew it."
            ),
        },
        apart="reference, old policy and sampler are judged apart",
        explains=_STANDSTILL | {"explosion"},
    ),
    Check(
        kind="clip_saturation",
        find=updates.clip_saturation,
        reads=((metrics.RATIO_CLIPPED, metrics.RATIO_CLIPPED_LOW, metrics.RATIO_CLIPPED_HIGH),),
        needs="old log-probs (`old_logprobs=` of gate), or clip_ratio/region_mean",
        cures={
            "": "Lower the learning rate, make fewer updates of one batch, or widen the clip.",
            "high": "Widen the upper side of the clip, or make fewer updates of one batch.",
            "low": "Lower the learning rate, or make fewer updates of one batch.",
        },
        apart="side and sign of the advantage",
        explains=_STANDSTILL | {"collapse"},
    ),
    Check(
        kind="value",
        find=updates.value,
        reads=((metrics.VALUE_EXPLAINED_VARIANCE, metrics.VALUE_LOSS),),
        needs="the explained variance or the loss of a value function (PPO)",
        cures={
            "": "Raise the value function's learning rate or updates; check its targets.",
            "loss": "Normalise rewards or returns; lower the value function's learning rate.",
        },
        apart="a plateau of the policy",
        explains=_STANDSTILL,
    ),
    Check(
        kind="throughput",
        find=updates.throughput,
        reads=((metrics.TIME_STEP_SECONDS,),),
        needs="the time of a step",
        cures={
            "": "Look at memory, disk and other processes of the machine.",
            "length": "The completions are longer: see their length limit.",
        },
        apart="length and machine, by the length of completions",
        explains=frozenset({"length"}),
    ),
    Check(
        kind="decline",
        find=rewards.decline,
        reads=((metrics.REWARD_MEAN,),),
        needs="the mean reward",
        cures={
            "": "Lower the learning rate, and go back to the best checkpoint.",
            "from_start": (
                "Look at the learning rate, and at the sign of reward, advantage and loss."
            ),
        },
        apart="`plateau`, a reward that stands; all others, whose symptom it is",
        explains=frozenset({"plateau"}),
    ),
    Check(
        kind="plateau",
        find=rewards.plateau,
        reads=((metrics.REWARD_MEAN,),),
        needs="the mean reward",
        cures={
            "": "Raise the learning rate, or change the data.",
            "braked": (
                "Look at the brakes that are named; else raise the learning rate, or change the "
                "data."
            ),
            "constant": "Look at the reward function: it pays every completion the same.",
            "rate": "Look at the learning rate's schedule.",
        },
        apart="all others: it rings only where none of them was found",
    ),
)
"""Causes first: where two are found at one step, the one that stands higher is named first."""

FINDINGS = tuple(check.kind for check in CHECKS)
"""The kinds of alerts that they raise."""

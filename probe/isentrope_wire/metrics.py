"""METRICS: every metric and histogram that Isentrope reports by itself, one row each.

A row is the metric's name as a string, and carries what is known of it, so that code says
`scalars[ENTROPY_MEAN]` and a name, a unit or a meaning is written here alone. Any other metric is
the run's own and has no row.

The early level of the entropy (`EarlyLevel`) is defined here too: the metric, the alerts and
targets given as a share of it read it alike.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from statistics import median

NATS = "nats"
PER_STEP = "nats a step"
PER_UNIT = "nats per unit gain"
OF_TOKENS = "of tokens"

EARLY_STEPS = 3
"""Steps whose median is the early level: few, as on a fast collapse the tenth step has lost a
quarter already; three, as one odd batch must not set the level for the whole run."""

NEWEST_STEPS = 5
"""Steps whose median is compared with the early level: one odd step does not move it."""


def newest_level(values: Sequence[float]) -> float | None:
    """Where a run's metric stands: the median of the finite ones of its last five values; NaN where
    none of them is finite, None without values. Page, list and terminal show this one."""
    newest = values[-NEWEST_STEPS:]
    finite = [value for value in newest if math.isfinite(value)]
    if finite:
        return median(finite)
    if newest:
        return math.nan
    return None


class Show(StrEnum):
    """How a value is written."""

    NUMBER = "number"
    CHANGE = "change"
    """With its sign."""
    PERCENT = "percent"


class Metric(str):
    """One row: the name, `group/what`, and what is known of it."""

    __slots__ = ("also", "label", "meaning", "promised", "rise_is_good", "show", "unit")

    unit: str
    """In words; empty where there is none."""
    meaning: str
    promised: bool
    """Every probe reports it, sooner or later: that a run has not measured it yet is no error."""
    label: str
    """Its short name on a card of the page."""
    show: Show
    rise_is_good: bool | None
    """None: neither good nor bad."""
    also: tuple[str, ...]
    """What TRL, verl, slime, prime-rl and OpenRLHF call it where the training logs theirs; the same
    behind `train/`."""

    @property
    def group(self) -> str:
        return self.split("/", 1)[0]

    @property
    def names(self) -> tuple[str, ...]:
        """Every name it may be reported under, its own first."""
        return (str(self), *self.also, *(f"train/{name}" for name in self.also))


METRICS: dict[str, Metric] = {}
"""Every row by its name, in the order of this file."""

HISTOGRAMS: dict[str, Metric] = {}
"""Every histogram by its name."""


def metric(
    name: str,
    unit: str,
    meaning: str,
    *,
    promised: bool = True,
    label: str = "",
    show: Show = Show.NUMBER,
    rise_is_good: bool | None = None,
    also: tuple[str, ...] = (),
    rows: dict[str, Metric] = METRICS,
) -> Metric:
    """Add a row."""
    if name in rows:
        raise ValueError(f"There is a row of the name {name!r} already.")
    row = rows[name] = Metric(name)
    row.unit, row.meaning, row.promised, row.label = unit, meaning, promised, label or name
    row.show, row.rise_is_good, row.also = show, rise_is_good, also
    return row


optional = partial(metric, promised=False)
histogram = partial(metric, rows=HISTOGRAMS)


def unit_of(name: str) -> str:
    """In words; empty where the metric has none or is a run's own."""
    row = METRICS.get(name)
    if row is not None:
        return row.unit
    return ""


def promised_metrics() -> frozenset[str]:
    """Names of what every probe reports."""
    return frozenset(name for name, row in METRICS.items() if row.promised)


def largest_entropy(scalars: Mapping[str, float]) -> float | None:
    """ln V in nats, of a step's metrics; None where V is not known, or leaves no choice."""
    vocabulary = scalars.get(TOKEN_VOCABULARY, math.nan)
    if 1 < vocabulary < math.inf:
        return math.log(vocabulary)
    return None


def reported_names(reported: Collection[str]) -> dict[Metric, str]:
    """What a run reports of the rows, each with its name there: the row's own, or another
    framework's."""
    found = {}
    for row in METRICS.values():
        name = next((name for name in row.names if name in reported), None)
        if name is not None:
            found[row] = name
    return found


ENTROPY_MEAN = metric(
    "entropy/mean",
    NATS,
    "token-weighted mean entropy",
    label="Entropy",
    also=(
        "entropy",
        "actor/entropy",
        "entropy/all/mean",
        "train/entropy_loss",
        "policy/entropy",
        "policy/entropy_avg",
        "ppo/policy/entropy",
        "entropy_mean",
    ),
)
ENTROPY_SHARE_LOST = metric(
    "entropy/share_lost",
    "",
    f"1 − H / early level: median of the last {NEWEST_STEPS} steps, of the first {EARLY_STEPS}",
    label="Share lost",
    show=Show.PERCENT,
)
ENTROPY_UNIT_PREDICTED_CHANGE = metric(
    "entropy/unit_predicted_change",
    PER_UNIT,
    "−mean(u · S_c), u from the loss's own gradient: the prediction that knows neither learning"
    " rate nor optimiser",
)
ENTROPY_PREDICTED_CHANGE = metric(
    "entropy/predicted_change",
    PER_STEP,
    "calibrated prediction of the step's change, made from earlier steps alone",
    label="Predicted ΔH",
    show=Show.CHANGE,
)
ENTROPY_PREDICTED_CHANGE_LOW = metric(
    "entropy/predicted_change_low", PER_STEP, "lower end of the prediction's 90 % interval"
)
ENTROPY_PREDICTED_CHANGE_HIGH = metric(
    "entropy/predicted_change_high", PER_STEP, "upper end of the prediction's 90 % interval"
)
ENTROPY_PREDICTED_BY_BATCH = metric(
    "entropy/predicted_by_batch",
    PER_STEP,
    "part of the coupled prediction that this step's gradient makes",
)
ENTROPY_PREDICTED_BY_MOMENTUM = metric(
    "entropy/predicted_by_momentum",
    PER_STEP,
    "the same, by momentum of earlier steps' gradients: it comes whatever is clipped now",
)
ENTROPY_PREDICTED_BY_WEIGHT_DECAY = metric(
    "entropy/predicted_by_weight_decay", PER_STEP, "the same, by decoupled weight decay"
)
ENTROPY_INFLUENCE_CHECK = metric(
    "entropy/influence_check",
    "",
    "sum of the tokens' influences over what the optimiser's gradient gives, 1 where they agree;"
    " beyond 0.9 to 1.1 they are not shown",
)
ENTROPY_INTERVAL_COVERAGE = metric(
    "entropy/interval_coverage", "", "share of steps whose observed change lay inside the interval"
)
ENTROPY_OBSERVED_CHANGE = metric(
    "entropy/observed_change",
    PER_STEP,
    "mean change of H on the step's own tokens, scored again after the update, which was fitted to"
    " them",
)
ENTROPY_UNSEEN_CHANGE = metric(
    "entropy/unseen_change",
    PER_STEP,
    "mean change of H over the update on tokens that no update is fitted to, nor the prediction",
)
ENTROPY_UNSEEN_CHANGE_ERROR = metric(
    "entropy/unseen_change_error",
    PER_STEP,
    "standard error of unseen_change: how far these tokens' change may lie from the policy's",
)


def measured_change(scalars: Mapping[str, float]) -> float | None:
    """The step's change of the entropy, in nats: of unseen tokens where there are some, else of the
    step's own."""
    return scalars.get(ENTROPY_UNSEEN_CHANGE, scalars.get(ENTROPY_OBSERVED_CHANGE))


ENTROPY_GAIN = metric(
    "entropy/gain", "", "factor from the unit prediction to nats, fitted on past steps"
)
ENTROPY_GAIN_ERROR = metric(
    "entropy/gain_error", "", "standard error of the gain: below it the gain may as well be 0"
)
ENTROPY_PREDICTION_R2 = metric(
    "entropy/prediction_r2", "", "R² of the calibrated prediction on past steps"
)
ENTROPY_PREDICTION_SIGN_AGREEMENT = metric(
    "entropy/prediction_sign_agreement",
    "",
    "share of past steps in which prediction and observation had one sign",
)

SCORE_DISCRIMINATOR_MEAN = metric("score/discriminator_mean", NATS, "mean of S* = p (H + log p)")
SCORE_DISCRIMINATOR_STD = metric("score/discriminator_std", NATS, "standard deviation of S*")
SCORE_VOCAB_CENTERED_MEAN = metric("score/vocab_centered_mean", NATS, "mean of S_c = S* − E_p[S]")
SCORE_VOCAB_CENTERED_STD = metric("score/vocab_centered_std", NATS, "standard deviation of S_c")
SCORE_SELF_CHECK_Z = metric(
    "score/self_check_z",
    "standard errors",
    "mean of r S_c over its standard error, r to the sampler, or else to the old policy; far from"
    " 0: tokens and logits do not belong together",
)

COVARIANCE_ADVANTAGE_SCORE = metric(
    "covariance/advantage_score", NATS, "Cov(A, r S_c) over the step's tokens"
)
COVARIANCE_ADVANTAGE_DISCRIMINATOR = metric(
    "covariance/advantage_discriminator",
    NATS,
    "mean(A S*) over the step's tokens: the covariance of log π and π A over the vocabulary",
)
COVARIANCE_ADVANTAGE_LOGPROB = metric(
    "covariance/advantage_logprob", NATS, "Cov(A, log p) over the step's tokens"
)
COVARIANCE_TOP: dict[str, float] = {
    metric(
        f"covariance/top_{percent.replace('.', '_')}",
        NATS,
        f"mean of the largest {percent} % of the tokens' covariances of log p and A",
    ): (float(percent) / 100)
    for percent in ("0.02", "0.2", "2", "20", "50", "100")
}
"""Names, and the share of the tokens."""
COVARIANCE_GROUP = metric(
    "covariance/group",
    NATS,
    "covariance of a sequence's mean log-prob and A within its group, mean over groups not all of"
    " whose A are 0",
)
COVARIANCE_GROUP_EASY = metric(
    "covariance/group_easy", NATS, "the same, groups most of which succeed"
)
COVARIANCE_GROUP_MIDDLE = metric(
    "covariance/group_middle", NATS, "the same, groups between the two"
)
COVARIANCE_GROUP_HARD = metric("covariance/group_hard", NATS, "the same, groups most of which fail")

CHANGE_POSITIVE_HIGH = metric(
    "change/positive_high", PER_UNIT, "part of the unit prediction from tokens with A > 0, S_c > 0"
)
CHANGE_POSITIVE_LOW = metric("change/positive_low", PER_UNIT, "the same, A > 0, S_c ≤ 0")
CHANGE_NEGATIVE_HIGH = metric("change/negative_high", PER_UNIT, "the same, A < 0, S_c > 0")
CHANGE_NEGATIVE_LOW = metric("change/negative_low", PER_UNIT, "the same, A < 0, S_c ≤ 0")
INFLUENCES: dict[str, Metric] = {
    part: metric(
        part.replace("change", "influence"),
        PER_STEP,
        f"sum of the influences of the tokens of {part}",
    )
    for part in (
        CHANGE_POSITIVE_HIGH,
        CHANGE_POSITIVE_LOW,
        CHANGE_NEGATIVE_HIGH,
        CHANGE_NEGATIVE_LOW,
    )
}
CHANGE_BY_POLICY_LOSS = metric(
    "change/by_policy_loss",
    PER_UNIT,
    "part of the unit prediction that the parts below do not explain",
)
CHANGE_BY_INTERVENTION = metric(
    "change/by_intervention",
    PER_UNIT,
    "part of the unit prediction that the active intervention makes",
)
CHANGE_BY_KL_PENALTY = metric(
    "change/by_kl_penalty", PER_UNIT, "part of the unit prediction from the loss's KL term"
)
CHANGE_BY_ENTROPY_BONUS = metric(
    "change/by_entropy_bonus", PER_UNIT, "part of the unit prediction from the loss's entropy bonus"
)

CLIP_FRACTION = metric(
    "clip/fraction",
    OF_TOKENS,
    "share of the tokens an intervention dropped",
    label="Clip fraction",
    show=Show.PERCENT,
)
CLIP_FRACTION_POSITIVE = metric(
    "clip/fraction_positive", OF_TOKENS, "the same among tokens with A > 0"
)
CLIP_FRACTION_NEGATIVE = metric(
    "clip/fraction_negative", OF_TOKENS, "the same among tokens with A < 0"
)
CLIP_CANDIDATE_FRACTION = optional(
    "clip/candidate_fraction",
    OF_TOKENS,
    "share of the tokens an intervention selected, dropped or not",
)

REWARD_MEAN = metric(
    "reward/mean",
    "",
    "mean reward of the step's completions",
    label="Reward",
    rise_is_good=True,
    also=(
        "reward",
        "critic/score/mean",
        "rollout/raw_reward",
        "reward/all/mean",
        "critic/rewards/mean",
        "objective/rlhf_reward",
        "objective/scores",
        "ppo/mean_scores",
        "reward_mean",
    ),
)
REWARD_STD = optional(
    "reward/std",
    "",
    "standard deviation of the step's rewards",
    also=("reward_std", "critic/score/std", "reward/all/std"),
)
REWARD_GROUP_STD = optional(
    "reward/group_std",
    "",
    "mean standard deviation of the rewards within a group",
    also=("group_reward_std", "group_reward_std_mean"),
)
REWARD_MIN = optional(
    "reward/min", "", "lowest reward", also=("critic/score/min", "reward/all/min", "reward_min")
)
REWARD_MAX = optional(
    "reward/max", "", "highest reward", also=("critic/score/max", "reward/all/max", "reward_max")
)
EVAL_AVG_AT_K = optional(
    "eval/avg_at_k", "", "mean reward of k completions of each held-out prompt", rise_is_good=True
)
EVAL_PASS_AT_K = optional(
    "eval/pass_at_k",
    "",
    "share of held-out prompts that at least one of k completions solves",
    rise_is_good=True,
)
ADVANTAGE_ZERO_GROUP_FRACTION = metric(
    "advantage/zero_group_fraction",
    "",
    "share of groups whose completions all have one reward, so that nothing is learnt from them",
    label="Groups with one reward",
    also=("frac_reward_zero_std", "rollout/zero_std_group_pct", "zero_variance_group_frac"),
)
ADVANTAGE_STD = optional(
    "advantage/std",
    "",
    "standard deviation of the advantages",
    also=("critic/advantages/std", "advantage/all/std", "adv_std"),
)
ADVANTAGE_ZERO_FRACTION = optional(
    "advantage/zero_fraction", "", "share of advantages that are 0", also=("adv_zero_frac",)
)
GROUP_ALL_RIGHT = optional(
    "group/all_right",
    "",
    "share of groups whose completions all have the highest reward",
    also=("solve_all/all", "solve_all/all/mean", "generation/solve_all/rate"),
)
GROUP_ALL_WRONG = optional(
    "group/all_wrong",
    "",
    "share of groups whose completions all have the lowest reward",
    also=("solve_none/all", "solve_none/all/mean", "generation/solve_none/rate"),
)
GROUP_IDENTICAL = optional(
    "group/identical", "", "share of groups whose completions are all the same tokens"
)
COMPLETION_LENGTH_MEAN = optional(
    "completion/length_mean",
    "tokens",
    "mean length of a completion",
    label="Completion length",
    also=(
        "completions/mean_length",
        "completion_length",
        "response_length/mean",
        "rollout/response_len/mean",
        "decode_len/all/mean",
        "response_length",
        "seq_len/all/mean",
        "decode_len/mean",
        "seq_len/mean",
        "completion_len_mean",
    ),
)
COMPLETION_TRUNCATED = optional(
    "completion/truncated_fraction",
    "",
    "share of completions that end at the length limit",
    show=Show.PERCENT,
    also=(
        "completions/clipped_ratio",
        "response_length/clip_ratio",
        "rollout/truncated_ratio",
        "is_truncated/all/mean",
        "is_truncated/mean",
        "response_clip_ratio",
        "truncation_rate",
    ),
)
COMPLETION_REPETITION = optional(
    "completion/repetition",
    "",
    "share of a completion's 4-grams of token ids that it had before",
    show=Show.PERCENT,
    also=("rollout/repetition_frac", "repetition_rate"),
)
COMPLETION_REWARD_OF_LENGTH = optional(
    "completion/reward_of_length",
    "",
    "correlation of reward and length within a group",
)
RATIO_MEAN = metric(
    "ratio/mean",
    "",
    "mean importance ratio to the old policy, or to the sampler where no old log-probs are passed",
    also=("sampling/importance_sampling_ratio/mean",),
)
RATIO_MAX = optional("ratio/max", "", "largest importance ratio of a token")
RATIO_QUANTILES = {
    optional(f"ratio/quantile_{share:02d}", "", f"{share} % of the tokens have a ratio below it"): (
        share / 100
    )
    for share in (1, 50, 99)
}
"""Names, and the share of the tokens below."""
RATIO_EFFECTIVE_SAMPLE_SIZE = optional(
    "ratio/effective_sample_size",
    OF_TOKENS,
    "(sum r)² / sum r² as a share of the tokens: 1 where all count alike",
)
RATIO_EFFECTIVE_SEQUENCES = optional(
    "ratio/effective_sequences", "", "the same for the ratios of whole sequences"
)
RATIO_CLIPPED_LOW = optional(
    "ratio/clipped_low",
    OF_TOKENS,
    "share of tokens with A < 0 and r < 1 that the loss gives no gradient",
    also=("clip_ratio/low_mean", "actor/pg_clipfrac_lower"),
)
RATIO_CLIPPED_HIGH = optional(
    "ratio/clipped_high",
    OF_TOKENS,
    "the same, A > 0 and r > 1",
    also=("clip_ratio/high_mean", "actor/pg_clipfrac_higher"),
)
RATIO_CLIPPED = optional(
    "ratio/clipped",
    OF_TOKENS,
    "share of tokens that the loss's ratio clip gives no gradient, as the trainer reports it",
    also=(
        "clip_ratio/region_mean",
        "clip_ratio",
        "actor/pg_clipfrac",
        "policy/clipfrac_avg",
        "ppo/policy/clipfrac",
        "train/pg_clipfrac",
        "ppo_clip_ratio",
        "clip_fraction",
    ),
)
KL_OLD = optional(
    "kl/old",
    NATS,
    "KL(old policy ‖ policy), k3 estimate, where old log-probs are passed; missing where a "
    "ratio is no float64",
    label="KL to the old policy",
    also=("actor/ppo_kl", "ppo_kl", "policy/approxkl_avg", "ppo/policy/approxkl"),
)
KL_REFERENCE = optional(
    "kl/reference",
    NATS,
    "KL(policy ‖ reference), k3 estimate; missing where a ratio is no float64",
    label="KL to the reference",
    also=("kl", "actor/kl_loss", "kl_loss", "critic/kl", "objective/kl", "kl_mean"),
)
SAMPLER_KL_K1 = optional("sampler/kl_k1", NATS, "KL(sampler ‖ trainer), mean of log q / p")
SAMPLER_KL_K3 = optional(
    "sampler/kl_k3",
    NATS,
    "the same, mean p / q - 1 - log p / q: never negative; missing where a ratio is no float64",
    label="KL to the sampler",
    also=("mismatch_kl/all/mean", "mismatch_kl/mean", "rollout_corr/k3_kl", "vllm_kl"),
)
SAMPLER_LOGPROB_DIFFERENCE_MEAN = optional(
    "sampler/logprob_difference_mean",
    NATS,
    "mean difference of a token's log-prob between trainer and sampler, as the trainer reports it",
    also=(
        "sampling/sampling_logp_difference/mean",
        "train/train_rollout_logprob_abs_diff",
        "train_rollout_logprob_abs_diff",
    ),
)
SAMPLER_LOGPROB_DIFFERENCE_MAX = optional(
    "sampler/logprob_difference_max",
    NATS,
    "largest difference of a token's log-prob between trainer and sampler",
)
SAMPLER_EFFECTIVE_SAMPLE_SIZE = optional(
    "sampler/effective_sample_size",
    OF_TOKENS,
    "effective sample size of the ratios p / q to the sampler, as a share of the tokens",
)
SAMPLER_EFFECTIVE_SEQUENCES = optional(
    "sampler/effective_sequences", "", "the same for whole sequences"
)
GROUP_COUNT = optional("group/count", "", "groups with several completions")

TOKEN_COUNT = optional("token/count", "tokens", "valid tokens of the step")
TOKEN_VOCABULARY = optional(
    "token/vocabulary",
    "tokens",
    "size V of the vocabulary: no entropy is above ln V",
)
TOKEN_EFFECTIVE_FRACTION = optional(
    "token/effective_fraction", OF_TOKENS, "share of tokens that the loss pushes at all"
)
TOKEN_NOT_FINITE = optional(
    "token/not_finite", "tokens", "tokens not measured because one of their numbers is NaN or Inf"
)
TOKEN_GRADIENT_NOT_FINITE = optional(
    "token/gradient_not_finite",
    "tokens",
    "tokens, padding included, whose gradient is NaN or Inf: nothing is predicted for the step",
)
TOKEN_GRADIENT_OUTSIDE_MASK = optional(
    "token/gradient_outside_mask",
    "tokens",
    "tokens that the mask leaves out and the loss gives a gradient",
)
TOKEN_EPOCH = optional(
    "token/epoch",
    "",
    "how many of the last 64 steps trained on this very set of tokens, this one included",
)
TOKEN_DISCARDED = optional(
    "token/discarded",
    "tokens",
    "tokens gated since the step before, and of no step: discarded, or reached by no backward",
)
TOKEN_NOT_RECORDED = optional(
    "token/not_recorded", "tokens", "tokens of a step too large to be measured"
)

HOLD_TARGET = optional("hold/target", NATS, "entropy to hold")
HOLD_STEPS_TO_TARGET = optional(
    "hold/steps_to_target", "steps", "steps until the target is reached at the present pace"
)
HOLD_MU = optional("hold/mu", "σ", "threshold chosen to hold it")
HOLD_BONUS = optional("hold/bonus", "", "coefficient of the entropy bonus chosen to hold it")
ENTROPY_BONUS_EFFECT = optional(
    "entropy/bonus_effect",
    PER_UNIT,
    "what an entropy bonus of 1 at the gate would add to the unit prediction",
)
HOLD_GAIN = optional("hold/gain", "", "gain the choice was made with")
HOLD_DRIFT = optional(
    "hold/drift", PER_STEP, "change of entropy that the prediction does not explain"
)
HOLD_RESTING_POINT = optional(
    "hold/resting_point", NATS, "entropy estimate the correction starts from"
)
CONTROL_MU_LOW = optional("control/mu_low", "σ", "active lower threshold, while a hold is on")
CONTROL_MU_HIGH = optional("control/mu_high", "σ", "active upper threshold, while a hold is on")

PROBE_SECONDS = metric("probe/seconds", "s", "time the probe took of this step")
PROBE_RESCORE_SECONDS = optional(
    "probe/rescore_seconds", "s", "time of the re-scoring that `rescore` did"
)
PROBE_DROPPED_REPORTS = metric(
    "probe/dropped_reports", "", "reports dropped because the spool could not take them"
)
PROBE_ACCEPTED_REPORTS = metric("probe/accepted_reports", "", "reports the spool took")
PROBE_SPOOLED_RECORDS = metric("probe/spooled_records", "", "records written to disk")
PROBE_ACKNOWLEDGED_RECORDS = metric(
    "probe/acknowledged_records", "", "records the server has stored"
)
PROBE_DELIVERY_LAG_SECONDS = metric(
    "probe/delivery_lag_seconds", "s", "age of the oldest record the server has not stored"
)
PROBE_LEFT_OUT_REPORTS = metric(
    "probe/left_out_reports",
    "",
    "reports written without tokens, rollouts or histograms, to save space",
)
PROBE_FAILURES = optional("probe/failures", "", "failures inside the probe so far")
PROBE_FAILED_RANKS = optional("probe/failed_ranks", "", "ranks whose tokens are missing")
PROBE_RANKS_OUT_OF_STEP = optional(
    "probe/ranks_out_of_step", "", "different steps that ranks closed at once"
)
PROBE_ATTACHMENT_FAILURES = optional(
    "probe/attachment_failures", "", "failures inside an integration so far"
)
TIME_STEP_SECONDS = optional(
    "time/step_seconds",
    "s",
    "time of a step: as the trainer reports it, else between the ends of two steps",
    also=(
        "step_time",
        "timing_s/step",
        "perf/step_time",
        "time/step",
        "perf/time_per_step",
        "step_time_s",
    ),
)
TIME_GENERATION_SECONDS = optional(
    "time/generation_seconds",
    "s",
    "time of a step's generation, as the trainer reports it",
    also=("timing_s/gen", "perf/rollout_time", "timing/generation", "generation_time_s"),
)
SYSTEM_DEVICE_MEMORY = optional(
    "system/device_memory", "GiB", "memory of the reporting rank's device in tensors"
)
SYSTEM_DEVICE_PEAK_MEMORY = optional(
    "system/device_peak_memory", "GiB", "most memory that torch has taken of that device"
)
SYSTEM_DEVICE_UTILISATION = optional(
    "system/device_utilisation",
    "",
    "share of the driver's last interval in which a kernel ran; needs nvidia-ml-py, at most"
    " every 2 s",
    show=Show.PERCENT,
)
SYSTEM_HOST_MEMORY = optional(
    "system/host_memory", "GiB", "resident memory of the reporting process; on Linux"
)
SYSTEM_TOKENS_PER_SECOND = optional(
    "system/tokens_per_second",
    "tokens a second",
    "gated tokens of all ranks over the time of the step",
)
TRAIN_GRAD_NORM = optional(
    "train/grad_norm",
    "",
    "norm of the gradient before it is clipped, as the trainer reports it",
    label="Gradient norm",
    also=("grad_norm", "actor/grad_norm", "optim/grad_norm", "actor_grad_norm"),
)
TRAIN_NOT_FINITE = optional(
    "train/not_finite",
    "",
    "NaN or infinite gradients that the trainer counted",
    also=("nan_count",),
)
TRAIN_LOSS = optional("train/loss", "", "loss of the update", also=("loss", "actor/pg_loss"))
TRAIN_LEARNING_RATE = optional(
    "train/learning_rate",
    "",
    "learning rate of the update",
    also=("learning_rate", "actor/lr", "lr", "optim/lr", "actor_lr"),
)
VALUE_EXPLAINED_VARIANCE = optional(
    "value/explained_variance",
    "",
    "share of the returns' variance that the value function explains",
    also=("critic/vf_explained_var", "explained_variance", "value_explained_variance"),
)
VALUE_LOSS = optional(
    "value/loss",
    "",
    "loss of the value function, as the loop logs it",
    also=("train/value_loss", "critic/vf_loss", "critic_loss", "loss/value_avg", "value_loss"),
)

AT_A_GLANCE: tuple[tuple[Metric, ...], ...] = (
    (REWARD_MEAN,),
    (ENTROPY_MEAN,),
    (TRAIN_GRAD_NORM,),
    (KL_REFERENCE, KL_OLD, SAMPLER_KL_K3),
    (COMPLETION_LENGTH_MEAN,),
    (ADVANTAGE_ZERO_GROUP_FRACTION,),
)
"""What everybody looks at first; of each entry the first one that the run reports."""

DISCRIMINATOR_SCORES = histogram("score/discriminator", NATS, "S* of the step's tokens")
VOCAB_CENTERED_SCORES = histogram("score/vocab_centered", NATS, "S_c of the step's tokens")
TOKEN_ENTROPIES = histogram("entropy/token", NATS, "entropy of the step's tokens")
TOKEN_PROBABILITIES = histogram("token/probability", "", "probability of the sampled tokens")


@dataclass(slots=True)
class EarlyLevel:
    """The level of a quantity in a run's first steps: their median.

    Call `add` with each step's value; a step in which it was not measured is not passed.
    """

    steps: int = EARLY_STEPS
    values: list[float] = field(default_factory=list)
    """The first `steps` values."""

    def add(self, value: float) -> None:
        """Pass the next step's value, which is finite."""
        if len(self.values) < self.steps:
            self.values.append(value)

    @property
    def level(self) -> float | None:
        """The median of the first values, in their unit; None before there are enough of them."""
        if len(self.values) == self.steps:
            return median(self.values)
        return None

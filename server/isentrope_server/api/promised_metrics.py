"""What every probe promises to report. That a run has not measured one of these yet is no reason for an error."""

from __future__ import annotations

PROMISED_METRICS = frozenset(
    {
        "entropy/mean",
        "entropy/unit_predicted_change",
        "entropy/predicted_change",
        "entropy/predicted_change_low",
        "entropy/predicted_change_high",
        "entropy/interval_coverage",
        "entropy/observed_change",
        "entropy/gain",
        "entropy/prediction_r2",
        "entropy/prediction_sign_agreement",
        "score/discriminator_mean",
        "score/discriminator_std",
        "score/vocab_centered_mean",
        "score/vocab_centered_std",
        "score/self_check_z",
        "covariance/advantage_score",
        "covariance/advantage_logprob",
        "covariance/top_0_02",
        "covariance/top_0_2",
        "covariance/top_2",
        "covariance/top_20",
        "covariance/top_50",
        "covariance/top_100",
        "change/positive_high",
        "change/positive_low",
        "change/negative_high",
        "change/negative_low",
        "change/with_nothing_in_force",
        "change/by_ratio_clip",
        "change/by_intervention",
        "change/by_kl_penalty",
        "covariance/group",
        "covariance/group_easy",
        "covariance/group_middle",
        "covariance/group_hard",
        "clip/fraction",
        "clip/fraction_positive",
        "clip/fraction_negative",
        "reward/mean",
        "advantage/zero_group_fraction",
        "completion/length_mean",
        "ratio/mean",
        "probe/seconds",
        "probe/dropped_reports",
    }
)

PROMISED_HISTOGRAMS = frozenset({"score/discriminator", "score/vocab_centered", "entropy/token", "token/probability"})

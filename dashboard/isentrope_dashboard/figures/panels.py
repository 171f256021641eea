"""Every chart over steps as a row: on the overview (`OVERVIEW`), and in the tab of distributions
(`DISTRIBUTIONS`)."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from isentrope_dashboard import theme
from isentrope_dashboard.figures.entropy import entropy_figure, law_figure
from isentrope_dashboard.figures.heat import heat_figure
from isentrope_dashboard.figures.panel import REST, Line, Panel, Quantity
from isentrope_dashboard.formatting import change
from isentrope_wire import metrics
from isentrope_wire.diagnosis.pull import MEANINGS, QUADRANTS

HEAT_HEIGHT, LAW_HEIGHT = 236, 220
TALL, SHORT = (
    f"max({least}px, {share} * (100vh - 388px))" for least, share in ((300, 0.589), (208, 0.411))
)
"""With what is above them the two rows of the overview fill a screen."""

OVERVIEW: Sequence[Panel] = (
    Panel(
        name="entropy",
        title="Entropy",
        unit="nats",
        says=(
            "Entropy over steps, with the early level and what the next 50 steps are predicted to"
            " bring"
        ),
        needs="No entropy was reported so far",
        height=TALL,
        lines=[Line(metrics.ENTROPY_MEAN, "entropy", "iris")],
        reads=(metrics.HOLD_TARGET,),
        draw=entropy_figure,
        keys=[("observed", "line", "iris"), ("predicted", "dash", "dim")],
    ),
    Panel(
        name="reward",
        title="Reward",
        unit="mean",
        says="Reward over steps",
        needs="No reward was reported: log reward/mean, or pass rewards",
        height=TALL,
        lines=[Line(metrics.REWARD_MEAN, "reward", "iris", width=2)],
        keys=[("smoothed", "line", "iris")],
        from_zero=True,
    ),
    Panel(
        name="change",
        title="Change of entropy",
        unit="nats a step",
        says="Predicted entropy change with its 90 % band, and the observed change, over steps",
        needs="No calibrated prediction: it needs the optimizer in step(), rescore= and some steps",
        height=SHORT,
        lines=[
            Line(
                metrics.ENTROPY_UNSEEN_CHANGE,
                "on unseen tokens",
                "observed",
                width=1.2,
                smooth=False,
            ),
            Line(
                metrics.ENTROPY_OBSERVED_CHANGE,
                "observed",
                "observed",
                width=1.2,
                smooth=False,
                unless=metrics.ENTROPY_UNSEEN_CHANGE,
            ),
            Line(metrics.ENTROPY_PREDICTED_CHANGE, "predicted", "iris", width=2, smooth=False),
        ],
        band=(metrics.ENTROPY_PREDICTED_CHANGE_LOW, metrics.ENTROPY_PREDICTED_CHANGE_HIGH),
        keys=[
            ("predicted", "line", "iris"),
            ("90 % band", "band", "iris"),
            ("observed", "line", "observed"),
        ],
        written=change,
        forecast="pace",
    ),
    Panel(
        name="clip",
        title="Clipped tokens",
        unit="of tokens",
        says="Share of the tokens that the active method clips, over steps",
        needs="No clip fraction was reported so far",
        height=SHORT,
        lines=[Line(metrics.CLIP_FRACTION, "clipped", "iris", width=2, smooth=False)],
        keys=[("clipped", "line", "iris")],
        share=True,
        least_top=0.05,
        forecast="clip_fraction",
    ),
)


_DASHES = ("solid", "5px,3px")


def _heat(name: str, title: str, unit: str, quantity: Quantity) -> Panel:
    keys = [("median", "line", "text"), ("1 and 99 %", "dash", "text")]
    return Panel(
        name=name,
        title=title,
        unit=unit,
        says=f"{title}: share of the tokens by value over steps, and the bars of one step",
        needs="The reports have no such histogram: the probe dropped it to save space.",
        height=HEAT_HEIGHT,
        reads=[
            metrics.CONTROL_MU_LOW,
            metrics.CONTROL_MU_HIGH,
            *filter(None, (quantity.mean, quantity.std)),
        ],
        quantity=quantity,
        draw=heat_figure,
        keys=[*keys, ("threshold", "line", "upper")] if quantity.std else keys,
    )


DISTRIBUTIONS: Sequence[Panel] = (
    _heat(
        "vocab-centered",
        "Vocabulary-centred score",
        "nats",
        Quantity(
            histogram=metrics.VOCAB_CENTERED_SCORES,
            symbol="S<sub>c</sub>",
            std=metrics.SCORE_VOCAB_CENTERED_STD,
        ),
    ),
    _heat(
        "discriminator",
        "Discriminator score",
        "nats",
        Quantity(
            histogram=metrics.DISCRIMINATOR_SCORES,
            symbol="S*",
            mean=metrics.SCORE_DISCRIMINATOR_MEAN,
            std=metrics.SCORE_DISCRIMINATOR_STD,
        ),
    ),
    Panel(
        name="quadrants",
        title="Where the pull comes from",
        unit="nats per unit gain",
        lines=[
            *(
                Line(
                    part,
                    escape(QUADRANTS[part]).replace("S_c", "S<sub>c</sub>"),
                    "act" if number < 2 else "up",
                    _DASHES[number % 2],
                )
                for number, part in enumerate(MEANINGS)
            ),
            Line(metrics.ENTROPY_UNIT_PREDICTED_CHANGE, "sum", "observed"),
        ],
        needs="Pass the advantages to gate().",
        says="The unit prediction over steps, split by the signs of advantage and score",
        written=change,
    ),
    Panel(
        name="mechanisms",
        title="What each mechanism changes",
        unit="nats per unit gain",
        lines=[
            Line(metrics.CHANGE_BY_POLICY_LOSS, "policy loss", "act"),
            Line(metrics.CHANGE_BY_INTERVENTION, "control", "hold"),
            Line(metrics.CHANGE_BY_KL_PENALTY, "KL penalty", "upper", "5px,3px"),
            Line(metrics.CHANGE_BY_ENTROPY_BONUS, "entropy bonus", "up", "2px,2px"),
            Line(metrics.ENTROPY_UNIT_PREDICTED_CHANGE, "sum", "observed"),
        ],
        signs=(
            metrics.CHANGE_BY_INTERVENTION,
            metrics.CHANGE_BY_KL_PENALTY,
            metrics.CHANGE_BY_ENTROPY_BONUS,
        ),
        needs="Pass the advantages to gate().",
        rest=(
            "So far all of the prediction comes from the policy loss; an active control, a KL term"
            " and an entropy bonus get a line each."
        ),
        says="The unit prediction over steps, split by mechanism",
        written=change,
    ),
    _heat(
        "token-entropy",
        "Token entropy",
        "nats",
        Quantity(histogram=metrics.TOKEN_ENTROPIES, symbol="H"),
    ),
    _heat(
        "probability",
        "Probability of the sampled token",
        "",
        Quantity(histogram=metrics.TOKEN_PROBABILITIES, symbol="p"),
    ),
    Panel(
        name="covariance",
        title="Covariance of log p and A",
        unit="mean of the largest, log scale; triangles where it is below 0",
        lines=[
            Line(
                metric,
                f"top {100 * share:g} %" if share < 1 else "all",
                str(number),
                theme.DASHES[number],
            )
            for number, (metric, share) in enumerate(metrics.COVARIANCE_TOP.items())
        ],
        needs="Pass the advantages to gate().",
        says=(
            "Mean of the largest covariances of log-prob and advantage over steps, for several"
            " shares of the tokens"
        ),
        log=True,
    ),
    Panel(
        name="difficulty",
        title="Covariance within groups",
        unit="nats, by difficulty",
        lines=[
            Line(metrics.COVARIANCE_GROUP_EASY, "easy groups", "hold"),
            Line(metrics.COVARIANCE_GROUP_MIDDLE, "between", "upper", "5px,3px"),
            Line(metrics.COVARIANCE_GROUP_HARD, "hard groups", "act", "2px,2px"),
            Line(metrics.COVARIANCE_GROUP, "all groups", "observed"),
        ],
        needs="Pass groups= to gate(): which sequences are rollouts of one prompt.",
        says=(
            "Covariance of a sequence's log-prob and advantage within its group over steps, by the"
            " group's difficulty"
        ),
    ),
    Panel(
        name="ratios",
        title="Importance ratio",
        unit="policy to the one that sampled, log scale",
        lines=[
            Line(metrics.RATIO_MAX, "largest", "act"),
            Line(metrics.RATIO_MEAN, "mean", "iris"),
            *(
                Line(
                    name, "median" if share == 0.5 else f"{100 * share:g} % below", "observed", dash
                )
                for (name, share), dash in zip(
                    metrics.RATIO_QUANTILES.items(), ("2px,2px", "solid", "5px,3px"), strict=True
                )
            ),
        ],
        needs="Pass old_logprobs= or sampler_logprobs= to gate().",
        says="Mean, largest and quantiles of the importance ratio over steps",
        log=True,
        at_rest=1.0,
        rest=f"All within {REST} of 1: every step trains on samples of the current policy.",
    ),
    Panel(
        name="kl",
        title="KL divergence",
        unit="nats a token",
        lines=[
            Line(metrics.KL_OLD, "old policy", "iris"),
            Line(metrics.KL_REFERENCE, "reference", "hold", "5px,3px"),
            Line(metrics.SAMPLER_KL_K3, "sampler, k3", "act"),
            Line(metrics.SAMPLER_KL_K1, "sampler, k1", "upper", "2px,2px"),
        ],
        needs="Pass old_logprobs=, sampler_logprobs= or ref_logprobs= to gate().",
        says=(
            "KL divergence of the policy from the old policy, the reference and the sampler over"
            " steps"
        ),
        written=change,
        at_rest=0.0,
        rest=f"All below {REST} nats: trainer, old policy and sampler are one policy.",
    ),
    Panel(
        name="samples",
        title="Effective sample size",
        unit="share that counts",
        lines=[
            Line(metrics.RATIO_EFFECTIVE_SAMPLE_SIZE, "tokens", "iris"),
            Line(metrics.RATIO_EFFECTIVE_SEQUENCES, "sequences", "iris", "5px,3px"),
            Line(metrics.SAMPLER_EFFECTIVE_SAMPLE_SIZE, "tokens, sampler", "act"),
            Line(metrics.SAMPLER_EFFECTIVE_SEQUENCES, "seq., sampler", "act", "5px,3px"),
        ],
        needs="Pass old_logprobs= or sampler_logprobs= to gate().",
        says="Effective sample size of the importance ratios over steps",
        share=True,
        at_rest=1.0,
        rest="100 %: all samples count alike.",
    ),
    Panel(
        name="law",
        title="Reward against entropy",
        unit="means of neighbouring steps",
        says="Reward against entropy, with the fitted curve and its ceiling",
        needs="No step has both entropy and reward.",
        height=LAW_HEIGHT,
        draw=law_figure,
        zooms=False,
    ),
)
"""The most useful first. One that has nothing to show is a line at the end."""

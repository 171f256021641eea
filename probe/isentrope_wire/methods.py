"""METHODS: every intervention, one row each: its parameters, presets, label, source, and when it
can't act.

The trainer and the server validate by it; the command line, the form, REST, the what-if and the
guide's tables are made from it. A row names its implementation in `isentrope/methods/`, which
nothing else does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import ClassVar, Literal

from isentrope_wire.errors import ConfigurationError
from isentrope_wire.metrics import DISCRIMINATOR_SCORES, VOCAB_CENTERED_SCORES
from isentrope_wire.numbers import is_finite_number, shown

Value = float | int | str | None


@dataclass(frozen=True, slots=True)
class Parameter:
    """One knob of a method: a number between bounds, or one of several words."""

    name: str
    default: Value
    """What a control that does not name the parameter means. None: the knob is off."""
    sense: str
    """What it does, in one phrase."""
    _: KW_ONLY
    minimum: float | None = None
    maximum: float | None = None
    minimum_excluded: bool = False
    whole: bool = False
    """Whether only whole numbers make sense."""
    choices: tuple[str, ...] = ()
    """The words it can be; empty for a number."""
    idle: tuple[float, str] | None = None
    """The value at which the method does nothing, and what that means."""
    aliases: tuple[str, ...] = ()
    """Names of the same knob in verl, accepted in the place of `name`."""
    needs_ratio: bool = False
    """Whether it acts on the importance ratio alone."""

    def check(self, value: object) -> Value:
        """The value as this parameter takes it. ConfigurationError: naming the parameter, what it
        takes and what came."""
        if value is None and self.default is None:
            return None
        if self.choices:
            if value not in self.choices:
                raise ConfigurationError(
                    f"parameters.{self.name} must be one of {', '.join(self.choices)}; got"
                    f" {value!r}."
                )
            return str(value)
        if not is_finite_number(value) or not self._takes(value):
            raise ConfigurationError(
                f"parameters.{self.name} must be {self.range_in_words}, got {shown(value)}."
            )
        if self.whole:
            return int(value)
        return float(value)

    def _takes(self, value: float) -> bool:
        if self.whole and value != int(value):
            return False
        if self.minimum is not None and (
            value < self.minimum or (self.minimum_excluded and value == self.minimum)
        ):
            return False
        return self.maximum is None or value <= self.maximum

    @property
    def kind(self) -> Literal["number", "whole", "choice"]:
        """What it takes."""
        if self.choices:
            return "choice"
        if self.whole:
            return "whole"
        return "number"

    @property
    def range_in_words(self) -> str:
        """What it takes: `a number above 0 and at most 1`."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        lowest = ""
        if self.minimum is not None:
            above = "of at least"
            if self.minimum_excluded:
                above = "above"
            lowest = f"{above} {self.minimum:g}"
        highest = ""
        if self.maximum is not None:
            joined = ""
            if lowest:
                joined = "and "
            highest = f"{joined}at most {self.maximum:g}"
        words = ["a whole number" if self.whole else "a finite number", lowest, highest]
        return " ".join(word for word in words if word)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The µ from which on a side can leave nothing out, in standard deviations; None: there is no
    such."""

    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEvidence:
    """What a step was like; counts are of valid tokens."""

    tokens: int
    positive: int
    """Tokens with A > 0."""
    negative: int
    candidates: int
    """Tokens the method selected, see `Selection.selected`."""
    spared: int
    """Candidates whose gradient took part all the same."""
    decreasing: int
    """Tokens whose update lowers entropy: A S_c > 0."""
    increasing: int
    discriminator_mean: float
    discriminator_std: float
    vocab_centered_std: float
    largest_entropy: float
    """Of the step's tokens, nats."""
    largest_expected_score: float
    """Largest E[S] of the step's tokens, nats."""
    ratio_spread: float | None
    """Root mean square of r - 1. None: the loop gave no sampler log-probs."""
    ratio_to_sampler: bool = False
    """Whether r is to the sampler, for the loop gave no log-probs of the old policy."""
    groups: int = 0
    """Groups of two sequences and more that the loop named."""
    old_entropies_known: bool = False
    """Whether the loop passed the entropies of the old policy."""
    outside_low: float = 0.0
    """Tokens that the method asked for on the lower side, where it has thresholds; from the step's
    what-if sums."""
    outside_high: float = 0.0


RATIO_TOLERANCE = 1e-6
"""Two forward passes of one policy differ by less; an update moves the ratio by more."""

Dead = Callable[[Callable[[str], float], StepEvidence], Iterator[str]]
"""One sentence for each reason why the method does nothing in a step, or not what its numbers ask
for. Given a function of a parameter's name that gives the control's number, and what the step was
like."""


class Method(str):
    """One row: the name of a method, and what is known of it. A probe's capabilities name those it
    can carry out."""

    __slots__ = (
        "bounds",
        "dead",
        "does",
        "histogram",
        "implementation",
        "label",
        "parameters",
        "plain",
        "positive_only",
        "presets",
        "rising",
        "source",
        "thresholds",
    )

    NONE: ClassVar[Method]
    ENTROPY_BONUS: ClassVar[Method]
    CLIP_B: ClassVar[Method]
    CLIP_V: ClassVar[Method]

    label: str
    """For a person."""
    does: str
    """What becomes of a token's gradient, in one phrase."""
    plain: str
    """The same without symbols, for who chooses."""
    source: str
    """Where it was published; empty: nowhere."""
    implementation: str
    """`file.NAME` of its `Intervention` in `isentrope/methods/`; empty: it changes nothing."""
    thresholds: bool
    """Whether mu_low and mu_high act, and so whether an entropy can be held by moving them."""
    positive_only: bool
    """Whether it acts on tokens with A > 0 alone."""
    parameters: Mapping[str, Parameter]
    """What it can be given beside thresholds and scope, by name."""
    rising: tuple[str, ...]
    """Parameters each of which must lie below the next."""
    presets: Mapping[str, Mapping[str, object]]
    """By name: what a control that names the preset means where it says nothing itself."""
    histogram: str
    """The one of a step's histograms in which its thresholds can be drawn; empty: none."""
    bounds: Callable[[StepEvidence], Bounds]
    """Where the sides of its thresholds end in a step."""
    dead: Dead

    def __reduce__(self) -> tuple[Callable[[object], Method], tuple[str]]:
        return method_named, (str(self),)


METHODS: dict[str, Method] = {}
"""Every row by its name, in the order of this file."""


def method(
    name: str,
    *,
    label: str,
    does: str,
    plain: str = "",
    source: str = "",
    implementation: str = "",
    thresholds: bool = False,
    histogram: str = "",
    bounds: Callable[[StepEvidence], Bounds] = lambda step: Bounds(),
    dead: Dead = lambda number, step: iter(()),
    positive_only: bool = False,
    parameters: tuple[Parameter, ...] = (),
    rising: tuple[str, ...] = (),
    presets: Mapping[str, Mapping[str, object]] | None = None,
) -> Method:
    """Add a row."""
    if name in METHODS:
        raise ValueError(f"There is a method of the name {name!r} already.")
    row = METHODS[name] = Method(name)
    row.label, row.does, row.source, row.implementation = label, does, source, implementation
    row.plain = plain or does
    row.thresholds, row.histogram, row.bounds = thresholds, histogram, bounds
    row.dead, row.positive_only = dead, positive_only
    row.parameters = {parameter.name: parameter for parameter in parameters}
    row.rising, row.presets = rising, presets or {}
    return row


def method_named(name: object) -> Method:
    """The row of this name; ConfigurationError: there is none."""
    found = METHODS.get(str(name))
    if found is None:
        raise ConfigurationError(f"method must be one of {', '.join(METHODS)}; got {name!r}.")
    return found


def threshold_methods() -> list[str]:
    """Names of the methods whose thresholds act."""
    return [name for name, row in METHODS.items() if row.thresholds]


_share = partial(Parameter, minimum=0.0, maximum=1.0)
_at_least_0 = partial(Parameter, minimum=0.0)


def _choice(name: str, words: tuple[str, ...], sense: str) -> Parameter:
    """One of these words, the first where a control does not name it."""
    return Parameter(name, words[0], sense, choices=words)


_DENOMINATOR = _choice(
    "denominator",
    ("keep", "shrink"),
    "what a token mean divides by: all tokens (keep), or only those whose gradient takes part"
    " (shrink)",
)
_EPSILON_LOW = _share(
    "epsilon_low",
    None,
    "also leave out tokens with A < 0 whose ratio fell below 1 - epsilon_low",
    aliases=("clip_ratio_low",),
    needs_ratio=True,
)
_EPSILON_HIGH = _at_least_0(
    "epsilon_high",
    None,
    "also leave out tokens with A > 0 whose ratio rose above 1 + epsilon_high",
    aliases=("clip_ratio_high",),
    needs_ratio=True,
)
_COMMON = (_DENOMINATOR, _EPSILON_LOW, _EPSILON_HIGH)

_CLIP = (
    _share(
        "max_fraction",
        None,
        "leave out at most this share of the tokens, but at least one, those furthest beyond their"
        " threshold",
        minimum_excluded=True,
    ),
    *_COMMON,
)

LOWEST_DISCRIMINATOR_SCORE = -0.22388
"""No token's S* lies below: of all distributions, min p (H + log p) = min p (1 - p) log(p / (1 -
p)) at p = 0.176."""


def _clip_b_bounds(step: StepEvidence) -> Bounds:
    """Where Clip_B's sides end: -0.22388 <= S* <= H, counted from mean S* in sigma.

        mu_low  < (mean S* + 0.22388) / sigma          mu_high < (max H - mean S*) / sigma

    S* = p (H + log p). Below: given p, H is least when all the rest lies on one other token, which
    leaves p (1 - p) log(p / (1 - p)), and that is never below -0.22388. Above: p <= 1 and log p <=
    0."""
    sigma = step.discriminator_std
    if sigma <= 0:
        return Bounds()
    return Bounds(
        (step.discriminator_mean - LOWEST_DISCRIMINATOR_SCORE) / sigma,
        (step.largest_entropy - step.discriminator_mean) / sigma,
    )


def _clip_v_bounds(step: StepEvidence) -> Bounds:
    """Where Clip_V's sides end: -0.22388 - max E[S] <= S_c <= max H, counted from 0 in sigma'.

        mu_low  < (0.22388 + max E[S]) / sigma'        mu_high < max H / sigma'

    S_c = S* - E[S] and S* >= -0.22388, as for Clip_B. E[S] = sum p_i p_i (H + log p_i) is the
    covariance under p of p and log p, for H = -mean log p: both rise together, so E[S] >= 0 and S_c
    <= S* <= H. It has no bound of its own (it grows with the logarithm of the vocabulary), so the
    largest of the step's tokens is taken."""
    sigma = step.vocab_centered_std
    if sigma <= 0:
        return Bounds()
    return Bounds(
        (step.largest_expected_score - LOWEST_DISCRIMINATOR_SCORE) / sigma,
        step.largest_entropy / sigma,
    )


def _clip_cov_dead(number: Callable[[str], float], step: StepEvidence) -> Iterator[str]:
    wanted = number("ratio") * step.tokens
    if not step.candidates:
        yield "No token's covariance lies between omega_low and omega_high: none is clipped."
    elif step.candidates < wanted:
        yield (
            f"Only {step.candidates} of {step.tokens} tokens lie between omega_low and omega_high,"
            f" fewer than the {wanted:.3g} that ratio asks for: all of them are clipped."
        )


def _kl_cov_dead(number: Callable[[str], float], step: StepEvidence) -> Iterator[str]:
    if step.ratio_to_sampler:
        yield (
            "beta can't act: the ratio to the old policy is not known, and to the sampler the"
            " penalty would be one of round-off. Give gate old_logprobs."
        )


def _rank_reward_dead(number: Callable[[str], float], step: StepEvidence) -> Iterator[str]:
    if not step.groups:
        yield (
            "rank_reward can't act: no group of sequences is known. Give gate the groups, each in"
            " one call."
        )


def _entropy_ratio_clip_dead(number: Callable[[str], float], step: StepEvidence) -> Iterator[str]:
    if not step.old_entropies_known:
        yield (
            "entropy_ratio_clip can't act: the old policy's entropies are not known. Give gate"
            " old_entropies."
        )
    elif not step.candidates:
        yield (
            "No token's entropy has moved beyond beta_low or beta_high since the old policy: every"
            " token is kept. With one update a batch none moves."
        )


def _steer_dead(number: Callable[[str], float], step: StepEvidence) -> Iterator[str]:
    if not step.candidates:
        yield "No token's update is estimated to change the entropy: every token counts as before."


def _unlikely_dead(number: Callable[[str], float], step: StepEvidence) -> Iterator[str]:
    if step.positive and not step.candidates:
        yield (
            f"No token with A > 0 is less likely than {number('below'):g}: every token counts as"
            " before."
        )


Method.NONE = method(
    "none",
    label="None (observe only)",
    does="changes nothing",
    plain="Changes nothing; the switch below holds the entropy",
)
Method.CLIP_B = method(
    "clip_b",
    label="Clip_B",
    does="keeps it while −µ_low σ ≤ S* − mean(S*) ≤ µ_high σ",
    plain="Clips by a simpler score",
    source="arXiv:2602.03392, eq. 15",
    implementation="threshold.CLIP_B",
    thresholds=True,
    histogram=DISCRIMINATOR_SCORES,
    bounds=_clip_b_bounds,
    parameters=_CLIP,
    # What the authors' code does, Trinity-RFT's `clipb_advantage`: it clips the lower tail of
    # negative samples alone, and overwrites the response mask, so that the denominator shrinks. The
    # paper prints no µ.
    presets={
        "trinity": {"mu_low": 2.5, "scope": "negative", "parameters": {"denominator": "shrink"}}
    },
)
Method.CLIP_V = method(
    "clip_v",
    label="Clip_V",
    does="keeps it while −µ_low σ' ≤ S_c ≤ µ_high σ'",
    plain="Tokens that move entropy far don't train: drag µ",
    source="arXiv:2602.03392, eq. 16",
    implementation="threshold.CLIP_V",
    thresholds=True,
    histogram=VOCAB_CENTERED_SCORES,
    bounds=_clip_v_bounds,
    parameters=(
        *_CLIP,
        _choice(
            "zero_advantage",
            ("keep", "clip"),
            "whether tokens with A = 0 beyond a threshold are left out of the mean too, outside the"
            " scope and the cap",
        ),
    ),
    # As for Clip_B, by Trinity-RFT's `clipv_advantage`: at most one token in ten thousand, and
    # tokens with A = 0 leave the denominator too.
    presets={
        "trinity": {
            "mu_low": 8.5,
            "scope": "negative",
            "parameters": {"max_fraction": 1e-4, "denominator": "shrink", "zero_advantage": "clip"},
        },
    },
)
method(
    "clip_cov",
    label="Clip-Cov",
    does="drops a random share of the tokens whose covariance of log p and A lies within bounds",
    plain="Leaves out a few random tokens of high covariance",
    source="arXiv:2505.22617, eq. 11-12",
    implementation="covariance.CLIP_COV",
    dead=_clip_cov_dead,
    rising=("omega_low", "omega_high"),
    parameters=(
        _share(
            "ratio",
            2e-4,
            "share of all tokens to leave out",
            idle=(0, "no token is clipped"),
            aliases=("clip_cov_ratio",),
        ),
        Parameter(
            "omega_low",
            1.0,
            "only tokens whose covariance lies above this",
            aliases=("clip_cov_lb",),
        ),
        Parameter(
            "omega_high",
            5.0,
            "only tokens whose covariance lies below this",
            aliases=("clip_cov_ub",),
        ),
        Parameter(
            "seed", 0, "of the random choice of tokens", minimum=0, maximum=2**31 - 1, whole=True
        ),
        *_COMMON,
    ),
    # The defaults of verl's `clip_cov`, which are those of the authors' scripts.
    presets={"verl": {"parameters": {"ratio": 2e-4, "omega_low": 1.0, "omega_high": 5.0}}},
)
method(
    "kl_cov",
    label="KL-Cov",
    does="adds a KL penalty on the share of tokens with the largest covariance",
    plain="Keeps tokens of high covariance near the old policy",
    source="arXiv:2505.22617, eq. 13-14",
    implementation="covariance.KL_COV",
    dead=_kl_cov_dead,
    parameters=(
        _share(
            "k",
            2e-3,
            "top share by covariance that is penalised",
            idle=(0, "no token is penalised"),
            aliases=("kl_cov_ratio",),
        ),
        _at_least_0(
            "beta",
            1.0,
            "weight of the penalty on those tokens",
            idle=(0, "no penalty"),
            aliases=("ppo_kl_coef",),
            needs_ratio=True,
        ),
        _choice(
            "estimator",
            ("abs", "k3"),
            "the penalty: the size of log r, as in the authors' code (abs), or r - 1 - log r (k3)",
        ),
        *_COMMON,
    ),
    # The defaults of verl's `kl_cov`. The authors' scripts have beta 1, and k 2e-3 for 7B and 2e-4
    # for 32B.
    presets={"verl": {"parameters": {"k": 2e-4, "beta": 0.1, "estimator": "abs"}}},
)
method(
    "score_sign",
    label="Score sign",
    does="keeps or drops the tokens with S* above or below 0",
    plain="Trains on likely tokens alone, or on unlikely ones",
    source="arXiv:2602.03392, figure 1",
    implementation="masks.SCORE_SIGN",
    parameters=(
        _choice(
            "sign",
            ("positive", "negative"),
            "tokens with S* > 0 (positive) or with S* < 0 (negative)",
        ),
        _choice("action", ("mask", "keep"), "leave those tokens out (mask), or all others (keep)"),
        *_COMMON,
    ),
)
method(
    "top_entropy",
    label="Top entropy",
    does="keeps the share of tokens with the largest entropy",
    plain="Trains on the most uncertain tokens alone",
    implementation="masks.TOP_ENTROPY",
    parameters=(
        _share(
            "fraction",
            0.2,
            "update only this share of the tokens, the ones of highest entropy",
            minimum_excluded=True,
            idle=(1, "every token is updated"),
        ),
        *_COMMON,
    ),
)
method(
    "unlikely",
    label="Unlikely",
    does="weighs improbable tokens of positive samples up",
    plain="Rewards unlikely tokens of good answers more",
    positive_only=True,
    implementation="weights.UNLIKELY",
    dead=_unlikely_dead,
    parameters=(
        _at_least_0(
            "strength",
            1.0,
            "how much more a positive token counts as its probability goes to 0: 1 + strength"
            " times",
            idle=(0, "every token counts as before"),
        ),
        _share("below", 0.2, "only tokens less likely than this", minimum_excluded=True),
        *_COMMON,
    ),
)
method(
    "rank_reward",
    label="Rank reward",
    does="lowers the reward of likely correct answers of a group",
    plain="Rewards the likely ones of a group's right answers less",
    source="arXiv:2506.02355",
    implementation="weights.RANK_REWARD",
    dead=_rank_reward_dead,
    parameters=(
        _share(
            "beta",
            0.25,
            "the share of the reward that the likeliest of many right answers loses",
            idle=(0, "every right answer is paid the same"),
        ),
        _choice(
            "normalise",
            ("std", "none"),
            "whether the loop divides rewards by their group's standard deviation",
        ),
        *_COMMON,
    ),
)
method(
    "positive_advantage",
    label="Positive-advantage weight",
    does="weighs all tokens with A > 0 down",
    plain="Trains less on what was rewarded",
    source="arXiv:2511.05993",
    positive_only=True,
    implementation="weights.POSITIVE_ADVANTAGE",
    parameters=(
        _share(
            "weight",
            0.5,
            "what a token with A > 0 counts, beside 1 for all others",
            idle=(1, "every token counts as before"),
        ),
        *_COMMON,
    ),
)
method(
    "steer",
    label="STEER",
    does="weighs tokens down by how much their update is estimated to change the entropy",
    plain="The more a token moves the entropy, the less it trains",
    source="arXiv:2510.10150",
    implementation="weights.STEER",
    dead=_steer_dead,
    parameters=(
        _share(
            "minimum_weight",
            0.8,
            "what the token of the largest change counts, beside 1 for one that changes nothing",
            minimum_excluded=True,
            idle=(1, "every token counts as before"),
        ),
        _choice(
            "estimate",
            ("authors", "exact"),
            "of the change: r A (1 - p) (log p + H), as in the authors' code, or r A S_c (exact)",
        ),
        *_COMMON,
    ),
)
method(
    "ratio_clip",
    label="Ratio clip",
    does="PPO's clip with bounds of its own on either side",
    plain="PPO's clip, with a bound for each side",
    implementation="masks.RATIO_CLIP",
    parameters=(
        _share(
            "epsilon_low",
            0.2,
            "leave out tokens with A < 0 whose ratio fell below 1 - epsilon_low",
            aliases=("clip_ratio_low",),
            needs_ratio=True,
        ),
        _at_least_0(
            "epsilon_high",
            0.28,
            "leave out tokens with A > 0 whose ratio rose above 1 + epsilon_high",
            aliases=("clip_ratio_high",),
            needs_ratio=True,
        ),
        _DENOMINATOR,
    ),
)
method(
    "entropy_ratio_clip",
    label="Entropy-ratio clip (ERC)",
    does="keeps it while 1 − β_low < H / H_old < 1 + β_high",
    plain="Clips tokens whose entropy an update changed much",
    source="arXiv:2512.05591",
    implementation="masks.ENTROPY_RATIO_CLIP",
    dead=_entropy_ratio_clip_dead,
    parameters=(
        _share(
            "beta_low",
            0.05,
            "leave out tokens whose entropy fell to 1 - beta_low of the old one or less",
        ),
        _at_least_0(
            "beta_high",
            0.05,
            "leave out tokens whose entropy rose to 1 + beta_high of the old one or more",
        ),
        *_COMMON,
    ),
)
_nats = partial(Parameter, minimum=0.0, minimum_excluded=True)

method(
    "entrocraft",
    label="Entrocraft",
    does="below a band of the entropy drops samples with A > 0, above it those with A < 0",
    plain="Drops rewarded or punished samples to stay in a band",
    source="arXiv:2604.26326, algorithm 1",
    implementation="targets.ENTROCRAFT",
    rising=("low", "high"),
    # The example of the authors' code, which then lowers the band by 0.2.
    parameters=(
        _nats("low", 0.6, "lower edge of the band, nats"),
        _nats("high", 0.7, "upper edge of the band, nats"),
        _nats("low_end", None, "where the lower edge has gone to after steps, nats"),
        _nats("high_end", None, "where the upper edge has gone to after steps, nats"),
        Parameter(
            "steps",
            None,
            "of the run, after which the edges have gone to their ends",
            minimum=1,
            whole=True,
        ),
        *_COMMON,
    ),
)
method(
    "stare",
    label="STARE",
    does="weighs the least likely tokens up (A > 0) or down (A < 0) while H < H_target",
    plain="Trains more on the least likely tokens while entropy is low",
    source="arXiv:2606.19236, section 4",
    implementation="targets.STARE",
    parameters=(
        _share(
            "share",
            0.1,
            "of the tokens of each sign of A, the least likely of which are weighed",
            minimum_excluded=True,
        ),
        _at_least_0("amplify", 1.1, "what those with A > 0 count"),
        _at_least_0("attenuate", 1.0, "what those with A < 0 count; the authors' variant C2: 0.9"),
        _nats("target_entropy", 0.3, "nats, below which it acts"),
        *_COMMON,
    ),
)
Method.ENTROPY_BONUS = method(
    "entropy_bonus",
    label="Entropy bonus",
    does="adds the gradient of alpha H, by default estimated from the sampled token",
    plain="Adds the entropy to the loss, as a reward of its own",
    source="arXiv:2505.22312",
    implementation="targets.ENTROPY_BONUS",
    parameters=(
        Parameter(
            "coefficient",
            0.01,
            "alpha, what it begins with where it follows a target; a negative one lowers H",
        ),
        _nats("target_entropy", None, "nats; alpha then follows the entropy, and acts up to it"),
        _at_least_0("change_per_step", 0.005, "alpha moves by it a step, with target_entropy"),
        _at_least_0("largest", 1.0, "the largest alpha, with target_entropy"),
        _choice(
            "estimate",
            ("sampled", "exact"),
            "of the gradient: from the sampled token, or that of H itself (exact)",
        ),
        *_COMMON,
    ),
)


SUGGESTED = Method.CLIP_V
"""The method that a suggestion prefers, and whose thresholds a hold moves, where nothing else is
asked for."""


def checked_parameters(of: Method, given: Mapping[str, object]) -> dict[str, Value]:
    """The parameters given, each in its kind and within its bounds. ConfigurationError: naming one
    that the method does not have, or the value it can't take."""
    unknown = sorted(str(name) for name in given if name not in of.parameters)
    if unknown:
        has = "no parameters"
        if of.parameters:
            has = f"the parameters {', '.join(of.parameters)}"
        raise ConfigurationError(f"The method {of} has {has}; got {', '.join(unknown)[:200]}.")
    return {name: of.parameters[name].check(value) for name, value in given.items()}


def resolve_aliases(of: Method, given: Mapping[str, object]) -> dict[str, object]:
    """The parameters given, each under our own name."""
    own = {alias: name for name, parameter in of.parameters.items() for alias in parameter.aliases}
    found: dict[str, object] = {}
    for given_as, value in given.items():
        name = own.get(given_as, given_as)
        if name in found:
            names = [one for one in given if own.get(one, one) == name]
            raise ConfigurationError(
                f"parameters.{' and parameters.'.join(names)} are one parameter: give one of them."
            )
        found[name] = value
    return found


def preset(of: Method, name: object) -> Mapping[str, object]:
    """The fields of a control that the preset sets."""
    found = of.presets.get(str(name))
    if found is None:
        known = {row: row.presets for row in METHODS.values() if row.presets}
        raise ConfigurationError(
            f"parameters.preset must be one of {', '.join(of.presets)} with method {of}, got"
            f" {name!r}."
            if of.presets
            else (
                f"parameters.preset goes with {' and '.join(known)}, got {name!r} with method {of}."
            )
        )
    return found


def name_and_value(text: str) -> tuple[str, Value]:
    """`ratio=0.001` as a name and a number, `sign=negative` as a name and a word; `off` is the word
    for no value.
    ConfigurationError: there is no name or no equals sign."""
    name, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not name:
        raise ConfigurationError(
            f"A parameter is given as NAME=VALUE, such as ratio=0.001; got {text!r}."
        )
    if value == "off":
        return name, None
    try:
        return name, int(value) if value.lstrip("+-").isdecimal() else float(value)
    except ValueError:
        return name, value


def parameter_value(of: Method, parameters: Mapping[str, Value], name: str) -> Value:
    """The value of the parameter: as given, else its default. None too when the method has no such
    parameter."""
    if name in parameters:
        return parameters[name]
    if name in of.parameters:
        return of.parameters[name].default
    return None


def idle_parameters(of: Method, parameters: Mapping[str, object]) -> Iterator[str]:
    """A sentence for each parameter whose value makes the method do nothing."""
    for name, parameter in of.parameters.items():
        if (
            parameter.idle is not None
            and parameters.get(name, parameter.default) == parameter.idle[0]
        ):
            yield f"{name} is {parameter.idle[0]:g}: {parameter.idle[1]}."

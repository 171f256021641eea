"""The settings of a training run; nothing here imports torch.

Each class checks itself where it is built: a `ConfigurationError` names the field, what was
expected and what came. A field made by `option` is an option of `isentrope train`, too.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from typing import Any, Literal, get_args, get_type_hints

from isentrope_wire.errors import ConfigurationError


def option(
    default: Any, help_text: str, *, flag: str = "", choices: Collection[str] = (), unset: str = ""
) -> Any:
    """A field that the command line offers, as `flag` where it is not the field's name. A class is
    not built without a field whose default is `MISSING`. `unset` says what an option that is not
    given means, where that is not the field's default."""
    if default is MISSING:
        shown = ""
    else:
        shown = f"  [default: {unset or default}]"
    return field(
        default=default,
        metadata={"help": help_text + shown, "flag": flag, "choices": tuple(choices)},
    )


def _require_above_zero(settings: Any, within: str, *names: str) -> None:
    for name in names:
        if (value := getattr(settings, name)) is not None and not (
            math.isfinite(value) and value > 0
        ):
            raise ConfigurationError(f"{within}{name} must be finite and above 0, got {value}.")


def _whole_numbers(settings: Any, within: str, *names: str, lowest: int) -> None:
    for name in names:
        if (value := getattr(settings, name)) is not None and value < lowest:
            raise ConfigurationError(
                f"{within}{name} must be a whole number of at least {lowest}, got {value}."
            )


def _one_of(settings: Any, within: str, name: str, choices: Collection[str]) -> None:
    if (value := getattr(settings, name)) not in choices:
        raise ConfigurationError(
            f"{within}{name} must be one of {', '.join(choices)}, got {value!r}."
        )


Aggregation = Literal["token", "sequence", "constant"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LossConfig:
    """The policy's loss, see `algorithms/losses.py`."""

    aggregation: Aggregation = "token"
    clip_low: float | None = 0.2
    """How far below 1 the ratio to the old policy counts. None: no clip on that side."""
    clip_high: float | None = 0.2
    kl_coefficient: float = 0.0
    """Coefficient of the divergence from the policy that the run starts with, which is kept in
    memory where this is above 0."""
    entropy_coefficient: float = 0.0
    """Coefficient of a fixed entropy bonus, which is the mean entropy of the tokens in nats."""

    def __post_init__(self) -> None:
        _one_of(self, "loss.", "aggregation", get_args(Aggregation))
        _require_above_zero(self, "loss.", "clip_low", "clip_high")
        for name in ("kl_coefficient", "entropy_coefficient"):
            value = getattr(self, name)
            if not math.isfinite(value) or value < 0:
                raise ConfigurationError(f"loss.{name} must be finite and at least 0, got {value}.")


@dataclass(frozen=True, slots=True)
class Algorithm:
    """A pair of advantage and loss, and what models the advantage needs beside the policy."""

    label: str
    advantage: str
    """A name of `algorithms/advantages.py`."""
    loss: LossConfig = LossConfig()
    value_head: bool = False
    process_reward: bool = False


ALGORITHMS = {
    "grpo": Algorithm("GRPO", "group"),
    "dr_grpo": Algorithm("Dr. GRPO", "group_centred", LossConfig(aggregation="constant")),
    "dapo": Algorithm("DAPO", "group", LossConfig(clip_high=0.28)),
    "rloo": Algorithm("RLOO", "leave_one_out"),
    "reinforce_plus_plus": Algorithm("REINFORCE++", "batch"),
    "ppo": Algorithm("PPO", "gae", value_head=True),
    "prime": Algorithm("PRIME", "process", process_reward=True),
}
"""Their losses average over tokens, as most trainers' do, where the algorithm is not about just
that."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ValueConfig:
    """The value head of an algorithm that has one."""

    coefficient: float = 0.1
    """Coefficient of the value's loss, which reaches the policy's trunk too."""
    discount: float = 1.0
    gae_lambda: float = 0.95

    def __post_init__(self) -> None:
        _require_above_zero(self, "value.", "coefficient")
        for name in ("discount", "gae_lambda"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigurationError(
                    f"value.{name} must lie between 0 and 1, got {getattr(self, name)}."
                )


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessRewardConfig:
    """The reward model of an algorithm that has one, see `training_state.ProcessReward`. PRIME's
    own beta."""

    beta: float = 0.05
    learning_rate: float = 1e-5
    """A fraction of the policy's. At the policy's own, what it rewards was exploited: on countdown
    right answers were gone within 30 steps."""

    def __post_init__(self) -> None:
        _require_above_zero(self, "process_reward.", "beta", "learning_rate")


@dataclass(frozen=True, kw_only=True, slots=True)
class AdaptiveEntropyConfig:
    """An entropy bonus whose coefficient follows the entropy, see `algorithms/losses.py`. TRL's
    defaults."""

    target_entropy: float
    """In nats: the bonus is applied while the mean entropy lies at or below it."""
    initial_coefficient: float = 0.0
    change_per_step: float = 0.005
    smallest_coefficient: float = 0.0
    largest_coefficient: float = 1.0

    def __post_init__(self) -> None:
        _require_above_zero(self, "adaptive_entropy.", "target_entropy", "change_per_step")
        if not self.smallest_coefficient <= self.initial_coefficient <= self.largest_coefficient:
            raise ConfigurationError(
                "adaptive_entropy.initial_coefficient must lie between"
                f" {self.smallest_coefficient:g} and {self.largest_coefficient:g}, got"
                f" {self.initial_coefficient}."
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyConfig:
    """The shape of a small policy, see `models/warm_start.py`. The defaults make 1.1 million
    parameters. Wide and shallow, because a CPU spends more of its time between the matrix products
    of a deep model."""

    hidden_size: int = 224
    layers: int = 2
    attention_heads: int = 4
    feed_forward_size: int = 512


SIZES = {
    "0.2M": PolicyConfig(hidden_size=96, feed_forward_size=224),
    "0.6M": PolicyConfig(hidden_size=160, feed_forward_size=352),
    "1.1M": PolicyConfig(),
    "2.2M": PolicyConfig(hidden_size=320, feed_forward_size=736),
    "4.4M": PolicyConfig(hidden_size=448, feed_forward_size=1024),
}
"""Each has about twice the parameters of the one before it; a vocabulary adds at most a tenth of a
million."""


TASKS = ("countdown", "chain_sum", "jugs")
"""One module of `tasks/` each."""
QUESTION_TOKENS = 256
"""Length limit of an answer to a question in plain English, where none is given."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskConfig:
    """What the policy is asked to do, see `tasks/base.py`."""

    name: str = option("countdown", "What to learn.", flag="task", choices=TASKS)
    wording: Literal["words", "question"] = "words"
    """In the few words of the task's own vocabulary, or as the question of `reasoning-gym`, for
    other language models."""
    max_tokens: int | None = option(None, "Length limit of a completion.", unset="the task's")
    """None: the longest answer in the task's own words, `QUESTION_TOKENS` for a question."""

    def __post_init__(self) -> None:
        _one_of(self, "task.", "name", TASKS)
        _whole_numbers(self, "task.", "max_tokens", lowest=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalModelConfig:
    """A language model in a folder, see `models/local.py`."""

    path: str = option(
        MISSING, "Train the language model in that folder, asked in plain English.", flag="model"
    )
    device: str = option(
        "auto", "With --model: torch's name of the device; auto takes a GPU where there is one."
    )
    dtype: Literal["float32", "bfloat16"] = option("float32", "With --model: type of its weights.")

    def __post_init__(self) -> None:
        _one_of(self, "model.", "dtype", ("float32", "bfloat16"))


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationConfig:
    """Evaluation on the held-out split, see `experience.evaluate`."""

    every: int = option(
        10,
        "Steps from one evaluation on held-out problems to the next.",
        flag="eval-every",
        unset="never",
    )
    """The first is made before the first step, and reported with it."""
    problems: int = 48
    """Problems of the held-out split, the same each time. Water jugs have 54."""
    samples: int = 16
    """Completions of each problem."""
    k: int = 8
    """K of Pass@K. With more samples than that its estimate varies less."""
    temperature: float = 1.0

    def __post_init__(self) -> None:
        _whole_numbers(self, "evaluation.", "every", "problems", "samples", "k", lowest=1)
        if self.k > self.samples:
            raise ConfigurationError(
                f"evaluation.k must be at most evaluation.samples, {self.samples}, got {self.k}."
            )
        _require_above_zero(self, "evaluation.", "temperature")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingConfig:
    """What, beside the policy it starts from, determines a run."""

    steps: int = option(300, "Optimiser updates.")
    seed: int = option(0, "The same seed gives the same run.")
    """Seed of the sampler, and by default of the task's problems."""
    prompts: int = option(96, "Problems a batch.")
    """Many, because every one of them makes the predicted entropy change less noisy."""
    group_size: int = option(16, "Rollouts of each problem.")
    """At 16, most problems have right and wrong ones to compare at the start."""
    learning_rate: float = option(1.5e-4, "Learning rate of AdamW.", flag="lr")
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0
    max_gradient_norm: float = 10.0
    """Against the rare wild batch only. A norm that often binds would hide the gradient's size from
    the prediction."""
    temperature: float = 1.0
    """Temperature of the sampler, and so of every score and log-prob."""
    task: TaskConfig = TaskConfig()
    model: LocalModelConfig | None = None
    """None: a small model of this package, see `models/warm_start.py`."""
    evaluation: EvaluationConfig | None = None
    """None: the run is not evaluated, and no problems are held out from training."""
    algorithm: str = option("grpo", "Advantage and loss.", choices=ALGORITHMS)
    loss: LossConfig | None = None
    """Default: the algorithm's."""
    updates_per_batch: int = option(
        1, "Optimiser updates made from one batch of rollouts; 1 is on-policy."
    )
    """Each from its own share of the prompts. The papers have 8."""
    sampler_lag: int = 0
    """How many updates old the weights are that rollouts are sampled with."""
    unseen: int = option(
        24,
        "To measure updates, draw this fraction of a batch in addition (24: a 24th) after each"
        " fourth one, unused for learning; at least 64 completions, or half of a small update;"
        " 0: none.",
    )
    coupling: Literal["model", "last_block"] | None = option(
        "model",
        "Predict each update from the entropy's gradient by all weights, or by the last block's.",
        choices=("model", "last_block"),
    )
    coupling_samples: int | None = option(
        None,
        "Predict from so many unseen completions; more are truer and cost more.",
        unset="three such draws",
    )
    value: ValueConfig = ValueConfig()
    process_reward: ProcessRewardConfig = ProcessRewardConfig()
    adaptive_entropy: AdaptiveEntropyConfig | None = None
    """An entropy bonus whose coefficient follows the entropy, to compare a held entropy with. It
    replaces the loss's."""

    def __post_init__(self) -> None:
        _whole_numbers(
            self, "", "steps", "prompts", "updates_per_batch", "coupling_samples", lowest=1
        )
        _whole_numbers(self, "", "seed", "sampler_lag", "unseen", lowest=0)
        _whole_numbers(self, "", "group_size", lowest=2)
        _require_above_zero(self, "", "learning_rate", "max_gradient_norm", "temperature")
        _one_of(self, "", "algorithm", ALGORITHMS)
        if self.coupling_samples is not None and (self.coupling is None or not self.unseen):
            raise ConfigurationError(
                "coupling_samples are unseen completions of a coupled prediction: "
                f"give coupling and unseen with it, got {self.coupling!r} and {self.unseen}."
            )
        for name in ("prompts", "steps"):
            if (value := getattr(self, name)) % self.updates_per_batch:
                raise ConfigurationError(
                    f"{name} must be a multiple of updates_per_batch, {self.updates_per_batch}, so"
                    f" that every batch is used up by updates of one size; got {value}."
                )

    def effective_loss(self) -> LossConfig:
        """The loss that is used: the configured one, or else the algorithm's."""
        if self.loss is None:
            return ALGORITHMS[self.algorithm].loss
        return self.loss

    def on_policy(self) -> bool:
        """Whether each update's rollouts are sampled with the weights that it changes."""
        return self.updates_per_batch == 1 and self.sampler_lag == 0

    def has_entropy_bonus(self) -> bool:
        return self.adaptive_entropy is not None or self.effective_loss().entropy_coefficient > 0


LANGUAGE_MODEL = TrainingConfig(steps=100, prompts=6, group_size=4, learning_rate=2e-6)
"""What `demo --llm` trains with: two questions of each kind a step."""
HARD_LANGUAGE_MODEL = TrainingConfig(steps=60, prompts=3, group_size=8, learning_rate=2.5e-5)
"""With `--hard`: half of the entropy is gone in nine steps."""


def training_config(document: Mapping[str, Any]) -> TrainingConfig:
    """The settings that `dataclasses.asdict` made a document of, also after JSON;
    ConfigurationError: they can't work."""
    # Not needed for `--help`, which must not wait for it.
    from pydantic import TypeAdapter, ValidationError  # noqa: PLC0415

    try:
        return TypeAdapter(TrainingConfig).validate_python(document)
    except ValidationError as invalid:
        first = invalid.errors()[0]
        # A settings class refuses in words of its own.
        if isinstance(refused := first.get("ctx", {}).get("error"), ConfigurationError):
            raise refused from None
        name = ".".join(map(str, first["loc"]))
        raise ConfigurationError(f"{name}: {first['msg']}; got {first['input']!r}.") from None


def change_settings(config: TrainingConfig, changes: Mapping[str, Any]) -> TrainingConfig:
    """The settings with changes, name -> value; a field of settings within the settings is named as
    `loss.clip_high`. Fields of the loss that are not named are the algorithm's. ConfigurationError:
    there is no such field, or the settings can't work."""
    document = asdict(config)
    if any(name.startswith("loss.") for name in changes):
        document["loss"] = asdict(config.effective_loss())
    known = [name for name, _, _ in _fields(TrainingConfig)]
    for name, value in changes.items():
        if name not in known:
            raise ConfigurationError(f"There is no setting {name}; there are {', '.join(known)}.")
        place = document
        *groups, last = name.split(".")
        for group in groups:
            # What was not used so far has its defaults.
            place[group] = place[group] or {}
            place = place[group]
        place[last] = value
    return training_config(document)


def options_of(settings_class: Any) -> dict[str, tuple[Any, Mapping[str, Any]]]:
    """Fields made by `option`, by their names as `change_settings` takes them: the declared type,
    and the metadata."""
    return {
        name: (declared, metadata)
        for name, declared, metadata in _fields(settings_class)
        if metadata
    }


def _fields(settings_class: Any, within: str = "") -> Iterator[tuple[str, Any, Mapping[str, Any]]]:
    """Every field, such as `steps` and `loss.clip_high`, with its declared type and metadata."""
    hints = get_type_hints(settings_class)
    for one in fields(settings_class):
        declared = hints[one.name]
        # `LossConfig | None` is a group of settings, too.
        group = next((part for part in (declared, *get_args(declared)) if is_dataclass(part)), None)
        if group is not None:
            yield from _fields(group, f"{within}{one.name}.")
        else:
            yield within + one.name, declared, one.metadata

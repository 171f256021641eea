"""What determines a run of the reproduction, the key it is kept under, and the plan that figures
take their runs from."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import isentrope
from isentrope_trainer.models.warm_start import WARM_STARTS, WarmStartConfig
from isentrope_trainer.settings import (
    ALGORITHMS,
    HARD_LANGUAGE_MODEL,
    LANGUAGE_MODEL,
    EvaluationConfig,
    PolicyConfig,
    TaskConfig,
    TrainingConfig,
)
from isentrope_wire.reports import PROTOCOL_VERSION

RESULTS_VERSION = 3
"""Raise it when a change of the code gives runs of the same settings other results: kept runs are
then made again."""
KEY_DIGITS = 16
SECONDS_PER_RUN, SECONDS_PER_ROLLOUT = 4.0, 7e-4
"""Of one core: to load weights and libraries, and in a step of the default policy on countdown for
each completion."""
SECONDS_PER_LANGUAGE_MODEL_STEP, SECONDS_PER_HARD_STEP = 14.0, 7.0
LANGUAGE_MODEL_SEED = 101
"""Added to a plan's seeds: nothing was chosen on these."""
SECONDS_OF_TRL, SECONDS_PER_TRL_STEP = 8.0, 0.15
"""To import it, and of a step of its smallest model."""
_SIZES = frozenset({"seed", "steps", "prompts", "group_size", "learning_rate", "evaluation"})
"""Fields of the training that a run's name does not show."""


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """All that determines a run, beside the versions of the code and of torch."""

    training: TrainingConfig
    control: isentrope.Control = field(default_factory=isentrope.Control)
    pushed_after: int = 0
    """The step after which `control` is pushed; 0: it is active from the first step on."""
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    warm_start: WarmStartConfig = field(default_factory=WarmStartConfig)
    first_seed: int = 0
    """What is added to a plan's seeds: where a judgement is to have seeds of its own."""
    threads: int = 1
    """That torch computes with. Sums are split over threads, so another number gives another
    run."""
    fault: str = ""
    """What is made wrong in it, a name of `faults.FAULTS`; empty: nothing."""
    under_trl: str = ""
    """What is trained under TRL, a name of `trl_faults.TRL_FAULTS`; of the training's settings only
    seed and steps are used. Empty: the reference trainer."""
    fresh: int = 0
    """Completions that judge each update, seen by nothing else (`isentrope_papers.fresh`); 0: it is
    not judged."""
    language_model: bool = False
    """Trained under TRL, as `isentrope demo --llm` trains SmolLM2; policy and warm start are not
    used."""

    def document(self) -> dict[str, Any]:
        """Plain values, as they are hashed, kept and shown."""
        document = {
            "results_version": RESULTS_VERSION,
            "training": dataclasses.asdict(self.training),
            "control": self.control.to_document(),
            "policy": dataclasses.asdict(self.policy),
            "warm_start": dataclasses.asdict(self.warm_start),
            "threads": self.threads,
        }
        for name in ("pushed_after", "language_model", "fault", "under_trl", "fresh"):
            if getattr(self, name):
                document[name] = getattr(self, name)
        if self.pushed_after:
            # What-if sums are kept, as they travel.
            document["protocol_version"] = PROTOCOL_VERSION
        return document

    @property
    def key(self) -> str:
        """What the run is kept under; other settings have another key."""
        content = json.dumps(self.document(), sort_keys=True, default=str).encode()
        return hashlib.sha256(content).hexdigest()[:KEY_DIGITS]

    @property
    def seed(self) -> int:
        return self.training.seed

    @property
    def starting_point(self) -> tuple[TaskConfig, PolicyConfig, WarmStartConfig]:
        """What the weights that it begins with are made of."""
        return self.training.task, self.policy, self.warm_start

    def replace_seed(self, seed: int) -> RunSettings:
        own = dataclasses.replace(self.training, seed=self.first_seed + seed)
        return dataclasses.replace(self, training=own)

    @property
    def planned_seconds(self) -> float:
        """Of one core, roughly: what a plan is counted from."""
        if self.under_trl:
            return SECONDS_OF_TRL + SECONDS_PER_TRL_STEP * self.training.steps
        if self.language_model:
            seconds = SECONDS_PER_LANGUAGE_MODEL_STEP
            if self.training.learning_rate == HARD_LANGUAGE_MODEL.learning_rate:
                seconds = SECONDS_PER_HARD_STEP
            return SECONDS_PER_RUN + seconds * self.training.steps
        evaluation, prompts = self.training.evaluation, self.training.steps * self.training.prompts
        # A batch is sampled once for all its updates, and every prompt of it is in one of them.
        rollouts = prompts / self.training.updates_per_batch * self.training.group_size
        if evaluation is not None:
            # Sampling alone.
            rollouts += (
                (1 + self.training.steps // evaluation.every)
                * evaluation.problems
                * evaluation.samples
                / 2
            )
        # Drawn before an update, and scored on both sides of it.
        rollouts += 2 * self.training.steps * self.fresh
        # Verifying answers, and what surrounds the matrix products, does not grow with the model.
        return (
            SECONDS_PER_RUN
            + SECONDS_PER_ROLLOUT
            * rollouts
            * (1 + 2 * _weights(self.policy) / _weights(PolicyConfig()))
            / 3
        )

    def __str__(self) -> str:
        return f"{self.name_without_seed} seed {self.seed}"

    @property
    def name_without_seed(self) -> str:
        """A name for people, without what is as usual."""
        document = self.control.to_document()
        words = [str(self.control.method) if self.control.hold is None else "hold"]
        words += [
            f"{name}={document[name]:g}"
            for name in ("mu_low", "mu_high")
            if document.get(name) is not None
        ]
        words += [f"{name}={value}" for name, value in self.control.parameters.items()]
        if self.pushed_after:
            words += [f"pushed_after={self.pushed_after}"]
        if self.fault:
            words += [f"fault={self.fault}"]
        if self.under_trl:
            words += [f"under_trl={self.under_trl}"]
        if self.fresh:
            words += [f"fresh={self.fresh}"]
        usual = TrainingConfig(loss=ALGORITHMS[self.training.algorithm].loss)
        words += _differences(
            dataclasses.replace(self.training, loss=self.training.effective_loss()), usual
        )
        return " ".join(words)


def _weights(policy: PolicyConfig) -> int:
    return policy.layers * policy.hidden_size * (policy.hidden_size + policy.feed_forward_size)


def _differences(settings: Any, usual: Any, within: str = "") -> list[str]:
    """Fields whose value is not the usual one, such as `loss.clip_high=0.28`."""
    words = []
    for field_ in dataclasses.fields(settings):
        value, other = getattr(settings, field_.name), getattr(usual, field_.name)
        if field_.name in _SIZES or value == other:
            continue
        name = within + field_.name
        if dataclasses.is_dataclass(other):
            words += _differences(value, other, f"{name}.")
        else:
            words += [f"{name}={value}"]
    return words


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much is run. Figures take every run's settings from here, so that those of several
    figures are the same runs."""

    seeds: tuple[int, ...]
    quick: bool = False

    @property
    def base(self) -> TrainingConfig:
        """Strictly on-policy GRPO on countdown: small, and yet its entropy collapses."""
        if self.quick:
            evaluation = EvaluationConfig(every=7, problems=16, samples=8, k=4)
            return TrainingConfig(
                steps=30, prompts=12, group_size=8, learning_rate=3e-4, evaluation=evaluation
            )
        # The last evaluation is made before step 148.
        evaluation = EvaluationConfig(every=21, problems=64, samples=32, k=8)
        return TrainingConfig(
            steps=150, prompts=32, group_size=16, learning_rate=1e-4, evaluation=evaluation
        )

    @property
    def several_updates(self) -> Mapping[str, Any]:
        """Fields of `TrainingConfig` for several updates of one batch, as both papers train, at
        about the cost of the base."""
        if self.quick:
            return {"prompts": 16, "updates_per_batch": 4, "steps": 32}
        assert self.base.evaluation is not None, "every run is evaluated"
        # As many evaluations as of the base, the last before the last batch.
        evaluation = dataclasses.replace(self.base.evaluation, every=56)
        return {"prompts": 64, "updates_per_batch": 8, "steps": 400, "evaluation": evaluation}

    def run(
        self,
        control: isentrope.Control | Mapping[str, object] | None = None,
        *,
        policy: PolicyConfig | None = None,
        warm_start: WarmStartConfig | None = None,
        first_seed: int = 0,
        **training: Any,
    ) -> RunSettings:
        """Settings of a run, made of the base with other fields of `TrainingConfig`;
        `repeat_over_seeds` sets the seed.

        The control, or its document, is active from the first step on. By default the model has the
        reference policy's shape and its task's warm start.
        """
        if control is None:
            control = isentrope.Control()
        elif not isinstance(control, isentrope.Control):
            control = isentrope.Control.from_document(dict(control))
        config = dataclasses.replace(self.base, **training)
        if config.loss == ALGORITHMS[config.algorithm].loss:
            # The same run as without naming the loss, so it has the same key.
            config = dataclasses.replace(config, loss=None)
        policy = policy or PolicyConfig()
        if warm_start is None:
            warm_start = WARM_STARTS[config.task.name]
            # Only the default is shipped. Learning more than well-formed answers takes minutes.
            if self.quick and (policy, warm_start) != (PolicyConfig(), WarmStartConfig()):
                warm_start = dataclasses.replace(warm_start, steps=40, batch_size=32)
        return RunSettings(
            training=config,
            control=control,
            policy=policy,
            warm_start=warm_start,
            first_seed=first_seed,
        )

    def language_model(
        self, control: isentrope.Control | Mapping[str, object] | None = None, **training: Any
    ) -> RunSettings:
        """A run of SmolLM2 under TRL, on one thread, with its own seeds."""
        usual = dataclasses.replace(
            LANGUAGE_MODEL, steps=8 if self.quick else LANGUAGE_MODEL.steps, coupling=None
        )
        return dataclasses.replace(
            self.run(control, first_seed=LANGUAGE_MODEL_SEED),
            training=dataclasses.replace(usual, **training),
            language_model=True,
        )

    def hard_language_model(
        self, control: isentrope.Control | Mapping[str, object] | None = None, **training: Any
    ) -> RunSettings:
        """With the settings of `demo --llm --hard`, on two threads."""
        usual = dataclasses.replace(
            HARD_LANGUAGE_MODEL, steps=8 if self.quick else 48, coupling=None
        )
        return dataclasses.replace(
            self.run(control),
            training=dataclasses.replace(usual, **training),
            threads=2,
            language_model=True,
        )

    def repeat_over_seeds(self, *arms: RunSettings) -> list[RunSettings]:
        """Each of these settings with every seed of the plan."""
        return [arm.replace_seed(seed) for arm in arms for seed in self.seeds]

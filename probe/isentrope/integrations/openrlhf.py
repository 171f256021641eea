"""OpenRLHF: its PPO command with a probe in the actor; another module is named in the command, and
no line of code.

    python3 -m isentrope.integrations.openrlhf ...   # was: openrlhf.cli.train_ppo_ray

OpenRLHF's command builds the actor's Ray workers of the class `PolicyModelActor`; here it finds a
subclass, made with `WatchedPolicy`, which Ray takes to the workers. There `attach(trainer)` follows
one `ActorPPOTrainer`:

    actor's forward hook    logits, tokens, advantages and masks are there: scored, and the
                            log-probs that all terms of the loss read pass the gate
    training_step           closes the step, where DeepSpeed's engine has made an update

Read at 0.11.2: openrlhf/trainer/ray/ppo_actor.py, models/actor.py (`Actor.forward`),
models/ring_attn_utils.py and utils/deepspeed/deepspeed.py. This file does not import openrlhf
before it is used."""

from __future__ import annotations

import functools
import runpy
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from isentrope.integrations import attachment, deepspeed
from isentrope.scores import TokenScores, each_field

VERSIONS = attachment.Versions("OpenRLHF", "openrlhf", at_least="0.11.2", below="0.12")
COMMAND = "openrlhf.cli.train_ppo_ray"
SHOWN = ("actor", "algo", "rollout", "train", "ds")
"""Sections of OpenRLHF's settings that the run is shown with; others name hosts and keys."""


def main() -> None:
    """Run OpenRLHF's command with a probe in every worker of the actor. ConfigurationError: another
    version is installed, or none."""
    VERSIONS.check()
    ray: Any = import_module("ray")
    ppo_actor: Any = import_module("openrlhf.trainer.ray.ppo_actor")
    theirs = ppo_actor.PolicyModelActor.__ray_actor_class__
    ppo_actor.PolicyModelActor = ray.remote(num_gpus=1)(
        type(theirs.__name__, (WatchedPolicy, theirs), {})
    )
    runpy.run_module(COMMAND, run_name="__main__", alter_sys=True)


class WatchedPolicy:
    """What a worker of the actor does besides: a base class beside OpenRLHF's own, and before
    it."""

    def init_model_from_pretrained(self, strategy: Any, *arguments: Any, **settings: Any) -> None:
        check_supported(strategy.args)  # before the model is loaded
        super().init_model_from_pretrained(strategy, *arguments, **settings)  # type: ignore[misc]
        self.isentrope = attach(self.trainer)  # type: ignore[attr-defined]

    def save_checkpoint(self, tag: str, *arguments: Any, **settings: Any) -> None:
        super().save_checkpoint(tag, *arguments, **settings)  # type: ignore[misc]
        self.isentrope.save(checkpoints(self.isentrope.args) / tag)

    def save_model(self) -> None:
        """Save the trained model: the last that is done with it."""
        super().save_model()  # type: ignore[misc]
        self.isentrope.probe.finish()


def attach(trainer: Any, *, rescore: bool | None = None, **settings: Any) -> TrainerAttachment:
    """Measure and steer the updates of a trainer. Call it on every rank of the actor, once its
    model is ready.

    Args:
        trainer: OpenRLHF's `ActorPPOTrainer`.
        rescore: score the first micro-batch of each update once more after it, for the observed
            change. Default: `ISENTROPE_RESCORE`, or true.
        **settings: of `Probe`. Default: from the environment.

    Raises:
        ConfigurationError: the set-up can't be observed, or the version is not known to work.
    """
    args = trainer.strategy.args
    check_supported(args)
    attachment.check_parameters(
        trainer, "training_step", ("experience",), f"OpenRLHF {VERSIONS.check()}"
    )
    deepspeed.check(trainer.actor.model.__class__)
    shown = {name: plain(getattr(args, name)) for name in SHOWN if hasattr(args, name)}
    settings = {"name": "openrlhf", "tokenizer": trainer.tokenizer} | settings
    return TrainerAttachment(
        trainer, rescore=rescore, config={"framework": "openrlhf", **shown}, **settings
    )


def check_supported(args: Any) -> None:
    """Refuse set-ups that can't be observed faithfully."""
    VERSIONS.check()
    attachment.refuse("OpenRLHF", _reasons_against(args))


def _reasons_against(args: Any) -> Iterator[str]:
    if getattr(args.ds, "ring_attn_size", 1) > 1:
        yield (
            "ring attention leaves each rank a part of a sequence's logits. Train with"
            " --ds.ring_attn_size 1."
        )
    if getattr(args.ds, "tensor_parallel_size", 1) > 1:
        yield "tensor parallelism has not been tried. Train with --ds.tensor_parallel_size 1."


class TrainerAttachment(attachment.Attachment):
    """The probe of one rank of the actor."""

    def __init__(self, trainer: Any, *, rescore: bool | None, **settings: Any) -> None:
        super().__init__(attachment.in_worker(**settings), rescore=rescore)
        self.args, self._actor = trainer.strategy.args, trainer.actor
        self._experience: Any = None
        """The micro-batch under way; None outside `training_step`."""
        folder = checkpoints(self.args)
        if self.args.ckpt.load_enable and (latest := folder / "latest").is_file():
            self.resume(folder / latest.read_text().strip())
        self.updates = self._actor.model.global_steps
        self._actor.register_forward_hook(self._forwarded, with_kwargs=True)
        attachment.wrap(trainer, "training_step", self._training_step)

    def _training_step(
        self, theirs: Callable[..., Any], experience: Any, *arguments: Any, **settings: Any
    ) -> Any:
        engine = self._actor.model
        read_update = deepspeed.watch_update(engine)
        self._experience = experience
        try:
            result = theirs(experience, *arguments, **settings)
        finally:
            self._experience = None
        if (about := read_update()) is not None:
            self.close(engine.optimizer, **about)
        return result

    def _forwarded(
        self, actor: Any, inputs: tuple[Tensor, ...], settings: Mapping[str, Any], result: Any
    ) -> tuple[Tensor, Any] | None:
        experience = self._experience
        if experience is None:
            return None
        own, output = result
        again = self.rescore_of_first(functools.partial(self._scored_again, inputs, settings))
        scores = self.score(
            lambda: self._scores(output["logits"], inputs, settings["attention_mask"])
        )
        with self.guard.protect("reading a micro-batch of OpenRLHF's"):
            mask = experience.action_mask.bool()
            self.count_completions(experience.rewards, mask)
            prompts = slice(0, -mask.shape[1])
            sequences = inputs[0].masked_fill(settings["attention_mask"] == 0, -1)
            labels = getattr(experience, "labels", None) or ()
            samples = {"prompt_ids": sequences[:, prompts], "reward": experience.rewards}
            if len(labels) == len(own):
                samples |= {"answer": list(labels)}
            samples["truncated"] = getattr(experience, "truncated", None)
            groups = _groups(experience, own)
            own = self.gate(
                own,
                experience.advantages,
                mask,
                scores,
                old_logprobs=experience.action_log_probs,
                sampler_logprobs=experience.rollout_log_probs,
                ref_logprobs=experience.base_action_log_probs,
                groups=groups,
                completions={name: rows for name, rows in samples.items() if rows is not None},
                rescore=again,
            )
        return own, output

    def _scores(
        self, logits: Tensor, inputs: tuple[Tensor, ...], attention_mask: Tensor
    ) -> TokenScores:
        """Scores of the response tokens [batch, actions]. OpenRLHF has divided the logits by the
        temperature."""
        sequences, action_mask = inputs
        actions, logits = action_mask.shape[1], logits.detach()
        if not self._actor.packing_samples:
            return self.probe.score(logits[:, -actions - 1 : -1], sequences[:, -actions:])
        packing = import_module("openrlhf.models.ring_attn_utils")
        _, _, following, added, indices = packing.unpad_and_slice_tensor(
            sequences, attention_mask, None
        )

        def padded(field: Tensor) -> Tensor:
            rows: Tensor = packing.gather_and_pad_tensor(
                field, None, added, indices, *sequences.shape
            )
            return rows[:, :-1][:, -actions:]

        return each_field(self.probe.score(logits, following), padded)

    def _scored_again(self, inputs: tuple[Tensor, ...], settings: Mapping[str, Any]) -> TokenScores:
        """Scores of a micro-batch under the policy as it is now; on all ranks at once, for they
        share its layers."""
        training = self._actor.training
        self._actor.eval()  # dropout would draw random numbers
        try:
            _, output = self._actor(*inputs, **settings)
            return self._scores(output["logits"], inputs, settings["attention_mask"])
        finally:
            self._actor.train(training)


def _groups(experience: Any, own: Tensor) -> Tensor | None:
    """A number for the row of the dataset that each sequence is of; None: not known.

    OpenRLHF balances sequences over ranks before they arrive here, without their place in the
    batch. A row is told by its prompt, its label and its images: rows that are alike in all
    three count as one.
    """
    columns = [getattr(experience, name, None) or () for name in ("prompts", "labels", "images")]
    rows = [column for column in columns if len(column) == len(own)]
    if not rows or rows[0] is not columns[0]:
        return None
    return attachment.prompt_groups(zip(*rows, strict=True), own.device)


def checkpoints(args: Any) -> Path:
    """Where OpenRLHF saves those of the actor."""
    return Path(args.ckpt.path) / "_actor"


def plain(value: Any) -> Any:
    """A section of OpenRLHF's settings as nested dictionaries."""
    if isinstance(value, SimpleNamespace):
        return {name: plain(part) for name, part in vars(value).items()}
    if isinstance(value, str | int | float | bool | list | None):
        return value
    return str(value)


if __name__ == "__main__":
    # Of the module by its name: Ray's workers import `WatchedPolicy` from there.
    import_module("isentrope.integrations.openrlhf").main()

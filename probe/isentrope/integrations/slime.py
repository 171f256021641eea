"""slime: its policy loss with the log-probs gated, named by three flags of its own and no line of
code.

    --loss-type custom_loss
    --custom-loss-function-path isentrope.integrations.slime.policy_loss
    --custom-megatron-before-train-step-hook-path isentrope.integrations.slime.before_train_step

Logits, sampled tokens, advantages and masks meet in one function of slime's,
`policy_loss_function`: it is called as it is, with gated log-probs handed to it. The probe's state
is saved in each checkpoint of Megatron's, and read from the one that the training begins with:
slime has no hook for saving, so the function that does it is wrapped. Read at commit 624b824
(2026-08-21): slime/backends/megatron_utils/loss.py (`get_responses`, `get_log_probs_and_entropy`,
`policy_loss_function`, `loss_function`), cp_utils.py (`slice_log_prob_with_cp`), model.py
(`train_one_step`, `save`), checkpoint.py and utils/arguments.py (`load`, `finetune`). slime has no
release to pin (PyPI's `slime` is another package): the functions that are used are checked by their
parameters."""

from __future__ import annotations

import dataclasses
import importlib
import re
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from isentrope.integrations.attachment import Attachment, check_parameters, in_worker, refuse, wrap
from isentrope.scores import TokenScores
from isentrope_wire.errors import ConfigurationError

FRAMEWORK = "slime (read at commit 624b824)"
HOOK = (
    "--custom-megatron-before-train-step-hook-path isentrope.integrations.slime.before_train_step"
)
LOSS_MODULE = "slime.backends.megatron_utils.loss"
LOGPROBS = "get_log_probs_and_entropy"
SAVE = "save_checkpoint"
EXPECTED = {
    "policy_loss_function": ("args", "batch", "logits", "sum_of_sample_mean"),
    LOGPROBS: ("logits", "args", "unconcat_tokens", "total_lengths", "response_lengths"),
    "get_responses": (
        "logits",
        "args",
        "unconcat_tokens",
        "total_lengths",
        "response_lengths",
        "apply_temperature",
    ),
    "slice_log_prob_with_cp": ("log_prob", "total_length", "response_length"),
}
SHOWN = (
    "advantage_estimator",
    "eps_clip",
    "eps_clip_high",
    "kl_loss_coef",
    "entropy_coef",
    "lr",
    "rollout_temperature",
)
ITERATION = re.compile(r"iter_\d{7}")
"""Names the folder of a checkpoint, which `--load` may be, too."""

Loss = Callable[
    [Namespace, Mapping[str, Any], Tensor, Callable[[Tensor], Tensor]],
    tuple[Tensor, dict[str, Tensor]],
]

_training: _Training | None = None
"""None before the process's first step, and where it computes no policy loss."""


def policy_loss(
    args: Namespace,
    batch: Mapping[str, Any],
    logits: Tensor,
    sum_of_sample_mean: Callable[[Tensor], Tensor],
    loss: Loss | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """A policy loss as `policy_loss_function` gives it, computed from gated log-probs.

    Args:
        batch: one micro-batch of this rank.
        logits: [1, T, vocabulary / tensor-parallel ranks], float32.
        sum_of_sample_mean: slime's reduction.
        loss: called with the four arguments before. It looks `get_log_probs_and_entropy` up in
            slime's loss module at each call, where the gate is put for as long as it runs. Default:
            slime's `policy_loss_function`.

    Raises:
        ConfigurationError: the hook that builds the probe is not set; at the first call also where
            `loss` did not get its log-probs from slime's loss module.
    """
    if _training is None:
        raise ConfigurationError(f"Can't attach to slime: no probe was built. Add {HOOK}.")
    return _training.policy_loss(args, batch, logits, sum_of_sample_mean, loss)


def before_train_step(
    args: Namespace,
    rollout_id: int,
    step_id: int,
    model: Sequence[Any],
    optimizer: Any,
    opt_param_scheduler: object,
) -> None:
    """Build the probe before the first step, on the last pipeline stage of the actor, and close
    what was not closed.

    Args:
        rollout_id: of the rollout that is trained on, one above that of the checkpoint where
            training continues from one.
        model: this rank's chunks.
        optimizer: Megatron's; its `step` is wrapped once.

    Raises:
        ConfigurationError: a set-up that can't be followed.
    """
    global _training
    mpu = importlib.import_module("megatron.core.mpu")
    if getattr(model[0], "role", "actor") != "actor" or not mpu.is_pipeline_last_stage(
        ignore_virtual=True
    ):
        return
    if _training is None:
        _training = _Training(args, mpu)
        _training.continue_from_checkpoint(rollout_id)
    _training.begin_step(optimizer)


class _Training:
    """The probe of one rank, and how slime's functions reach it."""

    def __init__(self, args: Namespace, mpu: Any) -> None:
        self._loss = importlib.import_module(LOSS_MODULE)
        for name, parameters in EXPECTED.items():
            check_parameters(self._loss, name, parameters, FRAMEWORK)
        saving = importlib.import_module("slime.backends.megatron_utils.model")
        check_parameters(saving, SAVE, ("iteration",), FRAMEWORK)
        refuse("slime", _reasons(args))
        self._args, self._mpu = args, mpu
        # Ranks of one tensor-parallel group hold the same tokens: each gates them, together with
        # the others, and one counts.
        group = mpu.get_tensor_and_data_parallel_group(with_context_parallel=True)
        shown = {name: getattr(args, name) for name in SHOWN if hasattr(args, name)}
        counts = mpu.get_tensor_model_parallel_rank() == 0
        self.attachment = Attachment(
            in_worker(config=shown, group=group, name="slime", counts=counts)
        )
        self._recomputed: list[Mapping[str, Any]] = []
        """Micro-batches whose loss is computed once more during their backward."""
        self._optimizer: Any = None
        self._loss_scale: float | Tensor = 1.0
        """What Megatron multiplies the loss of the open step by."""
        self._is_open = False
        self._has_observed = False
        wrap(saving, SAVE, self._save)

    def continue_from_checkpoint(self, rollout_id: int) -> None:
        """Continue from the state in the checkpoint that Megatron has loaded; on all ranks."""
        loaded = getattr(self._args, "load", None)
        # slime sets `finetune` where it takes weights alone, as for the first start.
        if loaded and not getattr(self._args, "finetune", False):
            named = Path(loaded)
            self.attachment.resume(
                named if ITERATION.fullmatch(named.name) else _folder(named, rollout_id - 1)
            )

    def _save(
        self, theirs: Callable[..., Any], iteration: int, *arguments: Any, **settings: Any
    ) -> Any:
        result = theirs(iteration, *arguments, **settings)
        self._discard()
        self.attachment.save(_folder(Path(self._args.save), iteration))
        return result

    def begin_step(self, optimizer: Any) -> None:
        if self._optimizer is not None and not self._has_observed:
            refuse("slime", [f"--custom-loss-function-path does not call {__name__}.policy_loss."])
        self._discard()
        self._recomputed.clear()
        # Gradients are averaged over all ranks of the group, of which one in so many counts.
        self._loss_scale = 1.0 / self._mpu.get_tensor_model_parallel_world_size()
        with self.attachment.guard.protect("reading the loss scale of fp16"):
            self._loss_scale = optimizer.get_loss_scale() * self._loss_scale
        if optimizer is not self._optimizer:
            self._optimizer = optimizer
            wrap(optimizer, "step", self._update)

    def _update(self, theirs: Callable[..., Any], *arguments: Any, **settings: Any) -> Any:
        result = theirs(*arguments, **settings)
        self._close(norm=result[1])  # whether it was made, norm of the gradient, its zeros
        return result

    def _discard(self) -> None:
        """Drop a step of which slime made no update: a gradient was NaN or infinite."""
        if self._is_open:
            self._is_open = False
            self.attachment.discard()

    def _close(self, norm: float | Tensor | None = None) -> None:
        if not self._is_open:
            return
        self._is_open = False
        largest = getattr(getattr(self._optimizer, "config", None), "clip_grad", None)
        self.attachment.close(
            self._optimizer, norm=norm, largest_norm=largest, loss_scale=self._loss_scale
        )

    def policy_loss(
        self,
        args: Namespace,
        batch: Mapping[str, Any],
        logits: Tensor,
        sum_of_sample_mean: Callable[[Tensor], Tensor],
        loss: Loss | None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        loss = loss or self._loss.policy_loss_function
        again = next((index for index, seen in enumerate(self._recomputed) if seen is batch), None)
        if again is not None:
            # The gate's own tensors were kept, and the values are the same without it.
            del self._recomputed[again]
            return loss(args, batch, logits, sum_of_sample_mean)
        self._is_open = self._has_observed = True
        if getattr(args, "recompute_loss_function", False):
            self._recomputed.append(batch)
        self.attachment.hold(lambda: self._scored(args, batch, logits))
        with self._gated(args, batch):
            result = loss(args, batch, logits, sum_of_sample_mean)
        if self.attachment.take() is not None and not self.attachment.guard.settled:
            refuse(
                "slime",
                [
                    (
                        f"the loss has its log-probs from elsewhere. Call {LOGPROBS} as a function"
                        f" of {LOSS_MODULE}."
                    )
                ],
            )
        return result

    def _scored(self, args: Namespace, batch: Mapping[str, Any], logits: Tensor) -> TokenScores:
        """Scores of this rank's response tokens, laid end to end in the order of slime's own
        log-probs."""
        lengths = {
            "total_lengths": batch["total_lengths"],
            "response_lengths": batch["response_lengths"],
        }
        # Logits as they are: divided by the temperature they would be a copy.
        chunks = self._loss.get_responses(
            logits.detach(),
            args=args,
            unconcat_tokens=batch["unconcat_tokens"],
            apply_temperature=False,
            **lengths,
        )
        temperature = getattr(args, "rollout_temperature", 1.0)
        return _joined([self._score(chunk, tokens, temperature) for chunk, tokens in chunks])

    def _score(self, logits: Tensor, tokens: Tensor, temperature: float) -> TokenScores:
        """Scores of one sample, [R, columns]."""
        probe = self.attachment.probe
        if self._mpu.get_tensor_model_parallel_world_size() == 1:
            return probe.score(logits, tokens, temperature=temperature)
        start = self._mpu.get_tensor_model_parallel_rank() * logits.shape[-1]
        group = self._mpu.get_tensor_model_parallel_group()
        return probe.score_sharded(
            logits, tokens, start=start, group=group, temperature=temperature
        )

    @contextmanager
    def _gated(self, args: Namespace, batch: Mapping[str, Any]) -> Iterator[None]:
        """Let slime's loss read gated log-probs."""
        own = getattr(self._loss, LOGPROBS)

        def gated(*arguments: Any, **settings: Any) -> Any:
            empty, found = own(*arguments, **settings)
            # A loss that is recomputed would count the gate's tensors as its own.
            with torch.autograd.graph.saved_tensors_hooks(_keep, _keep):
                return empty, {**found, "log_probs": self._gate(args, batch, found["log_probs"])}

        setattr(self._loss, LOGPROBS, gated)
        try:
            yield
        finally:
            setattr(self._loss, LOGPROBS, own)

    def _gate(self, args: Namespace, batch: Mapping[str, Any], own: list[Tensor]) -> list[Tensor]:
        whole = torch.cat(own)
        known: dict[str, Tensor] = {}
        mask = advantages = None
        with self.attachment.guard.protect("reading a micro-batch of slime's"):
            lengths = zip(
                batch["loss_masks"], batch["total_lengths"], batch["response_lengths"], strict=True
            )
            mask = torch.cat(
                [self._loss.slice_log_prob_with_cp(*of_sample) for of_sample in lengths]
            ).bool()
            advantages = torch.cat(batch["advantages"])
            policy = batch.get(
                "rollout_log_probs" if getattr(args, "use_rollout_logprobs", False) else "log_probs"
            )
            named = {
                "old_logprobs": policy or [part.detach() for part in own],
                "sampler_logprobs": batch.get("rollout_log_probs"),
                "ref_logprobs": batch.get("ref_log_probs"),
            }
            known = {name: torch.cat(list(parts)) for name, parts in named.items() if parts}
        scores = self.attachment.take()
        if advantages is None:
            return own
        gated = self.attachment.gate(whole, advantages, mask, scores, **known)
        return list(gated.split([len(part) for part in own]))


def _joined(parts: Sequence[TokenScores]) -> TokenScores:
    """Scores of several samples as those of one row of tokens."""
    first, fields = parts[0], {}
    for field in dataclasses.fields(first):
        values = [getattr(part, field.name) for part in parts]
        if isinstance(values[0], Tensor) and field.name != "temperature":
            fields[field.name] = torch.cat(values)
    return dataclasses.replace(first, **fields)


def _reasons(args: Namespace) -> Iterator[str]:
    if getattr(args, "allgather_cp", False):
        yield (
            "--allgather-cp moves the log-probs of tokens to other ranks than their logits. Use the"
            " zig-zag layout."
        )
    if getattr(args, "loss_type", None) != "custom_loss" or not getattr(
        args, "custom_loss_function_path", None
    ):
        yield (
            "its loss is not gated. Add --loss-type custom_loss --custom-loss-function-path"
            f" {__name__}.policy_loss."
        )


def _folder(checkpoints: Path, iteration: int) -> Path:
    """Where Megatron saves a checkpoint; slime's iterations are its rollouts."""
    return checkpoints / f"iter_{iteration:07d}"


def _keep(tensor: Tensor) -> Tensor:
    return tensor

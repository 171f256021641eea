"""A probe on TRL's GRPOTrainer or RLOOTrainer, attached before `trainer.train()`.

    probe = isentrope.attach(trainer)
    trainer.train()

TRL samples, computes advantages and its loss, clips, updates and logs as before. Some methods of
this one trainer are wrapped. The log-probs of the loss come from
`_get_per_token_logps_and_entropies`: they keep their values, and get gradient only where the active
control keeps it."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, cast, get_args

import torch
from accelerate.utils import is_peft_model
from torch import Tensor, nn
from transformers import TrainerControl, TrainerState, TrainingArguments
from trl import GRPOTrainer, RLOOTrainer

from isentrope.guard import Guard, SafeLog
from isentrope.inputs import LearningRates, learning_rates_of
from isentrope.integrations import trl_head
from isentrope.integrations.attachment import Attachment, Versions, check_parameters, refuse, wrap
from isentrope.integrations.transformers import (
    IsentropeCallback,
    StepReports,
    checkpoint_folder,
    resume_training,
)
from isentrope.lifecycle import error_text
from isentrope.probe import Probe
from isentrope.run_config import jsonable
from isentrope.scores import TokenScores
from isentrope.statistics.samples import ANSWER, PROMPT_IDS, REWARD, TRUNCATED, text_bytes
from isentrope_wire.control import Control
from isentrope_wire.errors import ConfigurationError
from isentrope_wire.metrics import (
    ADVANTAGE_ZERO_GROUP_FRACTION,
    COMPLETION_LENGTH_MEAN,
    REWARD_MEAN,
)

logger = SafeLog(__name__)

ATTRIBUTE = "_isentrope_attachment"
_KEPT = "isentrope/"
"""Before the names of what is kept of each completion among the inputs of TRL's loss, as
`Probe.gate` takes it."""
_GROUPS = "isentrope_groups"
"""Among them: the group of each completion."""
_GROUP_BITS = 30
"""Of a group's number within one generation; the bits above count the generations."""
_ANSWER_COLUMNS = ("answer", "solution", "ground_truth")
"""Of a dataset: the first that there is has the expected answers."""
PROMISED = {"reward": REWARD_MEAN, "completions/mean_length": COMPLETION_LENGTH_MEAN}
"""TRL's names of metrics, and the promised names that they are reported under as well."""
ZERO_GROUPS = "frac_reward_zero_std", ADVANTAGE_ZERO_GROUP_FRACTION
"""TRL's name and ours of a metric that the probe counts itself where it knows the groups. TRL's
number is an average over `logging_steps`: one series must not mix the two."""

VERSIONS = Versions("TRL", "trl", at_least="1.15", below="1.17")

WRAPPED = {
    "_get_per_token_logps_and_entropies": (
        "model",
        "input_ids",
        "attention_mask",
        "logits_to_keep",
        "compute_entropy",
    ),
    "_generate_and_score_completions": ("inputs",),
    "_compute_loss": ("model", "inputs"),
    "train": (),
}
"""The trainer's methods that are wrapped, and the parameters each must have."""


def attach(
    trainer: Any,
    *,
    head: trl_head.Head = "replace",
    name: str | None = None,
    project: str | None = None,
    config: Mapping[str, object] | None = None,
    control: Control | None = None,
    hold: Mapping[str, object] | float | str | None = None,
    rescore_tokens: int | None = None,
    **settings: Any,
) -> Probe:
    """Measure, gate and report a TRL run. Neither TRL's loss nor its metrics change.

    Args:
        trainer: a GRPOTrainer or RLOOTrainer of TRL 1.15 or 1.16, before `train()`.
        head: "replace": log-probs and entropies come from our fused head in the place of TRL's, so
            that nothing is computed twice. "observe": TRL's own are used to the last bit, and ours
            computed beside them.
        name: the run's name. Default: the training arguments' `run_name`, then `ISENTROPE_NAME`, or
            "run".
        project: what it belongs to. Default: `ISENTROPE_PROJECT`, or "default".
        config: shown with the run, beside the training arguments.
        control: the control that the run starts with. Default: none.
        hold: the entropy to hold, in the place of the control's: a number of nats such as 0.46, a
            share of its early level such as "75%", or the field `hold` of a control. Default: the
            control's.
        rescore_tokens: how many tokens of a rank's step, prompts and padding included, are scored
            once more after the update at most, for the observed change. 0: it is not measured.
            Default: with `coupling_samples` so many completions, else a sixteenth of the step, at
            least one sequence.
        **settings: others of `Probe`, such as `run_id`, `mode` and `trackers`. With
            `threshold_source="first_pass"`: a first pass exists where TRL computes the log-probs
            before the update: always in RLOO, in GRPO where a batch serves several updates.

    Returns:
        The probe. Its run ends when training does.

    Raises:
        ConfigurationError: the trainer's set-up can't be observed, a setting can't work, or the
            self-check failed.
    """
    check_supported(trainer)
    if head not in get_args(trl_head.Head):
        raise ConfigurationError(
            f"head must be one of {', '.join(get_args(trl_head.Head))}; got {head!r}."
        )
    if rescore_tokens is not None and (type(rescore_tokens) is not int or rescore_tokens < 0):
        raise ConfigurationError(
            f"rescore_tokens must be a whole number from 0 on, got {rescore_tokens!r}."
        )
    guard = Guard()
    bonus = bool(getattr(trainer, "_entropy_bonus_enabled", False))
    fused_head = trl_head.FusedHead(policy_of(trainer), head, guard, entropy_gradient=bonus)
    fused_head.install()
    try:
        trl_head.self_check(trainer, fused_head)
        probe = Probe(
            name or trainer.args.run_name,
            project,
            {
                "trainer": type(trainer).__name__,
                "head": head,
                **trainer.args.to_sanitized_dict(),
                **jsonable(config or {}, hides_secrets=False),
            },
            control=control,
            hold=hold,
            planned_steps=trainer.args.max_steps if trainer.args.max_steps > 0 else None,
            tokenizer=getattr(trainer.processing_class, "tokenizer", trainer.processing_class),
            **settings,
        )
    except BaseException:
        fused_head.remove()
        raise
    attachment = TrainerAttachment(trainer, probe, fused_head, guard, rescore_tokens)
    attachment.install()
    trainer.__dict__[ATTRIBUTE] = attachment
    return probe


def detach(trainer: Any) -> None:
    """Restore the trainer's own methods, and end the run if it has not ended.

    Raises:
        ConfigurationError: nothing is attached to it.
    """
    attachment: TrainerAttachment | None = trainer.__dict__.pop(ATTRIBUTE, None)
    if attachment is None:
        raise ConfigurationError("No probe is attached to this trainer.")
    attachment.remove()


class TrainerAttachment(StepReports):
    """The wrapped methods of one trainer, and the callback that closes its steps."""

    def __init__(
        self,
        trainer: Any,
        probe: Probe,
        head: trl_head.FusedHead,
        guard: Guard,
        rescore_tokens: int | None,
    ) -> None:
        super().__init__()
        self._trainer, self._probe, self._head, self._guard = trainer, probe, head, guard
        self.probe = probe
        self._rescore_tokens = rescore_tokens
        self._steps = Attachment(probe, guard, rescore=False)
        self._own: dict[str, Any] = {}
        """What the trainer itself had of the names that are wrapped; None: nothing, the method is
        its class's."""
        self._inputs: trl_head.Inputs | None = None
        self._first_pass: list[tuple[Tensor, TokenScores]] | None = None
        """Log-probs and scores computed while TRL generates; None: it does not generate."""
        self._samples: dict[str, Tensor] = {}
        self._room: int | None = None
        """Tokens of the open step that may still be scored again; None: it has no micro-batch
        yet."""
        self._resumed_from: Path | None = None
        self._groups_known = False
        self._generations = 0
        self._learning_rates: LearningRates | None = None
        self._update: list[Any] = []
        self._norm: Tensor | None = None
        """Norm of its gradient before it was clipped; None: not known."""
        self._loss_scale: float | Tensor = 1.0
        self._finished = False

    def install(self) -> None:
        wrapped: dict[str, Callable[..., Any]] = {
            "_get_per_token_logps_and_entropies": self._logprobs_for_trl,
            "_generate_and_score_completions": self._generate,
            "_calculate_rewards": self._calculate_rewards,
            "_compute_loss": self._compute_loss,
            "train": self._train,
            "_clip_grad_norm": self._clip_gradient,  # transformers 5
            "_load_best_model": self._load_best_model,
            "_save_checkpoint": self._save_checkpoint,
        }
        for name, ours in wrapped.items():
            if hasattr(self._trainer, name):
                self._own[name] = self._trainer.__dict__.get(name)
                wrap(self._trainer, name, ours)
        self._trainer.add_callback(self)

    def remove(self) -> None:
        for name, own in self._own.items():
            self._trainer.__dict__.pop(name, None)
            if own is not None:
                self._trainer.__dict__[name] = own
        self._trainer.remove_callback(self)
        self.close_open_step()
        self.finish()

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Continue the probe from the checkpoint that training continues from."""
        resume_training(self._probe, args, state, self._resumed_from)

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Read the learning rates, and keep the gradients for influences: before the step is closed
        both are changed."""
        with self._guard.protect("reading the learning rate"):
            self._learning_rates = learning_rates_of(self._trainer.optimizer)
            if self._probe.measures_influence:
                self._update = _update_of(self._trainer.optimizer)
            else:
                self._update = []

    def log(self, scalars: Mapping[str, float | Tensor]) -> None:
        if self._groups_known:
            names = PROMISED
        else:
            names = {**PROMISED, ZERO_GROUPS[0]: ZERO_GROUPS[1]}
        promised: dict[str, float | Tensor] = {
            names[name]: value for name, value in scalars.items() if name in names
        }
        self._probe.log({**scalars, **promised})

    def close_step(self, step: int) -> None:
        if self._finished:  # this training is not observed
            return
        self._groups_known, self._room = False, None
        norm, self._norm = self._norm, None
        optimizer, largest, rates = (
            self._trainer.optimizer,
            self._trainer.args.max_grad_norm,
            self._learning_rates,
        )
        update, self._update = self._update, []
        now = []
        if update:
            now = _update_of(optimizer)
        _put(update)
        try:
            self._steps.close(
                optimizer,
                step=step,
                norm=norm,
                largest_norm=largest,
                learning_rates=rates,
                loss_scale=self._loss_scale,
            )
        finally:
            _put(now)

    def finish(self, status: str = "finished", error: str = "") -> None:
        self._finished = True
        self._head.remove()
        self._probe.finish(status, error)

    def _train(self, theirs: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._finished:
            logger.warning(
                "The attached run has ended: this training is not observed. Detach, then attach"
                " again."
            )
        if args:
            given = args[0]
        else:
            given = kwargs.get("resume_from_checkpoint")
        if isinstance(given, str | PathLike):
            self._resumed_from = Path(given)
        else:
            self._resumed_from = None
        try:
            return theirs(*args, **kwargs)
        except BaseException as error:
            # As TRL itself would train on: attached again, the trainer must not look busy.
            self._trainer.is_in_train = False
            self._rescore_tokens = 0
            self.fail(error_text(error), alone=self._trainer.accelerator.num_processes == 1)
            raise

    def _clip_gradient(self, theirs: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Keep the norm of the update's gradient; it stays on its device."""
        norm = theirs(*args, **kwargs)
        if not hasattr(norm, "placements"):  # one spread over ranks would have to be gathered
            self._norm = norm
        return norm

    def _scale_of_loss(self) -> float | Tensor:
        """What a GradScaler multiplies the step's loss by; it stays on its device."""
        accelerator = self._trainer.accelerator
        if accelerator.scaler is None:
            return 1.0
        scale: Tensor = accelerator.scaler.scale(torch.ones((), device=accelerator.device))
        return scale

    def _load_best_model(self, theirs: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Measure the last update before the weights that it made are replaced."""
        self.close_open_step()
        return theirs(*args, **kwargs)

    def _save_checkpoint(self, theirs: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Let a checkpoint have the probe's state that is written without `on_save`, too, as at a
        SIGTERM."""
        theirs(*args, **kwargs)
        state = self._trainer.state
        if not self._finished:
            self._checkpoint_to_complete = checkpoint_folder(self._trainer.args, state)
            if self._probe.last_step == state.global_step:
                self.complete_checkpoint()

    def _compute_loss(
        self,
        theirs: Callable[..., Any],
        model: Any,
        inputs: trl_head.Inputs,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Keep the inputs of the loss while it is computed; evaluations are not observed."""
        self._inputs = None
        if self._observing():
            self._inputs = inputs = trl_head.add_kl_part(self._trainer, inputs)
            with self._guard.protect("reading the scale of the loss"):
                self._loss_scale = self._scale_of_loss()
        try:
            return theirs(model, inputs, *args, **kwargs)
        finally:
            self._inputs = None

    def _generate(self, theirs: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Take the log-probs that TRL computes before the update, where it does, as the first pass
        of the next steps."""
        candidates: list[tuple[Tensor, TokenScores]] = []
        if self._observing():
            self._first_pass = candidates
        else:
            self._first_pass = None
        try:
            output = theirs(*args, **kwargs)
        finally:
            self._first_pass = None
            samples, self._samples = self._samples, {}
        if self._observing():
            with self._guard.protect("numbering groups"):
                self._generations += 1
                samples |= self._group_numbers(len(output["advantages"]))
        if all(len(rows) == len(output["advantages"]) for rows in samples.values()):
            output.update(samples)  # TRL shuffles and splits them with the completions
        if self._observing():
            with self._guard.protect("counting thresholds"):
                self._take_first_pass(candidates, output)
        return output

    def _group_numbers(self, rows: int) -> dict[str, Tensor]:
        """A number per completion of this rank for the group that TRL compares it with; none where
        they make no whole groups.

        By their order before TRL shuffles them, in which the completions of a group follow each
        other over the ranks: two groups may have one prompt, as where an image is what differs.
        """
        accelerator, size = self._trainer.accelerator, self._trainer.num_generations
        if rows * accelerator.num_processes % size:
            return {}
        places = torch.arange(rows, device=accelerator.device) + accelerator.process_index * rows
        return {_GROUPS: places // size + (self._generations << _GROUP_BITS)}

    def _calculate_rewards(
        self,
        theirs: Callable[..., Any],
        inputs: Any,
        prompts: Sequence[Any],
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Keep what TRL makes advantages of, the weighted sum of this rank's rewards, and its
        parts; TRL's output has only the advantages. A function that gave no reward has no part.
        """
        of_functions = theirs(inputs, prompts, *args, **kwargs)
        with self._guard.protect("keeping the rewards"):
            first = self._trainer.accelerator.process_index * len(prompts)
            own = of_functions[first : first + len(prompts)]
            weights = self._trainer.reward_weights.to(own.device)
            total = (own * weights).nansum(dim=1).masked_fill(own.isnan().all(dim=1), math.nan)
            self._samples = {_KEPT + REWARD: total}
            names = self._trainer.reward_func_names
            if len(names) > 1:
                parts = own.masked_fill(own.isnan(), math.inf).unbind(1)
                self._samples |= {
                    f"{_KEPT}{REWARD}/{name}": part for name, part in zip(names, parts, strict=True)
                }
            self._samples |= self._cut_completions(args, own.device)
            column = next((name for name in _ANSWER_COLUMNS if name in inputs[0]), None)
            if column is not None and self._probe.config.texts:
                self._samples[_KEPT + ANSWER] = text_bytes(
                    [example.get(column) for example in inputs], own.device
                )
        return of_functions

    def _cut_completions(self, given: tuple[Any, ...], device: torch.device) -> dict[str, Tensor]:
        """Which completions the length limit cut, as TRL tells it; nothing where it leaves them out
        of the loss: its own share counts them then. `given`: completions, and their token ids."""
        trainer = self._trainer
        ends = [*getattr(trainer, "eos_token_ids", ())]
        if len(given) < 2 or not ends or getattr(trainer, "mask_truncated_completions", False):
            return {}
        processing = trainer.processing_class
        ends.append(getattr(processing, "tokenizer", processing).pad_token_id)
        cut = [bool(ids) and ids[-1] not in ends for ids in given[1]]
        return {f"{_KEPT}{TRUNCATED}": torch.tensor(cut, device=device)}

    def _take_first_pass(
        self, candidates: list[tuple[Tensor, TokenScores]], output: trl_head.Inputs
    ) -> None:
        if "old_logps" not in output and output.get("old_per_token_logps") is None:
            return
        scores: list[TokenScores] = []
        masks: list[Tensor] = []
        try:
            made = _select_policy(candidates, output)
            masks = [trl_head.token_mask(output)] * len(made)
            scores = made
        finally:
            # Every rank takes part, also one whose scores failed: the others wait for it.
            self._probe.first_pass(scores, masks)

    def _logprobs_for_trl(self, theirs: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._inputs is None and self._first_pass is None:
            return theirs(*args, **kwargs)
        with self._head.recording() as records:
            logprobs, entropies, *rest = theirs(*args, **kwargs)
        with self._guard.protect("gating TRL's log-probs"):
            if records and self._first_pass is not None:
                self._first_pass.append(
                    (logprobs, trl_head.completion_scores(records, logprobs, entropies))
                )
            elif records and self._inputs is not None:
                logprobs = self._gated(
                    trl_head.completion_scores(records, logprobs, entropies), self._inputs
                )
        return logprobs, entropies, *rest

    def _gated(self, scores: TokenScores, inputs: trl_head.Inputs) -> Tensor:
        level = getattr(self._trainer, "importance_sampling_level", "token")
        groups: Tensor | None = None
        # For the diagnosis alone: its failure must not stop a control.
        with self._guard.protect("finding groups"):
            groups = inputs.get(_GROUPS)
            self._groups_known = groups is not None
        samples = {
            name.removeprefix(_KEPT): kept
            for name, kept in inputs.items()
            if name.startswith(_KEPT)
        }
        samples[PROMPT_IDS] = inputs["prompt_ids"].masked_fill(inputs["prompt_mask"] == 0, -1)
        return self._probe.gate(
            replace(scores, token_ids=inputs["completion_ids"]),
            inputs["advantages"],
            trl_head.token_mask(inputs),
            old_logprobs=trl_head.old_logprobs(inputs, scores.logprobs, level),
            sampler_logprobs=inputs.get(trl_head.SAMPLED),
            ref_logprobs=inputs.get("ref_per_token_logps"),
            groups=groups,
            completions=samples,
            rescore=self._rescore_of(inputs),
        )

    def _rescore_of(self, inputs: trl_head.Inputs) -> Callable[[], TokenScores] | None:
        """What scores the first sequences that have tokens, or all for influences, again after the
        update; None where the step has its share.

        TRL has shuffled the sequences, so the first ones are a random sample. Where not even one
        fits, its end is cut off. Which ones have tokens stays on the device."""
        (rows, tokens), prompt = inputs["completion_ids"].shape, inputs["prompt_ids"].shape[1]
        width, is_first = prompt + tokens, self._room is None
        if self._room is None:
            self._room = self._tokens_to_rescore(rows, width)
        if self._probe.measures_influence:
            self._room = rows * width
        rows = min(rows, max(0, self._room // width))
        if is_first and not rows:
            rows, tokens = 1, self._room - prompt
        if inputs.get("pixel_values") is not None or not rows or tokens < 1:
            return None
        self._room -= rows * width
        has_tokens = trl_head.token_mask(inputs)[:, :tokens].any(1)
        chosen = has_tokens.int().argsort(descending=True, stable=True)[:rows]
        return functools.partial(self._rescored, inputs, chosen, tokens)

    def _tokens_to_rescore(self, rows: int, width: int) -> int:
        """Of a step whose micro-batches have so many rows of so many tokens."""
        samples = self._probe.config.coupling_samples
        if self._rescore_tokens is not None:
            return self._rescore_tokens
        if samples is not None:
            return samples * width
        micro_batches: int = self._trainer.args.gradient_accumulation_steps
        return max(width, rows * width * micro_batches // 16)

    def _rescored(self, inputs: trl_head.Inputs, rows: Tensor, tokens: int) -> TokenScores:
        """Log-probs and entropies of these sequences, by their indices, under the policy as it is
        now, NaN for the others."""
        entropies = torch.full_like(inputs["completion_ids"], math.nan, dtype=torch.float32)
        logprobs = entropies.clone()
        if self._rescore_tokens != 0:  # training has not failed
            ids, mask = (
                torch.cat(
                    [inputs[f"prompt_{part}"][rows], inputs[f"completion_{part}"][rows, :tokens]],
                    1,
                )
                for part in ("ids", "mask")
            )
            # Below TRL's profiling decorator, which would log this forward as one of its own.
            forward = inspect.unwrap(type(self._trainer)._get_per_token_logps_and_entropies)
            with (
                trl_head.switch_dropout_on(self._trainer.model),
                self._head.recording(alone=True) as records,
            ):
                own, *_ = forward(self._trainer, self._trainer.model, ids, mask, tokens)
            scores = trl_head.completion_scores(records, own)
            logprobs[rows, :tokens], entropies[rows, :tokens] = scores.logprobs, scores.entropies
        return TokenScores(logprobs, *[entropies] * 4)

    def _observing(self) -> bool:
        return (
            not self._finished
            and cast(bool, self._trainer.model.training)
            and torch.is_grad_enabled()
        )


def _update_of(optimizer: Any) -> list[Any]:
    """Of each of its groups: the learning rate, and the gradient of each weight."""
    return [
        (group, group["lr"], [(one, one.grad) for one in group["params"]])
        for group in optimizer.param_groups
    ]


def _put(update: list[Any]) -> None:
    for group, rate, gradients in update:
        group["lr"] = rate
        for weight, gradient in gradients:
            weight.grad = gradient


def _select_policy(
    candidates: list[tuple[Tensor, TokenScores]], output: trl_head.Inputs
) -> list[TokenScores]:
    """The scores of the policy. GRPO may have computed only those of a reference, the same model
    with its adapters off; RLOO always computes the policy's, and first."""
    if "old_logps" in output:
        return [scores for _, scores in candidates[:1]]
    old = output["old_per_token_logps"]
    return [scores for logprobs, scores in candidates if logprobs is old]


def check_supported(trainer: Any) -> None:
    """Refuse set-ups that can't be observed faithfully."""
    installed = VERSIONS.check()
    if any(cls.__name__ == "AsyncGRPOTrainer" for cls in type(trainer).__mro__):
        raise ConfigurationError(
            "Can't attach to AsyncGRPOTrainer: its compute_loss takes the log-probs straight from"
            " the model's output, so that nothing can be gated between them. Report its scalars"
            " with IsentropeCallback, or train with GRPOTrainer."
        )
    if not isinstance(trainer, GRPOTrainer | RLOOTrainer):
        raise ConfigurationError(
            f"attach takes TRL's GRPOTrainer or RLOOTrainer, got {type(trainer).__name__}. For"
            " another loop use isentrope.Probe; for scalars of any transformers.Trainer,"
            " IsentropeCallback."
        )
    refuse(f"this {type(trainer).__name__}", _reasons_against(trainer))
    for method, parameters in WRAPPED.items():
        check_parameters(trainer, method, parameters, f"TRL {installed}")


def _reasons_against(trainer: Any) -> Iterator[str]:
    model, args = policy_of(trainer), trainer.args
    if "_isentrope_attachment" in trainer.__dict__:
        yield "it has a probe already. Call isentrope.detach(trainer) first."
    if any(
        isinstance(callback, IsentropeCallback) for callback in trainer.callback_handler.callbacks
    ):
        yield (
            "it reports through IsentropeCallback already. Leave that out: attach sends the same"
            " scalars."
        )
    if trainer.is_in_train:
        yield (
            "its training is under way, or was interrupted. Attach to a new trainer, before"
            " trainer.train()."
        )
    modules = f"{type(trainer).__module__} {type(trainer).__name__} {type(model).__module__}"
    if "unsloth" in modules.lower() or hasattr(model.config, "unsloth_version"):
        yield "Unsloth has replaced the model's forward by one that returns no log-probs."
    if args.use_liger_kernel:
        yield (
            "use_liger_kernel replaces layers when training starts, after the self-check. Use "
            "model_init_kwargs={'use_kernels': True} instead, as TRL advises."
        )
    if args.torch_compile:
        yield (
            "torch_compile compiles the forward into one program, from which no scores can be read."
            " Turn it off."
        )
    if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
        yield (
            "DeepSpeed and FSDP shard the policy when training starts, after the self-check. Use"
            " DDP, or isentrope.Probe in a loop of your own."
        )


def policy_of(trainer: Any) -> nn.Module:
    """The model whose forward TRL has patched: under PEFT the base model."""
    model: nn.Module = trainer.accelerator.unwrap_model(trainer.model)
    if is_peft_model(model):
        base: nn.Module = model.get_base_model()  # type: ignore[operator]
        return base
    return model

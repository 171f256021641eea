"""verl: scores where an engine has its logits, the gate on the log-probs its loss reads, a step per
optimiser update.

`attach(engine)` wraps the methods of one FSDP engine, in its worker process; no class of verl
changes:

    prepare_model_inputs     keeps the token ids and temperatures of the coming forward pass
    prepare_model_outputs    has the logits: they are scored before verl makes log-probs of them
    forward_step             calls the loss function with `log_probs` that have passed the gate
    optimizer_step           closes the step
    train_batch              adds the report's scalars to the metrics that verl aggregates and logs
    save_checkpoint, load_checkpoint    take the probe's state along

With `use_fused_kernels` no logits exist: a hook behind the layers below the head scores their
hidden states with the head's weight, inside the forward pass, where FSDP has gathered that weight.

`verl_plugin.py` calls it for every actor of a run with `ISENTROPE_VERL=1`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from verl.utils import tensordict_utils as tu
from verl.utils.ulysses import gather_outputs_and_unpad
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead
from verl.workers.utils.padding import no_padding_2_padding

from isentrope.inputs import learning_rates_of
from isentrope.integrations import attachment
from isentrope.probe import Probe
from isentrope.scores import TokenScores, each_field

ATTRIBUTE = "_isentrope_attachment"

VERSIONS = attachment.Versions("verl", "verl", at_least="0.8.0", below="0.10")

WRAPPED = {
    "prepare_model_inputs": ("micro_batch",),
    "prepare_model_outputs": ("output", "output_args", "micro_batch"),
    "forward_step": ("micro_batch", "loss_function", "forward_only"),
    "optimizer_step": (),
    "train_batch": ("data", "loss_function"),
    "save_checkpoint": ("local_path",),
    "load_checkpoint": ("local_path",),
    "is_mp_src_rank_with_outputs": (),
}

SHOWN = (
    "entropy/",
    "score/",
    "change/",
    "clip/",
    "covariance/",
    "sampler/",
    "ratio/",
    "kl/",
    "hold/",
    "token/",
)
"""Beginnings of the metrics that also go into verl's own."""

Inputs = Mapping[str, Any]


def attach(engine: Any, *, rescore: bool | None = None, **settings: Any) -> Probe:
    """Measure and steer the updates of an engine by the probe that is returned. Call it on every
    rank, after `engine.initialize()`.

    Args:
        engine: verl's FSDP engine of a language model that is trained.
        rescore: score the first micro-batch of each update once more after it, for the observed
            change. Default: `ISENTROPE_RESCORE`, or true.
        **settings: of `Probe`. Default: from the environment.

    Raises:
        ConfigurationError: the set-up can't be observed, or the version of verl is not known to
            work.
    """
    check_supported(engine)
    model = engine.model_config
    # All ranks: with sequence parallelism several of them compute the loss of the same tokens. Each
    # needs the gate, and one of them counts.
    probe = attachment.in_worker(
        name="verl",
        counts=engine.is_mp_src_rank_with_outputs(),
        config={
            "framework": "verl",
            "engine": _settings_of(engine.engine_config),
            "optimizer": _settings_of(engine.optimizer_config),
            "model": str(getattr(model, "path", "")),
        },
        tokenizer=getattr(model, "tokenizer", None),
        **settings,
    )
    EngineAttachment(engine, probe, rescore=rescore).install()
    return probe


def check_supported(engine: Any) -> None:
    """Refuse set-ups that can't be observed faithfully."""
    installed = VERSIONS.check()
    attachment.refuse(f"verl's {type(engine).__name__}", _reasons_against(engine))
    for method, parameters in WRAPPED.items():
        attachment.check_parameters(engine, method, parameters, f"verl {installed}")


def _reasons_against(engine: Any) -> Iterator[str]:
    backend = str(getattr(engine.engine_config, "strategy", "")).lower()
    if "megatron" in f"{backend} {type(engine).__name__}".lower():
        yield (
            "Megatron splits vocabulary and pipeline over ranks, and its logits exist only inside"
            " its own schedule. Train with actor_rollout_ref.actor.strategy=fsdp2;"
            " trainer.logger=['console','isentrope'] still reports verl's own metrics."
        )
    if not isinstance(engine, FSDPEngineWithLMHead):
        yield (
            "the adapter knows verl's FSDP engines of language models, and this one"
            f" ({backend or 'unknown'}) computes its log-probs elsewhere. Train with"
            " actor_rollout_ref.actor.strategy=fsdp2."
        )
    if getattr(engine.engine_config, "forward_only", False):
        yield "it is forward_only: nothing is trained there."
    if hasattr(engine, ATTRIBUTE):
        yield "it has a probe already."


class EngineAttachment(attachment.Attachment):
    """The wrapped methods of one engine."""

    def __init__(self, engine: Any, probe: Probe, *, rescore: bool | None) -> None:
        super().__init__(probe, rescore=rescore)
        self._engine = engine
        self._scoring = False
        """Whether the forward pass under way is one that the optimiser learns from, or the one that
        scores again."""
        self._inputs: tuple[Inputs, Inputs] = {}, {}
        """The micro-batch of that pass, and what verl keeps of it for its outputs."""
        self._ends = _end_tokens(engine.model_config)

    def install(self) -> None:
        setattr(self._engine, ATTRIBUTE, self)
        wrapped: dict[str, Callable[..., Any]] = {
            "prepare_model_inputs": self._model_inputs,
            "prepare_model_outputs": self._model_outputs,
            "forward_step": self._forward_step,
            "optimizer_step": self._optimizer_step,
            "train_batch": self._train_batch,
            "save_checkpoint": self._save_checkpoint,
            "load_checkpoint": self._load_checkpoint,
        }
        for name, ours in wrapped.items():
            attachment.wrap(self._engine, name, ours)
        if getattr(self._engine.engine_config, "use_fused_kernels", False):
            # As verl's fused forward finds them, through any wrapper of the model.
            model = next(
                one
                for one in self._engine.module.modules()
                if {"model", "lm_head"} <= one._modules.keys()
            )
            model.model.register_forward_hook(functools.partial(self._hidden_states, model))

    def _train_batch(
        self, theirs: Callable[..., Any], data: Inputs, *args: Any, **kwargs: Any
    ) -> Any:
        self.discard()
        self._count_completions(data)
        outputs = theirs(data, *args, **kwargs)
        with self.guard.protect("adding to verl's metrics"):
            if self.probe.config.rank == 0:
                # One number of this update; verl puts those of ranks and mini-batches into one
                # list.
                shown = {
                    name: value
                    for name, value in self.newly_reported().items()
                    if name.startswith(SHOWN)
                }
                outputs["metrics"].update(
                    {f"isentrope/{name}": [value] for name, value in shown.items()}
                )
        return outputs

    def _forward_step(
        self,
        theirs: Callable[..., Any],
        micro_batch: Inputs,
        loss_function: Any,
        forward_only: bool,
    ) -> Any:
        trains = not forward_only and "advantages" in micro_batch and "response_mask" in micro_batch
        with self._scored(trains or self._scoring):
            return theirs(
                micro_batch,
                self._gated_loss(loss_function) if trains else loss_function,
                forward_only,
            )

    @contextmanager
    def _scored(self, wanted: bool = True) -> Iterator[None]:
        """Hold the scores of the forward pass in its body, where they are wanted."""
        before, self._scoring = self._scoring, wanted
        try:
            yield
        finally:
            self._scoring = before

    def _model_inputs(self, theirs: Callable[..., Any], micro_batch: Inputs) -> Any:
        inputs, output_args = theirs(micro_batch=micro_batch)
        self._inputs = micro_batch, output_args
        return inputs, output_args

    def _hidden_states(self, model: Any, layers: Any, inputs: Any, output: Any) -> None:
        """The hook of a fused forward pass: what the layers give the head."""
        if self._scoring:
            weight = model.lm_head.weight
            self._hold(
                output[0],
                lambda rows, ids, **about: self.probe.score_hidden(rows, weight, ids, **about),
            )

    def _model_outputs(self, theirs: Callable[..., Any], output: Any, **kwargs: Any) -> Any:
        if self._scoring and output.logits is not None:
            if isinstance(output.logits, DTensor):
                # verl gathers them, too, where it finds a DTensor: once is enough.
                output.logits = output.logits.full_tensor()
            self._hold(output.logits, self.probe.score)
        return theirs(output=output, **kwargs)

    def _hold(self, values: Tensor, score: Callable[..., TokenScores]) -> None:
        """Hold the scores of all tokens of a micro-batch, [tokens]; position t holds the token that
        follows it, as in verl's log-probs. `values` are logits or hidden states, [batch, tokens,
        ...]; packed ones are a batch of one."""

        def scores() -> TokenScores:
            micro_batch, output_args = self._inputs
            ids = output_args["input_ids_rmpad_rolled"]
            unit = output_args.get("temperature_is_one")
            if "temperature_rmpad" in output_args:
                if unit:
                    temperature = 1.0
                else:
                    temperature = output_args["temperature_rmpad"]
                found = score(values.squeeze(0), ids, temperature=temperature)
                tokens = micro_batch["input_ids"].values().shape[0]  # behind them: padding
                # A gather only where ranks share the sequences.
                return each_field(
                    found, lambda field: gather_outputs_and_unpad(field, gather_dim=0)[:tokens]
                )
            lengths = micro_batch["input_ids"].offsets().diff().to(ids.device)
            inside = torch.arange(values.shape[1], device=ids.device) < lengths.unsqueeze(1)
            padded_ids = ids.new_zeros(inside.shape).masked_scatter(inside, ids)
            if unit:
                temperature = 1.0
            else:
                temperature = output_args["temperature"].unsqueeze(-1)
            return each_field(
                score(values, padded_ids, temperature=temperature), lambda field: field[inside]
            )

        self.hold(scores)

    def _gated_loss(self, loss_function: Callable[..., Any]) -> Callable[..., Any]:
        def loss(model_output: dict[str, Any], data: Inputs, dp_group: Any = None) -> Any:
            own = model_output.get("log_probs")
            if own is not None:
                scores = self.take()
                with self.guard.protect("gating verl's log-probs"):
                    packed = own.values()
                    gated = self.gate(
                        packed, scores=scores, **self._known(data, packed, own.offsets())
                    )
                    # Also where nothing was gated: the gradient is read on its way to this very
                    # tensor.
                    nested = torch.nested.nested_tensor_from_jagged(gated, own.offsets())
                    model_output = {**model_output, "log_probs": nested}
            return loss_function(model_output=model_output, data=data, dp_group=dp_group)

        return loss

    def _known(self, data: Inputs, packed: Tensor, offsets: Tensor) -> dict[str, Any]:
        """What the gate is given beside log-probs and scores, in the layout of the whole
        sequences."""
        # Where the loss finds each token of a response, counted from 1; 0 is padding.
        places = no_padding_2_padding(torch.arange(1, len(packed) + 1, device=packed.device), data)
        responses = data.select(*(name for name in _OF_TOKENS if name in data)).to_padded_tensor()  # type: ignore[attr-defined]

        def laid_out(values: Tensor) -> Tensor:
            values = values.to(packed.dtype if values.is_floating_point() else torch.int64)
            room = values.new_zeros(len(packed) + 1)
            return room.scatter(0, places.reshape(-1), values.reshape(-1))[1:]

        known = {name: laid_out(values) for name, values in responses.items()}
        rewards, prompts = _rewards(data), data.get("prompts")
        samples: dict[str, Tensor] = {} if rewards is None else {"reward": rewards}
        with self.guard.protect("finding completions that were cut"):
            cut = _cut_completions(data, self._ends)
            if cut is not None:
                samples |= {"truncated": cut}
        if prompts is not None and prompts.is_nested:
            samples["prompt_ids"] = torch.nested.to_padded_tensor(prompts, -1)
        return {
            "advantages": known["advantages"],
            "mask": known["response_mask"] != 0,
            "old_logprobs": known.get("old_log_probs"),
            "sampler_logprobs": known.get("rollout_log_probs"),
            "ref_logprobs": known.get("ref_log_prob"),
            "groups": _groups(data, packed.device),
            "completions": samples,
            "cu_seqlens": offsets,
            "rescore": self.rescore_of_first(functools.partial(self._scored_again, data)),
        }

    def _scored_again(self, micro_batch: Inputs) -> TokenScores | None:
        """Scores of a micro-batch under the policy as it is now; on all ranks at once, for they
        share its layers."""
        engine = self._engine
        mode, training = engine.mode, engine.module.training
        try:
            # verl's own mode for forward passes alone, which gives sharded layers back at its end.
            with engine.eval_mode(disable_auto_offload=True), self._scored():
                engine.forward_step(micro_batch, None, True)
            return self.take()
        finally:
            engine.mode = mode
            engine.module.train(training)

    def _optimizer_step(self, theirs: Callable[..., Any]) -> Any:
        engine = self._engine
        scaler = getattr(engine, "scaler", None)
        if scaler is None:
            scale = 1.0
        else:
            scale = scaler.get_scale()
        # verl multiplies the gradient that a rank passes on to its part of the tokens, and one of
        # the ranks counts.
        scale /= engine.ulysses_sequence_parallel_size
        rates = learning_rates_of(engine.optimizer)
        norm = theirs()
        largest = engine.optimizer_config.clip_grad
        self.close(
            engine.optimizer,
            norm=norm,
            largest_norm=largest,
            learning_rates=rates,
            loss_scale=scale,
        )
        return norm

    def _count_completions(self, data: Inputs) -> None:
        with self.guard.protect("reading rewards"):
            rewards, mask = _rewards(data), data.get("response_mask")
            if rewards is not None and mask is not None:
                device = next(self._engine.module.parameters()).device
                tokens = (mask.values() if mask.is_nested else mask).sum()
                self.count_completions(rewards.to(device), tokens.to(device))

    def _save_checkpoint(
        self, theirs: Callable[..., Any], local_path: str, *args: Any, **kwargs: Any
    ) -> Any:
        saved = theirs(local_path, *args, **kwargs)
        self.save(Path(local_path))
        return saved

    def _load_checkpoint(
        self, theirs: Callable[..., Any], local_path: str, *args: Any, **kwargs: Any
    ) -> Any:
        if local_path is not None:
            # Before verl's own, which may remove the folder.
            self.resume(Path(local_path))
        return theirs(local_path, *args, **kwargs)


_OF_TOKENS = ("response_mask", "advantages", "old_log_probs", "rollout_log_probs", "ref_log_prob")


def _rewards(data: Inputs) -> Tensor | None:
    """Reward of each sequence, [batch]; None where the batch has none."""
    scores: Tensor | None = data.get("token_level_scores")
    if scores is None:
        return None
    of_sequences: Tensor = (
        torch.nested.to_padded_tensor(scores, 0.0) if scores.is_nested else scores
    ).sum(-1)
    return of_sequences


def _end_tokens(model: Any) -> list[int]:
    """The tokens that end a completion, as tokenizer and generation settings name them."""
    ends = set[int]()
    for owner in ("tokenizer", "generation_config"):
        token = getattr(getattr(model, owner, None), "eos_token_id", None)
        if isinstance(token, int):
            ends.add(token)
        elif isinstance(token, list | tuple):
            ends.update(token)
    return sorted(ends)


def _cut_completions(data: Inputs, ends: list[int]) -> Tensor | None:
    """Whether the last token of each response is none that ends one, [batch]; None: not known."""
    responses = data.get("responses")
    if responses is None or not responses.is_nested or not ends:
        return None
    last: Tensor = responses.values()[responses.offsets()[1:] - 1]
    return ~torch.isin(last, torch.tensor(ends, device=last.device))


def _groups(data: Inputs, device: torch.device) -> Tensor | None:
    """A number for the prompt of each sequence, the same on all ranks."""
    names = data.get("uid")
    if names is None:
        return None
    # NumPy arrays, lists and tensordict's stacks of non-tensors, whose items may be wrapped.
    items = names
    if hasattr(names, "tolist"):
        items = names.tolist()
    return attachment.prompt_groups([tu.unwrap_non_tensor_data(item) for item in items], device)


def _settings_of(config: Any) -> dict[str, object]:
    """The plain values of a configuration of verl's."""
    if not is_dataclass(config):
        return {}
    values = {field.name: getattr(config, field.name, None) for field in fields(config)}
    return {
        name: value for name, value in values.items() if isinstance(value, str | int | float | bool)
    }

"""The run of `isentrope demo --llm`: a language model under TRL's own `GRPOTrainer`, attached as
any TRL run is.

    trainer = GRPOTrainer(...)
    isentrope.attach(trainer)
    trainer.train()

What makes it fit for two cores: float32 unless the processor multiplies bfloat16 matrices, no
recomputed activations, and completions drawn by this package's sampler, which reads the prompt of a
group once, not once for each completion."""

from __future__ import annotations

import functools
import math
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm
from transformers import PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

import isentrope
from isentrope_trainer.loop import StepResult
from isentrope_trainer.models.local import load_folder
from isentrope_trainer.models.sampling import sample_rollouts
from isentrope_trainer.reference_run import noted_interrupts, progress_text
from isentrope_trainer.settings import LocalModelConfig, TrainingConfig
from isentrope_trainer.tasks.questions import INSTRUCTION, Questions
from isentrope_wire.metrics import PROBE_RESCORE_SECONDS, PROBE_SECONDS

USED = (
    "steps",
    "seed",
    "prompts",
    "group_size",
    "learning_rate",
    "temperature",
    "updates_per_batch",
)
"""The settings of a `TrainingConfig` that this run has, too."""
LONGEST_ANSWER = 12
"""Tokens, the end marker included."""


def train_language_model(
    folder: Path,
    config: TrainingConfig,
    control: isentrope.Control,
    *,
    name: str,
    project: str,
    seconds: dict[str, float] | None = None,
    announce: Callable[[str], None] = lambda run_id: None,
    follow: Callable[[isentrope.Probe, StepResult], None] = lambda probe, result: None,
    **probe_settings: Any,
) -> None:
    """Train the model of a folder on `Questions`.

    Args:
        folder: a causal language model and its tokenizer, as `save_pretrained` writes them.
        config: what USED names of it, and the loss's entropy coefficient.
        control: the intervention the run starts with.
        seconds: filled with what an average step took so far, by part; `step` is the whole of it.
        **probe_settings: others of `isentrope.attach`.

    Raises:
        ConfigurationError: the folder holds no such model, or the home can't be written to.
        KeyboardInterrupt: the run was interrupted; it is ended.
    """
    # TRL's own, about names of transformers that go in its version 6.
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")
    model, tokenizer = load_folder(LocalModelConfig(path=str(folder)))
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    questions = Questions(config.steps // config.updates_per_batch * config.prompts, config.seed)
    on_gpu = torch.cuda.is_available()
    generator = torch.Generator("cuda" if on_gpu else "cpu").manual_seed(config.seed)
    with tempfile.TemporaryDirectory() as nothing_is_saved, noted_interrupts() as interrupted:
        trainer = GRPOTrainer(
            model=model,
            processing_class=tokenizer,
            reward_funcs=[_reward(questions.right), _reward(questions.reward_form)],
            rollout_func=functools.partial(_rollouts, config, tokenizer, generator),
            train_dataset=Dataset.from_list(
                [
                    {"prompt": _prompt(questions.text(number), tokenizer), "question": number}
                    for number in range(len(questions))
                ]
            ),
            args=GRPOConfig(
                output_dir=nothing_is_saved,
                save_strategy="no",
                report_to="none",
                logging_steps=1,
                disable_tqdm=True,
                use_cpu=not on_gpu,
                bf16=(
                    torch.cuda.is_bf16_supported() if on_gpu else torch.cpu._is_amx_tile_supported()
                ),
                gradient_checkpointing=False,
                max_steps=config.steps,
                seed=config.seed,
                shuffle_dataset=False,  # each batch has every kind of question
                per_device_train_batch_size=config.prompts
                * config.group_size
                // config.updates_per_batch,
                steps_per_generation=config.updates_per_batch,
                num_generations=config.group_size,
                max_completion_length=LONGEST_ANSWER,
                temperature=config.temperature,
                learning_rate=config.learning_rate,
                entropy_coef=config.effective_loss().entropy_coefficient,
                lr_scheduler_type="constant",
            ),
        )
        trainer.remove_callback(PrinterCallback)
        probe = isentrope.attach(
            trainer, name=name, project=project, control=control, **probe_settings
        )
        announce(probe.run_id)
        with (
            logging_redirect_tqdm(),
            tqdm(
                total=config.steps, desc="train", unit="step", smoothing=0, dynamic_ncols=True
            ) as bar,
        ):

            def show(result: StepResult) -> bool:
                bar.set_postfix_str(progress_text(probe, result), refresh=False)
                bar.update()
                follow(probe, result)
                return not interrupted.is_set()

            trainer.add_callback(_Timing(trainer, probe, {} if seconds is None else seconds, show))
            trainer.train()
    if interrupted.is_set():
        raise KeyboardInterrupt


def _prompt(question: str, tokenizer: Any) -> list[dict[str, str]] | str:
    if not tokenizer.chat_template:
        return f"{INSTRUCTION}\n{question}\n"
    return [{"role": "system", "content": INSTRUCTION}, {"role": "user", "content": question}]


def _reward(judge: Callable[[int, str], float | None]) -> Callable[..., list[float | None]]:
    """A reward function as TRL calls it: with completions, and the dataset's column of each."""

    @functools.wraps(judge)
    def reward(completions: list[Any], question: list[int], **_: Any) -> list[float | None]:
        texts = [said if isinstance(said, str) else said[-1]["content"] for said in completions]
        return [judge(number, text) for number, text in zip(question, texts, strict=True)]

    return reward


def _rollouts(
    config: TrainingConfig,
    tokenizer: Any,
    generator: torch.Generator,
    prompts: list[Any],
    trainer: Any,
) -> dict[str, Any]:
    """Completions of a batch, as TRL's `rollout_func` returns them.

    Args:
        prompts: each `group_size` times in a row.
    """
    ids = [
        (
            tokenizer(prompt)["input_ids"]
            if isinstance(prompt, str)
            else tokenizer.apply_chat_template(prompt, add_generation_prompt=True)["input_ids"]
        )
        for prompt in prompts[:: config.group_size]
    ]
    padded = tokenizer.pad({"input_ids": ids}, padding_side="left", return_tensors="pt").to(
        trainer.accelerator.device
    )
    with trainer.accelerator.autocast():
        drawn = sample_rollouts(
            trainer.model,
            padded["input_ids"],
            padded["attention_mask"].bool(),
            config.group_size,
            generator,
            temperature=config.temperature,
            max_tokens=LONGEST_ANSWER,
            pad_id=tokenizer.pad_token_id,
            eos_ids=trainer.eos_token_ids,
        )

    def group_by_completion(values: torch.Tensor) -> list[list[Any]]:
        return [row[kept].tolist() for row, kept in zip(values, drawn.mask, strict=True)]

    return {
        "prompt_ids": [prompt for prompt in ids for _ in range(config.group_size)],
        "completion_ids": group_by_completion(drawn.completions),
        "logprobs": group_by_completion(drawn.sampler_logprobs),
    }


class _Timing(TrainerCallback):
    """What the steps spend their time on: logged with each of them, and shown."""

    def __init__(
        self,
        trainer: Any,
        probe: isentrope.Probe,
        means: dict[str, float],
        show: Callable[[StepResult], bool],
    ) -> None:
        """
        Args:
            means: of all steps so far; kept up to date.
            show: called after each step; whether training is to go on.
        """
        self._probe, self._means, self._show = probe, means, show
        self._step: dict[str, float] = {}
        self._steps, self._began, self._update_began = 0, time.perf_counter(), 0.0
        for owner, method, part in (
            (trainer, "_generate", "generation"),
            (trainer, "compute_loss", "forward"),
            (trainer.accelerator, "backward", "backward"),
        ):
            setattr(owner, method, self._timed(part, getattr(owner, method)))

    def _timed(self, part: str, theirs: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(theirs)
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return theirs(*args, **kwargs)
            finally:
                self._step[part] = self._step.get(part, 0.0) + time.perf_counter() - began

        return timed

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        self._update_began = time.perf_counter()

    def on_optimizer_step(self, *_: Any, **__: Any) -> None:
        self._step["optimiser"] = time.perf_counter() - self._update_began

    def on_log(
        self,
        args: Any,
        state: Any,
        control: Any,
        logs: Mapping[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """TRL logs after each update, and once more when training ends."""
        if logs is None or "loss" not in logs:
            return
        now = time.perf_counter()
        seconds, self._began = now - self._began, now
        # Built off this thread: it may be that of the step before.
        scalars = self._probe.latest.scalars
        if scalars:
            self._step["isentrope"] = scalars.get(PROBE_SECONDS, 0.0) + scalars.get(
                PROBE_RESCORE_SECONDS, 0.0
            )
        spent = {"step": seconds, **self._step}
        self._probe.log({f"time/{part}_seconds": value for part, value in spent.items()})
        self._step, self._steps = {}, self._steps + 1
        for part, value in spent.items():
            self._means[part] = (
                self._means.get(part, 0.0) + (value - self._means.get(part, 0.0)) / self._steps
            )
        # Of several updates of one batch, TRL logs the reward with the first.
        reward = logs.get("reward", math.nan)
        if not self._show(
            StepResult(step=state.global_step, reward_mean=reward, step_seconds=seconds)
        ):
            control.should_training_stop = True

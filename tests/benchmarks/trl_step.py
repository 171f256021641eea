"""A TRL GRPO step with a probe attached and without, on a model whose head matters.

Trainers of the same model take turns: generation, loss, backward pass, update, logging. Ratios are
medians over pairs of steps. What re-scoring a sample after the update adds, by default one of the
eight sequences here, is given apart.

Where there is a CUDA device, the model is a Qwen2 of 0.5 B parameters in bfloat16 there, with
random weights; completions are random tokens, for generating them would be most of a step and the
same for all; and seconds are those of the clock, the device's work included.
"""

from __future__ import annotations

import logging
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import TrainerCallback

from isentrope.integrations.trl import attach
from tests.probe.integrations import tiny_trl

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
VOCABULARY, SEQUENCES, PROMPT, COMPLETION = (
    (151936, 16, 64, 448) if DEVICE == "cuda" else (32768, 8, 32, 32)
)
MODEL = (
    {
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": True,
    }
    if DEVICE == "cuda"
    else {
        "hidden_size": 128,
        "intermediate_size": 512,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
)
CANDIDATES: dict[str, Callable[[Any], object]] = {
    "alone": lambda trainer: None,
    "replace": lambda trainer: attach(trainer, rescore_tokens=0),
    "observe": lambda trainer: attach(trainer, head="observe", rescore_tokens=0),
    "observe and re-score": lambda trainer: attach(trainer, head="observe"),
    "replace and re-score": lambda trainer: attach(trainer),
    "the same, coupled by the last block": lambda trainer: attach(trainer, coupling="last_block"),
    "the same, coupled by the model": lambda trainer: attach(trainer, coupling="model"),
}


class TurnTaking(TrainerCallback):
    """Lets a trainer make one step at a time, and measures it: from one step's beginning to the
    next one's."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._go, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self._started: float | None = None

    def wait(self) -> None:
        """Called by the main thread: until the set-up, or the step under way, is over."""
        self._done.acquire()

    def step(self) -> None:
        """Called by the main thread: one step."""
        self._go.release()
        self.wait()

    def _pause(self) -> None:
        if self._started is not None:
            self.seconds.append(_seconds() - self._started)
        self._done.release()

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._pause()
        self._go.acquire()
        self._started = _seconds()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self._pause()


def _seconds() -> float:
    """CPU time of this thread; on a device, the clock once it has done what it was asked for."""
    if DEVICE == "cpu":
        return time.thread_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def random_completions(prompts: list[str], trainer: Any) -> dict[str, Any]:
    """In the place of TRL's generation."""
    ids = torch.randint(2, tiny_trl.VOCABULARY, (len(prompts), COMPLETION)).tolist()
    return {
        "prompt_ids": trainer.processing_class(prompts)["input_ids"],
        "completion_ids": ids,
        "logprobs": None,
    }


def trainer_of(folder: str, turns: TurnTaking, steps: int) -> Any:
    with torch.device(DEVICE):
        policy: Any = tiny_trl.model(vocab_size=VOCABULARY, initializer_range=0.02, **MODEL)
    there = (
        {
            "use_cpu": False,
            "bf16": True,
            "learning_rate": 1e-6,
            "trainer_rollout_func": random_completions,
        }
        if DEVICE == "cuda"
        else {"generation_kwargs": {"min_new_tokens": COMPLETION}}
    )
    prompts = [" ".join(f"w{2 + (i + j) % 30}" for j in range(PROMPT)) for i in range(64)]
    return tiny_trl.trainer(
        Path(folder),
        policy=policy.to(torch.bfloat16) if DEVICE == "cuda" else policy,
        steps=steps,
        per_device_train_batch_size=SEQUENCES,
        num_generations=4,
        max_completion_length=COMPLETION,
        trainer_reward_funcs=lambda completion_ids, **_: [
            float(sum(ids) % 7) for ids in completion_ids
        ],
        trainer_train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in prompts]),
        trainer_callbacks=[turns],
        **there,
    )


def seconds_per_step(rounds: int) -> dict[str, list[float]]:
    """Seconds of each step of each candidate; the n-th of all were made one after another."""
    names, threads = list(CANDIDATES), []
    taking_turns = {name: TurnTaking() for name in names}
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(ISENTROPE_HOME=folder, ISENTROPE_MODE="offline")
        for name, turns in taking_turns.items():
            trainer = trainer_of(folder, turns, steps=rounds + 2)
            CANDIDATES[name](trainer)
            threads.append(threading.Thread(target=trainer.train, daemon=True))
            threads[-1].start()
            turns.wait()
        for turn in range(rounds + 2):
            # Another one begins each time: what a step leaves behind is not always the next one's.
            for place in range(len(names)):
                taking_turns[names[(turn + place) % len(names)]].step()
        for thread in threads:
            thread.join()
    # The first step warms up; the last one also reports the finish.
    return {name: turns.seconds[1 : rounds + 1] for name, turns in taking_turns.items()}


def measure(rounds: int = 12) -> list[str]:
    """Rows of a Markdown table, a step's time as a multiple of the step alone."""
    torch.set_num_threads(1)
    os.environ["CI"] = "1"  # TRL sends no usage report from there
    logging.getLogger("transformers").setLevel(logging.ERROR)
    seconds = seconds_per_step(rounds)
    tokens = SEQUENCES * COMPLETION
    rows = [
        (
            f"| TRL step: {tokens} tokens of {VOCABULARY}, width {MODEL['hidden_size']}, {DEVICE} |"
            " time | median ratio | middle half of the ratios |"
        ),
        "|---|---|---|---|",
    ]
    for name, own in seconds.items():
        ratios = [mine / alone for mine, alone in zip(own, seconds["alone"], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        rows.append(
            f"| {name} | {statistics.median(own) * 1e3:.0f} ms | {middle:.3f} × | {low:.3f} to"
            f" {high:.3f} |"
        )
    return rows

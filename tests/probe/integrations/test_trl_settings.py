"""Every setting of TRL under which a probe may be attached: losses as without it, scores as from
plain logits."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
)

from tests.probe.integrations import tiny_trl

TWICE = {"num_iterations": 2}
SETTINGS: dict[str, dict[str, Any]] = {
    "several generations per update": {"gradient_accumulation_steps": 3, "steps_per_generation": 2},
    "several updates per generation": {"gradient_accumulation_steps": 1, "steps_per_generation": 2},
    "accumulation and iterations": {"gradient_accumulation_steps": 2, "num_iterations": 2},
    "temperature": {"temperature": 0.6},
    "high-entropy tokens only": {"top_entropy_quantile": 0.5},
    "adaptive entropy": {"use_adaptive_entropy": True, "entropy_target": 3.0, "entropy_coef": 0.01},
    "truncated completions masked": {"mask_truncated_completions": True, "steps": 3},
    "fp32 head": {"cast_lm_head_to_fp32": True},
    "bf16 autocast": {"bf16": True},
    "gradient checkpointing": {"activation_checkpointing": True},
    "several optimiser steps unlogged": {"logging_steps": 2},
    "entropy bonus": {"entropy_coef": 0.1, **TWICE},
    "rloo": {"kind": "rloo", **TWICE},
}


PLAIN_DESCENT = {"optim": "sgd", "learning_rate": 0.1, "max_grad_norm": 0.0}
"""The update is the gradient itself. Adam would hide its scale, and make round-off about zero as
large as any of it."""


def slow_but(quick: Collection[str], names: Iterable[str]) -> list[Any]:
    """One of each trainer for every day; the others go through the same code with another setting
    of TRL's."""
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in names]


def check_equal_runs(tmp_path: Path, make_policy: Any = tiny_trl.model, **settings: Any) -> None:
    """All that an observed run logs and learns is that of the same run alone; our own head differs
    by round-off."""
    untrained = tiny_trl.parameters(tiny_trl.trainer(tmp_path, policy=make_policy(), **settings))
    alone, observed, replaced = (
        tiny_trl.trained(tmp_path, head, policy=make_policy(), **PLAIN_DESCENT, **settings)
        for head in (None, "observe", "replace")
    )
    expected = torch.tensor(tiny_trl.losses(alone))
    assert expected.isfinite().all()
    assert tiny_trl.history(observed) == tiny_trl.history(alone)
    assert torch.equal(tiny_trl.parameters(observed), tiny_trl.parameters(alone))
    # bfloat16 rounds a logit to 8 bits: which way may depend on how a tile's sum is ordered.
    allowed = 2e-2 if settings.get("bf16") else 2e-6
    assert torch.allclose(
        torch.tensor(tiny_trl.losses(replaced)), expected, rtol=allowed, atol=allowed
    )
    # On-policy a loss is about zero whatever its gradient: it is the update that tells.
    update, theirs = (tiny_trl.parameters(run) - untrained for run in (replaced, alone))
    assert (update - theirs).norm() <= (2e-2 if settings.get("bf16") else 1e-5) * theirs.norm()
    assert theirs.norm() > 1e-2


@pytest.mark.parametrize("name", slow_but(("accumulation and iterations", "rloo"), SETTINGS))
def test_every_setting_goes_as_without_a_probe(tmp_path: Path, name: str) -> None:
    check_equal_runs(tmp_path, **SETTINGS[name])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["grpo", "rloo"])
def test_a_reference_model_is_left_to_trl(tmp_path: Path, saved_policy: str, kind: str) -> None:
    check_equal_runs(tmp_path, kind=kind, beta=0.1, make_policy=lambda: saved_policy, **TWICE)


@pytest.mark.slow
@pytest.mark.parametrize(
    "config", [{}, {"modules_to_save": ["lm_head"]}, {"lora_dropout": 0.2}], ids=str
)
def test_adapters_train_as_without_a_probe(tmp_path: Path, config: dict[str, Any]) -> None:
    check_equal_runs(tmp_path, make_policy=lambda: tiny_trl.adapted(**config), beta=0.05, **TWICE)


def soft_capped() -> PreTrainedModel:
    torch.manual_seed(0)
    return Gemma2ForCausalLM(
        Gemma2Config(
            vocab_size=tiny_trl.VOCABULARY,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=8,
            final_logit_softcapping=2.0,
            initializer_range=0.5,
            pad_token_id=0,
            eos_token_id=1,
            bos_token_id=2,
        )
    )


def tied() -> PreTrainedModel:
    torch.manual_seed(0)
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=tiny_trl.VOCABULARY,
            n_positions=64,
            n_embd=16,
            n_layer=1,
            n_head=2,
            initializer_range=0.3,
        )
    )


@pytest.mark.slow
@pytest.mark.parametrize("make_policy", [soft_capped, tied])
def test_soft_capped_and_tied_heads_train_as_without_a_probe(
    tmp_path: Path, make_policy: Any
) -> None:
    check_equal_runs(tmp_path, make_policy=make_policy, **TWICE)

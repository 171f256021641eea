"""What `attach` refuses, what it compares first, and how `detach` leaves a trainer."""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from transformers import Trainer, TrainingArguments

import isentrope
from isentrope.integrations import trl_head
from isentrope.integrations.transformers import IsentropeCallback
from isentrope.integrations.trl import attach, detach
from isentrope.integrations.trl_head import random_ids
from isentrope.scores.linear_token_scores import linear_token_scores
from isentrope.transport.transport import InMemoryTransport
from isentrope_wire.errors import ConfigurationError
from tests.probe.integrations import tiny_trl


def test_other_trainers_are_refused(tmp_path: Path) -> None:
    arguments = TrainingArguments(output_dir=str(tmp_path), report_to="none", use_cpu=True)
    with pytest.raises(ConfigurationError, match=r"GRPOTrainer.*RLOOTrainer.* Trainer"):
        attach(Trainer(model=tiny_trl.model(), args=arguments))


@pytest.mark.filterwarnings("ignore:You are importing from 'trl.experimental'")
def test_the_asynchronous_trainer_is_refused() -> None:
    from trl.experimental.async_grpo import AsyncGRPOTrainer

    # Making one asks for a GPU and a vLLM server; its class is refused before anything is read off
    # it.
    with pytest.raises(
        ConfigurationError, match=r"AsyncGRPOTrainer.*compute_loss.*IsentropeCallback"
    ):
        attach(AsyncGRPOTrainer.__new__(AsyncGRPOTrainer))


def outside(model: Any, input_ids: Any, attention_mask: Any, logits_to_keep: int, **_: Any) -> Any:
    zeros = torch.zeros(input_ids.shape[0], logits_to_keep)
    return zeros, zeros, None


ANOTHER_LAYOUT = rf"TRL {re.escape(version('trl'))} .*_compute_loss .*inputs"
REFUSED: dict[str, tuple[str, object, str]] = {
    "DeepSpeed": ("is_deepspeed_enabled", True, "DeepSpeed"),
    "FSDP": ("is_fsdp_enabled", True, "FSDP"),
    "training already": ("is_in_train", True, "trainer.train"),
    "Liger": ("args.use_liger_kernel", True, "use_kernels"),
    "compiled": ("args.torch_compile", True, "Turn it off"),
    "Unsloth": ("model.config.unsloth_version", "2026.1", "Unsloth"),
    "a forward replaced": (
        "model.forward",
        lambda *args, **kwargs: None,
        "_ChunkedLogProbFunction",
    ),
    "another layout": ("_compute_loss", lambda model, batch: None, ANOTHER_LAYOUT),
    "log-probs from outside": ("_get_per_token_logps_and_entropies", outside, "log-probs"),
}
"""By what is unusual: the trainer's attribute, its value, and what the refusal names."""


@pytest.mark.parametrize("name", REFUSED)
def test_set_ups_that_cant_be_observed_are_refused_with_the_reason(
    tmp_path: Path, name: str
) -> None:
    trainer = tiny_trl.trainer(tmp_path)
    path, value, reason = REFUSED[name]
    *owners, attribute = path.split(".")
    setattr(functools.reduce(getattr, owners, trainer), attribute, value)
    with pytest.raises(ConfigurationError, match=reason):
        attach(trainer)


@pytest.mark.parametrize("installed", ["1.14.2", "1.17.0"])
def test_another_version_of_trl_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: str
) -> None:
    trainer = tiny_trl.trainer(tmp_path)
    monkeypatch.setattr("isentrope.integrations.attachment.version", lambda _: installed)
    with pytest.raises(ConfigurationError, match=re.escape(installed)):
        attach(trainer)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"head": "both"}, "^head .*replace, observe"),
        ({"rescore_tokens": -1}, "^rescore_tokens .*-1"),
        ({"rescore_tokens": 1.5}, "^rescore_tokens .*1.5"),
        ({"control": "clip_v"}, r"isentrope\.Control"),
        ({"threshold_source": "whole"}, "^threshold_source .*whole"),
    ],
)
def test_settings_that_cant_work_are_refused_and_nothing_is_left(
    tmp_path: Path, settings: dict[str, Any], reason: str
) -> None:
    trainer = tiny_trl.trainer(tmp_path)
    before = state_of(trainer)
    with pytest.raises(ConfigurationError, match=reason):
        attach(trainer, **settings)
    assert state_of(trainer) == before


def test_a_second_probe_is_refused(tmp_path: Path) -> None:
    trainer = tiny_trl.trainer(tmp_path)
    attach(trainer, transport=InMemoryTransport())
    with pytest.raises(ConfigurationError, match="detach"):
        attach(trainer, transport=InMemoryTransport())


def test_the_callback_beside_an_attached_probe_is_refused(tmp_path: Path) -> None:
    trainer = tiny_trl.trainer(tmp_path)
    trainer.add_callback(IsentropeCallback())
    with pytest.raises(ConfigurationError, match="IsentropeCallback"):
        attach(trainer)


@pytest.mark.parametrize("field", ["logprobs", "entropies"])
def test_the_self_check_refuses_numbers_that_differ_and_shows_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: str
) -> None:

    def off(*args: Any, **kwargs: Any) -> Any:
        scores = linear_token_scores(*args, **kwargs)
        return replace(scores, **{field: getattr(scores, field) + 0.25})

    monkeypatch.setattr(trl_head, "linear_token_scores", off)
    trainer = tiny_trl.trainer(tmp_path)
    before = state_of(trainer)
    with pytest.raises(
        ConfigurationError,
        match=r"TRL's (log-prob|entropy) is (-?\d+\.\d+) nats and ours -?\d+\.\d+",
    ):
        attach(trainer)
    assert state_of(trainer) == before


def test_tokens_drawn_have_embeddings_and_are_no_special_ones() -> None:
    # The configuration may name more words than the model has rows of.
    text = SimpleNamespace(
        vocab_size=40, eos_token_id=[1, 2], pad_token_id=None, bos_token_ids=(4,)
    )
    whole = SimpleNamespace(image_token_id=5, video_token_index=6, get_text_config=lambda: text)
    model = SimpleNamespace(config=whole, get_input_embeddings=lambda: nn.Embedding(8, 2))
    assert set(random_ids(model).flatten().tolist()) == {0, 3, 7}


def test_the_self_check_draws_no_random_number_and_leaves_modes_alone(tmp_path: Path) -> None:
    trainer = tiny_trl.trainer(tmp_path, policy=tiny_trl.model(attention_dropout=0.5))
    trainer.model.train()
    trainer.model.model.layers[0].eval()
    modes, random = [module.training for module in trainer.model.modules()], torch.get_rng_state()
    attach(trainer, transport=InMemoryTransport())
    assert torch.equal(torch.get_rng_state(), random)
    assert [module.training for module in trainer.model.modules()] == modes


def state_of(trainer: Any) -> dict[str, Any]:
    """Everything that attaching may touch."""
    return {
        "trainer": dict(trainer.__dict__),
        "forward": trainer.model.forward,
        "model": {
            name: value
            for name, value in trainer.model.__dict__.items()
            if not name.startswith("_")
        },
        "callbacks": list(trainer.callback_handler.callbacks),
        "methods": [
            getattr(trainer, name)
            for name in (
                "_get_per_token_logps_and_entropies",
                "_generate_and_score_completions",
                "_compute_loss",
                "train",
            )
        ],
    }


@pytest.mark.parametrize("kind", ["grpo", "rloo"])
def test_detaching_restores_the_trainer_exactly(tmp_path: Path, kind: str) -> None:
    trainer = tiny_trl.trainer(tmp_path, kind)
    before = state_of(trainer)
    transport = InMemoryTransport()
    attach(trainer, transport=transport)
    assert state_of(trainer) != before
    detach(trainer)
    assert state_of(trainer) == before
    assert transport.closed
    with pytest.raises(ConfigurationError, match="attach"):
        detach(trainer)


@pytest.mark.parametrize("precision", [{}, {"bf16": True}], ids=str)
def test_detaching_after_training_leaves_trls_head(
    tmp_path: Path, precision: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = tiny_trl.trainer(tmp_path, **precision)
    theirs = trainer.model.forward
    attach(trainer, transport=InMemoryTransport())
    trainer.train()
    detach(trainer)
    if not precision:
        assert trainer.model.forward is theirs

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("our head was called")

    monkeypatch.setattr(trl_head, "linear_token_scores", never)
    ids = torch.tensor([[2, 3, 4, 5]])
    logprobs, _, _ = trainer._get_per_token_logps_and_entropies(
        trainer.model, ids, torch.ones_like(ids), 3
    )
    assert logprobs.shape == (1, 3)


def test_the_model_still_generates_with_the_signature_of_its_class(tmp_path: Path) -> None:
    import inspect

    trainer = tiny_trl.trainer(tmp_path)
    attach(trainer, transport=InMemoryTransport())
    assert inspect.signature(trainer.model.forward) == inspect.signature(tiny_trl.model().forward)
    generated = trainer.model.generate(
        input_ids=torch.tensor([[2, 3]]), max_new_tokens=2, do_sample=False
    )
    assert generated.shape == (1, 4)


def test_the_run_shows_the_trainers_settings_and_those_given(tmp_path: Path) -> None:
    trainer = tiny_trl.trainer(tmp_path, run_name="countdown")
    probe = attach(trainer, config={"task": "even tokens"}, transport=InMemoryTransport())
    assert probe.config.name == "countdown"
    assert isinstance(probe, isentrope.Probe)

"""TRL with `use_vllm`: TRL's own code on a stand-in for vLLM, which draws from a copy of the policy
in this process."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import isentrope
from isentrope.integrations.trl import attach
from isentrope.transport.transport import InMemoryTransport
from tests.probe.integrations import tiny_trl
from tests.probe.integrations.test_trl_gradients import Gradients

GENERATION = "trl.generation.vllm_generation"
END = 1


class Engine:
    """Draws from the weights that TRL sent last, at a temperature times `warmth`; has random
    numbers of its own."""

    warmth = 1.0
    unknown: frozenset[int] = frozenset()
    """Tokens of which no log-prob is given."""

    def __init__(self, **_: Any) -> None:
        self.model = tiny_trl.model()
        self.random = torch.Generator().manual_seed(3)
        self.loads = 0

    def load_weights(self, named: Iterable[tuple[str, Tensor]]) -> None:
        for name, weight in named:
            self.model.get_parameter(name).data.copy_(weight)
            self.loads += 1

    @torch.no_grad()
    def draw(
        self, prompt: list[int], temperature: float, length: int
    ) -> tuple[list[int], list[float | None]]:
        tokens, logprobs = list(prompt), list[float | None]()
        while len(logprobs) < length and (not logprobs or tokens[-1] != END):
            logits = self.model(torch.tensor([tokens])).logits[0, -1] / (temperature * self.warmth)
            drawn = int(torch.multinomial(logits.softmax(-1), 1, generator=self.random))
            logprobs.append(None if drawn in self.unknown else float(logits.log_softmax(-1)[drawn]))
            tokens.append(drawn)
        return tokens[len(prompt) :], logprobs


class ClientStandIn(Engine):
    """What TRL asks of `VLLMClient`, in server mode."""

    def init_communicator(self, device: torch.device) -> None:
        pass

    def get_server_info(self) -> dict[str, Any]:
        return {"model_config": {"logprobs_mode": "processed_logprobs"}}

    def update_named_params(
        self, metadata: Any, named_params: Iterator[tuple[str, Tensor]]
    ) -> None:
        self.load_weights(named_params)

    def reset_prefix_cache(self) -> None:
        pass

    def generate(
        self, prompts: list[list[int]], n: int, temperature: float, max_tokens: int, **_: Any
    ) -> Any:
        drawn = [self.draw(prompt, temperature, max_tokens) for prompt in prompts for _ in range(n)]
        return {
            "prompt_ids": prompts,
            "completion_ids": [ids for ids, _ in drawn],
            "logprobs": [[[one] for one in logprobs] for _, logprobs in drawn],
        }


class LLMStandIn(Engine):
    """What TRL asks of vLLM's `LLM`, in colocate mode."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        assert settings["logprobs_mode"] == "processed_logprobs"
        runner = SimpleNamespace(model_runner=SimpleNamespace(model=self))
        self.llm_engine = SimpleNamespace(model_executor=SimpleNamespace(driver_worker=runner))

    def reset_prefix_cache(self) -> None:
        pass

    def generate(
        self, prompts: list[dict[str, Any]], sampling_params: SimpleNamespace, use_tqdm: bool
    ) -> list[Any]:
        outputs = []
        for prompt in prompts:
            ids, logprobs = self.draw(
                prompt["prompt_token_ids"], sampling_params.temperature, sampling_params.max_tokens
            )
            found = [
                {token: SimpleNamespace(rank=1, logprob=float("nan") if one is None else one)}
                for token, one in zip(ids, logprobs, strict=True)
            ]
            outputs.append(
                SimpleNamespace(
                    prompt_token_ids=prompt["prompt_token_ids"],
                    outputs=[SimpleNamespace(token_ids=ids, logprobs=found)],
                )
            )
        return outputs


@pytest.fixture(autouse=True)
def vllm_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    # For a colocated vLLM TRL sets RANK and others, which the next trainer would take for a
    # launcher's.
    monkeypatch.setattr(f"{GENERATION}.os", SimpleNamespace(environ={}))
    monkeypatch.setattr(f"{GENERATION}.ensure_master_addr_port", lambda: None)
    monkeypatch.setattr(f"{GENERATION}.is_vllm_available", lambda: True)
    monkeypatch.setattr(f"{GENERATION}.VLLMClient", ClientStandIn)
    monkeypatch.setattr(f"{GENERATION}.LLM", LLMStandIn, raising=False)
    monkeypatch.setattr(f"{GENERATION}.SamplingParams", SimpleNamespace, raising=False)


def engine_of(trainer: Any) -> Engine:
    generation = trainer.vllm_generation
    engine: Engine = generation.vllm_client if generation.mode == "server" else generation.llm
    return engine


def scalars_of_run(
    folder: Path, control: isentrope.Control | None = None, **settings: Any
) -> tuple[Any, list[dict[str, float]]]:
    trainer, transport = tiny_trl.trainer(folder, use_vllm=True, **settings), InMemoryTransport()
    attach(trainer, control=control, transport=transport)
    trainer.train()
    return trainer, [dict(report.scalars) for report in tiny_trl.reports(transport)]


@pytest.mark.parametrize(
    "settings",
    [
        {"vllm_mode": "colocate", "gradient_accumulation_steps": 2},
        {"vllm_mode": "server", "vllm_importance_sampling_correction": False},
        {"vllm_mode": "server", "kind": "rloo"},
    ],
    ids=lambda settings: " ".join(map(str, settings.values())),
)
def test_observing_a_run_that_samples_with_a_vllm_stand_in_leaves_it_bit_identical(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    monkeypatch.setattr(Engine, "warmth", 0.8)
    alone = tiny_trl.trained(tmp_path, steps=3, use_vllm=True, **settings)
    watched = tiny_trl.trained(tmp_path, "observe", steps=3, use_vllm=True, **settings)
    assert tiny_trl.history(watched) == tiny_trl.history(alone)
    assert torch.equal(tiny_trl.parameters(watched), tiny_trl.parameters(alone))
    # One load of all weights before each generation.
    assert engine_of(watched).loads == 3 * len([*watched.model.parameters()])


@pytest.mark.parametrize("mode", ["server", "colocate"])
def test_the_distance_to_a_vllm_stand_in_is_the_one_trl_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setattr(Engine, "warmth", 0.8)
    _, reports = scalars_of_run(
        tmp_path, vllm_mode=mode, steps=3, vllm_importance_sampling_mode="token_mask"
    )
    for scalars in reports:
        largest = scalars["sampling/sampling_logp_difference/max"]
        assert largest > 0.05
        assert scalars["sampler/logprob_difference_max"] == pytest.approx(largest, rel=1e-4)
        assert scalars["sampler/kl_k3"] > 0
        # Of the loss: the update is the first one from these tokens.
        assert scalars["ratio/mean"] == pytest.approx(1.0, abs=1e-5)


def test_rloo_passes_no_log_probs_of_a_vllm_stand_in(tmp_path: Path) -> None:
    _, reports = scalars_of_run(tmp_path, kind="rloo", vllm_mode="server")
    assert len(reports) == 2
    for scalars in reports:
        assert "entropy/mean" in scalars
        assert "sampler/kl_k1" not in scalars


def test_tokens_without_a_log_prob_of_the_vllm_stand_in_are_left_out_of_the_distance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Engine, "unknown", frozenset(range(2, tiny_trl.VOCABULARY, 2)))
    monkeypatch.setattr(Engine, "warmth", 0.8)
    _, reports = scalars_of_run(tmp_path, vllm_mode="server", steps=2)
    for scalars in reports:
        largest = scalars["sampling/sampling_logp_difference/max"]
        assert largest > 0
        assert scalars["sampler/logprob_difference_max"] == pytest.approx(largest, rel=1e-4)
        assert math.isfinite(scalars["entropy/unit_predicted_change"])
        # They count in everything else.
        assert scalars["token/count"] == pytest.approx(4 * scalars["completions/mean_length"])


@pytest.mark.parametrize("weighing", ["token_truncate", "sequence_mask"])
def test_the_weight_by_a_vllm_stand_in_is_part_of_the_gradient_that_is_predicted_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weighing: str
) -> None:
    monkeypatch.setattr(Engine, "warmth", 0.8)
    trainer = tiny_trl.trainer(
        tmp_path, use_vllm=True, vllm_mode="server", steps=2, vllm_importance_sampling_mode=weighing
    )
    gradients = Gradients(trainer, attach(trainer, transport=InMemoryTransport()))
    trainer.train()
    assert len(gradients.read) == 2
    for batch, theirs in zip(gradients.read, gradients.by_logprobs, strict=True):
        assert batch.gradient is not None
        read = batch.gradient.get("gated")
        assert read is not None
        assert torch.allclose(read, theirs, atol=1e-7)
        weights = (theirs / batch.advantages)[batch.mask & (batch.advantages != 0)].abs()
        assert weights.max() > 1.05 * weights.min()  # 1 for every token without the weighing

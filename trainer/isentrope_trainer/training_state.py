"""All that changes while a policy is trained, put together from the settings, and its checkpoints
with the probe's state.

    FOLDER/run.json                     the run's id, settings and what it was started with
    FOLDER/step-000050/rank-0.pt        one file for each process that trains

A run that continues from one makes the steps that it would have made without the interruption, bit
for bit on the same machine. Files are renamed into place when they are complete, and the newest two
folders are kept."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed
from torch.nn.functional import binary_cross_entropy_with_logits
from transformers import PreTrainedModel

import isentrope
from isentrope_trainer.algorithms.losses import AdaptiveEntropyCoefficient
from isentrope_trainer.models.policy import Policy, ValueHead
from isentrope_trainer.models.sampling import Rollouts, StaleSampler
from isentrope_trainer.settings import ALGORITHMS, ProcessRewardConfig, TrainingConfig
from isentrope_wire.errors import ConfigurationError


class Ranks:
    """The processes that train one policy together, each on its share of the prompts: `torchrun`
    starts them. Or one alone."""

    def __init__(self) -> None:
        together = distributed.is_available() and distributed.is_initialized()
        if together:
            self.rank = distributed.get_rank()
        else:
            self.rank = 0
        if together:
            self.size = distributed.get_world_size()
        else:
            self.size = 1

    def share(self, prompts: int) -> range:
        """Which of a batch's prompts are this rank's; ConfigurationError: they can't be shared out
        evenly."""
        if prompts % self.size:
            raise ConfigurationError(
                f"prompts must be a multiple of the {self.size} processes, got {prompts}."
            )
        each = prompts // self.size
        return range(self.rank * each, (self.rank + 1) * each)

    def sum(self, values: Tensor) -> Tensor:
        """Added up over the ranks, the same on all."""
        if self.size == 1:
            return values
        total = values.detach().clone()
        distributed.all_reduce(total)
        return total

    def mean(self, values: Tensor) -> Tensor:
        """Averaged over the ranks, the same on all."""
        if self.size == 1:
            return values
        return self.sum(values) / self.size

    def any(self, fact: bool) -> bool:
        """Whether it is so on any rank, the same on all."""
        if self.size == 1:
            return fact
        return bool(self.sum(torch.tensor(float(fact))) > 0)

    def average_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Give every rank the mean of all ranks' gradients, in one exchange."""
        if self.size == 1:
            return
        every = list(parameters)
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in every]
        mean = self.mean(torch.cat([gradient.flatten() for gradient in gradients]))
        for parameter, part in zip(every, mean.split([p.numel() for p in every]), strict=True):
            parameter.grad = part.view_as(parameter)


def join_ranks() -> Ranks:
    """The ranks that `torchrun` started, joined to a process group; else this process alone."""
    if "TORCHELASTIC_RUN_ID" in os.environ and not distributed.is_initialized():
        distributed.init_process_group(
            "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        )
    return Ranks()


class ProcessReward:
    """PRIME: rewards of tokens from a second language model that learns online which completions
    are right.

        r_t = beta (log p_phi - log p_ref) of token t        R_phi = sum over t of r_t
        L_phi = -[R log sigma(R_phi) + (1 - R) log(1 - sigma(R_phi))]  arXiv:2502.01456, eq. 3 and 5

    p_phi begins as the policy does, and p_ref stays what the policy began as. Trained on outcomes
    alone, their ratio rewards each token for making a right answer likelier. It learns from a batch
    before that batch's tokens are rewarded."""

    def __init__(
        self, policy: Policy, config: ProcessRewardConfig, ranks: Ranks | None = None
    ) -> None:
        """Model and reference begin as two copies of the policy."""
        self._policy = policy
        self._beta = config.beta
        self._ranks = ranks or Ranks()
        self.reference: PreTrainedModel = copy.deepcopy(policy.model).eval().requires_grad_(False)
        self.model: PreTrainedModel = copy.deepcopy(policy.model).train()
        self._optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=config.learning_rate, weight_decay=0.0
        )

    def learn(self, rollouts: Rollouts, rewards: Tensor) -> float:
        """One update from the outcomes of a batch, rewards [prompts, group size] between 0 and 1;
        return the loss before it, in nats."""
        sums = (self._token_rewards(rollouts) * rollouts.mask).sum(dim=1)
        loss = binary_cross_entropy_with_logits(sums, rewards.reshape(-1).to(sums))
        self._optimizer.zero_grad()
        loss.backward()
        self._ranks.average_gradients(self.model.parameters())
        self._optimizer.step()
        return loss.item()

    @torch.no_grad()
    def token_rewards(self, rollouts: Rollouts) -> Tensor:
        """[rollouts, completion length], 0 on padding."""
        return self._token_rewards(rollouts) * rollouts.mask

    def _token_rewards(self, rollouts: Rollouts) -> Tensor:
        with torch.no_grad():
            reference = self._policy.logprobs(rollouts, model=self.reference)
        return self._beta * (self._policy.logprobs(rollouts, model=self.model) - reference)

    def state_dict(self) -> dict[str, Any]:
        """Without the reference, which is what the run begins with."""
        return {"model": self.model.state_dict(), "optimizer": self._optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])


_KEPT = 2
# Each rank draws from a generator of its own; that of the first is the seed's, as without ranks.
_RANK_STRIDE = 1_000_003


class TrainingState:
    """The policy with its optimiser, the models that the algorithm needs beside it, and where the
    run is."""

    def __init__(self, policy: Policy, config: TrainingConfig, ranks: Ranks) -> None:
        algorithm, loss = ALGORITHMS[config.algorithm], config.effective_loss()
        device = policy.model.device
        self.policy = policy
        self.ranks = ranks
        self.step = 0
        """Optimiser updates made."""
        self.next_problem = 0
        self.generator = torch.Generator(device).manual_seed(
            config.seed + _RANK_STRIDE * ranks.rank
        )
        self.value_head = (
            ValueHead(policy.model.config.hidden_size).to(device) if algorithm.value_head else None
        )
        self.process_reward = (
            ProcessReward(policy, config.process_reward, ranks)
            if algorithm.process_reward
            else None
        )
        self.reference: PreTrainedModel | None = None
        """What the policy was at the start of the run, for the divergence from it."""
        if loss.kl_coefficient > 0:
            self.reference = copy.deepcopy(policy.model).eval().requires_grad_(False)
        self.stale_sampler = (
            StaleSampler(policy.model, config.sampler_lag) if config.sampler_lag else None
        )
        if config.adaptive_entropy is None:
            self.adaptive_entropy = None
        else:
            self.adaptive_entropy = AdaptiveEntropyCoefficient(config.adaptive_entropy)
        self.optimizer = torch.optim.AdamW(
            self.parameters(),
            lr=config.learning_rate,
            betas=config.betas,
            weight_decay=config.weight_decay,
        )

    def parameters(self) -> list[Tensor]:
        """What the optimiser changes."""
        if self.value_head is None:
            heads = []
        else:
            heads = [self.value_head]
        return list(
            itertools.chain.from_iterable(
                module.parameters() for module in (self.policy.model, *heads)
            )
        )

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values; `reference` is not among them, for the run begins with it."""
        return {
            "step": self.step,
            "next_problem": self.next_problem,
            "generator": self.generator.get_state(),
            "model": self.policy.model.state_dict(),
            **{name: part.state_dict() for name, part in self._parts().items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict()` of a state of the same settings, whose policy began with the
        same weights."""
        self.step, self.next_problem = state["step"], state["next_problem"]
        self.generator.set_state(state["generator"])
        self.policy.model.load_state_dict(state["model"])
        for name, part in self._parts().items():
            part.load_state_dict(state[name])

    def _parts(self) -> dict[str, Any]:
        parts = {
            "optimizer": self.optimizer,
            "value_head": self.value_head,
            "process_reward": self.process_reward,
            "stale_sampler": self.stale_sampler,
            "adaptive_entropy": self.adaptive_entropy,
        }
        return {name: part for name, part in parts.items() if part is not None}


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """The checkpoints of one run in one folder."""

    folder: Path

    def describe(self, run_id: str, config: TrainingConfig, started_with: dict[str, Any]) -> None:
        """Write `run.json`; `started_with` is what else the run needs to be continued, as JSON
        takes it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        document = {
            "run_id": run_id,
            "config": dataclasses.asdict(config),
            "started_with": started_with,
        }
        _write_whole(
            self.folder / "run.json", lambda path: path.write_text(json.dumps(document, indent=1))
        )

    def run(self) -> dict[str, Any]:
        """What `describe` wrote; ConfigurationError: there is no run in the folder."""
        try:
            document: dict[str, Any] = json.loads((self.folder / "run.json").read_text())
        except (OSError, json.JSONDecodeError) as error:
            raise ConfigurationError(
                f"There is no checkpoint to resume from in {self.folder} ({error})."
            ) from error
        return document

    def save(self, state: TrainingState, probe: isentrope.Probe) -> Path:
        """Save this rank's part. Call it on every rank, between two batches."""
        folder = self.folder / f"step-{state.step:06}"
        folder.mkdir(parents=True, exist_ok=True)
        content = {"state": state.state_dict(), "probe": probe.state_dict()}
        _write_whole(folder / f"rank-{state.ranks.rank}.pt", lambda path: torch.save(content, path))
        if state.ranks.rank == 0:
            for old in sorted(self.folder.glob("step-*"))[:-_KEPT]:
                shutil.rmtree(old, ignore_errors=True)
        return folder

    def restore(self, state: TrainingState, probe: isentrope.Probe, config: TrainingConfig) -> None:
        """Continue in place from the newest checkpoint that all ranks have saved. State and probe
        are of the same run, before its first step. ConfigurationError: there is no checkpoint, or
        it is one of other settings; the number of steps may be another."""
        saved, given = self.run()["config"], json.loads(json.dumps(dataclasses.asdict(config)))
        for name in given.keys() - {"steps"}:
            if saved.get(name) != given[name]:
                raise ConfigurationError(
                    f"{name} was {saved.get(name)!r} when the checkpoint was made, and must stay"
                    f" so; got {given[name]!r}."
                )
        names = {f"rank-{rank}.pt" for rank in range(state.ranks.size)}
        steps = sorted(self.folder.glob("step-*"))
        complete = [
            step for step in steps if {path.name for path in step.glob("rank-*.pt")} == names
        ]
        if not complete:
            raise ConfigurationError(
                f"{self.folder} holds no complete checkpoint of {state.ranks.size} process(es)."
            )
        content = torch.load(
            complete[-1] / f"rank-{state.ranks.rank}.pt", map_location="cpu", weights_only=True
        )
        state.load_state_dict(content["state"])
        probe.load_state_dict(content["probe"])


def _write_whole(path: Path, write: Any) -> None:
    partial = path.with_suffix(".partial")
    write(partial)
    os.replace(partial, path)

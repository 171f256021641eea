"""A stand-in for slime's Megatron backend and for megatron's `mpu`, written for these tests: no
line of it is slime's.

It has the functions of slime/backends/megatron_utils/loss.py at commit 624b824 that the adapter
uses, with their parameters and layouts (samples laid end to end, zig-zag context parallelism,
vocabulary shards), `TrainOneStep`, which calls hook, loss, backward, update and scheduler in the
order of model.py, and checkpoints in folders that are named as Megatron's. No GPU and no pipeline.
"""

from __future__ import annotations

import functools
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from isentrope.integrations import slime
from isentrope.scores import sharded_token_scores

VOCABULARY, WIDTH, PROMPT = 24, 16, 3
LENGTHS = (9, 14, 11)


class Mpu(ModuleType):
    """One rank's place: which of how many ranks split the vocabulary, and which of how many the
    sequence."""

    def __init__(
        self, tensor: tuple[int, int] = (0, 1), context: tuple[int, int] = (0, 1), group: Any = None
    ) -> None:
        super().__init__("megatron.core.mpu")
        self.tensor, self.context, self.group = tensor, context, group
        self.last_stage = True

    def get_tensor_model_parallel_rank(self) -> int:
        return self.tensor[0]

    def get_tensor_model_parallel_world_size(self) -> int:
        return self.tensor[1]

    def get_tensor_model_parallel_group(self) -> Any:
        return self.group

    def get_tensor_and_data_parallel_group(self, *, with_context_parallel: bool) -> Any:
        assert with_context_parallel
        return self.group

    def is_pipeline_last_stage(self, *, ignore_virtual: bool) -> bool:
        return self.last_stage and ignore_virtual


def rows_of(mpu: Mpu, total: int) -> list[int]:
    """Positions of a sequence that this rank has, in its own order: two of 2 n chunks, the outer
    ones on rank 0."""
    rank, ranks = mpu.context
    if ranks == 1:
        return list(range(total))
    size = -(-total // (2 * ranks))
    mirrored = 2 * ranks - rank - 1
    return [*range(rank * size, (rank + 1) * size), *range(mirrored * size, (mirrored + 1) * size)]


class Loss(ModuleType):
    """slime.backends.megatron_utils.loss"""

    def __init__(self, mpu: Mpu) -> None:
        super().__init__("slime.backends.megatron_utils.loss")
        self.mpu = mpu
        self.calls = 0
        # Functions of the module look each other up in it, as anywhere.
        self.get_log_probs_and_entropy: Any = self._get_log_probs_and_entropy

    def _responses(
        self, total_lengths: list[int], response_lengths: list[int]
    ) -> Iterator[tuple[int, list[int], list[int]]]:
        """Of each sample: where it begins in this rank's rows, which rows predict a response token,
        and which token."""
        start = 0
        for total, response in zip(total_lengths, response_lengths, strict=True):
            rows = rows_of(self.mpu, total)
            kept = [
                i for i, position in enumerate(rows) if total - response - 1 <= position < total - 1
            ]
            yield start, kept, [rows[i] + 1 for i in kept]
            start += len(rows)

    def get_responses(
        self,
        logits: Tensor,
        *,
        args: Namespace,
        unconcat_tokens: list[Tensor],
        total_lengths: list[int],
        response_lengths: list[int],
        apply_temperature: bool = True,
    ) -> Iterator[tuple[Tensor, Tensor]]:
        places = self._responses(total_lengths, response_lengths)
        for tokens, (start, kept, targets) in zip(unconcat_tokens, places, strict=True):
            rows = logits[0, [start + i for i in kept]]
            yield rows / args.rollout_temperature if apply_temperature else rows, tokens[targets]

    def _get_log_probs_and_entropy(
        self,
        logits: Tensor,
        *,
        args: Namespace,
        unconcat_tokens: list[Tensor],
        total_lengths: list[int],
        response_lengths: list[int],
        with_entropy: bool = False,
    ) -> tuple[Tensor, dict[str, list[Tensor]]]:
        found: dict[str, list[Tensor]] = {"log_probs": [], "entropy": []}
        for rows, tokens in self.get_responses(
            logits,
            args=args,
            unconcat_tokens=unconcat_tokens,
            total_lengths=total_lengths,
            response_lengths=response_lengths,
        ):
            if self.mpu.tensor[1] == 1:
                found["log_probs"].append(
                    rows.log_softmax(-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
                )
            else:
                start = self.mpu.tensor[0] * rows.shape[-1]
                found["log_probs"].append(
                    sharded_token_scores(rows, tokens, start, group=self.mpu.group).logprobs
                )
        return torch.empty(0), found

    def slice_log_prob_with_cp(
        self, log_prob: Tensor, total_length: int, response_length: int
    ) -> Tensor:
        ((_, _, targets),) = self._responses([total_length], [response_length])
        return log_prob[[target - (total_length - response_length) for target in targets]]

    def policy_loss_function(
        self,
        args: Namespace,
        batch: Any,
        logits: Tensor,
        sum_of_sample_mean: Callable[[Tensor], Tensor],
    ) -> tuple[Tensor, dict[str, Tensor]]:
        self.calls += 1
        lengths = {
            "total_lengths": batch["total_lengths"],
            "response_lengths": batch["response_lengths"],
        }
        _, found = self.get_log_probs_and_entropy(
            logits,
            args=args,
            unconcat_tokens=batch["unconcat_tokens"],
            with_entropy=True,
            **lengths,
        )
        new, old = torch.cat(found["log_probs"]), torch.cat(batch["log_probs"])
        ratio, advantages = (new - old).exp(), torch.cat(batch["advantages"])
        loss = sum_of_sample_mean(
            -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
        )
        return loss, {"pg_loss": loss.detach()}


class Optimizer(torch.optim.AdamW):
    """A MegatronOptimizer: it clips by itself, and its step gives whether it went well, the norm,
    and zeros."""

    config, loss_scale = Namespace(clip_grad=0.05), 1.0

    def get_loss_scale(self) -> Tensor:
        return torch.tensor([self.loss_scale])

    def step(self, closure: None = None) -> Any:  # type: ignore[override]
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        for parameter in parameters:
            parameter.grad /= self.loss_scale
        norm = nn.utils.clip_grad_norm_(parameters, self.config.clip_grad)
        super().step()
        return True, norm, None


class Reloadable(dist.ProcessGroup):
    """A group as slime's `reloadable_process_group.py` hands it out: torch's own one is in it, and
    another after each reload."""

    UNWRAPPED = (
        "get_rank",
        "get_world_size",
        "get_backend",
        "get_process_group_ranks",
        "all_reduce",
        "broadcast",
        "all_gather_into_tensor",
        "all_gather_object",
    )
    """Of what slime lets unwrap its groups, the functions that the adapter meets;
    `all_gather_single` is not among them."""
    made: list[Reloadable]

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make, self.group = make, make()
        super().__init__(self.group.rank(), self.group.size())  # type: ignore[call-arg]  # as of the base class in C++
        self.made.append(self)

    def _get_backend(self, device: torch.device) -> Any:
        return self.group._get_backend(device)

    @classmethod
    def hand_out(cls) -> Callable[[], None]:
        """Let `new_group` give such groups, as of now; of the function returned, have all of them
        destroyed and made again."""
        cls.made, new_group = [], dist.new_group
        store, generation = dist.distributed_c10d._get_default_store(), 0
        dist.new_group = lambda *ranks, **settings: cls(
            functools.partial(new_group, *ranks, **settings)
        )
        for name in cls.UNWRAPPED:
            setattr(dist, name, cls._unwrapping(getattr(dist, name)))

        def reload() -> None:
            nonlocal generation
            generation += 1
            rank, size = dist.get_rank(), dist.get_world_size()
            dist.barrier()
            dist.destroy_process_group()
            fresh = dist.distributed_c10d.PrefixStore(f"generation-{generation}", store)
            dist.init_process_group("gloo", store=fresh, rank=rank, world_size=size)
            for wrapper in cls.made:
                wrapper.group = wrapper.make()

        return reload

    @staticmethod
    def _unwrapping(function: Callable[..., Any]) -> Callable[..., Any]:
        def unwrapped(value: Any) -> Any:
            return value.group if isinstance(value, Reloadable) else value

        @functools.wraps(function)
        def called(*arguments: Any, **settings: Any) -> Any:
            return function(
                *map(unwrapped, arguments),
                **{name: unwrapped(value) for name, value in settings.items()},
            )

        return called


class TrainOneStep:
    """The actor of one rank, with a tiny model whose head has this rank's slice of the
    vocabulary."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, mpu: Mpu, *, attached: bool, **settings: Any
    ) -> None:
        self.mpu, self.loss, self.attached = mpu, Loss(mpu), attached
        settings = {
            "rollout_temperature": 0.8,
            "allgather_cp": False,
            "recompute_loss_function": False,
            "loss_type": "custom_loss",
            "custom_loss_function_path": "isentrope.integrations.slime.policy_loss",
            "load": None,
            "finetune": True,
            "save": None,
        } | settings
        self.args, self.rollout_id = Namespace(**settings), 0
        torch.manual_seed(0)
        rank, ranks = mpu.tensor
        self.body, head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head = nn.Parameter(head.weight.detach().chunk(ranks)[rank].clone())
        self.optimizer = Optimizer([self.body.weight, self.head], lr=1e-2)
        self.random = torch.Generator().manual_seed(3)
        self.skip_update = False
        self.flags: Any = slime
        """Has what the flags for loss and hook name."""
        modules = {
            "megatron": ModuleType("megatron"),
            "megatron.core": ModuleType("megatron.core"),
            mpu.__name__: mpu,
        }
        modules |= {
            name: ModuleType(name)
            for name in ("slime", "slime.backends", "slime.backends.megatron_utils")
        }
        modules[self.loss.__name__] = self.loss
        self.model = ModuleType("slime.backends.megatron_utils.model")
        self.model.save_checkpoint = self._save_checkpoint  # type: ignore[attr-defined]
        modules[self.model.__name__] = self.model
        for name, module in modules.items():
            monkeypatch.setitem(sys.modules, name, module)
        monkeypatch.setattr(slime, "_training", None)
        if self.args.load and not self.args.finetune:
            self._load_checkpoint()

    def _save_checkpoint(
        self, iteration: int, model: object, optimizer: object, scheduler: object
    ) -> None:
        folder = Path(self.args.save) / f"iter_{iteration:07d}"
        folder.mkdir(parents=True, exist_ok=True)
        state = {
            "body": self.body.state_dict(),
            "head": self.head,
            "optimizer": self.optimizer.state_dict(),
        }
        torch.save(state | {"random": self.random.get_state()}, folder / "model.pt")
        (folder.parent / "latest_checkpointed_iteration.txt").write_text(str(iteration))

    def _load_checkpoint(self) -> None:
        folder = Path(self.args.load)
        if (latest := folder / "latest_checkpointed_iteration.txt").exists():
            folder /= f"iter_{int(latest.read_text()):07d}"
        state = torch.load(folder / "model.pt")
        self.body.load_state_dict(state["body"])
        self.head.data.copy_(state["head"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.random.set_state(state["random"])
        self.rollout_id = int(folder.name.removeprefix("iter_")) + 1

    def save(self) -> None:
        """Of the rollout that was trained on last, as slime does between two."""
        self.model.save_checkpoint(self.rollout_id - 1, [], self.optimizer, None)

    def batch(self) -> dict[str, Any]:
        tokens = [torch.randint(VOCABULARY, (length,), generator=self.random) for length in LENGTHS]
        responses = [length - PROMPT for length in LENGTHS]
        masks = [torch.ones(length) for length in responses]
        masks[1][2:4] = 0  # the output of a tool
        whole = [
            torch.full((length,), sign)
            for length, sign in zip(responses, (1.0, -1.0, 0.5), strict=True)
        ]
        cut = [
            self.loss.slice_log_prob_with_cp(a, n, r)
            for a, n, r in zip(whole, LENGTHS, responses, strict=True)
        ]
        return {
            "unconcat_tokens": tokens,
            "total_lengths": list(LENGTHS),
            "response_lengths": responses,
            "loss_masks": masks,
            "advantages": cut,
        }

    def logits(self, batch: dict[str, Any]) -> Tensor:
        rows = [rows_of(self.mpu, len(tokens)) for tokens in batch["unconcat_tokens"]]
        padded = [torch.cat([tokens, tokens.new_zeros(8)]) for tokens in batch["unconcat_tokens"]]
        states = torch.cat([tokens[kept] for tokens, kept in zip(padded, rows, strict=True)])
        hidden: Tensor = self.body(states)
        return (hidden @ self.head.T).unsqueeze(0)

    def step(self, micro_batches: int = 2) -> list[float]:
        """One rollout of one step; the losses of its micro-batches."""
        self.optimizer.zero_grad()
        if self.attached:
            self.flags.before_train_step(
                self.args, self.rollout_id, 0, [Namespace(role="actor")], self.optimizer, None
            )
        losses = []
        for _ in range(micro_batches):
            batch = self.batch()
            logits = self.logits(batch)
            lengths = {
                "total_lengths": batch["total_lengths"],
                "response_lengths": batch["response_lengths"],
            }
            with torch.no_grad():
                _, found = self.loss._get_log_probs_and_entropy(
                    logits, args=self.args, unconcat_tokens=batch["unconcat_tokens"], **lengths
                )
            batch["log_probs"] = found["log_probs"]
            masks = zip(batch["loss_masks"], LENGTHS, batch["response_lengths"], strict=True)
            mask = torch.cat([self.loss.slice_log_prob_with_cp(*of_sample) for of_sample in masks])
            function = self.flags.policy_loss if self.attached else self.loss.policy_loss_function
            arguments = (
                self.args,
                batch,
                logits,
                lambda values, mask=mask: (values * mask).sum() / 30,
            )
            if self.args.recompute_loss_function:
                loss, _ = checkpoint(function, *arguments, use_reentrant=False)
            else:
                loss, _ = function(*arguments)
            (loss * self.optimizer.loss_scale).backward()
            losses.append(loss.item())
        if not self.skip_update:
            self.optimizer.step()
        self.rollout_id += 1
        return losses

    def weights(self) -> Tensor:
        return torch.cat([self.body.weight.detach().flatten(), self.head.detach().flatten()])

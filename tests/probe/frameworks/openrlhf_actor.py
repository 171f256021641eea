"""OpenRLHF's own actor worker on the real DeepSpeed, on CPUs: what each rank of it gives back, for
tests.

Written for these tests are CUDA's and flash-attention's parts: OpenRLHF imports vllm and aiohttp
for rollouts only."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import torch
from torch import Tensor

from isentrope.integrations import openrlhf
from isentrope.transport.transport import InMemoryTransport
from isentrope_wire.reports import StepReport
from tests.probe.tiny_loop import CLIP, pushed, reports

VOCABULARY, PROMPT, ANSWER = 64, 4, 8
MICRO_BATCHES, UPDATES = 2, 4
SAMPLES = 4 * MICRO_BATCHES
"""Of one update and rank, in micro-batches of four."""
PUSHED_IN = 2
"""The update whose report comes before the first one under a control that was pushed live."""


def ready(packages: str) -> None:
    """Make OpenRLHF importable, and work where there is no GPU."""
    if packages in sys.path:
        return
    sys.path.append(packages)  # the last one: the wheel has a package named `tests`
    os.environ["DS_ACCELERATOR"] = "cpu"
    for name in ("aiohttp", "vllm", "vllm.inputs", "vllm.utils"):
        sys.modules[name] = MagicMock(__spec__=None, __path__=[], __version__="0.29.0")
    of_flash_attention: dict[str, dict[str, Any]] = {
        "flash_attn": {},
        "flash_attn.bert_padding": {
            "unpad_input": _unpad,
            "pad_input": _pad,
            "index_first_axis": _rows_of,
            "rearrange": _flat,
        },
        "flash_attn.utils": {},
        "flash_attn.utils.distributed": {"all_gather": None},
    }
    for name, members in of_flash_attention.items():
        module = sys.modules[name] = module_from_spec(ModuleSpec(name, None, is_package=True))
        module.__dict__.update(members)
    # It names cuda:0.
    buffers: Any = importlib.import_module("openrlhf.trainer.ppo_utils.replay_buffer")
    buffers.torch = SimpleNamespace(**vars(torch) | {"device": lambda _: torch.device("cpu")})
    strategies: Any = importlib.import_module("openrlhf.utils.deepspeed.deepspeed")
    mesh, config = strategies.init_device_mesh, strategies.get_train_ds_config
    strategies.init_device_mesh = lambda _, *arguments, **names: mesh("cpu", *arguments, **names)
    strategies.get_train_ds_config = lambda **about: _uncompiled(config(**about))
    compiled: Any = importlib.import_module("deepspeed.comm.torch")
    compiled.build_shm_op = lambda: None
    # After the imports, and one function each: torch's compiler knows functions by identity.
    cuda: Any = torch.cuda
    cuda.current_device = lambda: "cpu"
    cuda.set_device = lambda _: None
    cuda.empty_cache = lambda: None
    cuda.synchronize = lambda: None


def _uncompiled(config: dict[str, Any]) -> dict[str, Any]:
    """DeepSpeed's settings without what it would build from C++: minutes."""
    if "optimizer" in config:
        config["optimizer"]["params"]["torch_adam"] = True
    return config


def _rows_of(values: Tensor, rows: Tensor) -> Tensor:
    return values[rows]


def _flat(values: Tensor, _: str) -> Tensor:
    return values.flatten(0, 1)


def _unpad(values: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
    rows = mask.flatten().nonzero().flatten()
    return _flat(values, "")[rows], rows, mask.sum(1).cumsum(0), mask.sum(1).max(), mask.sum(1)


def _pad(values: Tensor, rows: Tensor, batch: int, length: int) -> Tensor:
    room = values.new_zeros(batch * length, *values.shape[1:])
    padded: Tensor = room.index_copy(0, rows, values).unflatten(0, (batch, length))
    return padded


def save_model(folder: str) -> None:
    """A random policy with a tokenizer."""
    from tests.probe.verl import tiny_policy

    tiny_policy.save(folder, VOCABULARY, initializer_range=0.2, attention_dropout=0.01)


def settings(folder: str, ranks: int, **changed: Any) -> SimpleNamespace:
    """What OpenRLHF's command line gives, as far as the actor reads it; `changed` as
    `ds__packing_samples=True`."""
    args = SimpleNamespace(
        local_rank=-1,
        actor=SimpleNamespace(
            eps_clip=0.2,
            eps_clip_low_high=[0.2, 0.2],
            dual_clip=None,
            loss_agg_mode="token-mean",
            policy_loss_type="ppo",
            aux_loss_coef=0.0,
            entropy_coef=None,
            gradient_checkpointing_enable=False,
            optim="adam",
            adam=SimpleNamespace(lr=1e-2, betas=[0.8, 0.99], eps=1e-8, weight_decay=0.0),
            muon=SimpleNamespace(),
            lr_scheduler="constant_with_warmup",
            lr_warmup_ratio=0.2,
            min_lr_ratio=0.1,
            max_norm=0.5,
        ),
        algo=SimpleNamespace(
            advantage=SimpleNamespace(
                is_correction_level="off",
                is_correction_mode="mask",
                is_correction_gating="ratio",
                is_correction_threshold=[0.5, 5.0],
            ),
            kl=SimpleNamespace(
                use_loss=True, init_coef=1e-2, estimator="k3", unbiased_gradient=False
            ),
        ),
        train=SimpleNamespace(
            max_epochs=1,
            dynamic_batch_enable=False,
            colocate_all=False,
            async_enable=False,
            micro_batch_size=4,
            batch_size=ranks * SAMPLES,
            ema_beta=0.99,
            enable_ema=False,
            seed=1,
            max_tokens_per_gpu=30,
        ),
        rollout=SimpleNamespace(
            batch_size=ranks * SAMPLES, n_samples_per_prompt=1, temperature=0.7
        ),
        ds=SimpleNamespace(
            zero_stage=2,
            param_dtype="bf16",
            attn_implementation="eager",
            experts_implementation=None,
            load_in_4bit=False,
            lora=SimpleNamespace(rank=0, alpha=0, dropout=0, target_modules=None),
            packing_samples=False,
            use_liger_kernel=False,
            enable_sleep=False,
            tensor_parallel_size=1,
            ring_attn_size=1,
            zpg=1,
        ),
        data=SimpleNamespace(disable_fast_tokenizer=False),
        ckpt=SimpleNamespace(
            path=f"{folder}/checkpoints",
            load_enable=False,
            save_hf=False,
            disable_ds=False,
            max_num=3,
            max_mem=100,
            output_dir=f"{folder}/trained",
        ),
        vllm=SimpleNamespace(sync_backend="gloo"),
    )
    for name, value in changed.items():
        section, _, key = name.partition("__")
        setattr(getattr(args, section), key, value)
    return args


def strategy_of(args: SimpleNamespace) -> Any:
    """As `openrlhf.utils.get_strategy` makes it."""
    return importlib.import_module("openrlhf.utils.deepspeed").DeepspeedStrategy(
        seed=args.train.seed,
        max_norm=1.0,
        micro_train_batch_size=args.train.micro_batch_size,
        train_batch_size=args.train.batch_size,
        zero_stage=args.ds.zero_stage,
        args=args,
    )


def experience_of(generator: torch.Generator) -> Any:
    """One rollout of its own length, padded on both sides as OpenRLHF's are, without the
    log-probs."""
    prompt, answer = (
        int(torch.randint(2, most + 1, (), generator=generator)) for most in (PROMPT, ANSWER)
    )
    sequences = torch.zeros(1, PROMPT + ANSWER, dtype=torch.long)
    attention, actions = (
        torch.zeros_like(sequences),
        torch.zeros(1, PROMPT + ANSWER - 1, dtype=torch.bool),
    )
    inside = slice(PROMPT - prompt, PROMPT + answer)
    sequences[0, inside] = torch.randint(3, VOCABULARY, (prompt + answer,), generator=generator)
    attention[0, inside] = 1
    actions[0, PROMPT - 1 : PROMPT + answer - 1] = True
    reward = torch.rand(1, generator=generator)
    return importlib.import_module("openrlhf.trainer.ppo_utils.experience").Experience(
        sequences=sequences,
        attention_mask=attention,
        action_mask=actions,
        advantages=(reward - 0.5).unsqueeze(1).expand(actions.shape).clone(),
        rewards=reward,
        truncated=reward > 0.8,
        total_length=attention.sum(1),
        prompts=[str(sequences[0, :PROMPT].tolist())],
        info={"reward": reward},
    )


def batch_of(seed: int) -> list[Any]:
    """The rollouts of one update on one rank."""
    generator = torch.Generator().manual_seed(seed)
    return [experience_of(generator) for _ in range(SAMPLES)]


def complete(experience: Any, logprobs: Tensor) -> None:
    """Add what the policy before the update knows of a rollout."""
    experience.action_log_probs = logprobs
    experience.base_action_log_probs = logprobs - 0.1
    experience.rollout_log_probs = logprobs.clone()


@dataclass
class Run:
    """What one rank has seen of one run."""

    weights: Tensor
    losses: list[float] = field(default_factory=list)
    reports: list[StepReport] = field(default_factory=list)
    gated: list[int] = field(default_factory=list)
    """Of each update: response tokens whose gradient did not reach the policy."""
    furthest: float = 0.0
    """Of the scores' log-probs from OpenRLHF's own, in nats."""
    rewards: list[float] = field(default_factory=list)
    """Of each update, the mean over this rank."""
    refused: list[str] = field(default_factory=list)
    """What was said of a coupled prediction."""


def watch(probe: Any, run: Run) -> None:
    """Let a run know what reaches the gate and what comes back through it."""
    gate = probe.gate

    def watched(
        scores: Any, advantages: Tensor, mask: Tensor, *, logprobs: Tensor, **known: Any
    ) -> Tensor:
        run.furthest = max(run.furthest, float((scores.logprobs - logprobs)[mask].abs().max()))

        def count(gradient: Tensor) -> None:
            run.gated[-1] += int((gradient == 0)[mask].sum())

        logprobs.register_hook(count)
        gated: Tensor = gate(scores, advantages, mask, logprobs=logprobs, **known)
        return gated

    probe.gate = watched


def train(rank: int, packages: str, folder: str, mode: str, changed: dict[str, Any]) -> Run:
    """Modes: `alone` without a probe, `watched` under none, `pushed` with a clip pushed live,
    `saved` with a checkpoint, `coupled` with a coupled prediction asked for."""
    ready(packages)
    ranks = int(os.environ["WORLD_SIZE"])
    theirs = importlib.import_module(
        "openrlhf.trainer.ray.ppo_actor"
    ).PolicyModelActor.__ray_actor_class__
    run, transport, attach = Run(torch.empty(0)), InMemoryTransport(), openrlhf.attach
    os.environ["ISENTROPE_COUPLING"] = "model" if mode == "coupled" else ""
    if mode != "alone":
        setattr(openrlhf, "attach", lambda trainer: attach(trainer, transport=transport))  # noqa: B010
        theirs = type("Watched", (openrlhf.WatchedPolicy, theirs), {})
    worker = theirs(ranks, rank, os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"])
    strategy = strategy_of(settings(folder, ranks, **changed))
    worker.init_model_from_pretrained(strategy, f"{folder}/model", max_steps=10)
    setattr(openrlhf, "attach", attach)  # noqa: B010
    if mode != "alone":
        watch(worker.isentrope.probe, run)
    handler = logging.Handler()
    handler.emit = lambda record: run.refused.append(record.getMessage())  # type: ignore[method-assign]
    handler.addFilter(lambda record: "No coupled prediction" in record.getMessage())
    logging.getLogger("isentrope").addHandler(handler)
    for update in range(1, UPDATES + 1):
        batch = batch_of(100 * update + rank)
        run.rewards.append(sum(float(experience.rewards) for experience in batch) / SAMPLES)
        run.gated.append(0)
        for experience in batch:
            masks = experience.action_mask, experience.attention_mask
            complete(experience, worker.forward(experience.sequences, *masks))
            worker.append(experience)
        run.losses.append(worker.fit(kl_ctl=0.01)["policy_loss"])
        if mode == "pushed" and update == PUSHED_IN and rank == 0:
            transport.set_control(pushed(1, CLIP))
    engine = worker.actor.model
    run.weights = torch.cat(
        [parameter.detach().float().flatten() for parameter in engine.module.parameters()]
    )
    if mode == "saved":
        worker.save_checkpoint("global_step1")
    if mode != "alone":
        worker.save_model()
    logging.getLogger("isentrope").removeHandler(handler)
    run.reports = reports(transport)
    engine.destroy()
    return run

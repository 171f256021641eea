"""Makes verl train on a CPU, by its own registries: VERL_USE_EXTERNAL_MODULES=verl_on_cpu
VERL_PLATFORM=cpu."""

from __future__ import annotations

from contextlib import nullcontext
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.integrations.flash_attention import flash_attention_forward
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry


class Cpu(PlatformBase):  # type: ignore[misc]
    """What verl asks of a platform that has neither streams nor memory of its own."""

    device_name = property(lambda self: "cpu")
    vendor_name = property(lambda self: "cpu")
    device_module = property(lambda self: _Module())

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return True

    def current_device(self) -> torch.device:
        return torch.device("cpu")

    def device_count(self) -> int:
        return 1

    def get_device_capability(self, device: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CPU_VISIBLE"

    def ray_resource_name(self) -> str:
        return "CPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def nvtx_range(self, message: str) -> Any:
        return nullcontext()

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def _nothing(self, *_: object, **__: object) -> None:
        return None

    set_device = synchronize = set_allocator_settings = empty_cache = _nothing
    profiler_start = profiler_stop = cudart = _nothing


class _Module:
    """torch.cpu, and zeros for what it lacks."""

    def mem_get_info(self) -> tuple[int, int]:
        return 0, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name, lambda *_, **__: 0)


Cpu.__abstractmethods__ = frozenset()  # verl's next minor version may ask for more
PlatformRegistry.register(platform="cpu")(Cpu)

# Only now, for importing an engine asks for the platform.
engines = import_module("verl.workers.engine")
register = engines.EngineRegistry.register(
    model_type="language_model", backend=["fsdp", "fsdp2"], device="cpu"
)
register(engines.FSDPEngineWithLMHead)

# Before FSDP broadcasts rank 0's weights it asks for a GPU, which gloo does not need.
fsdp: Any = import_module("torch.distributed.fsdp._init_utils")
fsdp._check_module_states_for_sync_module_states = lambda module: None


def packed_attention_stand_in(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *_: object,
    position_ids: Tensor,
    softmax_scale: float,
    **__: object,
) -> Tensor:
    """What flash attention computes of packed sequences, [1, tokens, heads, width]."""
    sequence, place = (position_ids == 0).cumsum(-1)[0], torch.arange(query.shape[1])
    seen = (sequence[:, None] == sequence) & (place[:, None] >= place)
    key, value = (one.repeat_interleave(query.shape[2] // one.shape[2], 2) for one in (key, value))
    weights = torch.einsum("bqhw,bkhw->bhqk", query, key) * softmax_scale
    return torch.einsum(
        "bhqk,bkhw->bqhw", weights.masked_fill(~seen, -torch.inf).softmax(-1), value
    )


# Ulysses' own code is below flash attention's interface, which transformers has under this name
# then without its kernels.
AttentionInterface.register("packed", flash_attention_forward)
ulysses: Any = import_module("verl.models.transformers.monkey_patch")
ulysses._flash_attention_forward = packed_attention_stand_in

"""Makes verl train on a CPU, by its own registries: VERL_USE_EXTERNAL_MODULES=verl_on_cpu VERL_PLATFORM=cpu."""

from __future__ import annotations

from contextlib import nullcontext
from importlib import import_module
from typing import Any

import torch
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
register = engines.EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device="cpu")
register(engines.FSDPEngineWithLMHead)

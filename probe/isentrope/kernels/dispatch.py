"""Which backend scores a tensor: by its device, unless somebody said otherwise.

    ISENTROPE_KERNELS=auto|reference|cpp|triton         or         with using("reference"): ...

A backend that can't work here (no compiler, no Triton) is replaced by the reference, and one log line says why. A
tensor it can't read (float64, odd strides) goes to the reference silently: that is how it is meant.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, NamedTuple, cast, get_args

import torch
from torch import Tensor

from isentrope.errors import ConfigurationError
from isentrope.kernels import cpp_backend, reference, triton_backend
from isentrope.kernels.backend import Backend
from isentrope.kernels.moments import RowScores, Temperature, finish

logger = logging.getLogger(__name__)

BackendName = Literal["auto", "reference", "cpp", "triton"]
BACKENDS: dict[str, Backend] = {"reference": reference, "cpp": cpp_backend, "triton": triton_backend}
OF_DEVICE = {"cpu": "cpp", "cuda": "triton", "xpu": "triton"}
"""ROCm devices are called cuda by torch."""

_chosen: ContextVar[BackendName | None] = ContextVar("isentrope_kernels", default=None)


def backend_for(logits: Tensor) -> Backend:
    """The backend that reads `logits`.

    Raises:
        ConfigurationError: a backend was asked for by name and can't work here, or no backend has that name.
    """
    name: str = _chosen.get() or _from_environment(os.environ.get("ISENTROPE_KERNELS", ""))
    if name == "auto":
        name = OF_DEVICE.get(logits.device.type, "reference")
        if _why_not(name) is not None:
            _say_once(name)
            return reference
    elif (reason := _why_not(name)) is not None:
        raise ConfigurationError(f"The {name} kernels were asked for and can't work here: {reason}")
    backend = BACKENDS[name]
    return backend if backend.supports(logits) else reference


class Choice(NamedTuple):
    """Which kernels read the logits of a device."""

    device: str
    """As torch calls it."""
    backend: str
    why_not: str
    """Why the reference stands in for the kernels meant for this device; empty where it doesn't."""


def choices() -> list[Choice]:
    """What is used on each kind of device that torch finds here. May compile the C++ file.

    Raises:
        ConfigurationError: as `backend_for`, of a backend that was asked for by name.
    """
    devices = ["cpu", *(name for name, module in (("cuda", torch.cuda), ("xpu", torch.xpu)) if module.is_available())]
    wanted = _from_environment(os.environ.get("ISENTROPE_KERNELS", ""))
    found = []
    for device in devices:
        name = OF_DEVICE[device] if wanted == "auto" else wanted
        reason = _why_not(name)
        if reason is not None and wanted != "auto":
            raise ConfigurationError(f"The {name} kernels were asked for and can't work here: {reason}")
        found.append(Choice(device, name if reason is None else "reference", reason or ""))
    return found


def row_scores(
    backend: Backend, logits: Tensor, token_ids: Tensor, temperature: Temperature, *, squared: bool = False
) -> RowScores:
    """Scores of whole rows; where launches are what costs, in as few of them as the backend has."""
    if backend is BACKENDS["triton"]:
        return triton_backend.row_scores(logits, token_ids, temperature, squared=squared)
    return finish(backend.row_moments(logits, token_ids, temperature, squared=squared))


@contextmanager
def using(name: BackendName) -> Iterator[None]:
    """Score with the backend called `name` within the block, on this thread."""
    token = _chosen.set(_checked(name, "using()"))
    try:
        yield
    finally:
        _chosen.reset(token)


@functools.cache
def _from_environment(value: str) -> BackendName:
    return _checked(value or "auto", "ISENTROPE_KERNELS")


def _checked(name: str, source: str) -> BackendName:
    if name not in get_args(BackendName):
        raise ConfigurationError(f"{source} takes one of {', '.join(get_args(BackendName))}; got {name!r}.")
    return cast(BackendName, name)


def _why_not(name: str) -> str | None:
    if name == "cpp":
        return cpp_backend.unavailable_because()
    return triton_backend.unavailable_because() if name == "triton" else None


@functools.cache
def _say_once(name: str) -> None:
    logger.warning("Isentrope scores tokens with plain torch, %s", f"not {name}: {_why_not(name)}")

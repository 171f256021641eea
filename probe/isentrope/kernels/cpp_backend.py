"""Token scores on the CPU from one small C++ file, compiled on first use (cpp_build.py).

float32, bfloat16 and float16 logits whose last dimension is dense, with any strides before it:
views such as `logits[:, :-1]` are read in place. `reference.py` is the specification; float64 goes
there.

Rows are spread over the threads torch computes with, through the OpenMP runtime that torch has
loaded: the same threads (two pools would fight for the cores), as many as `torch.get_num_threads()`
says. A forked child has none of its parent's threads, so everything runs on the caller's own there.
Without such a runtime one thread does the work."""

from __future__ import annotations

import ctypes
import functools
import os
from dataclasses import dataclass

import torch
from torch import Tensor

from isentrope.kernels import cpp_build
from isentrope.kernels.moments import Moments, Temperature, Upstream

TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
"""The numbers row_moments.cc knows the types of logits by."""


class _Logits(ctypes.Structure):
    """`struct Logits` of row_moments.cc."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("type", ctypes.c_int64),
        ("rows", ctypes.c_int64),
        ("columns", ctypes.c_int64),
        ("dimensions", ctypes.c_int64),
        ("sizes", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("token_ids", ctypes.c_void_p),
        ("start", ctypes.c_int64),
        ("temperature", ctypes.c_double),
        ("temperatures", ctypes.c_void_p),
    )


@dataclass(frozen=True, slots=True)
class _Kernels:
    """The compiled file's functions, and what spreads their rows over threads."""

    library: ctypes.CDLL
    team: int | None
    """Address of the OpenMP runtime's `GOMP_parallel`."""
    process: int
    """Where the library was loaded: a forked child has another id, and no threads."""

    def threads(self) -> int:
        if self.process == os.getpid():
            return torch.get_num_threads()
        return 1


def unavailable_because() -> str | None:
    """Why these kernels can't work here, in one sentence; None when they do. The first call
    compiles them."""
    kernels = _kernels()
    if isinstance(kernels, cpp_build.BuildError):
        return str(kernels)
    return None


def supports(logits: Tensor) -> bool:
    """Dense rows of float32, bfloat16 or float16 in this machine's memory; not a subclass that only
    looks like it."""
    return (
        type(logits) in (Tensor, torch.nn.Parameter)
        and logits.device.type == "cpu"
        and logits.layout == torch.strided
        and logits.dtype in TYPES
        and (logits.stride(-1) == 1 or logits.shape[-1] <= 1)
    )


def row_moments(
    logits: Tensor,
    token_ids: Tensor,
    temperature: Temperature,
    start: int = 0,
    *,
    squared: bool = False,
) -> Moments:
    kernels, ids = _loaded(), _dense_ids(token_ids)
    moments = torch.empty(7 if squared else 6, ids.numel(), dtype=torch.float64, device="cpu")
    described = _described(logits, ids, temperature, start)
    if squared:
        pass_over = kernels.library.isentrope_row_moments_squared
    else:
        pass_over = kernels.library.isentrope_row_moments
    pass_over(described, moments.data_ptr(), kernels.team, kernels.threads())
    return Moments(*moments.unbind(0))


def logit_gradient(
    logits: Tensor, upstream: Upstream, temperature: Temperature, start: int = 0
) -> Tensor:
    kernels, ids = _loaded(), _dense_ids(upstream.token_ids)
    of_rows = torch.zeros(ids.numel(), 4, dtype=torch.float64, device="cpu")
    columns = (
        upstream.log_normalizer,
        upstream.logprob_gradient,
        upstream.entropy_gradient,
        upstream.entropies,
    )
    for column, values in enumerate(columns):
        if values is not None:
            of_rows[:, column] = values.detach().reshape(-1)
    gradient = torch.empty(logits.shape, dtype=logits.dtype, device="cpu")
    described = _described(logits, ids, temperature, start)
    kernels.library.isentrope_logit_gradient(
        described, of_rows.data_ptr(), gradient.data_ptr(), kernels.team, kernels.threads()
    )
    return gradient


def _dense_ids(token_ids: Tensor) -> Tensor:
    return token_ids.reshape(-1).to(torch.int64).contiguous()


def _described(logits: Tensor, token_ids: Tensor, temperature: Temperature, start: int) -> _Logits:
    """The arguments as row_moments.cc takes them; the tensors must outlive the call."""
    numbers = ctypes.c_int64 * (logits.dim() - 1)
    return _Logits(
        data=logits.data_ptr(),
        type=TYPES[logits.dtype],
        rows=token_ids.numel(),
        columns=logits.shape[-1],
        dimensions=logits.dim() - 1,
        sizes=numbers(*logits.shape[:-1]),
        strides=numbers(*logits.stride()[:-1]),
        token_ids=token_ids.data_ptr(),
        start=start,
        temperature=1.0 if isinstance(temperature, Tensor) else temperature,
        temperatures=temperature.data_ptr() if isinstance(temperature, Tensor) else None,
    )


def _loaded() -> _Kernels:
    kernels = _kernels()
    if isinstance(kernels, cpp_build.BuildError):
        raise kernels
    return kernels


@functools.cache
def _kernels() -> _Kernels | cpp_build.BuildError:
    """The compiled kernels, or why there are none; one attempt per process."""
    try:
        library = cpp_build.load()
    except cpp_build.BuildError as error:
        return error
    arguments = (ctypes.POINTER(_Logits), ctypes.c_void_p)
    team = (ctypes.c_void_p, ctypes.c_uint)
    for moments in (library.isentrope_row_moments, library.isentrope_row_moments_squared):
        moments.argtypes = (*arguments, *team)
        moments.restype = None
    library.isentrope_logit_gradient.argtypes = (*arguments, ctypes.c_void_p, *team)
    library.isentrope_logit_gradient.restype = None
    return _Kernels(library, _team_of_torch(), os.getpid())


def _team_of_torch() -> int | None:
    """torch's own OpenMP runtime among the libraries of this process; None where it computes with
    something else."""
    try:
        parallel = ctypes.CDLL(None).GOMP_parallel
    except (AttributeError, OSError, TypeError):
        return None
    return ctypes.cast(parallel, ctypes.c_void_p).value

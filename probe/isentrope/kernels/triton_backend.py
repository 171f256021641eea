"""Token scores in Triton, for CUDA, ROCm and XPU: two launches forward, one backward, and no wait
for the device.

Under TRITON_INTERPRET=1 the same kernels run on the CPU, slowly: that is how they are tested where
there is no GPU."""

from __future__ import annotations

import functools
import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from isentrope.kernels.moments import Moments, RowScores, Temperature, Upstream

try:
    import triton

    from isentrope.kernels import triton_kernels
except ImportError as error:
    _missing: str | None = f"Triton can't be imported: {error}"
else:
    _missing = None

SUPPORTED_TYPES = (torch.float32, torch.bfloat16, torch.float16)

WARPS = 4
GROUPS = 4
"""A thread then has 32 logits in flight, and nine programs fit on a processor of an H100, on which
these were timed."""

GRADIENT_BLOCK = 2048
GRADIENT_BLOCKS = 4
"""Blocks of a row that one program computes, one after another: what it needs of the row is read
once."""

ROWS_PER_PROGRAM = 32

PROGRAMS_PER_PROCESSOR = 32
"""Splits are made until there are so many: several times what a processor holds at once, so that
the last wave is short."""

LARGEST_SPLITS = 64

LOWEST_EXPONENT = -160.0
"""2^-160 is 0 in float32, and 0 * -160 is 0 where 0 * -inf would be NaN."""


class RowLayout(NamedTuple):
    """Where row n begins, in elements from the start of the memory: offset + n // inner_rows *
    outer_stride + ..."""

    inner_rows: int
    offset_storage: int
    outer_stride: int
    inner_stride: int


class DeviceShape(NamedTuple):
    """What the size of tiles and the number of splits follow from."""

    processors: int
    """Streaming multiprocessors, compute units or Xe cores."""
    warp_size: int


def unavailable_because() -> str | None:
    """Why these kernels can't work here; None where they can."""
    if _missing is not None:
        return _missing
    if interpreted() or torch.cuda.is_available() or torch.xpu.is_available():
        return None
    return (
        "torch sees no CUDA, ROCm or XPU device, and TRITON_INTERPRET=1 was not set when Triton was"
        " imported."
    )


def interpreted() -> bool:
    """Whether the kernels run in Triton's interpreter, on the CPU."""
    return _missing is None and not isinstance(triton_kernels.moments_kernel, triton.JITFunction)


def supports(logits: Tensor) -> bool:
    """float32, bfloat16 and float16 whose last stride is 1 and whose rows lie at two strides at
    most."""
    return (
        _device_fits(logits.device)
        and logits.dtype in SUPPORTED_TYPES
        and logits.dim() > 0
        and (logits.stride(-1) == 1 or logits.shape[-1] == 1)
        and row_layout(logits) is not None
        and _is_aligned(logits.untyped_storage())
    )


def row_moments(
    logits: Tensor,
    token_ids: Tensor,
    temperature: Temperature,
    start: int = 0,
    *,
    squared: bool = False,
) -> Moments:
    moments = _split_moments(logits, token_ids, temperature, start, squared)
    splits, numbers, _ = moments.shape
    if splits == 1:
        return Moments(*moments[0])
    return Moments(*_merge_splits(triton_kernels.merge_kernel, moments, numbers, squared=squared))


def row_scores(
    logits: Tensor, token_ids: Tensor, temperature: Temperature, *, squared: bool = False
) -> RowScores:
    """`finish(row_moments(...))` of a whole vocabulary in two launches."""
    moments = _split_moments(logits, token_ids, temperature, 0, squared)
    return RowScores(
        *_merge_splits(triton_kernels.finish_kernel, moments, moments.shape[1] - 1, squared=squared)
    )


def _merge_splits(kernel: Any, moments: Tensor, numbers: int, *, squared: bool) -> Tensor:
    """What a kernel makes of the moments of all splits of a row, float64 [numbers, rows]."""
    splits, _, rows = moments.shape
    found = moments.new_empty(numbers, rows)
    if rows:
        grid = (-(-rows // ROWS_PER_PROGRAM),)
        with _use_device(moments):
            _launch(
                kernel,
                grid,
                moments,
                found,
                rows,
                splits,
                SQUARED=squared,
                SPLITS=splits,
                ROWS=ROWS_PER_PROGRAM,
            )
    return found


def logit_gradient(
    logits: Tensor, upstream: Upstream, temperature: Temperature, start: int = 0
) -> Tensor:
    gradient = torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)
    if gradient.numel() == 0:
        return gradient
    token_ids, log_normalizer, entropies, logprob_gradient, entropy_gradient = upstream
    rows, columns = token_ids.numel(), logits.shape[-1]
    per_row, number = _number(temperature)
    has_entropy = entropy_gradient is not None and entropies is not None
    log_normalizer = _row_values(log_normalizer.double())
    with _use_device(logits):
        _launch(
            triton_kernels.gradient_kernel,
            (rows, triton.cdiv(columns, GRADIENT_BLOCK * GRADIENT_BLOCKS)),
            _storage(logits),
            _row_values(token_ids),
            log_normalizer,
            log_normalizer if logprob_gradient is None else _row_values(logprob_gradient),
            log_normalizer if entropy_gradient is None else _row_values(entropy_gradient),
            log_normalizer if entropies is None else _row_values(entropies),
            gradient,
            columns,
            *_layout(logits),
            start,
            temperature if per_row else log_normalizer,
            number,
            *_two_halves(1 / number),
            PER_ROW=per_row,
            HAS_LOGPROB=logprob_gradient is not None,
            HAS_ENTROPY=has_entropy,
            BLOCK=GRADIENT_BLOCK,
            BLOCKS=GRADIENT_BLOCKS,
        )
    return gradient


def row_layout(logits: Tensor) -> RowLayout | None:
    """The two strides that reach every row of a tensor or view; None where it takes more."""
    rows = [
        (size, stride)
        for size, stride in zip(logits.shape[:-1], logits.stride()[:-1], strict=True)
        if size != 1
    ]
    merged: list[tuple[int, int]] = []
    for size, stride in reversed(rows):
        if merged:
            inner_size, inner_stride = merged[-1]
        else:
            inner_size, inner_stride = (0, 0)
        if merged and stride == inner_size * inner_stride:
            merged[-1] = (inner_size * size, inner_stride)
        else:
            merged.append((size, stride))
    if len(merged) > 2:
        return None
    (inner_rows, inner_stride), (_, outer_stride) = (*merged, (1, 0), (1, 0))[:2]
    return RowLayout(max(inner_rows, 1), int(logits.storage_offset()), outer_stride, inner_stride)


def threads_of(warp_size: int) -> int:
    """Threads of a program."""
    return WARPS * warp_size


def splits_of(rows: int, columns: int, block: int, processors: int) -> int:
    """Programs that share a row: enough to keep `processors` busy, each with a few blocks of logits
    at least."""
    wanted = 1
    if rows:
        wanted = -(-processors * PROGRAMS_PER_PROCESSOR // rows)
    longest = max(1, columns // (4 * block))
    return 1 << (min(wanted, longest, LARGEST_SPLITS).bit_length() - 1)


def _device_fits(device: torch.device) -> bool:
    if device.type == "xpu":  # some have no float64, in which rows are finished
        return bool(torch.xpu.get_device_properties(device).has_fp64)
    return device.type == "cuda" or (device.type == "cpu" and interpreted())


def _split_moments(
    logits: Tensor, token_ids: Tensor, temperature: Temperature, start: int, squared: bool
) -> Tensor:
    """float64 [splits, 6, rows], or [splits, 7, rows] with Q2."""
    rows, columns = token_ids.numel(), logits.shape[-1]
    device = _device_shape(logits.device)
    threads = threads_of(device.warp_size)
    # A program reads two tiles of GROUPS reads of a thread at once.
    splits = splits_of(
        rows, columns, 2 * GROUPS * threads * int(triton_kernels.WORDS), device.processors
    )
    moments = torch.empty(
        splits, 7 if squared else 6, rows, dtype=torch.float64, device=logits.device
    )
    if rows == 0:
        return moments
    storage = _storage(logits)
    per_row, number = _number(temperature)
    exponent_scale = 1 / (math.log(2) * number)
    with _use_device(logits):
        _launch(
            triton_kernels.moments_kernel,
            (rows, splits),
            storage,
            storage if logits.dtype == torch.float32 else storage.view(torch.int32),
            _row_values(token_ids),
            moments,
            rows,
            columns,
            splits,
            *_layout(logits),
            start,
            temperature if per_row else moments,
            exponent_scale,
            LOWEST_EXPONENT / exponent_scale,
            *_two_halves(1 / number),
            PER_ROW=per_row,
            SQUARED=squared,
            GROUPS=GROUPS,
            THREADS=threads,
        )
    return moments


def _launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    # Fused multiply-adds are asked for by name: Triton's default is about to change.
    kernel[grid](*arguments, **constants, num_warps=WARPS, enable_fp_fusion=True)


def _storage(logits: Tensor) -> Tensor:
    """The first word of the memory that `logits` is a view of: what the kernels count offsets
    from."""
    return logits.detach().as_strided((4 // logits.element_size(),), (1,), 0)


def _is_aligned(storage: torch.UntypedStorage) -> bool:
    """Whether memory begins as allocators hand it out, which the 16-byte reads rely on, and holds a
    word at least."""
    return storage.nbytes() >= 4 and storage.data_ptr() % 16 == 0


def _layout(logits: Tensor) -> RowLayout:
    layout = row_layout(logits)
    assert layout is not None, "supports() lets no such tensor pass"
    return layout


def _row_values(values: Tensor) -> Tensor:
    return values.detach().reshape(-1).contiguous()


def _number(temperature: Temperature) -> tuple[bool, float]:
    """Whether each row has a temperature of its own, and the number for the kernels: 1 where they
    read it per row."""
    if isinstance(temperature, Tensor):
        return (True, 1.0)
    return (False, float(temperature))


@functools.lru_cache(maxsize=16)
def _two_halves(value: float) -> tuple[float, float]:
    """A float64 as two float32 numbers that add up to it."""
    upper = torch.tensor(value, dtype=torch.float32, device="cpu").item()
    return upper, value - upper


@functools.cache
def _device_shape(device: torch.device) -> DeviceShape:
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        return DeviceShape(
            properties.multi_processor_count, int(getattr(properties, "warp_size", 32))
        )
    if device.type == "xpu":
        return DeviceShape(int(torch.xpu.get_device_properties(device).gpu_subslice_count), 32)
    return DeviceShape(1, 32)  # the interpreter runs programs one by one


def _use_device(tensor: Tensor) -> AbstractContextManager[Any]:
    """Triton launches on the current device: make that the tensor's."""
    if tensor.device.type == "cuda":
        return torch.cuda.device(tensor.device)
    if tensor.device.type == "xpu":
        return torch.xpu.device(tensor.device)
    return nullcontext()

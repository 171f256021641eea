"""Which backend reads a tensor, and what is logged when the usual one cannot."""

from __future__ import annotations

import logging

import pytest
import torch

from isentrope.kernels import cpp_backend, dispatch, reference, triton_backend
from isentrope.kernels.dispatch import backend_for
from isentrope_wire.errors import ConfigurationError


@pytest.fixture(autouse=True)
def _nothing_chosen_and_nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ISENTROPE_KERNELS", raising=False)
    dispatch._say_once.cache_clear()


class Dressed(torch.Tensor):
    """Such as a sharded tensor, whose memory is elsewhere."""


READABLE = torch.zeros(4, 6)


@pytest.mark.parametrize(
    "logits",
    [
        *(READABLE.to(dtype) for dtype in (torch.float32, torch.bfloat16, torch.float16)),
        torch.nn.Parameter(READABLE),
        torch.zeros(4, 1)[:, :1].T.contiguous().T,
    ],
)
def test_cpp_kernels_read_cpu_tensors(logits: torch.Tensor) -> None:
    assert backend_for(logits) is cpp_backend


@pytest.mark.parametrize(
    "logits", [READABLE.T, READABLE.double(), READABLE.as_subclass(Dressed), READABLE.to_sparse()]
)
def test_reference_silently_reads_other_tensors(
    logits: torch.Tensor, caplog: pytest.LogCaptureFixture
) -> None:
    assert backend_for(logits) is reference
    assert caplog.messages == []


def test_triton_reads_aligned_rows() -> None:
    assert [
        triton_backend.supports(torch.zeros(2, 8, dtype=dtype))
        for dtype in (torch.float32, torch.bfloat16, torch.float16)
    ] == [True] * 3
    assert not triton_backend.supports(torch.zeros(2, 8, dtype=torch.float64))
    assert not triton_backend.supports(torch.zeros(8, 2).T)
    assert not triton_backend.supports(torch.zeros(1, dtype=torch.float16))
    foreign = torch.zeros(100).numpy()
    beside_a_boundary = torch.from_numpy(foreign[1 if foreign.ctypes.data % 16 == 0 else 0 :])
    assert not triton_backend.supports(beside_a_boundary)


def test_reference_replaces_missing_compiler_once_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cpp_backend, "unavailable_because", lambda: "there is no compiler")
    with caplog.at_level(logging.WARNING):
        assert [backend_for(torch.zeros(2, 3)) for _ in range(3)] == [reference] * 3
    (message,) = caplog.messages
    assert message.endswith("cpp: there is no compiler")


def test_named_backend_must_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpp_backend, "unavailable_because", lambda: "there is no compiler")
    monkeypatch.setenv("ISENTROPE_KERNELS", "cpp")
    with pytest.raises(ConfigurationError, match=r"cpp.*no compiler"):
        backend_for(torch.zeros(2, 3))


def test_a_backend_is_chosen_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in dispatch.BACKENDS:
        monkeypatch.setenv("ISENTROPE_KERNELS", name)
        assert backend_for(torch.zeros(2, 3)) is dispatch.BACKENDS[name]


def test_unknown_backend_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISENTROPE_KERNELS", "numba")
    with pytest.raises(
        ConfigurationError, match=r"^ISENTROPE_KERNELS .*auto, reference, cpp, triton.*numba"
    ):
        backend_for(torch.zeros(2, 3))

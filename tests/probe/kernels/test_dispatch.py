"""Which backend reads a tensor, and what is said when the usual one can't."""

from __future__ import annotations

import logging

import pytest
import torch

from isentrope.errors import ConfigurationError
from isentrope.kernels import cpp_backend, dispatch, reference, triton_backend
from isentrope.kernels.dispatch import backend_for, using


@pytest.fixture(autouse=True)
def _nothing_chosen_and_nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ISENTROPE_KERNELS", raising=False)
    dispatch._say_once.cache_clear()


def test_a_cpu_tensor_goes_to_the_cpp_kernels() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert backend_for(torch.zeros(2, 3, dtype=dtype)) is cpp_backend


def test_what_the_cpp_kernels_cannot_read_goes_to_the_reference_silently(caplog: pytest.LogCaptureFixture) -> None:
    assert backend_for(torch.zeros(2, 3, dtype=torch.float64)) is reference
    assert backend_for(torch.zeros(3, 2).T) is reference
    assert caplog.messages == []


def test_without_a_compiler_the_reference_takes_over_and_says_why_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cpp_backend, "unavailable_because", lambda: "there is no compiler")
    with caplog.at_level(logging.WARNING):
        assert [backend_for(torch.zeros(2, 3)) for _ in range(3)] == [reference] * 3
    (message,) = caplog.messages
    assert message.endswith("cpp: there is no compiler")


def test_a_backend_asked_for_by_name_that_cannot_work_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpp_backend, "unavailable_because", lambda: "there is no compiler")
    with using("cpp"), pytest.raises(ConfigurationError, match=r"cpp.*no compiler"):
        backend_for(torch.zeros(2, 3))


def test_the_environment_names_a_backend_and_using_overrides_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISENTROPE_KERNELS", "reference")
    assert backend_for(torch.zeros(2, 3)) is reference
    with using("cpp"):
        assert backend_for(torch.zeros(2, 3)) is cpp_backend
    assert backend_for(torch.zeros(2, 3)) is reference


def test_an_unknown_backend_is_named_with_the_known_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISENTROPE_KERNELS", "numba")
    with pytest.raises(ConfigurationError, match=r"^ISENTROPE_KERNELS .*auto, reference, cpp, triton.*numba"):
        backend_for(torch.zeros(2, 3))


def test_triton_can_be_asked_for_where_it_is_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    with using("triton"):
        assert backend_for(torch.zeros(2, 3)) is triton_backend

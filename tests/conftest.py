"""What holds for every test."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.browsing import chromium

# The tests run servers, browsers and training loops side by side on few cores: torch's threads must sleep while they
# wait for each other, not spin. Read once, when torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def interpret_triton_without_a_gpu() -> None:
    """Triton reads this once, when it is imported: where no GPU is, its kernels run in its interpreter, on the CPU."""
    import torch

    if not torch.cuda.is_available():
        os.environ.setdefault("TRITON_INTERPRET", "1")


interpret_triton_without_a_gpu()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One headless Chromium for all tests."""
    with chromium() as running:
        yield running

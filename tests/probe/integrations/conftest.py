"""What holds for every test of the integrations."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.probe.integrations import tiny_trl


@pytest.fixture(autouse=True)
def quiet_and_alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No usage reports of other libraries, and one thread: what is compared to the last bit must
    add in one order."""
    monkeypatch.setenv("CI", "1")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def saved_policy(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A policy on disk: TRL loads its reference model from where the policy came from."""
    folder: Path = tmp_path_factory.mktemp("policy")
    tiny_trl.model().save_pretrained(folder)
    return str(folder)

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from isentrope_trainer.models.warm_start import WarmStartConfig
from isentrope_trainer.settings import PolicyConfig

TINY_POLICY = PolicyConfig(hidden_size=32, layers=2, attention_heads=2, feed_forward_size=48)
SHORT_WARM_START = WarmStartConfig(steps=3, batch_size=8)


@pytest.fixture
def tiny_policy_config() -> PolicyConfig:
    return TINY_POLICY


@pytest.fixture
def short_warm_start() -> WarmStartConfig:
    return SHORT_WARM_START


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder of the test's own, and no variable of the developer's that points elsewhere."""
    for name in (
        "ISENTROPE_TOKEN",
        "ISENTROPE_URL",
        "ISENTROPE_GRPC",
        "ISENTROPE_RUN_ID",
        "ISENTROPE_MODE",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ISENTROPE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    """Runs set torch's threads, which belong to the whole process."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)

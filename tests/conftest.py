"""What holds for every test."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# The tests run servers, browsers and training loops side by side on few cores: torch's threads must
# sleep while they wait for each other, not spin. Read once, when torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# The Triton kernels are tested in Triton's interpreter, on the CPU, so that every machine runs the
# same tests; those marked gpu want TRITON_INTERPRET=0. Read once, when Triton is imported.
os.environ.setdefault("TRITON_INTERPRET", "1")

# Most tests have a home of their own; the kernels need not be compiled for each.
os.environ.setdefault(
    "ISENTROPE_KERNEL_CACHE", str(Path(__file__).parents[1] / ".pytest_cache" / "kernels")
)

# A shell starts what is in the background with SIGINT ignored, and children inherit that.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How fast examples are made and tried only shows how busy the machine is. A test's own settings add
# to these.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")


LONGEST_FILES = (
    "test_verl.py",
    "test_openrlhf.py",
    "test_commands.py",
    "test_journey.py",
    "test_pages.py",
    "test_process_faults.py",
    "test_disk_and_replica_faults.py",
)
"""Files with minutes of slow tests begin first: each is run by one process, which at the end the
others would wait for."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in LONGEST_FILES)


def pytest_collection_finish() -> None:
    """Collections of garbage need not walk everything that was imported, pytest's last ones
    neither."""
    gc.collect()
    gc.freeze()
    # What is never freed nanobind would report as a leak.
    atexit.register(gc.unfreeze)

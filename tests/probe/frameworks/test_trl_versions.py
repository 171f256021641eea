"""What attaching to TRL changes, controls and refuses, once more on the oldest minor version that
the adapter supports."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from isentrope.integrations.trl import VERSIONS
from tests.probe.frameworks.packages import ROOT, folder_of

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)]

RUN = (
    "import sys, pytest, trl; print('TRL', trl.__version__, flush=True);"
    " sys.exit(pytest.main(sys.argv[1:]))"
)


def test_the_quick_tests_pass_on_the_oldest_version() -> None:
    # TRL 1.15 has its head as a Triton kernel alone: on a CPU only Triton's interpreter runs it.
    environment = os.environ | {"PYTHONPATH": str(folder_of("trl")), "TRITON_INTERPRET": "1"}
    folder = ROOT / "tests" / "probe" / "integrations"
    tests = [folder / f"test_trl_{name}.py" for name in ("attach", "control", "support")]
    # Importing its asynchronous trainer asks for aiohttp.
    options = [
        "-q",
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
        "-m",
        "not slow",
        "-k",
        "not asynchronous",
    ]
    command = [sys.executable, "-c", RUN, *options, *map(str, tests)]
    ran = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert ran.stdout.startswith(f"TRL {VERSIONS.at_least}."), ran.stderr[-1000:]
    assert ran.returncode == 0, ran.stdout[-4000:]

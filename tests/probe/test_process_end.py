"""What a run is said to be when its process ends and nobody has called `finish`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from isentrope.process_end import failure_since, mark, named
from isentrope.transport.spool_folder import find_spool_folders
from isentrope.transport.spool_reader import SpoolReader
from isentrope_wire.codec import decode_payload
from isentrope_wire.messages import RunFinished

BEGIN = """
import os, sys, time, isentrope
def begun(name="run"):
    probe = isentrope.Probe(name)
    probe.log({"reward/mean": 1.0})
    probe.step(1)
    return probe
"""
FAILED = 'begun("first"); probe = begun("second"); raise RuntimeError("boom")'
ENDINGS = {
    FAILED: {("failed", "RuntimeError: boom")},
    # The probe is gone before the process is.
    "def main():\n    begun()\nmain()": {("finished", "")},
    # As frameworks do: the error is caught and printed, and the status says that it went wrong.
    "try:\n    begun(); 1 / 0\nexcept ZeroDivisionError:\n    sys.exit(3)": {("failed", "SystemExit: 3")},
    "probe = begun(); sys.exit(0)": {("finished", "")},
    "probe = begun()\ntry:\n    sys.exit(2)\nexcept SystemExit:\n    probe.step(2)": {("finished", "")},
    "probe = begun(); raise KeyboardInterrupt": {("failed", "KeyboardInterrupt")},
    'probe = begun(); probe.finish(); raise RuntimeError("afterwards")': {("finished", "")},
    # A child that ends in its parent's place has nothing to say; this parent is killed.
    "probe = begun(); time.sleep(1)\nif os.fork() == 0: sys.exit(0)\nos.wait(); os._exit(0)": set(),
}


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A process for each ending, all at once: most of what they do is to start."""
    of_ending = {ending: tmp_path_factory.mktemp("home") for ending in ENDINGS}
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("ISENTROPE", "PYTEST"))}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", BEGIN + ending],
            env={**environment, "ISENTROPE_HOME": str(home), "ISENTROPE_MODE": "offline"},
            stderr=subprocess.DEVNULL,
        )
        for ending, home in of_ending.items()
    ]
    for process in processes:
        process.wait(120)
    return of_ending


def goodbyes(home: Path) -> list[RunFinished]:
    payloads = [
        decode_payload(record.payload)
        for folder in find_spool_folders(home)
        for record in SpoolReader(folder.path).next_batch(100, 10**6)
    ]
    return [payload for payload in payloads if isinstance(payload, RunFinished)]


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_process_that_ends_says_how_its_run_did(homes: dict[str, Path], ending: str) -> None:
    found = goodbyes(homes[ending])
    assert {(goodbye.status, goodbye.error) for goodbye in found} == ENDINGS[ending]


def test_every_run_of_a_process_is_said_goodbye_to_with_its_last_step(homes: dict[str, Path]) -> None:
    assert [goodbye.step for goodbye in goodbyes(homes[FAILED])] == [1, 1]


def test_several_hanging_runs_together_take_no_longer_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from isentrope import run_end
    from tests.probe.tiny_loop import probe_and_transport

    monkeypatch.setattr(run_end, "_all_ended_by", [])
    monkeypatch.setattr(run_end, "_unfinished", set())
    probes = [probe_and_transport()[0] for _ in range(3)]
    for probe in probes:
        monkeypatch.setattr(probe._transport, "close", lambda timeout_seconds: time.sleep(timeout_seconds))
    started = time.monotonic()
    for probe in probes:
        probe._end._process_ends()
    assert time.monotonic() - started < 2.0, "a second, and what a busy machine adds"


def test_an_error_from_before_the_last_step_has_ended_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(sys, "last_exc", raising=False)
    monkeypatch.setattr(sys, "last_value", ValueError("in a notebook's cell"), raising=False)
    earlier = mark()
    assert failure_since(earlier) == ""
    monkeypatch.setattr(sys, "last_value", OSError("in a later cell"))
    assert failure_since(earlier) == "OSError: in a later cell"


def test_an_error_without_words_is_named_alone() -> None:
    assert named(KeyboardInterrupt()) == "KeyboardInterrupt"
    assert named(ValueError("a: b")) == "ValueError: a: b"


def test_a_probe_that_is_disabled_leaves_the_process_as_it_is(tmp_path: Path) -> None:
    script = 'import sys\nuntouched = sys.exit\nimport isentrope\nisentrope.Probe("run", mode="disabled")\nassert sys.exit is untouched'
    subprocess.run([sys.executable, "-c", script], env=os.environ | {"ISENTROPE_HOME": str(tmp_path)}, check=True)
    assert list(tmp_path.iterdir()) == []

"""The status of a run whose process ends without `finish`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import isentrope
from isentrope.lifecycle import OUTPUT_LINES, SHOWN_CALLS, error_text
from isentrope.transport.spool_folder import find_spool_folders
from isentrope_wire.reports import ERROR_CHARACTERS, OUTPUT, RunFinished, error_in_a_line
from tests.probe.transport.fake_telemetry import on_disk
from tests.system.running_server import RunningServer, wait_for

PROCESSES = """
import os, sys, time, isentrope, isentrope.probe
def begun(name="run"):
    probe = isentrope.Probe(name)
    probe.log({"reward/mean": 1.0})
    probe.step(1)
    return probe
os.environ["ISENTROPE_MODE"] = "offline"
for home, ending in zip(sys.argv[1::2], sys.argv[2::2]):
    if os.fork() == 0:
        os.environ["ISENTROPE_HOME"] = home
        break
else:
    for _ in sys.argv[1::2]:
        os.wait()
    ending = ""
def child(train):
    import multiprocessing
    process = multiprocessing.get_context("fork").Process(target=train)
    process.start(); process.join()
def trains(rank=0):
    probe = begun()
def fails(rank=0):
    probe = begun()
    raise RuntimeError("boom")
def spawned(train):
    import torch.multiprocessing
    torch.multiprocessing.start_processes(train, nprocs=1, start_method="fork")
exec(ending)
"""
"""A process for each home and ending, forked once torch is there: importing it is most of what each
would do."""
FAILED = 'begun("first"); probe = begun("second"); raise RuntimeError("boom")'
ENDINGS = {
    FAILED: {("failed", "RuntimeError: boom")},
    # The probe is gone before the process is.
    "def main():\n    begun()\nmain()": {("ended", "")},
    # Python keeps no SystemExit: whether that went well is not known.
    "try:\n    begun(); 1 / 0\nexcept ZeroDivisionError:\n    sys.exit(3)": {("ended", "")},
    "with begun(): sys.exit(3)": {("failed", "SystemExit: 3")},
    "with begun(): pass": {("finished", "")},
    "probe = begun(); raise KeyboardInterrupt": {("failed", "KeyboardInterrupt")},
    'probe = begun(); probe.finish(); raise RuntimeError("afterwards")': {("finished", "")},
    "child(trains)": {("ended", "")},
    "child(fails)": {("failed", "RuntimeError: boom")},
    "child(lambda: begun().finish())": {("finished", "")},
    "child(lambda: (begun(), sys.exit(3)))": {("ended", "")},
    "spawned(trains)": {("ended", "")},
    "spawned(fails)": {("failed", "RuntimeError: boom")},
    # A child ends nothing of its parent's; this parent is killed.
    "probe = begun(); time.sleep(0.3)\nif os.fork() == 0: sys.exit(0)\nos.wait(); os._exit(0)": (
        set()
    ),
}


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Where each ending's process left its reports."""
    of_ending = {ending: tmp_path_factory.mktemp("home") for ending in ENDINGS}
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("ISENTROPE", "PYTEST"))
    }
    arguments = [word for ending, home in of_ending.items() for word in (str(home), ending)]
    subprocess.run(
        [sys.executable, "-c", PROCESSES, *arguments],
        env=environment,
        stderr=subprocess.DEVNULL,
        timeout=120,
        check=True,
    )
    return of_ending


LIKE_A_RAY_WORKER = """
import os, time, psutil, isentrope
probe = isentrope.Probe("run", run_id="killed-children")
probe.step(1)
while len(psutil.Process().children(recursive=True)) < 2:  # a child, and the side process below it
    time.sleep(0.02)
probe.finish()
for child in psutil.Process().children():
    child.kill()
"""


@pytest.mark.slow
def test_the_last_reports_arrive_where_the_children_of_the_process_are_killed(
    server: RunningServer,
) -> None:
    environment = dict(os.environ) | {
        k: v for k, v in server.environment.items() if k.startswith("ISENTROPE_")
    }
    environment["ISENTROPE_MODE"] = "online"
    server.freeze()  # nothing is delivered before the children are killed
    subprocess.run(
        [sys.executable, "-c", LIKE_A_RAY_WORKER], env=environment, check=True, timeout=60
    )
    server.thaw()
    client = isentrope.Client(server.url, server.token)
    run = wait_for(
        lambda: next(
            (
                one
                for one in client.runs()
                if one.id == "killed-children" and one.status == "finished"
            ),
            None,
        ),
        30,
        "it has ended",
    )
    assert run.step == 1


def finishes(home: Path) -> list[RunFinished]:
    spools = find_spool_folders(home)
    return [
        payload
        for spool in spools
        for payload in on_disk(spool.path)
        if isinstance(payload, RunFinished)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("ending", ENDINGS)
def test_the_end_of_a_process_ends_its_run(homes: dict[str, Path], ending: str) -> None:
    assert {
        (found.status, error_in_a_line(found.error)) for found in finishes(homes[ending])
    } == ENDINGS[ending]


@pytest.mark.slow
def test_every_run_of_a_process_ends_with_its_last_step(homes: dict[str, Path]) -> None:
    assert [found.step for found in finishes(homes[FAILED])] == [1, 1]


@pytest.mark.slow
def test_a_failed_run_has_the_traceback(homes: dict[str, Path]) -> None:
    first, *calls, last = finishes(homes[FAILED])[0].error.splitlines()
    assert (first, calls[-1].strip(), last) == (
        "Traceback (most recent call last):",
        'File "<string>", line 1, in <module>',
        "RuntimeError: boom",
    )


@pytest.mark.slow
@pytest.mark.parametrize("texts", ["on", "off"])
def test_a_failed_run_has_the_last_lines_of_an_output_that_is_a_file(
    tmp_path: Path, texts: str
) -> None:
    begin = "import isentrope; probe = isentrope.Probe('run'); probe.step(1)"
    writes = (
        "for number in range(1000): print('line', number)\nimport os; os.write(2, b'from below"
        " Python\\n'); 1 / 0"
    )
    environment = os.environ | {
        "ISENTROPE_HOME": str(tmp_path),
        "ISENTROPE_MODE": "offline",
        "ISENTROPE_TEXTS": texts,
    }
    with open(tmp_path / "log", "wb") as log:
        subprocess.run(
            [sys.executable, "-c", f"{begin}\n{writes}"],
            env=environment,
            stdout=log,
            stderr=log,
            timeout=60,
            check=False,
        )
    (found,) = finishes(tmp_path)
    error, _, output = found.error.partition(OUTPUT)
    assert error.endswith("ZeroDivisionError: division by zero")
    assert error_in_a_line(found.error) == "ZeroDivisionError: division by zero"
    lines = output.splitlines()
    if texts == "off":
        assert lines == []
    else:
        assert len(lines) == OUTPUT_LINES
        assert "line 999" in lines
        assert "from below Python" in lines


def test_of_a_deep_traceback_the_last_calls_remain() -> None:
    def fall(calls: int) -> None:
        if calls == 0:
            raise ValueError("at the bottom\nof the stack")
        fall(calls - 1)

    with pytest.raises(ValueError, match="bottom") as caught:
        fall(100)
    text = error_text(caught.value)
    assert text.count("in fall") <= SHOWN_CALLS
    assert len(text) <= ERROR_CHARACTERS
    assert error_in_a_line(text) == "ValueError: at the bottom"


def test_an_error_from_before_the_last_step_has_ended_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tests.probe.tiny_loop import TinyLoop, probe_and_transport, run_steps

    monkeypatch.delattr(sys, "last_exc", raising=False)
    for later, end in (
        (None, ("ended", "")),
        (OSError("in a later cell"), ("failed", "OSError: in a later cell")),
    ):
        monkeypatch.setattr(sys, "last_value", ValueError("in a notebook's cell"), raising=False)
        probe, transport = probe_and_transport()
        run_steps(TinyLoop(), probe, 1)
        if later is not None:
            monkeypatch.setattr(sys, "last_value", later)
        probe._end._process_ends()
        finished = transport.messages[-1]
        assert isinstance(finished, RunFinished)
        assert (finished.status, finished.error) == end


@pytest.mark.parametrize(
    ("code", "end"),
    [(1, ("failed", "ValueError: boom")), (0, ("ended", "")), (None, ("ended", ""))],
)
def test_an_error_turned_into_an_exit_is_named(code: int | None, end: tuple[str, str]) -> None:
    from tests.probe.tiny_loop import probe_and_transport

    probe, transport = probe_and_transport()

    def leave() -> None:
        try:
            raise ValueError("boom")
        except ValueError:
            try:
                sys.exit(code)
            finally:
                probe._end._process_ends()

    with pytest.raises(SystemExit):
        leave()
    finished = transport.messages[-1]
    assert isinstance(finished, RunFinished)
    assert (finished.status, error_in_a_line(finished.error)) == end


def test_an_error_without_words_is_named_alone() -> None:
    assert error_text(KeyboardInterrupt()) == "KeyboardInterrupt"
    assert error_text(ValueError("a: b")) == "ValueError: a: b"

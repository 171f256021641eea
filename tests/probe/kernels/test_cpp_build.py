"""Whatever the compiler, the home or the file system do: right scores, and one log line with the
reason why they are slow."""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from isentrope import scores
from isentrope.kernels import cpp_backend, cpp_build, dispatch
from isentrope_wire.environment import kernel_cache
from isentrope_wire.errors import ConfigurationError
from tests.probe.kernels import numerics
from tests.probe.scores.reference64 import scores64

Compiler = Callable[[str], Path]


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of kept libraries after a first use: a copy of what the tests' own cache keeps."""
    folder = tmp_path_factory.mktemp("compiled") / "kernels"
    folder.mkdir(mode=0o700)
    with pytest.MonkeyPatch.context() as environment:
        environment.delenv("CXX", raising=False)
        cpp_build.load()
        shutil.copy(kernel_cache() / f"{cpp_build._key(cpp_build.find_compiler())}.so", folder)
    return folder


@pytest.fixture
def compiles_at_once(compiled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compiled comes from a copy."""
    (library,) = compiled.glob("*.so")

    def copied(compiler: list[str], folder: Path) -> Path:
        return Path(shutil.copy(library, folder / "row_moments.so"))

    monkeypatch.setattr(cpp_build, "_compile", copied)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty home, and a process that has not looked for its kernels yet."""
    monkeypatch.setenv("ISENTROPE_HOME", str(tmp_path / "home"))
    for variable in ("CXX", "ISENTROPE_KERNEL_CACHE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.delenv("ISENTROPE_KERNELS", raising=False)
    forget()
    yield tmp_path / "home"
    forget()


def forget() -> None:
    cpp_backend._kernels.cache_clear()
    dispatch._say_once.cache_clear()


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compiler:
    """Makes CXX a program that answers --version, and runs this script when it is to compile."""

    def make(script: str) -> Path:
        program = tmp_path / "fake-c++"
        program.write_text(
            f'#!/bin/sh\nif [ "$1" = --version ]; then echo 1.0; exit 0; fi\n{script}\n'
        )
        program.chmod(0o755)
        monkeypatch.setenv("CXX", str(program))
        return program

    return make


def assert_scores_are_right() -> None:
    logits = numerics.normal_logits(3001, 4, 3.0)
    token_ids = numerics.drawn(logits)
    exact = scores64(logits, token_ids)
    for _ in range(2):
        scored = scores.token_scores(logits, token_ids, entropy_gradient=True)
        for field in numerics.FIELDS:
            torch.testing.assert_close(
                getattr(scored, field).double(), exact[field], rtol=0, atol=3e-6
            )


def assert_the_reference_scores(caplog: pytest.LogCaptureFixture, reason: str) -> None:
    with caplog.at_level(logging.WARNING, "isentrope"):
        assert_scores_are_right()
    *before, record = caplog.records
    assert all("compiles its CPU kernels once" in said.getMessage() for said in before)
    assert "cpp" in record.getMessage()
    assert reason in record.getMessage()
    assert "\n" not in record.getMessage()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ISENTROPE_KERNELS", "cpp")
        with pytest.raises(ConfigurationError, match=re.escape(reason)):
            dispatch.backend_for(torch.zeros(1, 2))


def kept(home: Path) -> list[str]:
    """Kinds of files in the folder of kept libraries."""
    return sorted(path.suffix or path.name for path in (home / "kernels").iterdir())


def test_library_is_compiled_once(
    home: Path, compiled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(compiled, home / "kernels")
    assert kept(home) == [".so"]
    monkeypatch.setattr(cpp_build, "_compile", lambda *_: pytest.fail("compiled again"))
    assert cpp_backend.unavailable_because() is None
    assert_scores_are_right()


def test_library_belongs_to_processor_source_compiler(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = cpp_build.find_compiler()
    keys = [cpp_build._key(compiler)]
    with monkeypatch.context() as other:
        other.setattr(cpp_build, "_processor", lambda: ["another"])
        keys.append(cpp_build._key(compiler))
    with monkeypatch.context() as other:
        other.setattr(cpp_build, "SOURCE", tmp_path / "other.cc")
        cpp_build.SOURCE.write_text("int other;")
        keys.append(cpp_build._key(compiler))
    keys.append(cpp_build._key([*compiler, "-g"]))
    assert len(set(keys)) == 4
    assert cpp_build._key(compiler) == keys[0]


@pytest.mark.usefixtures("compiles_at_once")
def test_a_library_that_cannot_be_loaded_is_replaced(home: Path) -> None:
    cpp_build.load()
    (library,) = (home / "kernels").iterdir()
    whole = library.stat().st_size
    library.unlink()
    library.write_bytes(b"cut")
    cpp_build.load()
    assert library.stat().st_size == whole


def test_compiling_processes_do_not_collide(home: Path, compiled: Path, compiler: Compiler) -> None:
    (library,) = compiled.glob("*.so")
    compiler(
        f'while [ "$1" != -o ]; do shift; done; head -c 5000 {library} > "$2"; sleep 0.2; cp'
        f' {library} "$2"'
    )
    code = "from isentrope.kernels import cpp_build; print(cpp_build.load().isentrope_row_moments)"
    racing = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    for process in racing:
        out, err = process.communicate(timeout=200)
        assert "FuncPtr" in out, err
        assert all("compiles its CPU kernels once" in line for line in err.splitlines())
    assert kept(home) == [".so"]
    assert_scores_are_right()


def test_unwritable_home_compiles_per_process(
    compiles_at_once: None,
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ISENTROPE_HOME", str(tmp_path / "file" / "home"))
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    assert_scores_are_right()
    assert cpp_backend.unavailable_because() is None
    (record,) = caplog.records
    assert str(tmp_path / "file") in record.getMessage()
    assert list(temporary.iterdir()) == []


def test_named_cache_keeps_the_library_unless_others_may_write_there(
    home: Path,
    compiles_at_once: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    shared = tmp_path / "shared"
    monkeypatch.setenv("ISENTROPE_KERNEL_CACHE", str(shared))
    cpp_build.load()
    assert [path.suffix for path in shared.iterdir()] == [".so"]
    assert not (home / "kernels").exists()
    assert "CPU kernels once, which takes some 10 s, and keeps them in" in caplog.text
    assert str(shared) in caplog.text
    caplog.clear()
    cpp_build.load()
    assert not caplog.records
    shared.chmod(0o777)
    cpp_build.load()
    assert str(shared) in caplog.text


def test_full_disk_costs_only_keeping(
    home: Path,
    compiles_at_once: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    assert cpp_backend.unavailable_because() is None
    assert_scores_are_right()
    assert f"{home / 'kernels'} can't keep them: [Errno 28]" in caplog.text
    assert kept(home) == []


def test_missing_compiler_is_named(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert_the_reference_scores(caplog, "(CXX, c++, g++, clang++)")


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (
            (
                "echo 'In file included' >&2; echo 'x.cc:3:1: error: no such thing' >&2; echo"
                " 'more' >&2; exit 7"
            ),
            "status 7: x.cc:3:1: error: no such thing",
        ),
        ('while [ "$1" != -o ]; do shift; done; echo nonsense > "$2"', "fake-c++"),
        (None, "fake-c++"),
    ],
    ids=["an error", "no library", "no program"],
)
def test_failing_compiler_is_quoted(
    home: Path,
    compiler: Compiler,
    caplog: pytest.LogCaptureFixture,
    script: str | None,
    reason: str,
) -> None:
    program = compiler(script or "")
    if script is None:
        program.write_bytes(b"\x7fELF")
    assert_the_reference_scores(caplog, reason)


def test_hanging_compiler_is_ended(
    home: Path,
    compiler: Compiler,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    compiler(f"sleep 100 & echo $! > {home.parent}/child; wait")
    monkeypatch.setattr(cpp_build, "COMPILE_TIMEOUT_SECONDS", 0.3)
    started = time.monotonic()
    assert_the_reference_scores(caplog, " 0.3 s")
    assert time.monotonic() - started < 30
    child = Path(f"/proc/{(home.parent / 'child').read_text().strip()}/cmdline")
    assert not child.exists() or child.read_bytes() == b""  # gone, or a zombie


def test_cxx_may_hold_arguments(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system = cpp_build.find_compiler()
    monkeypatch.setenv("CXX", "/no/such/compiler -g")
    assert cpp_build.find_compiler() == system
    monkeypatch.setenv("CXX", f"{shutil.which('env')} g++")
    assert cpp_build.find_compiler()[1:] == ["g++"]
    assert "g++" in cpp_build._output_of([*cpp_build.find_compiler(), "--version"], 60)


@pytest.mark.slow
def test_source_compiles_for_narrow_registers(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What NEON and older processors get: four logits at a time, a polynomial in the place of the
    table."""
    narrower = ["-mno-avx512f"] if os.uname().machine == "x86_64" else []
    monkeypatch.setattr(cpp_build, "FLAGS", (*cpp_build.FLAGS, "-O1"))
    flags = [*cpp_build._flags(), *narrower]
    monkeypatch.setattr(cpp_build, "_flags", lambda: flags)
    for case in numerics.cases(4099, 2):
        if cpp_backend.supports(case.logits) and case.token_ids.numel():
            errors = numerics.errors_of(numerics.scored(cpp_backend, case), case)
            assert max(errors.values()) <= 1e-6, (case.name, errors)

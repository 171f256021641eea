"""Compiles row_moments.cc once per machine and keeps the library in `ISENTROPE_KERNEL_CACHE` (the
home's `kernels`).

The library is kept under a key of everything that decides what it may be used for: the source, the
flags, the compiler's version, the C library and the processor, because `-march=native` code must
not reach another kind of processor through a shared home. It is put in place by a rename, so any
number of processes may compile at once. Where the home can't be written, each process compiles for
itself in a temporary folder."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shlex
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from isentrope_wire import environment
from isentrope_wire.errors import IsentropeError

logger = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("row_moments.cc")
COMPILERS = ("c++", "g++", "clang++")
FLAGS = (
    "-O2",
    "-std=c++17",
    # A product and a sum in one rounding also across statements; neither errno nor floating-point
    # traps are looked at.
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-exceptions",
    "-fno-rtti",
    "-shared",
    "-fPIC",
)
NATIVE_FLAGS = {
    "x86_64": "-march=native",
    "AMD64": "-march=native",
    "aarch64": "-mcpu=native",
    "arm64": "-mcpu=native",
}
"""By machine. Others are compiled for the compiler's default processor."""

COMPILE_TIMEOUT_SECONDS = 120.0
"""It takes 2 s on a slow core; a compiler on a network file system may take a while to be read."""
VERSION_TIMEOUT_SECONDS = 20.0

PROCESSOR_LINES = (
    "vendor_id", "cpu family", "model", "model name", "stepping", "flags",
    "CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision", "Features",
)  # fmt: skip


class BuildError(IsentropeError, RuntimeError):
    """Why there is no library, in one sentence."""


def load() -> ctypes.CDLL:
    """The compiled row_moments.cc: from the home, or compiled now and kept there. BuildError: no
    compiler, or one that fails, hangs or makes something that can't be loaded."""
    compiler = find_compiler()
    folder = environment.kernel_cache()
    kept = folder / f"{_key(compiler)}.so"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _only_ours(folder):
            raise PermissionError(f"{folder} can be written by other users")
        if kept.exists():
            try:
                return ctypes.CDLL(str(kept))
            except OSError as error:
                logger.warning(
                    "Isentrope compiles its kernels again: %s can't be loaded (%s).", kept, error
                )
        else:
            logger.warning(
                "Isentrope compiles its CPU kernels once, which takes some 10 s, and keeps them in"
                " %s.",
                folder,
            )
        with tempfile.TemporaryDirectory(
            prefix="building-", dir=folder, ignore_cleanup_errors=True
        ) as scratch:
            built, library = _compiled(compiler, Path(scratch))
            built.chmod(0o755)
            built.replace(kept)
            return library
    except OSError as error:
        logger.warning(
            "Isentrope compiles its kernels in every process, because %s can't keep them: %s",
            folder,
            error,
        )
    with tempfile.TemporaryDirectory(
        prefix="isentrope-kernels-", ignore_cleanup_errors=True
    ) as scratch:
        return _compiled(compiler, Path(scratch))[1]


def find_compiler() -> list[str]:
    """`CXX`, which may hold arguments ("ccache g++"), or the first of the usual names that is on
    the PATH."""
    for words in (shlex.split(os.environ.get("CXX", "")), *([name] for name in COMPILERS)):
        if words and (path := shutil.which(words[0])):
            return [path, *words[1:]]
    raise BuildError(
        f"no C++ compiler found (CXX, {', '.join(COMPILERS)}). Install g++ or clang++: scoring on"
        " the CPU takes several times as long without."
    )


def _key(compiler: list[str]) -> str:
    version = _output_of([*compiler, "--version"], VERSION_TIMEOUT_SECONDS)
    parts = (
        SOURCE.read_bytes().decode(),
        *compiler,
        *_flags(),
        version,
        *platform.libc_ver(),
        *_processor(),
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _flags() -> list[str]:
    native = NATIVE_FLAGS.get(platform.machine())
    if native:
        return [*FLAGS, native]
    return list(FLAGS)


def _processor() -> list[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    kinds = {line for line in lines if line.partition(":")[0].strip() in PROCESSOR_LINES}
    return [platform.system(), platform.machine(), platform.processor(), *sorted(kinds)]


def _only_ours(path: Path) -> bool:
    status = path.stat()
    return status.st_uid in (os.geteuid(), 0) and not status.st_mode & 0o022


def _compiled(compiler: list[str], folder: Path) -> tuple[Path, ctypes.CDLL]:
    """Compile into a folder, and load what came out."""
    built = _compile(compiler, folder)
    try:
        return built, ctypes.CDLL(str(built))
    except OSError as error:
        raise BuildError(f"what {shlex.join(compiler)} made can't be loaded: {error}") from error


def _compile(compiler: list[str], folder: Path) -> Path:
    built = folder / "row_moments.so"
    # The compiler's own temporary files go where they vanish with ours, should it be killed.
    _output_of(
        [*compiler, *_flags(), "-o", str(built), str(SOURCE)],
        COMPILE_TIMEOUT_SECONDS,
        TMPDIR=str(folder),
    )
    return built


def _output_of(command: list[str], timeout_seconds: float, **variables: str) -> str:
    """What a compiler's command prints; its children are ended with it when it takes too long."""
    name = shlex.join(command[:-1] if len(command) == 2 else command[:1])
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "LC_ALL": "C", **variables},
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        raise BuildError(f"the C++ compiler {name} can't be run: {error}") from error
    with process:
        try:
            printed, complaints = process.communicate(timeout=timeout_seconds)
        except subprocess.TimeoutExpired as error:
            os.killpg(process.pid, signal.SIGKILL)
            raise BuildError(
                f"the C++ compiler {name} took more than {timeout_seconds:g} s"
            ) from error
    if process.returncode != 0:
        raise BuildError(
            f"the C++ compiler {name} failed with status {process.returncode}: {_gist(complaints)}"
        )
    return printed


def _gist(complaints: str) -> str:
    """The first line that names an error, else the last one."""
    lines = [line.strip() for line in complaints.splitlines() if line.strip()] or [
        "it printed nothing"
    ]
    return next((line for line in lines if "error" in line.lower()), lines[-1])[:300]

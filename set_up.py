"""Install what a Makefile target needs into .venv, at the versions and hashes of uv.lock: `python
set_up.py EXTRA ...`

uv installs, from the indexes that pip is configured with: uv itself reads no pip configuration.
torch is installed first and apart, because which build is right depends on the machine; one without
a GPU never downloads CUDA unless asked to:

    TORCH_INDEX   the index to take torch from, such as https://download.pytorch.org/whl/cu128
    TORCH         another torch than the locked one, such as torch==2.14.0
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent
BIN = ROOT / ".venv" / ("Scripts" if os.name == "nt" else "bin")
PYTHON = str(BIN / "python")
UV = "uv>=0.13,<0.14"

UV_VARIABLES = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "no-index": ("UV_NO_INDEX", " "),
    "trusted-host": ("UV_INSECURE_HOST", " "),
    "cert": ("SSL_CERT_FILE", " "),
    "proxy": ("ALL_PROXY", " "),
    "timeout": ("UV_HTTP_TIMEOUT", " "),
    "default-timeout": ("UV_HTTP_TIMEOUT", " "),
}
"""pip's settings: the variable in which uv takes them, and what stands between several values
there."""


def main(extras: list[str]) -> None:
    if sys.version_info < (3, 11):  # noqa: UP036  (the one file that an older Python reads)
        sys.exit(
            f"Isentrope needs Python 3.11 or newer, this is {sys.version.split()[0]}. Set"
            " PYTHON=python3.11."
        )
    if not (BIN / "python").exists():
        subprocess.run([sys.executable, "-m", "venv", str(ROOT / ".venv")], check=True)
    uv = str(BIN / "uv")
    if not Path(uv).exists():
        pip("install", "--quiet", "--disable-pip-version-check", UV)
    environment = uv_environment(pip("config", "list"), os.environ)
    torch = [
        line.split()[0]
        for line in export(uv, extras, "--no-hashes").splitlines()
        if line.startswith("torch==")
    ]
    if torch:
        install_torch(uv, os.environ.get("TORCH") or torch[0], environment)
    wanted = export(uv, extras, "--no-emit-package", "torch")
    run(
        [uv, "pip", "install", "--python", PYTHON, "--no-deps", "--require-hashes", "-r", "-"],
        environment,
        wanted,
    )
    run(
        [uv, "pip", "install", "--python", PYTHON, "--no-deps", "--editable", str(ROOT)],
        environment,
    )
    if "trainer" in extras or "all" in extras:
        compile_what_the_demo_imports()


def uv_environment(
    pip_config: str, environment: dict[str, str] | os._Environ[str]
) -> dict[str, str]:
    """The environment for uv: pip's settings, where uv's own variables don't say otherwise.

    Args:
        pip_config: what `pip config list` prints, a `section.name='value'` a line. `:env:` are the
            variables PIP_*.
    """
    found: dict[str, str] = {}
    lines = [line.strip().partition("=") for line in pip_config.splitlines() if "=" in line]
    for section in ("global.", "install.", ":env:."):
        for name, _, value in lines:
            setting = name.removeprefix(section)
            if name.startswith(section) and setting in UV_VARIABLES:
                variable, separator = UV_VARIABLES[setting]
                found[variable] = separator.join(str(ast.literal_eval(value)).split())
    if "UV_INDEX" in found:
        # pip takes the best version of all indexes; uv, unless told, stops at the first that knows
        # the package.
        found["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    return found | dict(environment)


def install_torch(uv: str, torch: str, environment: dict[str, str]) -> None:
    install = [uv, "pip", "install", "--python", PYTHON, "--no-config", torch]
    if index := os.environ.get("TORCH_INDEX"):
        run([*install, "--default-index", index], environment)
        return
    # What the machine's own indexes would bring; nothing is downloaded but metadata.
    planned = run([*install, "--dry-run"], environment, capture=True)
    if "nvidia-" not in planned or shutil.which("nvidia-smi"):
        run(install, environment)
        return
    try:
        run([*install, "--torch-backend", "auto"], environment)
    except subprocess.CalledProcessError:
        sys.exit(
            f"This machine has no GPU, its package index has {torch} with CUDA (some 2.5 GB) only,"
            " and the CPU build at https://download.pytorch.org/whl/cpu can't be installed. Name"
            " another index with TORCH_INDEX=URL, or a folder with the wheel with"
            " PIP_FIND_LINKS=FOLDER. If CUDA is what you want:"
            " TORCH_INDEX=https://pypi.org/simple."
        )


def export(uv: str, extras: list[str], *options: str) -> str:
    chosen = [word for extra in extras for word in ("--extra", extra)]
    command = [
        uv,
        "export",
        "--project",
        str(ROOT),
        "--frozen",
        "--quiet",
        "--no-emit-project",
        *chosen,
        *options,
    ]
    return run(command, dict(os.environ), capture=True)


def compile_what_the_demo_imports() -> None:
    """Now, and not while somebody waits for the first page. Some 1 500 of the 9 000 files, so not
    by `--compile-bytecode`."""
    print("Compiling what the demo imports: half a minute, or more on a busy machine", flush=True)
    environment = {
        name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
    }
    imports = (
        "isentrope_trainer.reference_run",
        "isentrope_server.serving, isentrope_dashboard.app",
    )
    processes = [
        subprocess.Popen([PYTHON, "-W", "ignore", "-c", f"import {names}"], env=environment)
        for names in imports
    ]
    statuses = [process.wait() for process in processes]
    if any(statuses):
        sys.exit("What was installed can't be imported; the error stands above.")


def pip(*arguments: str) -> str:
    return run([PYTHON, "-m", "pip", *arguments], dict(os.environ), capture=True)


def run(
    command: list[str], environment: dict[str, str], stdin: str = "", *, capture: bool = False
) -> str:
    """Run it; its output is shown, or returned. Raises CalledProcessError where it fails."""
    done = subprocess.run(
        command,
        env=environment,
        input=stdin,
        text=True,
        stdout=subprocess.PIPE if capture else None,
        stderr=subprocess.STDOUT if "--dry-run" in command else None,
        check=True,
    )
    return done.stdout if capture else ""


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)

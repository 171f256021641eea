"""What `make` installs, and from where. The real set-up runs before every test; here are its
decisions."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import set_up


def test_pip_settings_reach_uv() -> None:
    config = """
        global.index-url='https://mirror.example/simple'
        global.extra-index-url='https://a.example https://b.example'
        install.find-links='/wheels\\n/more'
        global.cert='/ca.crt'
        global.quiet='1'
        """
    assert set_up.uv_environment(config, {"HOME": "/home"}) == {
        "HOME": "/home",
        "UV_DEFAULT_INDEX": "https://mirror.example/simple",
        "UV_INDEX": "https://a.example https://b.example",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_FIND_LINKS": "/wheels,/more",
        "SSL_CERT_FILE": "/ca.crt",
    }


def test_pip_variables_win_over_pip_files() -> None:
    config = ":env:.index-url='https://variable.example'\nglobal.index-url='https://file.example'"
    assert set_up.uv_environment(config, {}) == {"UV_DEFAULT_INDEX": "https://variable.example"}


def test_uv_variables_win_over_pip() -> None:
    config = "global.index-url='https://pip.example'"
    own = {"UV_DEFAULT_INDEX": "https://uv.example"}
    assert set_up.uv_environment(config, own) == own


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without a GPU; what the stand-in for uv was called with is in this file."""
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.delenv("TORCH_INDEX", raising=False)
    monkeypatch.setattr("shutil.which", lambda name: None)
    return tmp_path / "calls"


def stand_in_for_uv(calls: Path, planned: str, *, torch_backend_works: bool) -> str:
    path = calls.with_name("uv")
    path.write_text(
        f'#!/bin/sh\necho "$*" >> {calls}\ncase "$*" in\n'
        f'*--dry-run*) echo "{planned}" ;;\n'
        f"*--torch-backend*) exit {0 if torch_backend_works else 2} ;;\nesac\n"
    )
    path.chmod(0o755)
    return str(path)


def test_cpu_build_is_taken(calls: Path) -> None:
    uv = stand_in_for_uv(calls, " + torch==2.13.0+cpu", torch_backend_works=False)
    set_up.install_torch(uv, "torch==2.13.0", dict(os.environ))
    assert calls.read_text().splitlines()[-1].endswith("torch==2.13.0")


@pytest.mark.parametrize("works", [True, False])
def test_cuda_is_never_downloaded_unasked(calls: Path, works: bool) -> None:
    uv = stand_in_for_uv(calls, " + nvidia-cublas==13.0 + torch==2.13.0", torch_backend_works=works)
    if works:
        set_up.install_torch(uv, "torch==2.13.0", dict(os.environ))
    else:
        with pytest.raises(SystemExit, match="TORCH_INDEX"):
            set_up.install_torch(uv, "torch==2.13.0", dict(os.environ))
    installs = [call for call in calls.read_text().splitlines() if "--dry-run" not in call]
    assert [call.endswith("--torch-backend auto") for call in installs] == [True]


def test_named_torch_index_is_used_alone(calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_INDEX", "https://cuda.example/cu128")
    uv = stand_in_for_uv(calls, "", torch_backend_works=False)
    set_up.install_torch(uv, "torch==2.13.0", dict(os.environ))
    assert calls.read_text().splitlines() == [
        (
            f"pip install --python {set_up.PYTHON} --no-config torch==2.13.0 --default-index"
            " https://cuda.example/cu128"
        )
    ]

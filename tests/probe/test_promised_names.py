"""What `import isentrope` gives."""

from __future__ import annotations

import subprocess
import sys

import pytest

import isentrope
from isentrope_wire.errors import install_command


def test_promised_errors_stand_in_the_package() -> None:
    base = isentrope.IsentropeError
    promised = (
        "ApiError",
        "ControlConflict",
        "ConfigurationError",
        "InputError",
        "CheckpointError",
    )
    for name in promised:
        assert issubclass(getattr(isentrope, name), base)
        assert name in isentrope.__all__
    assert issubclass(isentrope.ControlConflict, isentrope.ApiError)


def test_to_name_an_error_imports_no_torch() -> None:
    names = "isentrope.ApiError, isentrope.ControlConflict, isentrope.InputError"
    code = f"import sys, isentrope; {names}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_an_address_without_http_is_refused_with_what_it_needs() -> None:
    with (
        isentrope.Client("127.0.0.1:7070", "t") as asked,
        pytest.raises(isentrope.ApiError) as refused,
    ):
        asked.runs()
    assert all(word in str(refused.value) for word in ("127.0.0.1:7070", "http://"))


@pytest.mark.parametrize(("name", "extra"), [("Probe", "probe"), ("attach", "trl")])
def test_missing_package_is_named_with_its_extra(name: str, extra: str) -> None:
    code = f"import sys; sys.modules['torch'] = None; import isentrope; isentrope.{name}"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    last = done.stderr.splitlines()[-1]
    assert f"isentrope.{name} needs the extra {extra}: {install_command(extra)} (there" in last
    assert last.endswith("is no torch).")

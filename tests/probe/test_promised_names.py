"""What `import isentrope` gives."""

from __future__ import annotations

import subprocess
import sys

import pytest

import isentrope
from isentrope import errors
from isentrope.client import client, connection


def test_every_error_a_user_may_catch_can_be_had_from_the_package() -> None:
    raised = {
        error
        for module in (client, errors, connection)
        for error in vars(module).values()
        if isinstance(error, type) and issubclass(error, isentrope.IsentropeError)
    }
    # Between probe and server, and of no call that a user makes.
    for error in raised - {errors.CodecError}:
        assert getattr(isentrope, error.__name__) is error
        assert error.__name__ in isentrope.__all__


def test_to_name_an_error_imports_no_torch() -> None:
    names = "isentrope.NotFound, isentrope.ControlConflict, isentrope.InputError"
    code = f"import sys, isentrope; {names}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_an_address_without_http_is_told_what_it_needs() -> None:
    with isentrope.Client("127.0.0.1:7070", "t") as asked, pytest.raises(isentrope.ServerUnreachable) as refused:
        asked.runs()
    assert all(word in str(refused.value) for word in ("127.0.0.1:7070", "http://"))

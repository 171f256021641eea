"""The command that an error about a missing package advises."""

from __future__ import annotations

import importlib.metadata
from types import SimpleNamespace

import pytest

from isentrope_wire.errors import install_command


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (
            '{"url": "file:///home/ada/a%20clone", "dir_info": {"editable": true}}',
            "pip install --editable '/home/ada/a clone[watch]'",
        ),
        (
            '{"url": "file:///home/ada/clone", "dir_info": {}}',
            "pip install '/home/ada/clone[watch]'",
        ),
        (
            '{"url": "https://example.com/isentrope.git", "vcs_info": {}}',
            "pip install 'isentrope[watch]'",
        ),
        (None, "pip install 'isentrope[watch]'"),
        ("{", "pip install 'isentrope[watch]'"),
    ],
)
def test_an_extra_is_installed_from_where_isentrope_came(
    monkeypatch: pytest.MonkeyPatch, origin: str | None, command: str
) -> None:
    installed = SimpleNamespace(read_text=lambda name: origin if name == "direct_url.json" else "")
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: installed)
    assert install_command("watch") == command


def test_without_an_extra_isentrope_alone_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_installed(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", not_installed)
    assert install_command() == "pip install isentrope"

"""The control file: whole or not at all."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from isentrope.transport.spool_folder import ControlFile
from isentrope_wire.control import Control, Method, Scope
from isentrope_wire.reports import ControlSnapshot

SNAPSHOT = ControlSnapshot(
    version=7,
    control=Control(
        method=Method.CLIP_V,
        mu_low=1.5,
        scope=Scope.NEGATIVE,
        parameters={"denominator": "keep"},
        reason="entropy falls too fast — µ⁻",
    ),
    author="ada",
    requested_at=1000.25,
    expires_at=1060.5,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "control"


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff\xfe", b"\0" * 12, b"\0" * 100, b'{"version": 8}'],
    ids=["empty", "two bytes", "zeros of a header", "zeros", "text"],
)
def test_torn_or_invalid_content_leaves_the_last_good_control_and_is_said_once(
    path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    reader = ControlFile(path)
    reader.write(SNAPSHOT)
    assert reader.read() == SNAPSHOT
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert [reader.read() for _ in range(3)] == [SNAPSHOT] * 3
    assert len(caplog.records) == 1


def test_a_torn_file_is_no_control(path: Path) -> None:
    ControlFile(path).write(SNAPSHOT)
    content = path.read_bytes()
    for kept in range(len(content)):
        path.write_bytes(content[:kept])
        assert ControlFile(path).read() is None


def test_a_vanished_file_changes_nothing(path: Path) -> None:
    reader = ControlFile(path)
    reader.write(SNAPSHOT)
    reader.read()
    path.unlink()
    assert reader.read() == SNAPSHOT


def test_only_the_owner_can_read_it_and_no_draft_stays_behind(path: Path) -> None:
    ControlFile(path).write(SNAPSHOT)
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["control"]


def test_an_unreadable_version_stays_one_on_its_way_through_the_file(path: Path) -> None:
    unreadable = ControlSnapshot(
        version=8,
        control=Control(),
        author="a",
        requested_at=0.0,
        unreadable="A control must be a JSON object.",
    )
    ControlFile(path).write(unreadable)
    assert ControlFile(path).read() == unreadable

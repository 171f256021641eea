"""SQLite only where it is safe."""

from __future__ import annotations

from pathlib import Path

import pytest

from isentrope_server.store.sqlite_file import (
    NetworkFileSystem,
    check_file_system,
    file_system_of,
    old_library_warning,
)

MOUNTS = """\
overlay / overlay rw 0 0
/dev/sda1 /home ext4 rw 0 0
server:/vol /home/ada nfs4 rw 0 0
server:/vol /mnt/with\\040blank cifs rw 0 0
tmpfs /home/ada/fast tmpfs rw 0 0
"""


@pytest.fixture
def mounts(tmp_path: Path) -> Path:
    file = tmp_path / "mounts"
    file.write_text(MOUNTS)
    return file


@pytest.mark.parametrize("home", ["/home/ada/.isentrope", "/mnt/with blank/home"])
def test_a_database_on_a_network_file_system_is_refused(mounts: Path, home: str) -> None:
    with pytest.raises(NetworkFileSystem, match="PostgreSQL"):
        check_file_system(Path(home) / "isentrope.db", mounts)


@pytest.mark.parametrize(
    ("home", "kind"),
    [("/home/grace", "ext4"), ("/home/ada/fast/x", "tmpfs"), ("/home/adam", "ext4"), ("/srv", "overlay")],
)
def test_a_local_disk_is_fine_and_the_nearest_mount_counts(mounts: Path, home: str, kind: str) -> None:
    assert file_system_of(Path(home) / "isentrope.db", mounts) == kind
    check_file_system(Path(home) / "isentrope.db", mounts)


def test_where_the_system_does_not_tell_nothing_is_refused(tmp_path: Path) -> None:
    check_file_system(tmp_path / "isentrope.db", tmp_path / "no such file")


def test_a_library_that_can_corrupt_a_database_is_warned_of() -> None:
    assert "3.40.1" in (old_library_warning((3, 40, 1)) or "")
    assert "3.51.2" in (old_library_warning((3, 51, 2)) or "")
    assert old_library_warning((3, 51, 3)) is None
    assert old_library_warning((4, 0, 0)) is None

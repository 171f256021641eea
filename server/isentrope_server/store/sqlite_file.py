"""What SQLite's file needs: a file system that locks, and a library without a known fault."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from isentrope_wire.errors import IsentropeError

_NETWORK_FILE_SYSTEMS = frozenset(
    {
        "nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "glusterfs", "lustre", "gpfs", "beegfs", "ocfs2",
        "fuse.sshfs", "fuse.glusterfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.rclone", "fuse.ceph", "fuse.juicefs",
    }
)  # fmt: skip
_FIXED_IN = (3, 51, 3)
_MOUNTS = Path("/proc/mounts")


class NetworkFileSystem(IsentropeError, OSError):
    """SQLite's database would lie where its locks and its shared memory don't work."""

    def __str__(self) -> str:
        return str(self.args[0])


def check_file_system(database: Path, mounts: Path = _MOUNTS) -> None:
    """
    Raises:
        NetworkFileSystem: the database would lie on one.
    """
    kind = file_system_of(database, mounts)
    if kind in _NETWORK_FILE_SYSTEMS:
        raise NetworkFileSystem(
            f"it lies on a network file system ({kind}), where SQLite's locks fail and data is lost; "
            "put the home on a local disk, or use PostgreSQL"
        )


def file_system_of(path: Path, mounts: Path = _MOUNTS) -> str | None:
    """The type of the file system a file lies on, or would lie on; None where the system doesn't tell."""
    if not mounts.exists():
        return None
    place = path.resolve()
    kind: str | None = None
    longest = -1
    for line in mounts.read_text(encoding="utf-8", errors="replace").splitlines():
        _, mounted_on, this_kind, *_ = line.split(" ")
        # Blanks in a path are written as octal numbers.
        root = Path(mounted_on.encode().decode("unicode_escape"))
        # Of two mounts on one place the later one is seen.
        if place.is_relative_to(root) and len(root.parts) >= longest:
            kind, longest = this_kind, len(root.parts)
    return kind


def old_library_note(version: tuple[int, int, int] = sqlite3.sqlite_version_info) -> str | None:
    """What to say of a library with a known fault; None: it has none."""
    if version >= _FIXED_IN:
        return None
    named, fixed = (".".join(map(str, numbers)) for numbers in (version, _FIXED_IN))
    return (
        f"let no other program write to this database while the server runs: SQLite {named} can damage one that two "
        f"write to (fixed in {fixed}). Isentrope itself is safe, it writes with one connection."
    )

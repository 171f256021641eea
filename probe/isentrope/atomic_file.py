"""A file that is read whole: the old content or the new one, never a part of either."""

from __future__ import annotations

import os
from pathlib import Path


def write_atomically(path: Path, content: bytes, *, lasting: bool = False) -> None:
    """Replace `path` by `content`, readable by its owner alone.

    Only one writer at a time per path.

    Args:
        lasting: flush the content to the disk first. Otherwise the file may be torn after a power cut, and whoever
            reads it must survive that.

    Raises:
        OSError: the folder is gone, read-only or full.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            if lasting:
                file.flush()
                os.fsync(file.fileno())
        os.replace(draft, path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise

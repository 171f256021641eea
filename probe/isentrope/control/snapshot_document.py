"""A desired control as JSON: what lies in the control file, and what rank 0 tells the others."""

from __future__ import annotations

import json
from collections.abc import Mapping

from isentrope_wire.control import Control
from isentrope_wire.errors import CodecError, ControlError
from isentrope_wire.messages import ControlSnapshot


def encode_snapshot(snapshot: ControlSnapshot) -> bytes:
    """The snapshot as one JSON object."""
    document = {
        "version": snapshot.version,
        "control": snapshot.control.to_document(),
        "author": snapshot.author,
        "requested_at": snapshot.requested_at,
        "expires_at": snapshot.expires_at,
        "unreadable": snapshot.unreadable,
    }
    return json.dumps(document).encode()


def decode_snapshot(content: bytes) -> ControlSnapshot:
    """What `encode_snapshot` wrote. A control that no probe of this version can apply comes as `unreadable`.

    Raises:
        CodecError: it is something else.
    """
    try:
        document = json.loads(content)
        expires_at = document["expires_at"]
        control, unreadable = _control(document["control"], str(document.get("unreadable", "")))
        return ControlSnapshot(
            version=_version(document["version"]),
            control=control,
            author=str(document["author"]),
            requested_at=float(document["requested_at"]),
            expires_at=None if expires_at is None else float(expires_at),
            unreadable=unreadable,
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        # json.JSONDecodeError and UnicodeDecodeError are ValueErrors.
        raise CodecError(f"expected a control snapshot as JSON, got {content[:80]!r} ({error}).") from error


def _control(document: Mapping[str, object], unreadable: str) -> tuple[Control, str]:
    try:
        return Control.from_document(document), unreadable
    except ControlError as error:
        return Control(), str(error)


def _version(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"a control's version is a whole number from 0 on, got {value!r}")
    return value

"""What the training process says of its spool's end: the file `end`."""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SpoolEnd:
    """The last record's number, and what takes the place of records that were not written before the process ended."""

    last_seq: int
    reason: str = ""
    """Why records up to the last may be missing; empty: the writer came to its end, and all of them were on disk."""
    last_payload: bytes = b""
    """The last record itself, where it was at hand and the segments may lack it."""

    def to_bytes(self) -> bytes:
        """As it stands in the file; a bare number where there is nothing else to say."""
        if not self.reason:
            return str(self.last_seq).encode()
        document = {"last_seq": self.last_seq, "reason": self.reason, "last_payload": self.last_payload.hex()}
        return json.dumps(document).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> SpoolEnd:
        """
        Raises:
            ValueError: the file is torn, or none of ours.
        """
        document = json.loads(content)
        if isinstance(document, int):
            return cls(document)
        try:
            return cls(int(document["last_seq"]), str(document["reason"]), bytes.fromhex(str(document["last_payload"])))
        except (KeyError, TypeError) as error:
            raise ValueError(f"An end of a spool is a number or says last_seq, got {content[:80]!r}.") from error

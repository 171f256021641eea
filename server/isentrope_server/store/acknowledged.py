"""How far each stream was acknowledged, in a small file beside the database.

A database that lost what it had committed, as one whose `-wal` was removed or that was restored
from a backup, can't know it. The file is as of the last second; what it says beyond the database is
shown as gaps."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from sqlalchemy import Connection

from isentrope_server.store import runs, streams
from isentrope_server.store.streams import Stream
from isentrope_wire.answers import Gap
from isentrope_wire.numbers import printable

_log = logging.getLogger(__name__)

FILE_NAME = "acknowledged"
STREAMS_KEPT = 5_000
LOST = (
    "the server had acknowledged these records and has them no longer; `isentrope sync` where the "
    "run trained sends again what is kept there"
)


class Acknowledged:
    """What this server has acknowledged. May be used from any thread."""

    def __init__(self, home: Path) -> None:
        self._file = home / FILE_NAME
        self._through: OrderedDict[tuple[str, str, int], int] = OrderedDict()
        self._changing = threading.Lock()
        self._is_changed = False

    def note(self, run_id: str, incarnation: str, rank: int, through: int) -> None:
        """Every record of a stream up to this one is stored."""
        key = (run_id, incarnation, rank)
        with self._changing:
            self._through[key] = max(through, self._through.get(key, 0))
            self._through.move_to_end(key)
            self._is_changed = True
            if len(self._through) > STREAMS_KEPT:
                self._through.popitem(last=False)

    def gaps(self, run_id: str, known: Sequence[Stream]) -> list[Gap]:
        """What the database lost of a run with these streams."""
        found = []
        for stream in known:
            through = self._through.get((run_id, stream.incarnation, stream.rank), 0)
            if through > stream.acked_through:
                found.append(
                    Gap(
                        incarnation=stream.incarnation,
                        rank=stream.rank,
                        first_seq=stream.acked_through + 1,
                        last_seq=through,
                        reason=LOST,
                    )
                )
        return found

    def load(self, connection: Connection) -> None:
        """Read the file, and log what the database has no longer; runs that it does not know are
        named once."""
        try:
            rows = json.loads(self._file.read_bytes())
            self._through.update({(str(r), str(i), int(n)): int(t) for r, i, n, t in rows})
        except (OSError, ValueError, TypeError):
            # No file yet, or none that can be read: nothing is known.
            return
        behind = set[str]()
        for (run_id, incarnation, rank), through in list(self._through.items()):
            stream = streams.find(connection, run_id, incarnation, rank)
            if stream is None:
                del self._through[run_id, incarnation, rank]
            if through > (0 if stream is None else stream.acked_through):
                behind.add(run_id)
        lost = sorted(run_id for run_id in behind if not runs.was_deleted(connection, run_id))
        if lost:
            _log.error(
                "The database has no longer all that was acknowledged of %d runs, %s the first: "
                "shown as gaps. `isentrope sync` where they trained sends again what is kept.",
                len(lost),
                printable(lost[0]),
            )

    def save(self) -> None:
        """Write the file where something was acknowledged since. One that can't be written is
        tried again."""
        with self._changing:
            if not self._is_changed:
                return
            rows = [[*key, through] for key, through in self._through.items()]
            self._is_changed = False
        draft = self._file.with_name(f".{FILE_NAME}.{os.getpid()}")
        with suppress(OSError):
            draft.touch(mode=0o600)
            draft.write_text(json.dumps(rows))
            os.replace(draft, self._file)

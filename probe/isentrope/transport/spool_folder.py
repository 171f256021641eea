"""The folder through which training process and shipper talk, and the names of the files in it.

    ISENTROPE_HOME/spool/RUN/INCARNATION/rank-N/
        run.payload     the run and rank: RunStarted               written once by the training
        target          host:port of the server's ingest           written once by the training
        NUMBER.seg      records, see `segments`                    training writes, shipper deletes
        sent/           segments the server has acknowledged, kept for ISENTROPE_KEEP_DELIVERED
        NUMBER.damaged  a segment some of which could not be read  kept to be examined
        reserve         room for a full disk                       the training, see `spool_disk`
        end             the last record's number, see `SpoolEnd`   the training, at its close
        trainer.lock    held while the training process lives
        shipper.lock    held while a shipper works on the folder
        control         the requested control                      shipper writes, training reads
        status.json     how far the shipper is, and its error      shipper writes, training reads
        shipper.log     the shipper's log; bounded
        shipper.errors  stderr of the shipper, for one that died

Everything is readable by the owner alone: configurations hold secrets. No token is ever written
here. When all is delivered the shipper moves the folder to ISENTROPE_HOME/delivered, where
`isentrope sync` finds it while its time lasts; it removes one that keeps nothing. Damaged segments
stay."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import struct
import time
import zlib
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from isentrope.guard import SafeLog
from isentrope.transport.files import (
    ProcessLock,
    is_held_by_another_process,
    read_document,
    write_atomically,
)
from isentrope.transport.segments import (
    MAX_PAYLOAD_BYTES,
    SENT,
    list_segments,
    read_segment,
    sync_folder,
)
from isentrope_wire import environment
from isentrope_wire.codec import decode_control, decode_payload, encode_control, encode_payload
from isentrope_wire.errors import CodecError, ConfigurationError, IsentropeError
from isentrope_wire.reports import ControlSnapshot, RunStarted

logger = SafeLog(__name__)


@dataclass(frozen=True, slots=True)
class SpoolEnd:
    """The file `end`: the last record's number, and the reason of the gap where records were not
    written in time."""

    last_seq: int
    reason: str = ""
    """Why records up to the last may be missing; empty: the writer finished, and all of them are on
    disk."""
    last_payload: bytes = b""
    """The last record itself, where it was known and the segments may lack it."""


_RUN_FILE = "run.payload"
_SERVER_OF = " is the server of the home "
"""In the file `target`, between its address and its home: it may come back at another address."""
SPOOLS, DELIVERED = "spool", "delivered"
"""Folders of a home: of spools to deliver, and of delivered ones that are kept."""
DELIVERED_BYTES = 1024 * 1024 * 1024
_NOT_IN_A_FOLDER_NAME = re.compile(r"[^A-Za-z0-9._-]")


class SpoolError(IsentropeError, OSError):
    """A spool folder can't be made, or a folder is none."""


class SpoolFolder:
    """The spool of one rank of one attempt (`incarnation`) of a run."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.trainer_lock = self.path / "trainer.lock"
        self.shipper_lock = self.path / "shipper.lock"
        self.control = self.path / "control"
        self.status = self.path / "status.json"
        self.log = self.path / "shipper.log"
        self.errors = self.path / "shipper.errors"
        self.end = self.path / "end"
        self.wanted = self.path / "wanted"
        """Made by a `sync` that waits for a shipper whose training process has ended."""

    @classmethod
    def create(cls, home: Path, run: RunStarted, grpc_target: str) -> SpoolFolder:
        """Make the folder of a new attempt. SpoolError: the home can't be written to, or this
        attempt has a spool already. ConfigurationError: the run's description is larger than a
        record may be."""
        payload = encode_payload(run)
        if len(payload) > MAX_PAYLOAD_BYTES:
            raise ConfigurationError(
                "The description of a run, its config and tags above all, may take"
                f" {MAX_PAYLOAD_BYTES} bytes, got {len(payload)}. Leave out what is large."
            )
        path = home.joinpath(SPOOLS, *_folder_names(run))
        folder = cls(path)
        try:
            _make_private_folder(path)
            target = grpc_target
            if (environment.server_of(home) or {}).get("grpc") == grpc_target:
                target += f"{_SERVER_OF}{home.absolute()}"
            write_atomically(folder.path / "target", target.encode(), lasting=True)
            # Unlocked, but there: a missing file was removed, and does not show whether the process
            # lives.
            folder.trainer_lock.touch(mode=0o600)
            write_atomically(folder.path / _RUN_FILE, payload, lasting=True)
            for named_in in (path, path.parent, path.parent.parent):
                sync_folder(named_in)
        except FileExistsError:
            raise SpoolError(
                f"Expected a new incarnation of run {run.run_id}, but there is something at {path}"
                " already. Give each start of the training process its own incarnation."
            ) from None
        except OSError as error:
            raise SpoolError(
                f"The spool needs a folder it can write to, but {path} is not one"
                f" ({os.strerror(error.errno or 0)}). Point ISENTROPE_HOME at a folder on a local"
                " disk that you own."
            ) from error
        return folder

    def restore(self, run: RunStarted, target: bytes, trainer_lock: ProcessLock) -> None:
        """Make the folder of a living attempt again, with its lock held, or take it back from the
        delivered ones, where a `sync` moves an attempt whose lock it can't see.
        OSError: the home can't be written to."""
        kept = self.path.parents[3].joinpath(DELIVERED, *self.path.parts[-3:])
        if kept.is_dir() and not self.path.exists() and not (kept / self.end.name).exists():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            kept.rename(self.path)
            # The segment that is being written: what it got since it was read is not delivered.
            for segment in list_segments(self.path / SENT)[-1:]:
                segment.rename(self.path / segment.name)
        if not self.path.is_dir():
            _make_private_folder(self.path)
        trainer_lock.take_again()
        # The last one is what makes it a spool: whoever sees it then sees the lock as well.
        for name, content in (("target", target), (_RUN_FILE, encode_payload(run))):
            if not (self.path / name).exists():
                write_atomically(self.path / name, content, lasting=True)

    def run(self) -> RunStarted:
        """The run and rank that report through this folder: of the first record where it is there
        and fits the folder's name, for it has a checksum. SpoolError: this is no spool folder, or
        its description is damaged."""
        first_record = self._first_record()
        if first_record is not None and self.path.parts[-3:] == _folder_names(first_record):
            return first_record
        try:
            message = decode_payload((self.path / _RUN_FILE).read_bytes())
        except (OSError, CodecError) as error:
            if first_record is not None:
                return first_record
            raise SpoolError(
                f"{self.path} is no spool folder: it lacks a readable {_RUN_FILE} ({error})."
            ) from error
        if not isinstance(message, RunStarted):
            raise SpoolError(
                f"{self.path / _RUN_FILE} should hold the run that reports; it holds another"
                " message."
            )
        return message

    def _first_record(self) -> RunStarted | None:
        try:
            oldest = next(iter(list_segments(self.path)), None)
            if oldest is None:
                first = None
            else:
                first = next(iter(read_segment(oldest).frames), None)
            message = None
            if first is not None:
                message = decode_payload(first.payload)
        except (OSError, CodecError):
            return None
        if isinstance(message, RunStarted):
            return message
        return None

    def grpc_target(self) -> str:
        """host:port the reports were meant for; of the default one, what is meant by default now,
        and of the server of this home, where it is now. SpoolError: this is no spool folder."""
        try:
            target = (self.path / "target").read_text(encoding="utf-8").strip()
        except OSError as error:
            raise SpoolError(
                f"{self.path} is no spool folder: it names no server ({error})."
            ) from error
        if target == environment.DEFAULT_GRPC:
            return environment.grpc_target()
        target, _, home = target.partition(_SERVER_OF)
        if home:
            return (environment.server_of(Path(home)) or {}).get("grpc", target)
        return target

    def read_end(self) -> SpoolEnd | None:
        """How the spool ended; None: the training process did not close it, or not all of it
        survived."""
        return read_document(SpoolEnd, self.end)

    @property
    def exists(self) -> bool:
        """False once all was delivered."""
        return (self.path / _RUN_FILE).exists()

    @property
    def home(self) -> Path | None:
        """The home that it lies in; None for a copy elsewhere."""
        if self.path.parts[-4:-3] in ((SPOOLS,), (DELIVERED,)):
            return self.path.parents[3]
        return None

    @property
    def is_kept(self) -> bool:
        """Whether it was delivered, and is kept in case the server is restored from a backup."""
        return self.path.parts[-4:-3] == (DELIVERED,)

    def retire(self) -> None:
        """Move a delivered spool to those that are kept; remove it where it keeps nothing, or holds
        damaged segments."""
        if self.is_kept:
            return
        home = self.home
        if (
            home is not None
            and list_segments(self.path / SENT)
            and not list(self.path.glob("*.damaged"))
        ):
            place = home.joinpath(DELIVERED, *self.path.parts[-3:])
            with contextlib.suppress(OSError):
                place.parent.mkdir(parents=True, exist_ok=True)
                self.path.rename(place)
        self.remove()

    def remove(self) -> None:
        """Remove the files of a delivered spool, and the folders above it that are then empty.
        Damaged segments stay."""
        kept = list(self.path.glob("*.damaged"))
        shutil.rmtree(self.path / SENT, ignore_errors=True)
        with contextlib.suppress(OSError):
            for path in sorted(self.path.iterdir(), key=lambda path: path.name == _RUN_FILE):
                if (
                    path.is_file()
                    and path not in kept
                    and not (kept and path.name in (_RUN_FILE, "target"))
                ):
                    path.unlink(missing_ok=True)
        for folder in (self.path, self.path.parent, self.path.parent.parent):
            with contextlib.suppress(OSError):
                folder.rmdir()


def _make_private_folder(path: Path) -> None:
    """`mkdir(mode=)` applies to the last folder only, and that one holds the data."""
    for attempt in range(3):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            path.mkdir(mode=0o700)
        except FileNotFoundError:
            # The shipper of an earlier attempt has just removed an empty folder.
            if attempt == 2:
                raise
        else:
            return


def find_spool_folders(root: Path) -> list[SpoolFolder]:
    """All spool folders at or below `root`, in the order of their paths."""
    # Unlike a glob, a walk skips folders that their shippers remove meanwhile.
    return [
        SpoolFolder(Path(folder))
        for folder in sorted(f for f, _, files in os.walk(root) if _RUN_FILE in files)
    ]


def drop_delivered(home: Path, seconds: float) -> None:
    """Remove the delivered spools of a home that were kept longer, and the oldest beyond
    DELIVERED_BYTES together."""
    found: list[tuple[float, int, SpoolFolder]] = []
    for folder in find_spool_folders(home / DELIVERED):
        with contextlib.suppress(OSError):
            sizes = [segment.stat() for segment in list_segments(folder.path / SENT)]
            delivered_at = max((size.st_mtime for size in sizes), default=0.0)
            found.append((delivered_at, sum(size.st_size for size in sizes), folder))
    room = DELIVERED_BYTES
    for delivered_at, size, folder in sorted(found, key=lambda one: one[0], reverse=True):
        room -= size
        if room < 0 or delivered_at < time.time() - seconds:
            with contextlib.suppress(OSError):
                if not is_held_by_another_process(folder.shipper_lock):
                    folder.remove()


def _folder_names(run: RunStarted) -> tuple[str, str, str]:
    return folder_name(run.run_id), folder_name(run.incarnation), f"rank-{run.rank}"


def folder_name(identifier: str) -> str:
    """An identifier as a folder's name: no separators, nothing hidden, never empty."""
    return _NOT_IN_A_FOLDER_NAME.sub("_", identifier).lstrip(".") or "_"


def records_are(records: int) -> str:
    """`1 record is`, `2 records are`."""
    if records == 1:
        return f"{records} record is"
    return f"{records} records are"


class ShipperState(StrEnum):
    """What the shipper is doing."""

    STARTING = "starting"
    DELIVERING = "delivering"
    RETRYING = "retrying"
    """The server does not answer; tried again with growing pauses."""
    HOLDING = "holding"
    """The server refuses, e.g. the token; the data is kept, and tried again with growing pauses."""
    DRAINED = "drained"
    """The training process is gone and everything is stored."""
    GAVE_UP = "gave_up"
    """The training process is gone and the server stayed away; `isentrope sync` delivers the
    rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShipperStatus:
    """How far the shipper is: a small file that the training process and `isentrope doctor`
    read."""

    state: ShipperState = ShipperState.STARTING
    acked_through: int = 0
    error: str = ""
    pid: int = 0
    reached: bool = False
    """Whether the server has answered this shipper at least once."""
    note: str = ""
    """What the server has to say to the training's log; empty: nothing."""
    lost_by_the_server: int = 0
    """Records that the server had acknowledged and no longer had."""

    @property
    def summary(self) -> str:
        """The state and its error in one line."""
        return f"{self.state}: {' '.join(self.error.split()).rstrip('.')}"

    @classmethod
    def read(cls, path: Path) -> ShipperStatus | None:
        """The newest status; None when there is none that can be read."""
        return read_document(cls, path)


_CHECKSUM = struct.Struct("<I")


class ControlFile:
    """The requested control on its way from the shipper to the training process: a CRC-32 and the
    snapshot.

    Content that can't be read changes nothing: the last good snapshot stays.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._newest: ControlSnapshot | None = None
        self._fingerprint: tuple[int, int, int] | None = None

    def write(self, snapshot: ControlSnapshot) -> None:
        """Replace the file's content; OSError: the spool folder is gone, read-only or full."""
        content = encode_control(snapshot)
        write_atomically(self._path, _CHECKSUM.pack(zlib.crc32(content)) + content)

    def read(self) -> ControlSnapshot | None:
        """The newest snapshot, None before there is one. Costs one `stat` when the file has not
        changed."""
        with contextlib.suppress(OSError):  # no file yet, or it was removed
            status = self._path.stat()
            fingerprint = (status.st_ino, status.st_mtime_ns, status.st_size)
            if fingerprint != self._fingerprint:
                content = self._path.read_bytes()
                # Remembered before the content is decoded, so that bad content is decoded, and
                # logged, once.
                self._fingerprint = fingerprint
                try:
                    self._newest = _decoded_control(content)
                except CodecError as error:
                    logger.warning("%s is ignored, the active control stays: %s", self._path, error)
        return self._newest


def _decoded_control(content: bytes) -> ControlSnapshot:
    # A file torn by a power cut could otherwise be read as a control that lacks its last fields.
    snapshot = content[_CHECKSUM.size :]
    if not snapshot or content[: _CHECKSUM.size] != _CHECKSUM.pack(zlib.crc32(snapshot)):
        raise CodecError(
            f"expected a control snapshot with its checksum, got {len(content)} other bytes."
        )
    return decode_control(snapshot)

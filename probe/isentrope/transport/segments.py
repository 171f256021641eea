"""The spool's file format: append-only segments of framed records, readable after any crash.

    segment = header, frame, frame, ...
    header  = "ISENTSEG" (8 bytes), version (uint32), reserved (uint32)
    frame   = "\\xf5IsF" (4 bytes), payload length (uint32), CRC-32 (uint32), seq (uint64), payload

All integers are little-endian; the CRC covers length, seq and payload. Opening a segment never
fails because of its
content: a torn tail ends the reading at the last good frame, a damaged middle is skipped up to the
next frame whose CRC is right. What was lost shows in the sequence numbers, which rise by one from
record to record."""

from __future__ import annotations

import contextlib
import os
import struct
import time
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from isentrope.transport.files import is_at

MAGIC = b"ISENTSEG"
VERSION = 1
_HEADER = struct.Struct("<8sII")
HEADER_BYTES = _HEADER.size

FRAME_MARK = b"\xf5IsF"
_FRAME = struct.Struct("<4sIIQ")
FRAME_BYTES = _FRAME.size
"""What a frame adds to its payload."""
_CHECKED = struct.Struct("<IQ")

MAX_PAYLOAD_BYTES = 8 * 1024 * 1024
"""Longer than any report. A larger length is damage, not a frame."""

SUFFIX = ".seg"

SENT = "sent"
"""Folder in a spool with the segments that the server has acknowledged: it may be restored from a
backup."""
SENT_BYTES = 256 * 1024 * 1024
"""The most it holds."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One record as it lies in a segment."""

    seq: int
    payload: bytes
    end_offset: int
    """Where the next frame begins, in bytes from the segment's start."""


@dataclass(frozen=True, slots=True)
class SegmentContent:
    """What could be read of a segment from some offset on."""

    frames: tuple[Frame, ...]
    damaged: bool
    """Bytes were skipped in front of a good frame."""
    tail_bytes: int
    """Bytes behind the last good frame: a frame still being written, or torn."""


def segment_name(first_seq: int) -> str:
    """File name of the segment whose first record is `first_seq`; names sort as their records
    do."""
    return f"{first_seq:020d}{SUFFIX}"


def first_seq_of(path: Path) -> int:
    """The first sequence number of a segment, by its name."""
    return int(path.stem)


def list_segments(folder: Path) -> list[Path]:
    """The segments of a folder, oldest first."""
    return sorted(path for path in folder.glob(f"*{SUFFIX}") if path.stem.isdigit())


def keep_sent(segment: Path, seconds: float) -> None:
    """Move an acknowledged segment to the sent ones (OSError: it can't be), and delete those that
    are too many or too old."""
    sent = segment.parent / SENT
    sent.mkdir(mode=0o700, exist_ok=True)
    # The time counts from the acknowledgement.
    os.utime(segment)
    os.replace(segment, sent / segment.name)
    drop_sent(sent, seconds, SENT_BYTES)


def drop_sent(sent: Path, seconds: float, most_bytes: int) -> int:
    """Delete sent segments that were acknowledged longer ago, and the oldest beyond a size or what
    is free on the disk; how many."""
    disk = os.statvfs(sent)
    room, dropped = min(most_bytes, disk.f_bavail * disk.f_frsize), 0
    for segment in reversed(list_segments(sent)):
        with contextlib.suppress(FileNotFoundError):
            status = segment.stat()
            room -= status.st_size
            if room < 0 or status.st_mtime < time.time() - seconds:
                segment.unlink()
                dropped += 1
    return dropped


def encode_frame(seq: int, payload: bytes) -> bytes:
    """The bytes of one frame; ValueError: the payload is longer than MAX_PAYLOAD_BYTES."""
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise ValueError(
            f"A record holds at most {MAX_PAYLOAD_BYTES} bytes, got {len(payload)}: report fewer"
            " values."
        )
    return (
        _FRAME.pack(FRAME_MARK, len(payload), _checksum(len(payload), seq, payload), seq) + payload
    )


class SegmentWriter:
    """Appends frames to one new segment. Written unbuffered: a killed process loses nothing it had
    appended."""

    def __init__(self, folder: Path, first_seq: int) -> None:
        """FileExistsError: another process writes this spool. OSError: the folder is gone,
        read-only or full."""
        self.path = folder / segment_name(first_seq)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._descriptor = os.open(self.path, flags, 0o600)
        self.size_bytes = 0
        try:
            self._append(_HEADER.pack(MAGIC, VERSION, 0))
            # Otherwise a power cut removes the file's name, and with it all that was synced into
            # the file.
            sync_folder(folder)
        except OSError:
            # A full disk still lets a file be removed; if it stayed, its name would block the next
            # attempt.
            self.close()
            self.path.unlink(missing_ok=True)
            raise

    @property
    def is_in_place(self) -> bool:
        """False once the file was removed or moved: what is written then has no name."""
        return is_at(self.path, self._descriptor)

    @property
    def holds_frames(self) -> bool:
        return self.size_bytes > HEADER_BYTES

    def append(self, frames: Iterable[bytes]) -> None:
        """Write frames, all of them or none. OSError: the disk is full or gone; the segment then
        ends at the last frame before, or is torn there."""
        self._append(b"".join(frames))

    def sync(self) -> None:
        """Wait until what was appended survives a power cut. OSError: it may not, also when a later
        call succeeds: the system drops what it could not write."""
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)

    def _append(self, content: bytes) -> None:
        view = memoryview(content)
        written = 0
        try:
            while written < len(view):
                written += os.write(self._descriptor, view[written:])
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self.size_bytes)
                os.lseek(self._descriptor, self.size_bytes, os.SEEK_SET)
            raise
        self.size_bytes += written


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_segment(path: Path, offset: int = 0) -> SegmentContent:
    """Read the good frames of a segment from an `offset` on: 0, or the `end_offset` of a frame read
    before. OSError: the file is gone or can't be read; never because of its content."""
    with path.open("rb") as file:
        file.seek(offset)
        data = file.read()
    frames: list[Frame] = []
    damaged = False
    header = _HEADER.pack(MAGIC, VERSION, 0)
    position = 0
    if offset == 0:
        if data.startswith(header):
            position = HEADER_BYTES
        else:
            damaged = len(data) >= HEADER_BYTES
    end = position
    for start, seq, payload in _good_frames(data, position):
        damaged = damaged or start != end
        end = start + FRAME_BYTES + len(payload)
        frames.append(Frame(seq, payload, offset + end))
    return SegmentContent(tuple(frames), damaged, len(data) - end)


def _good_frames(data: bytes, position: int) -> Iterator[tuple[int, int, bytes]]:
    """(start, seq, payload) of each frame whose CRC is right; after damage the search continues at
    the next mark."""
    while True:
        position = data.find(FRAME_MARK, position)
        if position < 0 or position + FRAME_BYTES > len(data):
            return
        _, length, checksum, seq = _FRAME.unpack_from(data, position)
        payload = b""
        if length <= MAX_PAYLOAD_BYTES:
            payload = data[position + FRAME_BYTES : position + FRAME_BYTES + length]
        if len(payload) == length and _checksum(length, seq, payload) == checksum:
            yield position, seq, payload
            position += FRAME_BYTES + length
        else:
            position += 1


def _checksum(length: int, seq: int, payload: bytes) -> int:
    return zlib.crc32(payload, zlib.crc32(_CHECKED.pack(length, seq)))

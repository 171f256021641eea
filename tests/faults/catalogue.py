"""The faults by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from tests.faults import (
    control_faults,
    database_faults,
    disk_faults,
    network_faults,
    operating_faults,
    postgresql_faults,
    process_faults,
    spool_damage,
    wire_faults,
)
from tests.faults.disk_faults import may_mount
from tests.faults.faulty_libc import has_compiler
from tests.faults.operating_faults import oldest_version
from tests.faults.oracle import Verdict
from tests.faults.stage import Stage, stage
from tests.system.proxy import has_proxy
from tests.system.running_server import RunningServer

DoFault = Callable[[Stage], Verdict]


class Means(NamedTuple):
    """Something that not every machine has."""

    name: str
    there: Callable[[], bool]


COMPILER = Means("a C compiler", has_compiler)
SMALL_DISK = Means("the right to mount a small disk", may_mount)
HAPROXY = Means("haproxy", lambda: has_proxy("haproxy"))
NGINX = Means("nginx", lambda: has_proxy("nginx"))
HISTORY = Means("a clone with its history", lambda: bool(oldest_version()))


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong."""

    do: DoFault
    in_short_tier: bool = True
    needs: Means | None = None
    """What this machine must have for it; None: nothing special."""
    shares_server: bool = False
    """Whether it may be done to a server that others use as well."""

    @property
    def possible(self) -> bool:
        """Whether this machine can do it."""
        return self.needs is None or self.needs.there()

    @property
    def name(self) -> str:
        return self.do.__name__

    @property
    def sentence(self) -> str:
        return (self.do.__doc__ or "").splitlines()[0]

    def run(self, folder: Path, *, short: bool, server: RunningServer | None = None) -> Verdict:
        """Do it to fresh trainers.

        Args:
            folder: Of its own, made if need be.
            short: Fewer repetitions and shorter waits.
            server: One that runs; None: a fresh one.

        Raises:
            AssertionError: a promise was not kept.
        """
        with stage(folder, short=short, server=server) as fresh:
            verdict = self.do(fresh)
        assert verdict.stored + verdict.in_gaps + verdict.unwritten > 0, "nothing was handed over"
        return verdict


def _shared(do: DoFault, **more: Any) -> Fault:
    return Fault(do, shares_server=True, **more)


FAULTS = (
    Fault(process_faults.server_killed_at_random),
    Fault(process_faults.server_killed_before_commit),
    Fault(process_faults.server_killed_after_commit_before_acknowledgement),
    Fault(process_faults.server_killed_at_checkpoint, needs=COMPILER),
    Fault(process_faults.server_frozen),
    Fault(process_faults.server_stopped),
    _shared(process_faults.trainer_killed_in_a_fast_loop),
    _shared(process_faults.shipper_killed),
    _shared(process_faults.shipper_frozen),
    _shared(process_faults.every_way_to_exit),
    _shared(process_faults.forked_children),
    Fault(process_faults.eight_ranks),
    Fault(process_faults.resume_with_its_spool),
    Fault(process_faults.resume_without_its_spool, in_short_tier=False),
    _shared(network_faults.black_hole),
    _shared(network_faults.slow_network, in_short_tier=False),
    _shared(network_faults.resetting_network),
    Fault(disk_faults.spool_disk_full, needs=SMALL_DISK),
    _shared(
        disk_faults.spool_disk_full_beside_a_running_server, in_short_tier=False, needs=SMALL_DISK
    ),
    Fault(disk_faults.server_disk_full, needs=SMALL_DISK),
    _shared(disk_faults.spool_writes_fail, needs=COMPILER),
    _shared(disk_faults.spool_syncs_fail, needs=COMPILER),
    Fault(disk_faults.home_moved_away),
    Fault(disk_faults.home_unmounted, in_short_tier=False, needs=SMALL_DISK),
    Fault(disk_faults.spool_removed),
    Fault(disk_faults.sync_where_locks_do_not_reach),
    Fault(database_faults.database_file_lost, in_short_tier=False),
    Fault(database_faults.database_restored_from_backup),
    Fault(database_faults.wal_removed, in_short_tier=False),
    Fault(database_faults.acknowledged_and_gone, in_short_tier=False),
    Fault(disk_faults.server_writes_fail, in_short_tier=False, needs=COMPILER),
    _shared(spool_damage.truncated_segment),
    _shared(spool_damage.flipped_bit),
    _shared(wire_faults.duplicate_reordered_and_replayed_batches),
    _shared(wire_faults.acknowledgement_stops_at_a_gap),
    _shared(wire_faults.contradicting_payloads),
    _shared(wire_faults.two_attempts_with_the_same_numbers),
    _shared(control_faults.two_clients_racing),
    _shared(control_faults.stale_invalid_and_late_control),
    Fault(control_faults.control_over_a_breaking_connection),
    _shared(control_faults.trainers_clock_an_hour_off, needs=COMPILER),
    Fault(control_faults.servers_clock_an_hour_off, in_short_tier=False, needs=COMPILER),
    _shared(operating_faults.torn_copy_synced),
    _shared(operating_faults.token_rotated),
    _shared(operating_faults.token_revoked),
    _shared(operating_faults.two_trainers, in_short_tier=False),
    _shared(operating_faults.unread_exports, in_short_tier=False),
    _shared(operating_faults.silent_connections, in_short_tier=False),
    Fault(operating_faults.version_skew, in_short_tier=False, needs=HISTORY),
    Fault(postgresql_faults.replica_killed),
    Fault(postgresql_faults.replica_frozen),
    Fault(postgresql_faults.replica_killed_behind_haproxy, in_short_tier=False, needs=HAPROXY),
    Fault(postgresql_faults.replica_killed_behind_nginx, in_short_tier=False, needs=NGINX),
    # Happens in `make test-all` as well: tests/server/test_postgresql.py.
    Fault(postgresql_faults.postgresql_stopped_immediately, in_short_tier=False),
)
BY_NAME = {fault.name: fault for fault in FAULTS}


def short_tier(*modules: ModuleType, shares_server: bool = False) -> list[Fault]:
    """The faults of these modules that `make test-all` does on this machine.

    Args:
        modules: That hold the faults.
        shares_server: Those that may share a server, or those that must not.
    """
    return [
        fault
        for fault in FAULTS
        if fault.in_short_tier
        and fault.possible
        and fault.shares_server == shares_server
        and fault.do.__module__ in {module.__name__ for module in modules}
    ]

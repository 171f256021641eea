"""The faults by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.faults import (
    clock_faults,
    control_faults,
    disk_faults,
    exit_faults,
    many_ranks,
    network_faults,
    postgresql_faults,
    resume_faults,
    server_faults,
    shipper_faults,
    spool_damage,
    wire_faults,
)
from tests.faults.disk_faults import may_mount
from tests.faults.lying_libc import has_compiler
from tests.faults.network import has_namespaces
from tests.faults.oracle import Verdict
from tests.faults.stage import Stage, stage
from tests.system.haproxy import has_haproxy
from tests.system.running_server import RunningServer

DoFault = Callable[[Stage], Verdict]


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong."""

    do: DoFault
    in_short_tier: bool = True
    needs: Callable[[], bool] = lambda: True
    """Whether this machine can do it."""
    without: str = ""
    """What it lacks where it can't."""
    leaves_the_server_in_peace: bool = False
    """Whether it may be done to a server that others use as well."""

    @property
    def name(self) -> str:
        return self.do.__name__

    @property
    def sentence(self) -> str:
        return (self.do.__doc__ or "").splitlines()[0]

    def run(self, folder: Path, *, short: bool, server: RunningServer | None = None) -> Verdict:
        """Do it to fresh trainers.

        Args:
            server: one that runs; None: a fresh one.

        Raises:
            AssertionError: a promise was not kept.
        """
        with stage(folder, short=short, server=server) as fresh:
            return self.do(fresh)


def _peaceful(do: DoFault, **more: Any) -> Fault:
    return Fault(do, leaves_the_server_in_peace=True, **more)


FAULTS = (
    Fault(server_faults.server_killed_at_random),
    Fault(server_faults.server_killed_before_commit),
    Fault(server_faults.server_killed_after_commit_before_acknowledgement),
    Fault(server_faults.server_killed_at_checkpoint, needs=has_compiler, without="a C compiler"),
    Fault(server_faults.server_frozen),
    _peaceful(shipper_faults.shipper_killed),
    _peaceful(shipper_faults.shipper_frozen),
    _peaceful(network_faults.black_hole),
    _peaceful(network_faults.slow_network, in_short_tier=False),
    _peaceful(network_faults.resetting_network),
    _peaceful(network_faults.link_cut, needs=has_namespaces, without="the right to make network namespaces"),
    _peaceful(
        network_faults.link_swallows_packets,
        in_short_tier=False,
        needs=has_namespaces,
        without="the right to make network namespaces",
    ),
    Fault(disk_faults.spool_disk_full, needs=may_mount, without="the right to mount a small disk"),
    _peaceful(
        disk_faults.spool_disk_full_beside_a_living_server,
        in_short_tier=False,
        needs=may_mount,
        without="the right to mount a small disk",
    ),
    Fault(disk_faults.server_disk_full, needs=may_mount, without="the right to mount a small disk"),
    _peaceful(disk_faults.spool_writes_fail, needs=has_compiler, without="a C compiler"),
    _peaceful(disk_faults.spool_syncs_fail, needs=has_compiler, without="a C compiler"),
    Fault(disk_faults.server_writes_fail, in_short_tier=False, needs=has_compiler, without="a C compiler"),
    _peaceful(spool_damage.truncation_at_every_byte),
    _peaceful(spool_damage.flipped_bits),
    _peaceful(wire_faults.duplicate_reordered_and_replayed_batches),
    _peaceful(wire_faults.acknowledgement_stops_at_a_hole),
    _peaceful(wire_faults.contradicting_payloads),
    _peaceful(wire_faults.two_lives_with_the_same_numbers),
    _peaceful(wire_faults.poisonous_records),
    _peaceful(control_faults.two_clients_racing),
    _peaceful(control_faults.stale_invalid_and_late_control),
    Fault(control_faults.control_over_a_breaking_connection),
    _peaceful(exit_faults.every_way_to_exit),
    _peaceful(exit_faults.forked_children),
    Fault(exit_faults.fork_in_dataloader_workers, in_short_tier=False),
    _peaceful(clock_faults.trainers_clock_an_hour_off, needs=has_compiler, without="a C compiler"),
    Fault(clock_faults.servers_clock_an_hour_off, in_short_tier=False, needs=has_compiler, without="a C compiler"),
    Fault(many_ranks.eight_ranks),
    Fault(resume_faults.resume_with_its_spool),
    Fault(resume_faults.resume_without_its_spool, in_short_tier=False),
    # Both happen in `make test-all` as well: tests/system/test_replicas.py, tests/server/test_postgresql.py.
    Fault(postgresql_faults.replica_killed, in_short_tier=False),
    Fault(
        postgresql_faults.replica_killed_behind_haproxy,
        in_short_tier=False,
        needs=has_haproxy,
        without="haproxy",
    ),
    Fault(postgresql_faults.postgresql_stopped_immediately, in_short_tier=False),
)
BY_NAME = {fault.name: fault for fault in FAULTS}

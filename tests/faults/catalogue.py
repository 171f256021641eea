"""The faults by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.faults import network_faults, server_faults, shipper_faults
from tests.faults.lying_libc import has_compiler
from tests.faults.network import has_namespaces
from tests.faults.oracle import Verdict
from tests.faults.stage import Stage, stage

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

    @property
    def name(self) -> str:
        return self.do.__name__

    @property
    def sentence(self) -> str:
        return (self.do.__doc__ or "").splitlines()[0]

    def run(self, folder: Path, *, short: bool) -> Verdict:
        """Do it to a fresh server and fresh trainers.

        Raises:
            AssertionError: a promise was not kept.
        """
        with stage(folder, short=short) as fresh:
            return self.do(fresh)


FAULTS = (
    Fault(server_faults.server_killed_at_random),
    Fault(server_faults.server_killed_before_commit),
    Fault(server_faults.server_killed_after_commit_before_acknowledgement),
    Fault(server_faults.server_killed_at_checkpoint, needs=has_compiler, without="a C compiler"),
    Fault(server_faults.server_frozen),
    Fault(shipper_faults.shipper_killed),
    Fault(shipper_faults.shipper_frozen),
    Fault(network_faults.black_hole),
    Fault(network_faults.slow_network),
    Fault(network_faults.resetting_network),
    Fault(network_faults.link_cut, needs=has_namespaces, without="the right to make network namespaces"),
    Fault(network_faults.link_swallows_packets, needs=has_namespaces, without="the right to make network namespaces"),
)
BY_NAME = {fault.name: fault for fault in FAULTS}

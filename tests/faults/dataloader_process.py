"""A training process with a real probe whose data comes from forked DataLoader workers.

python -m tests.faults.dataloader_process '{"run_id": ..., "ledger": ...}'      the plan of `reporting_process`
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

import isentrope
from isentrope.transport.spool import open_transport
from isentrope.transport.transport import MakeMessage, Message, Transport, TransportStatistics
from isentrope_wire import environment
from isentrope_wire.reports import ControlSnapshot
from tests.faults.ledger import LedgerWriter
from tests.faults.reporting_process import Plan, run_of

BATCHES_PER_EPOCH = 8


class Rows(Dataset[torch.Tensor]):
    """Rows of logits, made in the workers; each worker also does what a careless one may do to the probe."""

    def __init__(self, probe: isentrope.Probe) -> None:
        self._probe = probe

    def __len__(self) -> int:
        return BATCHES_PER_EPOCH * 4

    def __getitem__(self, index: int) -> torch.Tensor:
        self._probe.log({"worker/index": float(index)})
        self._probe.step(10**6 + index)
        return torch.randn(8, 16, generator=torch.Generator().manual_seed(index))


class Recorded:
    """A transport that keeps a ledger. Messages are made on the writer's thread, in the order they were put."""

    def __init__(self, transport: Transport, ledger: LedgerWriter) -> None:
        self._transport = transport
        self._ledger = ledger

    def put(self, make: MakeMessage) -> bool:
        started = time.perf_counter()

        def make_and_record() -> Message:
            message = make()
            self._ledger.offer(message)
            self._ledger.answered(True, 0.0)
            return message

        accepted = self._transport.put(make_and_record)
        assert accepted or time.perf_counter() - started < 1.0
        return accepted

    def requested_control(self) -> ControlSnapshot | None:
        return self._transport.requested_control()

    def statistics(self) -> TransportStatistics:
        return self._transport.statistics()

    def close(self, timeout_seconds: float = 1.0) -> None:
        self._transport.close(timeout_seconds)


def main() -> None:
    torch.set_num_threads(1)
    plan = Plan(**json.loads(sys.argv[1]))
    ledger = LedgerWriter(Path(plan.ledger), run_id=plan.run_id, incarnation=plan.incarnation, rank=plan.rank)
    transport = open_transport(
        run_of(plan),
        mode="online",
        home=environment.home(),
        grpc_target=environment.grpc_target(),
    )
    probe = isentrope.Probe(plan.run_id, run_id=plan.run_id, transport=Recorded(transport, ledger))
    step = 0
    while step < plan.steps:
        for rows in DataLoader(Rows(probe), batch_size=4, num_workers=2, multiprocessing_context="fork"):
            logits = rows.flatten(0, 1).requires_grad_()
            scores = probe.score(logits, torch.zeros(len(logits), dtype=torch.long))
            advantages = torch.linspace(-1, 1, len(logits))
            (-(probe.gate(scores, advantages) * advantages).mean()).backward()
            probe.step(step)
            step += 1
    probe.finish()


if __name__ == "__main__":
    main()

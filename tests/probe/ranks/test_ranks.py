"""Who takes part in a run is found where the probe is built."""

from __future__ import annotations

import logging
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Partial, Replicate

from isentrope import distributed
from isentrope.distributed import ManyRanks, ranks_of
from isentrope_wire.errors import InputError
from tests.probe.ranks.gang import run_ranks
from tests.probe.ranks.loops import Sequences, gate, probe_of
from tests.probe.tiny_loop import TinyLoop, probe_and_transport, reports, run_steps


def test_a_process_on_its_own_asks_torch_distributed_for_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As torch built without it: the module is there and says so.
    monkeypatch.setattr(dist, "is_available", lambda: False)
    for name in ("is_initialized", "get_rank", "get_world_size", "new_group"):
        monkeypatch.delattr(dist, name)
    assert ranks_of(None) is None
    probe, transport = probe_and_transport()
    run_steps(TinyLoop(), probe, 1)
    assert reports(transport)[0].scalars["token/count"] > 0


def test_ranks_that_were_not_joined_get_a_warning_that_they_report_apart(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "2")
    with caplog.at_level(logging.WARNING, logger="isentrope"):
        probe, _ = probe_and_transport(run_id="given")
    assert (probe.config.rank, probe.config.world_size) == (2, 4)
    (record,) = caplog.records
    assert "torch.distributed" in record.getMessage()


def counts_in_groups(rank: int) -> list[float]:
    """Ranks 0 and 1 are one run, rank 2 another: tokens counted by the probe of this rank's
    group."""
    pair, single = dist.new_group([0, 1]), dist.new_group([2])
    probe, transport = probe_of(
        rank, group=single if rank == 2 else pair, run_id="single" if rank == 2 else "pair"
    )
    assert (probe.config.rank, probe.config.world_size) == ((0, 1) if rank == 2 else (rank, 2))
    for step in range(2):
        gate(probe, Sequences.of_step(step).rows(slice(4 * rank, 4 * rank + 4)))
        probe.step(step)
    probe.finish()
    return [
        report.scalars["token/count"]
        for report in reports(transport)
        if "token/count" in report.scalars
    ]


def test_a_group_s_run_is_made_of_its_members_alone() -> None:
    masks = [Sequences.of_step(step).mask for step in range(2)]
    assert run_ranks(3, counts_in_groups) == [
        [int(mask[:8].sum()) for mask in masks],
        [],
        [int(mask[8:].sum()) for mask in masks],
    ]


def gathered_on(rank: int) -> list[list[float]]:
    members = ManyRanks(None)
    rows = members.gather(
        torch.tensor([rank + 0.5, 1e300 * rank, torch.nan if rank else 3.0], dtype=torch.float64)
    )
    numbers: list[list[float]] = rows.rows().nan_to_num(nan=-1.0, posinf=0.0).tolist()
    assert rows.arrives_within(5.0)
    assert members.gather_objects(f"rank {rank}") == ["rank 0", "rank 1"]
    return numbers


def test_every_rank_gathers_the_same_bits_in_the_ranks_order() -> None:
    assert run_ranks(2, gathered_on) == [[[0.5, 0.0, 3.0], [1.5, 1e300, -1.0]]] * 2


@pytest.mark.parametrize(
    ("backends", "expected"),
    [
        ("cuda:nccl", "cuda:3"),
        ("cpu:gloo,cuda:nccl", "cuda:3"),
        # Gloo carries tensors of a GPU by way of the host: there they go at once.
        ("cpu:gloo,cuda:gloo", "cpu"),
        ("cpu:gloo", "cpu"),
    ],
)
def test_sums_travel_where_the_group_s_own_tensors_do(
    backends: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dist, "get_backend_config", lambda group: backends)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    assert distributed._device_of(None) == torch.device(expected)


def late_probe(rank: int) -> None:
    import time

    distributed.SLOW_START_SECONDS = 0.2
    if rank == 1:
        time.sleep(0.8)
    logged: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: logged.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("isentrope").addHandler(handler)
    probe_of(rank)
    assert any("all 2 ranks" in line for line in logged) == (rank == 0)


def test_a_rank_that_waits_for_the_others_to_build_their_probe_says_so() -> None:
    run_ranks(2, late_probe)


def log_a_number_spread_over_ranks(rank: int) -> str:
    mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
    partial = DTensor.from_local(torch.tensor(1.0 + rank), mesh, [Partial()])
    probe, transport = probe_of(rank, run_id="spread")
    answer = ""
    if rank == 0:  # and nobody else: nothing here may wait for rank 1
        try:
            probe.log({"grad_norm": partial})
        except InputError as error:
            answer = str(error)
        probe.log({"whole": DTensor.from_local(torch.tensor(7.0), mesh, [Replicate()])})
    probe.step(0)
    probe.finish()
    return answer if rank else f"{answer} {reports(transport)[0].scalars['whole']}"


def test_logging_a_number_that_lies_spread_over_ranks_waits_for_none_of_them() -> None:
    answer, _ = run_ranks(2, log_a_number_spread_over_ranks)
    assert "grad_norm" in answer
    assert answer.endswith(" 7.0")


def timeout_of_our_group(rank: int) -> float:
    ours = ManyRanks(dist.new_group([0, 1], timeout=timedelta(hours=3)))._host_group
    timeout: timedelta = ours._get_backend(torch.device("cpu")).options._timeout
    return timeout.total_seconds()


def test_our_own_group_is_as_patient_as_the_training_s() -> None:
    assert run_ranks(2, timeout_of_our_group) == [3 * 3600.0] * 2

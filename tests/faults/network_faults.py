"""The network between shipper and server swallows everything, crawls, or resets connections."""

from __future__ import annotations

import time

from tests.faults.network import TcpProxy
from tests.faults.oracle import Verdict
from tests.faults.stage import Stage


def black_hole(stage: Stage) -> Verdict:
    """Everything sent is taken and never arrives; connections stay open."""
    proxy = stage.enter(TcpProxy(stage.server.grpc_target))
    trainer = stage.running_trainer("swallowed", grpc_target=proxy.address)
    proxy.black_hole = True
    time.sleep(7.0 if stage.short else 60.0)
    proxy.black_hole = False
    stage.expect_a_fresh_report(trainer)
    return stage.judge(trainer)


def slow_network(stage: Stage) -> Verdict:
    """A few kilobytes a second: batches time out, the data gets through."""
    proxy = stage.enter(TcpProxy(stage.server.grpc_target))
    trainer = stage.running_trainer("crawling", grpc_target=proxy.address)
    proxy.bytes_per_second = 4_000
    time.sleep(6.0 if stage.short else 30.0)
    proxy.bytes_per_second = None
    stage.expect_a_fresh_report(trainer)
    return stage.judge(trainer)


def resetting_network(stage: Stage) -> Verdict:
    """Connections are reset in the middle of a message, over and over."""
    proxy = stage.enter(TcpProxy(stage.server.grpc_target))
    trainer = stage.running_trainer("reset", grpc_target=proxy.address)
    for limit in (
        (2_000, 20_000, 60_000)
        if stage.short
        else (500, 2_000, 5_000, 20_000, 40_000, 60_000, 100_000)
    ):
        proxy.reset_after_bytes = limit
        proxy.reset_all()
        time.sleep(1.5 if stage.short else 6.0)
    proxy.reset_after_bytes = None
    stage.expect_a_fresh_report(trainer)
    return stage.judge(trainer)

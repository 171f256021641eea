"""How many connections a server takes: as many as leave the database its files, whoever comes and however long they stay."""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from isentrope_server import descriptors, serving
from isentrope_server.bounded_listener import BoundedListener, CalmExceptionHandler
from isentrope_server.descriptors import RESERVE, shares_of
from isentrope_server.ports import Certificates, Port, listening_socket
from tests.server.certificates import ThrowAwayAuthority
from tests.server.conftest import MakeServer
from tests.server.rank import Rank
from tests.server.test_process import environment


def closed(connections: list[socket.socket]) -> int:
    """How many of them the other side has closed by now."""
    count = 0
    for connection in connections:
        connection.setblocking(False)
        try:
            count += connection.recv(1, socket.MSG_PEEK) == b""
        except BlockingIOError:
            pass
        except ConnectionResetError:
            count += 1
    return count


def wait_for(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + 5.0
    while not is_so() and time.monotonic() < end:
        time.sleep(0.02)
    assert is_so()


def bounded(most: int) -> BoundedListener:
    return BoundedListener(listening_socket("127.0.0.1", 0, Port.HTTP), most)


@pytest.mark.parametrize("limit", [64, 256, 1024, 4096, 20_000, 1 << 20])
def test_all_ports_full_leave_the_database_its_files(limit: int) -> None:
    shares = shares_of(limit)
    assert min(shares.http, shares.grpc) >= 1
    assert 2 * shares.http + shares.grpc <= limit - min(RESERVE, limit // 2)


def test_thousands_of_ranks_find_a_place_under_a_usual_limit() -> None:
    assert shares_of(20_000).grpc >= 10_000


@pytest.mark.slow
def test_the_process_takes_as_many_files_as_it_may_and_says_that_they_are_few(tmp_path: Path) -> None:
    command = f"ulimit -Sn 300 && ulimit -Hn 700 && exec {sys.executable} -m isentrope up --http-port 0 --grpc-port 0"
    with subprocess.Popen(
        ["sh", "-c", command], env=environment(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("http")
        limits = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=20)
    assert limits == (700, 700)
    assert "open 700 files, 4096 are recommended" in said


def test_idle_grpc_connections_beyond_the_share_are_closed_at_once(
    make_server: MakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(descriptors, "_limit", lambda: 64)
    share = shares_of(64).grpc
    server = make_server()
    rank = Rank(server)
    host, port = server.grpc_target.split(":")
    connections = [socket.create_connection((host, int(port)), timeout=5) for _ in range(3 * share)]
    try:
        wait_for(lambda: closed(connections) > 2 * share)
        assert closed(connections) == 2 * share + 1
        assert rank.report(0, x=1.0).acked_through == 1
        assert server.http.get("/readyz").status_code == 200
    finally:
        for connection in connections:
            connection.close()


def test_http_connections_beyond_the_share_are_closed_until_others_end() -> None:
    async def serve(listening: BoundedListener) -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        address = listening.getsockname()
        async with await asyncio.start_server(answer, sock=listening):
            first = [await asyncio.open_connection(*address) for _ in range(3)]
            await asyncio.sleep(0.1)
            beyond = [await asyncio.open_connection(*address) for _ in range(5)]
            for reader, writer in beyond:
                assert await asyncio.wait_for(reader.read(), 5) == b""
                writer.close()
            first[0][1].close()
            await asyncio.sleep(0.1)
            again, writer = await asyncio.open_connection(*address)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(again.read(), 0.2)
            for _, each in [*first, (again, writer)]:
                each.close()

    asyncio.run(serve(bounded(3)))


def test_connections_that_can_not_be_taken_cost_one_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked = 0

    def exhausted(_listening: socket.socket) -> Any:
        nonlocal asked
        asked += 1
        raise OSError(errno.EMFILE, "Too many open files")

    async def serve(listening: BoundedListener) -> None:
        asyncio.get_running_loop().set_exception_handler(CalmExceptionHandler())
        server = await asyncio.start_server(lambda reader, writer: writer.close(), sock=listening, backlog=2048)
        with monkeypatch.context() as broken:
            broken.setattr(socket.socket, "accept", exhausted)
            reader, writer = await asyncio.open_connection(*listening.getsockname())
            await asyncio.sleep(1.3)
        # As soon as there are descriptors again.
        assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()
        server.close()

    with caplog.at_level(logging.INFO):
        asyncio.run(serve(bounded(10)))
    assert 2 <= asked <= 5
    assert [record.message for record in caplog.records] == [
        "The HTTP port can't take connections now: Too many open files. It tries again every second; see `ulimit -n`."
    ]


def test_a_tls_handshake_that_does_not_come_is_not_waited_for_and_counts_as_a_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "_HANDSHAKE_SECONDS", 1.5)
    pair = ThrowAwayAuthority(tmp_path).sign("server")
    listening = bounded(2)
    address = listening.getsockname()

    async def silent_for() -> float:
        began = time.monotonic()
        reader, writer = await asyncio.open_connection(*address)
        assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()
        return time.monotonic() - began

    async def serve() -> None:
        certificates = Certificates(certificate=pair.certificate, key=pair.key, client_ca=None)
        server = serving._server(FastAPI(), certificates)
        running = asyncio.create_task(server.serve(sockets=[listening]))
        while not server.started:
            await asyncio.sleep(0.01)
        lasted = sorted(await asyncio.gather(*(silent_for() for _ in range(4))))
        assert lasted[1] < 1.2 < lasted[2]
        server.should_exit = True
        await running

    asyncio.run(serve())

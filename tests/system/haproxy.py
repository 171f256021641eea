"""The proxy of docker/compose.yaml in front of servers on this machine, with docker/haproxy.cfg but for the addresses."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import httpx

from tests.system.running_server import RunningServer, free_port

CONFIGURATION = (Path(__file__).parents[2] / "docker" / "haproxy.cfg").read_text(encoding="utf-8")


def has_haproxy() -> bool:
    return shutil.which("haproxy") is not None


class Haproxy:
    """`with` starts it, waits until it carries requests, and ends it."""

    def __init__(self, folder: Path, servers: Mapping[str, RunningServer]) -> None:
        """
        Args:
            servers: by the names that the configuration has for them.
        """
        self._folder = folder
        self._http_port, self._grpc_port = free_port(), free_port()
        self._configuration = _for_this_machine(CONFIGURATION, servers, self._http_port, self._grpc_port)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http_port}"

    @property
    def grpc_target(self) -> str:
        return f"127.0.0.1:{self._grpc_port}"

    def __enter__(self) -> Self:
        file = self._folder / "haproxy.cfg"
        file.write_text(self._configuration, encoding="utf-8")
        with (self._folder / "haproxy.log").open("ab") as log:
            self._process = subprocess.Popen(["haproxy", "-db", "-f", file], stdout=log, stderr=log)
        end = time.monotonic() + 30.0
        while not self._answers():
            assert self._process.poll() is None, (self._folder / "haproxy.log").read_text()
            assert time.monotonic() < end, "haproxy reaches no server"
            time.sleep(0.1)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/readyz", timeout=2.0).is_success
        except httpx.HTTPError:
            return False


def _for_this_machine(text: str, servers: Mapping[str, RunningServer], http_port: int, grpc_port: int) -> str:
    """The configuration with these addresses in the place of the containers' names and ports."""
    text = re.sub(r"resolvers docker\n(?: +.*\n)+", "", text).replace("resolvers docker init-addr last,libc,none ", "")
    text = text.replace("bind :7070", f"bind 127.0.0.1:{http_port}").replace(
        "bind :7071", f"bind 127.0.0.1:{grpc_port}"
    )
    for name, server in servers.items():
        text = text.replace(f"{name}:7070", f"127.0.0.1:{server.http_port}")
        text = text.replace(f"{name}:7071", server.grpc_target)
    left = re.findall(r".*(?::707[01]|docker init).*", text)
    assert not any(line for line in left if not line.lstrip().startswith("#")), left
    return text

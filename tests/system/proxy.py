"""A proxy in front of servers on this machine, with its configuration of docker/ but for the
addresses."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol, Self

import httpx

from tests.system.running_server import free_port

CONFIGURATIONS = {
    program: (Path(__file__).parents[2] / "docker" / file).read_text(encoding="utf-8")
    for program, file in (("haproxy", "haproxy.cfg"), ("nginx", "nginx.conf"))
}
COMMANDS = {
    "haproxy": ("haproxy", "-db", "-f"),
    # Its workers write bodies to the folder, which is its starter's.
    "nginx": ("nginx", "-e", "stderr", "-g", "daemon off; user root;", "-c"),
}


def has_proxy(program: str) -> bool:
    return shutil.which(program) is not None


class Addresses(Protocol):
    """Where a server is reached."""

    http_port: int

    @property
    def grpc_target(self) -> str: ...


class Proxy:
    """`with` starts it, waits until it carries requests, and ends it."""

    def __init__(
        self,
        folder: Path,
        servers: Mapping[str, Addresses],
        program: str,
        adapt: Callable[[str], str] = str,
        root_path: str = "",
    ) -> None:
        """
        Args:
            servers: by the names that the configuration has for them.
            program: haproxy or nginx.
            adapt: changes the configuration.
            root_path: below which the configuration shows the servers' pages.
        """
        self._root_path = root_path
        self._folder = folder
        self._program = program
        self._http_port, self._grpc_port = free_port(), free_port()
        text = adapt(CONFIGURATIONS[program]).replace("/tmp/", f"{folder}/")
        self._configuration = _for_this_machine(text, servers, self._http_port, self._grpc_port)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http_port}{self._root_path}"

    @property
    def grpc_target(self) -> str:
        return f"127.0.0.1:{self._grpc_port}"

    def __enter__(self) -> Self:
        file = self._folder / f"{self._program}.cfg"
        file.write_text(self._configuration, encoding="utf-8")
        with file.with_suffix(".log").open("ab") as log:
            self._process = subprocess.Popen(
                [*COMMANDS[self._program], file], stdout=log, stderr=log
            )
        end = time.monotonic() + 30.0
        while not self._answers():
            assert self._process.poll() is None, file.with_suffix(".log").read_text()
            assert time.monotonic() < end, f"{self._program} reaches no server"
            time.sleep(0.1)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            # Not killed: nginx has workers.
            self._process.terminate()
            self._process.wait()

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/readyz", timeout=2.0).is_success
        except httpx.HTTPError:
            return False


def _for_this_machine(
    text: str, servers: Mapping[str, Addresses], http_port: int, grpc_port: int
) -> str:
    """The configuration with these addresses in the place of the containers' names and ports."""
    text = re.sub(r"resolvers docker\n(?: +.*\n)+", "", text).replace(
        "resolvers docker init-addr last,libc,none ", ""
    )
    for port, here in ((7070, http_port), (7071, grpc_port)):
        text = text.replace(f"bind :{port}", f"bind 127.0.0.1:{here}").replace(
            f"listen {port}", f"listen 127.0.0.1:{here}"
        )
    for name, server in servers.items():
        text = text.replace(f"{name}:7070", f"127.0.0.1:{server.http_port}")
        text = text.replace(f"{name}:7071", server.grpc_target)
    left = re.findall(r".*(?:\b707[01]|docker init).*", text)
    assert not any(line for line in left if not line.lstrip().startswith("#")), left
    return text

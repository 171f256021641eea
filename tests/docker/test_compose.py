"""The services fit together: names, ports, secrets, homes, and what the proxy sends where."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from isentrope_server.security.permissions import OPEN_PATHS
from isentrope_server.settings import Settings
from isentrope_wire import environment as client_environment
from tests.docker.dockerfile import environment, stages

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "docker" / "compose.yaml"
PROXY = (ROOT / "docker" / "haproxy.cfg").read_text(encoding="utf-8")
DOCUMENT: dict[str, Any] = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = DOCUMENT["services"]
SERVERS = {
    name: service
    for name, service in SERVICES.items()
    if "server.Dockerfile" in str(service.get("build"))
}


def test_server_reads_variables_and_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("ISENTROPE_")]:
        monkeypatch.delenv(name)
    given = SERVERS["first"]["environment"] | environment(
        stages(ROOT / "docker/server.Dockerfile")[-1]
    )
    known = {f"ISENTROPE_{name.upper()}" for name in Settings.model_fields} | {
        "ISENTROPE_SECRETS_DIR"
    }
    for name, value in given.items():
        if name.startswith("ISENTROPE_"):
            assert name in known
            monkeypatch.setenv(name, value)
    monkeypatch.setenv("ISENTROPE_SECRETS_DIR", str(tmp_path))
    url = re.search(r"printf '(postgresql://[^']+)'", COMPOSE.read_text())
    assert url is not None
    (tmp_path / "isentrope_database_url").write_text(url[1].replace("%s", "secret") + "\n")
    (tmp_path / "isentrope_token").write_text("0123abcd\n")
    assert set(SERVERS["first"]["secrets"]) == {file.name for file in tmp_path.iterdir()}
    settings = Settings()
    assert settings.token == "0123abcd"
    assert settings.database_name == "postgresql://isentrope:***@postgres/isentrope"
    assert settings.allowed_hosts == ("proxy",)
    assert settings.insecure_i_know
    assert (settings.host, settings.http_port, settings.grpc_port) == ("0.0.0.0", 7070, 7071)


def test_trainer_finds_server_and_token() -> None:
    trainer = SERVICES["trainer"]
    assert trainer["environment"]["ISENTROPE_URL"] == "http://proxy:7070"
    assert trainer["environment"]["ISENTROPE_GRPC"] == "proxy:7071"
    home = environment(stages(ROOT / "docker/trainer.Dockerfile")[-1])["ISENTROPE_HOME"]
    assert [secret["source"] for secret in trainer["secrets"]] == ["isentrope_ingest_token"]
    assert "token create --scope ingest" in COMPOSE.read_text()
    assert trainer["secrets"][0]["target"] == f"{home}/{client_environment.owner_token_file().name}"


def test_proxy_reaches_every_ready_server() -> None:
    last = stages(ROOT / "docker/server.Dockerfile")[-1]
    ports = next(step.rest for step in last if step.word == "EXPOSE").split()
    assert [port.split(":")[-1] for port in SERVICES["proxy"]["ports"]] == ports
    assert all(port.startswith("127.0.0.1:") for port in SERVICES["proxy"]["ports"])
    for port in ports:
        assert f"bind :{port}" in PROXY
        assert set(re.findall(rf"^\s+server \w+ (\w+):{port}\b", PROXY, re.MULTILINE)) == set(
            SERVERS
        )
    assert "option httpchk GET /readyz" in PROXY
    for name in SERVERS:
        assert re.search(rf"server {name} {name}:7071 proto h2 track http_servers/{name}\b", PROXY)


def test_proxy_log_holds_no_token() -> None:
    directives = [line.split("#")[0].strip() for line in PROXY.splitlines()]
    assert not [
        line
        for line in directives
        if line.startswith(("option httplog", "option httpslog", "capture "))
    ]
    formats = [line for line in directives if "log-format" in line]
    assert formats == [line for line in directives if line.startswith('log-format "')]
    written = {
        name for line in formats for name in re.findall(r"%(?:\{[^}]*\})?(\[[^\]]*\]|\w+)", line)
    }
    assert {"HM", "HP", "HV", "ST"} <= written
    # %r is the request's first line, %HU its address, %HQ its query, %hr and %hs what is captured,
    # %[...] anything.
    assert written.isdisjoint({"r", "HU", "HQ", "hr", "hrl", "hs", "hsl", "CC", "CS"})
    assert not any(name.startswith("[") for name in written)


def test_only_the_proxy_is_reachable() -> None:
    assert [name for name, service in SERVICES.items() if service.get("ports")] == ["proxy"]
    for name in ("first", "second", "proxy", "trainer"):
        assert SERVICES[name]["cap_drop"] == ["ALL"]
    assert SERVICES["proxy"]["user"] == "haproxy"


def test_secrets_stay_out_of_git() -> None:
    files = {secret["file"] for secret in DOCUMENT["secrets"].values()}
    assert all(file.startswith("./secrets/") for file in files)
    assert "secrets/" in (ROOT / "docker" / ".gitignore").read_text().splitlines()


def test_health_check_asks_own_port() -> None:
    last = stages(ROOT / "docker/server.Dockerfile")[-1]
    check = json.loads(
        next(step.rest for step in last if step.word == "HEALTHCHECK").partition("CMD")[2]
    )
    assert check[0] == "python"
    port = "1"  # no process listens there
    failed = subprocess.run(
        [sys.executable, *check[1:]],
        env={"ISENTROPE_HTTP_PORT": port},
        capture_output=True,
        text=True,
        check=False,
    )
    assert failed.returncode == 1
    assert "Connection refused" in failed.stderr


def test_cluster_runs_the_image_as_it_is() -> None:
    service, server = yaml.safe_load_all(
        (ROOT / "docker" / "kubernetes.yaml").read_text(encoding="utf-8")
    )
    last, pod = stages(ROOT / "docker/server.Dockerfile")[-1], server["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    image = {step.word: step.rest for step in last}
    assert pod["securityContext"]["runAsUser"] == int(image["USER"].split(":")[0])
    assert [str(port["containerPort"]) for port in container["ports"]] == image["EXPOSE"].split()
    assert [port["port"] for port in service["spec"]["ports"]] == [7070, 7071]
    assert environment(last)["ISENTROPE_HOME"] in [
        mount["mountPath"] for mount in container["volumeMounts"]
    ]
    assert {
        probe["httpGet"]["path"] for name, probe in container.items() if name.endswith("Probe")
    } == OPEN_PATHS
    known = {f"ISENTROPE_{name.upper()}" for name in Settings.model_fields} | {
        "ISENTROPE_SECRETS_DIR"
    }
    assert {variable["name"] for variable in container["env"]} <= known

"""`isentrope sync` as somebody types it who has just read of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from isentrope.transport.spool_folder import find_spool_folders
from isentrope_server.home import locked_home
from tests.probe.test_cli import isentrope_command
from tests.system.running_server import RunningServer, free_port
from tests.system.spool_of_a_run import leave_spool


def test_without_a_folder_it_delivers_what_the_home_holds(
    server: RunningServer, tmp_path: Path
) -> None:
    leave_spool(tmp_path, "in-the-home", steps=2, grpc_target=server.grpc_target)
    result = isentrope_command(server, "sync", ISENTROPE_HOME=str(tmp_path))
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.split()[:2] == ["delivered", "in-the-home"]
    nowhere = isentrope_command(server, "sync", ISENTROPE_HOME=str(tmp_path / "fresh"))
    assert (
        isentrope_command(server, "sync", "--json", ISENTROPE_HOME=str(tmp_path / "fresh")).stdout
        == "[]\n"
    )
    assert (nowhere.exit_code, nowhere.stdout) == (
        0,
        f"Nothing to deliver in {tmp_path / 'fresh' / 'spool'}\n",
    )
    assert nowhere.stderr.startswith(f"There is no home {tmp_path / 'fresh'}: ")


def test_a_living_offline_run_delivers_nothing_itself(
    server: RunningServer, tmp_path: Path
) -> None:
    leave_spool(tmp_path, "living", steps=2, grpc_target=server.grpc_target)
    (folder,) = find_spool_folders(tmp_path / "spool")
    holding = (
        "import fcntl, sys; file = open(sys.argv[1], 'r+'); fcntl.lockf(file, fcntl.LOCK_EX); "
        "print(1, flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holding, str(folder.trainer_lock)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as training:
        assert training.stdout is not None
        training.stdout.readline()
        result = isentrope_command(server, "sync", ISENTROPE_HOME=str(tmp_path))
        training.communicate(b"\n")
    assert (result.exit_code, "delivers nothing itself" in result.stdout) == (0, True)
    assert "delivers by itself" not in result.stdout


def test_reports_follow_the_server_of_their_home(server: RunningServer, tmp_path: Path) -> None:
    earlier = f"127.0.0.1:{free_port()}"
    with locked_home(tmp_path, "http://127.0.0.1:1", earlier):
        leave_spool(tmp_path, "moved", steps=2, grpc_target=earlier)
    (folder,) = find_spool_folders(tmp_path / "spool")
    assert folder.grpc_target() == earlier
    with locked_home(tmp_path, server.url, server.grpc_target):
        assert folder.grpc_target() == server.grpc_target
        here = {"ISENTROPE_HOME": str(tmp_path), "ISENTROPE_GRPC": "", "ISENTROPE_URL": ""}
        result = isentrope_command(server, "sync", "--give-up-after", "5", **here)
    assert (result.exit_code, result.stdout.split()[:2]) == (0, ["delivered", "moved"])


def test_the_doctor_names_another_server_of_spools(server: RunningServer, tmp_path: Path) -> None:
    earlier = f"127.0.0.1:{free_port()}"
    leave_spool(tmp_path, "left", steps=1, grpc_target=earlier)
    result = isentrope_command(server, "doctor", ISENTROPE_HOME=str(tmp_path))
    (spool,) = [line for line in result.stdout.splitlines() if line.split()[1] == "spool"]
    assert f"to {earlier}; `isentrope sync --grpc HOST:PORT`" in spool


def test_what_to_do_about_an_absent_server_is_a_sentence_of_its_own(
    server: RunningServer, tmp_path: Path
) -> None:
    leave_spool(tmp_path, "left", steps=1, grpc_target=f"127.0.0.1:{free_port()}")
    environment = {"ISENTROPE_GRPC": "", "ISENTROPE_HOME": str(tmp_path)}
    result = isentrope_command(server, "sync", "--give-up-after", "0.5", **environment)
    assert result.exit_code == 1
    assert ". Start the server" in result.stderr
    assert ".. " not in result.stderr


def test_one_record_is_one_and_a_refused_token_is_advised_on_once(
    server: RunningServer, tmp_path: Path
) -> None:
    leave_spool(tmp_path, "short", steps=0, grpc_target=server.grpc_target)
    refused = isentrope_command(
        server, "sync", ISENTROPE_HOME=str(tmp_path), ISENTROPE_TOKEN="wrong"
    )
    assert refused.exit_code == 1
    assert refused.stderr.lower().count("set isentrope_token") == 1
    assert "isentrope sync" in refused.stderr
    result = isentrope_command(server, "sync", ISENTROPE_HOME=str(tmp_path))
    assert result.stdout.split(maxsplit=4)[4] == "1 record is stored\n"

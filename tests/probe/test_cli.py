"""The command line as a user meets it: output, errors in one sentence, exit status."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

import isentrope.cli.doctor
import isentrope.kernels.cpp_backend
from isentrope.cli import frame, printing
from isentrope.client import calls
from isentrope.client.client import Client
from isentrope_wire.answers import HealthLevel, RunDigest, RunSummary, Status
from isentrope_wire.control import Hold, HoldSide
from isentrope_wire.errors import install_command
from tests.system.running_server import RunningServer, clean_environment, free_port
from tests.system.spool_of_a_run import leave_spool

RUN = "cli-run"


def isentrope_command(server: RunningServer, *arguments: str, **environment: str) -> Result:
    """The command line in this process, with the environment of a client of the server."""
    return CliRunner().invoke(frame.main, arguments, env=server.environment | environment)


@pytest.fixture(scope="module")
def run(server: RunningServer) -> str:
    """A run of five steps on the server, brought there by `isentrope sync`."""
    home = server.home.parent / "client-home"
    leave_spool(home, RUN, steps=5, grpc_target=server.grpc_target)
    result = isentrope_command(server, "sync", str(home))
    assert (result.exit_code, result.stderr) == (0, "")
    assert "6 records are stored" in result.stdout
    return RUN


def assert_one_sentence(result: Result, exit_status: int) -> None:
    assert result.exit_code == exit_status, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1


def test_the_version_is_printed() -> None:
    result = CliRunner().invoke(frame.main, ["--version"])
    commit = frame.commit_of_code()
    assert set(commit.removesuffix("-dirty")) <= set("0123456789abcdef")
    assert result.output == f"isentrope, version {isentrope.__version__} (commit {commit})\n"


def test_as_a_process_it_ends_with_the_status_and_the_sentence() -> None:
    environment = clean_environment() | {"ISENTROPE_URL": f"http://127.0.0.1:{free_port()}"}
    command = [sys.executable, "-m", "isentrope", "runs"]
    result = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    assert environment["ISENTROPE_URL"] in result.stderr
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [*command[:-1], "--version"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert result.stderr == "Error: The output: No space left on device.\n"


def test_runs_are_listed(server: RunningServer, run: str) -> None:
    table = isentrope_command(server, "runs", "--query", run)
    assert table.stdout.splitlines()[0].split()[:3] == ["id", "name", "project"]
    assert table.stdout.splitlines()[1].split()[:3] == [run, "countdown", "demo"]
    none = isentrope_command(server, "runs", "--query", run, "--tag", "no such tag")
    assert (none.stdout, none.stderr) == ("", "No run passes these filters.\n")
    options = (
        "--query",
        run,
        "--project",
        "demo",
        "--project",
        "other",
        "--order",
        "attention",
        "--json",
    )
    as_json = json.loads(isentrope_command(server, "runs", *options).stdout)
    assert [(item["id"], item["step"]) for item in as_json] == [(run, 4)]


@pytest.mark.parametrize(
    ("status", "lost", "words"),
    [
        (Status.FINISHED, 0.9, ("ended, collapsed", "90 %")),
        (Status.FAILED, None, ("ended", "-")),
        (Status.RUNNING, 0.9, ("act", "90 %")),
        (Status.SILENT, 0.9, ("-", "90 %")),
    ],
)
def test_health_says_how_a_run_ended(
    status: Status, lost: float | None, words: tuple[str, str]
) -> None:
    digest = RunDigest(
        level=HealthLevel.ACT,
        share_lost=lost,
        steps_to_three_quarters_lost=None,
        entropy=None,
        reward=None,
        entropy_line=[],
        reward_line=[],
        control=None,
        reason="",
        seconds_per_step=None,
    )
    run = RunSummary(
        id="a",
        name="a",
        project="",
        status=status,
        step=1,
        planned_steps=None,
        created_at=0.0,
        last_report_at=None,
        tags=[],
        notes="",
        config={},
        digest=digest,
    )
    assert printing.health_in_words(run) == words


def test_a_mistyped_metric_beside_a_right_one_is_told_of(server: RunningServer, run: str) -> None:
    asked = isentrope_command(
        server, "metrics", run, "--name", "entropy/mean", "--name", "reward/maen"
    )
    assert asked.exit_code == 0
    assert asked.stderr.count("\n") == 1
    assert all(word in asked.stderr for word in (run, "'reward/maen'", "reward/mean"))
    # Of a metric that the run has, but not at these steps, there is nothing to say.
    silent = isentrope_command(
        server,
        "metrics",
        run,
        "-n",
        "entropy/mean",
        "-n",
        "reward/mean",
        "--from-step",
        "1",
        "--to-step",
        "1",
    )
    assert silent.stderr == ""


def test_metrics_are_printed_as_a_table_and_as_json(server: RunningServer, run: str) -> None:
    table = isentrope_command(server, "metrics", run, "entropy/mean", "--name", "reward/mean")
    assert table.stdout.splitlines()[:3] == [
        "step  entropy/mean  reward/mean",
        "0     1             0",
        "1     0.5           -",
    ]
    columns = json.loads(
        isentrope_command(server, "metrics", run, "--name", "probe/seconds", "--json").stdout
    )
    assert columns == {"step": [0, 1, 2, 3, 4], "probe/seconds": [0.01, 0.01, 0.01, "NaN", 0.01]}


def test_a_control_is_changed_and_shown(server: RunningServer, run: str) -> None:
    options = [
        "--method",
        "clip_v",
        "--mu-low",
        "1",
        "--mu-high",
        "2",
        "--scope",
        "negative",
        "--reason",
        "too fast",
    ]
    item = json.loads(isentrope_command(server, "control", run, *options, "--json").stdout)
    assert (item["method"], item["mu_low"], item["mu_high"], item["scope"]) == (
        "clip_v",
        1.0,
        2.0,
        "negative",
    )
    shown = isentrope_command(server, "control", run).stdout
    assert f"version {item['version']}: clip_v µ⁻ 1 µ⁺ 2 scope negative" in shown
    assert "because: too fast" in shown


def test_options_without_a_method_change_the_newest_control(
    server: RunningServer, run: str
) -> None:
    isentrope_command(
        server, "control", run, "--method", "clip_v", "--mu-low", "1", "--scope", "negative"
    )
    item = json.loads(isentrope_command(server, "control", run, "--mu-low", "3", "--json").stdout)
    assert (item["method"], item["mu_low"], item["mu_high"], item["scope"]) == (
        "clip_v",
        3.0,
        None,
        "negative",
    )


def test_a_knob_that_did_nothing_in_the_newest_step_is_named(
    server: RunningServer, run: str
) -> None:
    lines = isentrope_command(server, "control", run).stdout.splitlines()
    assert lines[-1] == "no effect: beta is 0: no penalty."


def test_parameters_are_given_by_name_and_changed_one_by_one(
    server: RunningServer, run: str
) -> None:
    options = [
        "--method",
        "clip_v",
        "--mu-low",
        "2",
        "-p",
        "max_fraction=0.01",
        "--parameter",
        "denominator=shrink",
    ]
    item = json.loads(isentrope_command(server, "control", run, *options, "--json").stdout)
    assert item["parameters"] == {"max_fraction": 0.01, "denominator": "shrink"}
    item = json.loads(
        isentrope_command(server, "control", run, "-p", "max_fraction=off", "--json").stdout
    )
    assert (item["mu_low"], item["parameters"]) == (
        2.0,
        {"max_fraction": None, "denominator": "shrink"},
    )
    shown = isentrope_command(server, "control", run).stdout
    assert "clip_v µ⁻ 2 max_fraction off denominator shrink" in shown


def test_an_entropy_is_held_by_options_that_are_changed_one_by_one(
    server: RunningServer, run: str
) -> None:
    options = [
        "--method",
        "none",
        "--hold-target",
        "0.5",
        "--hold",
        "side=raise",
        "--hold",
        "mu_min=0.5",
    ]
    item = json.loads(isentrope_command(server, "control", run, *options, "--json").stdout)
    expected = Hold(target_entropy=0.5, mu_min=0.5, side=HoldSide.RAISE).to_document()
    assert item["hold"] == expected
    item = json.loads(
        isentrope_command(server, "control", run, "--hold", "mu_max=4", "--json").stdout
    )
    assert item["hold"] == expected | {"mu_max": 4.0}
    shown = isentrope_command(server, "control", run).stdout
    assert "none holding 0.5 nats with µ 0.5 to 4 side raise" in shown
    options = ["--hold-target", "75%", "--hold", "reward_guard=off"]
    item = json.loads(isentrope_command(server, "control", run, *options, "--json").stdout)
    share = {"target_entropy": None, "target_share": 0.75, "mu_max": 4.0, "reward_guard": False}
    assert item["hold"] == expected | share
    assert "holding 75% of the early level" in isentrope_command(server, "control", run).stdout
    assert (
        json.loads(isentrope_command(server, "control", run, "--no-hold", "--json").stdout)["hold"]
        is None
    )


def test_a_hold_that_cannot_be_is_a_wrong_use(server: RunningServer, run: str) -> None:
    for options, words in (
        (["--hold-target", "0"], "hold.target_entropy"),
        (["--method", "none", "--hold", "mu_min=1"], "target_entropy"),
        (["--hold-target", "1", "--hold", "mu_min=5", "--hold", "mu_max=2"], "hold.mu_min"),
        (["--no-hold", "--hold-target", "1"], "--no-hold"),
    ):
        result = isentrope_command(server, "control", run, *options)
        assert_one_sentence(result, 2)
        assert words in result.stderr


def test_waiting_in_vain_fails_with_the_state_it_stands_in(server: RunningServer, run: str) -> None:
    result = isentrope_command(
        server, "control", run, "--method", "none", "--wait", "--wait-seconds", "0.5"
    )
    assert_one_sentence(result, 1)
    assert any(state in result.stderr for state in ("PENDING", "DELIVERED"))


def test_waiting_for_a_version_that_is_not_applied_fails(server: RunningServer, run: str) -> None:
    pushed: list[int] = []

    def push_another_soon() -> None:
        with Client(server.url, server.token) as client:
            before = client.control(run).version
            end = time.monotonic() + 20
            while client.control(run).version == before and time.monotonic() < end:
                time.sleep(0.05)
            pushed.append(client.set_control(run, method="clip_b", mu_high=9).version)

    other = threading.Thread(target=push_another_soon)
    other.start()
    time.sleep(0.3)
    result = isentrope_command(
        server, "control", run, "--method", "clip_b", "--mu-high", "8", "--wait", "--json"
    )
    other.join()
    assert result.exit_code == 1
    assert json.loads(result.stdout)["state"] == "SUPERSEDED"
    assert [json.loads(result.stdout)["version"] + 1] == pushed


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["control", RUN, "--method", "clip_v", "--mu-low", "-1"], "mu_low"),
        (["control", RUN, "--method", "clip_v", "--mu-high", "two"], "--mu-high"),
        (["control", RUN, "--method", "magic"], "clip_v"),
        (["control", RUN, "--method", "clip_v", "--mu-low", "1", "-p", "k=2"], "got k"),
        (["control", RUN, "-p", "max_fraction"], "NAME=VALUE"),
        (["control", RUN, "--wait"], "--wait"),
        (["control", RUN, "--revert", "--mu-low", "1"], "--revert"),
        (["control", RUN, "--suggested", "--mu-low", "1"], "--suggested"),
        (["control", RUN, "--dry-run"], "--dry-run"),
        (["control", RUN, "--dry-run", "--revert"], "--dry-run"),
        (["control", RUN, "--revert", "--no-hold"], "--revert"),
        (["control"], "RUN"),
        (["no-such-command"], "no-such-command"),
        (["--no-such-option"], "--no-such-option"),
        (["metrics", RUN, "--points", "0"], "--points"),
        (["metrics", RUN, "--name", "x", "--from-step", "5", "--to-step", "4"], "--from-step"),
        (["sync", "/no/such/folder"], "/no/such/folder"),
    ],
)
def test_wrong_use_is_one_sentence_and_exit_status_2_before_any_server_is_asked(
    arguments: list[str], word: str
) -> None:
    nobody = {"ISENTROPE_URL": f"http://127.0.0.1:{free_port()}", "ISENTROPE_TOKEN": "t"}
    result = CliRunner().invoke(frame.main, arguments, env=nobody)
    assert_one_sentence(result, 2)
    assert word in result.stderr


@pytest.mark.parametrize(
    ("arguments", "environment", "word"),
    [
        (["runs"], {"ISENTROPE_TOKEN": "wrong"}, "token"),
        (["control", RUN, "--method", "none"], {"ISENTROPE_TOKEN": "wrong"}, "token"),
        (["runs"], {"ISENTROPE_URL": f"http://127.0.0.1:{free_port()}"}, "isentrope up"),
        (["watch", RUN], {"ISENTROPE_URL": f"http://127.0.0.1:{free_port()}"}, "isentrope up"),
        (["runs"], {"ISENTROPE_URL": "no address"}, "no address"),
        (["metrics", "nobody", "--name", "entropy/mean"], {}, "nobody"),
        (["metrics", "countdown"], {}, RUN),
        (["export", RUN, "--out", "/no/such/folder/x.csv"], {}, "No such file or directory"),
        (["metrics", RUN, "--name", "entropy/maen"], {}, "entropy/mean"),
        (["metrics", RUN, "--name", "entropy/maen"], {}, f"`isentrope metrics {RUN}`"),
    ],
)
def test_a_failure_is_one_sentence_and_exit_status_1(
    server: RunningServer, run: str, arguments: list[str], environment: dict[str, str], word: str
) -> None:
    result = isentrope_command(server, *arguments, **environment)
    assert_one_sentence(result, 1)
    assert word in result.stderr


@pytest.mark.parametrize("token", ["é", "two words", "line\nbreak"])
def test_a_token_that_cannot_be_one_is_wrong_use(server: RunningServer, token: str) -> None:
    result = isentrope_command(server, "runs", ISENTROPE_TOKEN=token)
    assert_one_sentence(result, 2)
    assert "ISENTROPE_TOKEN" in result.stderr
    assert token not in result.stderr
    status, lines = doctor(server, ISENTROPE_TOKEN=token)
    assert (status, "ISENTROPE_TOKEN" in lines["server"], token in lines["server"]) == (
        1,
        True,
        False,
    )


def test_a_line_break_behind_a_token_is_none_of_it(server: RunningServer, run: str) -> None:
    result = isentrope_command(server, "runs", ISENTROPE_TOKEN=f"{server.token}\n")
    assert (result.exit_code, result.stderr) == (0, "")


def test_a_sync_with_a_token_that_cannot_be_sent_is_one_sentence(
    server: RunningServer, tmp_path: Path
) -> None:
    leave_spool(tmp_path, "unsent", steps=1, grpc_target=server.grpc_target)
    result = isentrope_command(server, "sync", str(tmp_path), ISENTROPE_TOKEN="é")
    assert_one_sentence(result, 1)
    assert "ISENTROPE_TOKEN" in result.stderr


def test_a_control_that_ends_a_hold_says_so_and_one_that_keeps_it_does_not(
    server: RunningServer, run: str
) -> None:
    held = isentrope_command(
        server, "control", run, "--method", "clip_v", "--mu-low", "2", "--hold-target", "0.5"
    )
    assert (held.exit_code, held.stderr) == (0, "")
    keeps = isentrope_command(server, "control", run, "--mu-low", "1", "--mu-high", "1")
    assert (keeps.exit_code, keeps.stderr) == (0, "")
    assert "holding 0.5 nats" in keeps.stdout
    ends = isentrope_command(
        server, "control", run, "--method", "clip_v", "--mu-low", "1", "--mu-high", "1", "--json"
    )
    assert (ends.stderr.count("\n"), "0.5 nats" in ends.stderr) == (1, True)
    assert json.loads(ends.stdout)["hold"] is None


def doctor(server: RunningServer, **environment: str) -> tuple[int, dict[str, str]]:
    """Its exit status, and its lines by check."""
    result = isentrope_command(server, "doctor", **environment)
    return result.exit_code, {line.split()[1]: line for line in result.stdout.splitlines()}


def test_the_doctor_finds_a_healthy_set_up_healthy(server: RunningServer) -> None:
    result = isentrope_command(server, "doctor", "--json")
    findings = {finding["check"]: finding for finding in json.loads(result.stdout)}
    assert set(findings) == {"version", "server", "token", "ingest", "spool"}
    assert all(finding["ok"] for finding in findings.values()), findings
    assert result.exit_code == 0


def test_the_doctor_tells_a_token_that_may_only_report_from_an_unknown_one(
    server: RunningServer,
) -> None:
    with Client(server.url, server.token) as client:
        reports = client.ask(calls.create_access_token("ingest")).token
    status, lines = doctor(server, ISENTROPE_TOKEN=reports)
    assert (status, lines["token"].startswith("ok ")) == (0, True), lines
    assert "may only report" in lines["token"]
    status, lines = doctor(server, ISENTROPE_TOKEN="wrong")
    assert (status, "does not accept the token from ISENTROPE_TOKEN" in lines["token"]) == (1, True)
    assert "`isentrope token create" in lines["token"]


def test_the_doctor_says_what_to_do_about_each_problem(
    server: RunningServer, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("no folder")
    away = f"127.0.0.1:{free_port()}"
    home = str(tmp_path / "file")
    status, lines = doctor(
        server, ISENTROPE_HOME=home, ISENTROPE_URL=f"http://{away}", ISENTROPE_GRPC=away
    )
    assert status == 1
    assert [check for check, line in lines.items() if line.startswith("problem")] == [
        "server",
        "ingest",
        "spool",
    ]
    assert "`isentrope up`" in lines["server"]
    assert "`isentrope up`" in lines["ingest"]
    assert "point ISENTROPE_HOME" in lines["spool"]
    assert all(".. " not in line for line in lines.values())


class _Refusing(BaseHTTPRequestHandler):
    """A proxy that carries nothing."""

    status = 403

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_CONNECT = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


@pytest.mark.parametrize("status", [401, 403, 502])
def test_the_doctor_takes_no_proxys_answer_for_the_servers(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    # This address reaches the machine itself, and is no loopback address.
    here = {
        "ISENTROPE_URL": f"http://0.0.0.0:{server.http_port}",
        "ISENTROPE_GRPC": f"0.0.0.0:{server.grpc_port}",
    }
    monkeypatch.setattr(_Refusing, "status", status)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with ThreadingHTTPServer(("127.0.0.1", 0), _Refusing) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{proxy.server_address[1]}"
        exit_status, lines = doctor(server, **here, http_proxy=address, no_proxy="10.0.0.0/8")
        assert exit_status == 1
        assert set(lines) == {"version", "server", "ingest", "spool"}
        assert f"The proxy {address} (HTTP_PROXY)" in lines["server"]
        assert "NO_PROXY" in lines["ingest"]
        no_proxy = "fe80::/10,0.0.0.0/8"
        exit_status, lines = doctor(server, **here, http_proxy=address, no_proxy=no_proxy)
        assert (exit_status, lines["token"].startswith("ok ")) == (0, True), lines
        proxy.shutdown()


@pytest.mark.parametrize("name", ["mcp", "watch"])
def test_a_missing_extra_of_a_command_is_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for module in [
        one
        for one in sys.modules
        if one.startswith(("mcp.", "isentrope.mcp.", "isentrope.cli.watch"))
    ]:
        monkeypatch.delitem(sys.modules, module)
    for module in ("mcp", "plotext"):
        monkeypatch.setitem(sys.modules, module, None)
    result = CliRunner().invoke(
        frame.main, [name, "r"][: 1 + (name == "watch")], env={"ISENTROPE_TOKEN": "t"}
    )
    assert_one_sentence(result, 1)
    assert install_command(name) in result.stderr


@pytest.mark.parametrize(
    ("name", "place"),
    [("up", "isentrope_server.commands.up"), ("demo", "isentrope_trainer.commands.demo")],
)
def test_missing_extra_is_named_with_its_installation(
    monkeypatch: pytest.MonkeyPatch, name: str, place: str
) -> None:
    @click.command()
    def command() -> None:
        raise ModuleNotFoundError("No module named 'fastapi'", name="fastapi")

    monkeypatch.setattr(place, command)
    result = CliRunner().invoke(frame.main, [name])
    assert result.exit_code == 1
    assert (
        result.output == f"Error: `isentrope {name}` needs the extra server,dashboard:"
        f" {install_command('server,dashboard')} (there is no fastapi).\n"
    )


def test_a_terminal_may_lack_letters() -> None:
    result = CliRunner(charset="latin-1").invoke(frame.main, ["control", "--help"])
    assert "µ\\u207b in standard deviations" in result.stdout


def test_help_lists_each_command_once() -> None:
    assert sorted(name for group in frame.GROUPS.values() for name in group) == sorted(
        frame.COMMANDS
    )
    shown = CliRunner().invoke(frame.main, []).output
    assert [f"\n  {name} " in shown for name in frame.COMMANDS] == [True] * len(frame.COMMANDS)
    assert "..." not in shown.partition("Start:")[2]

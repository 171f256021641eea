"""Every command: help, JSON where it prints data, exit status 0, 1 or 2, and errors in one sentence
on stderr."""

from __future__ import annotations

import json
import pkgutil
import time
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from isentrope.cli import frame
from isentrope_server.home import locked_home
from isentrope_server.store import access
from isentrope_server.store.writer import Transaction
from isentrope_wire import environment as addresses
from isentrope_wire.answers import TokenScope
from isentrope_wire.control import Control
from isentrope_wire.reports import ControlSnapshot, RunFinished
from tests.probe.test_cli import assert_one_sentence
from tests.server.in_thread import ServerInThread
from tests.server.rank import Rank, step_report

PRINTS_DATA = {
    "audit", "checks", "control", "doctor", "metrics", "runs", "sync", "token create",
    "token list", "top-tokens", "watch",
}  # fmt: skip
PRINTS_FILES = {"backup", "export", "reproduce", "restore"}
ENDLESS_OR_TRAINING = {"demo", "mcp", "train", "up"}


def all_commands() -> dict[str, click.Command]:
    """By the words that call them."""
    top = {name: pkgutil.resolve_name(target) for name, target in frame.COMMANDS.items()}
    found: dict[str, click.Command] = {}
    for name, command in top.items():
        if isinstance(command, click.Group):
            found |= {f"{name} {inner}": one for inner, one in command.commands.items()}
        else:
            found[name] = command
    return found


@pytest.fixture(scope="module")
def environment(
    server: ServerInThread, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str | None]:
    """The environment of somebody who may do everything."""
    Rank(server, run_id="r").report(0, x=1.0)
    return {
        "ISENTROPE_HOME": str(server.home),
        "ISENTROPE_URL": server.url,
        "ISENTROPE_GRPC": server.grpc_target,
        "ISENTROPE_TOKEN": server.owner_token,
        "ISENTROPE_DATABASE_URL": None,
    }


def call(words: str, environment: dict[str, str | None]) -> Result:
    return CliRunner().invoke(frame.main, words.split(), env=environment)


def test_every_command_belongs_to_a_kind() -> None:
    others = {"delete", "token revoke", "diagnose"}  # which reads a file, and needs no server
    assert set(all_commands()) - PRINTS_DATA - PRINTS_FILES - ENDLESS_OR_TRAINING == others


@pytest.mark.parametrize("words", sorted(all_commands()))
def test_every_command_and_option_is_explained(words: str) -> None:
    command = all_commands()[words]
    assert command.help
    assert command.help.split("\n\n")[0].rstrip().endswith((".", ":")), words
    for option in command.params:
        if isinstance(option, click.Option) and option.name not in (
            "status",
            "from_step",
            "to_step",
            "scope",
            "method",
        ):
            assert option.help, (words, option.name)


@pytest.mark.parametrize("words", sorted(PRINTS_DATA))
def test_every_command_that_prints_data_prints_json_too(
    words: str, environment: dict[str, str | None]
) -> None:
    needed = {
        "checks": "r",
        "control": "r",
        "metrics": "r --name x",
        "token create": "--scope read",
        "top-tokens": "r",
        "watch": "r",
    }.get(words, "")
    result = call(f"{words} {needed} --json", environment)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    json.loads(result.stdout)


@pytest.mark.parametrize("words", sorted(set(all_commands())))
def test_unknown_option_is_wrong_usage_in_one_sentence(
    words: str, environment: dict[str, str | None]
) -> None:
    assert_one_sentence(call(f"{words} --no-such-option", environment), 2)


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ("control unknown", 1),
        ("watch unknown", 1),
        ("token revoke nothing", 1),
        ("token create --scope all", 2),
        ("token create --scope read --name owner", 1),
        ("audit --limit 0", 2),
    ],
)
def test_failures_are_one_sentence(
    words: str, status: int, environment: dict[str, str | None]
) -> None:
    assert_one_sentence(call(words, environment), status)


def test_tokens_are_listed_and_revoked(environment: dict[str, str | None]) -> None:
    made = json.loads(call("token create --scope ingest --json", environment).stdout)
    line = next(
        one for one in call("token list", environment).stdout.splitlines() if made["id"] in one
    )
    for words in ("ingest", "active", "never used"):
        assert words in line
    assert call(f"token revoke {made['id']}", environment).exit_code == 0
    assert "revoked" in next(
        one for one in call("token list", environment).stdout.splitlines() if made["id"] in one
    )
    trail = call("audit --limit 500", environment)
    assert "token.revoked" in trail.stdout
    assert "whose home is" in trail.stderr


def test_a_token_comes_with_the_words_whose_it_is_and_goes_with_them(
    environment: dict[str, str | None], server: ServerInThread
) -> None:
    made = call("token create --scope read", environment)
    assert made.stderr == f"A token of the server at {server.url}, whose home is {server.home}:\n"
    with server.client(made.stdout.strip()) as reader:
        assert reader.get("/api/v1/runs").status_code == 200
    token_id = json.loads(call("token list --json", environment).stdout)[-1]["id"]
    gone = call(f"token revoke {token_id}", environment)
    assert gone.exit_code == 0
    assert all(value in gone.stdout for value in (token_id, server.url, str(server.home)))


@pytest.mark.parametrize("words", ["token list", "token revoke x", "audit"])
def test_looking_into_a_home_without_a_database_makes_none(
    words: str, environment: dict[str, str | None], tmp_path: Path
) -> None:
    empty = tmp_path / "home"
    result = call(words, environment | {"ISENTROPE_HOME": str(empty)})
    assert_one_sentence(result, 1)
    assert str(empty) in result.stderr
    assert not empty.exists()


def test_a_token_for_a_server_elsewhere_is_refused_where_no_server_ever_ran(
    environment: dict[str, str | None], tmp_path: Path
) -> None:
    empty = tmp_path / "home"
    here = environment | {"ISENTROPE_HOME": str(empty), "ISENTROPE_TOKEN": None}
    result = call(
        "token create --scope read", here | {"ISENTROPE_URL": "https://isentrope.example"}
    )
    assert_one_sentence(result, 1)
    assert "https://isentrope.example" in result.stderr
    assert not empty.exists()
    assert_one_sentence(
        call("token create --scope read --name server", here | {"ISENTROPE_URL": None}), 1
    )
    made = call("token create --scope read", here | {"ISENTROPE_URL": None})
    assert made.exit_code == 0
    assert (
        f"A token of any server that starts with the database sqlite:///{empty}/isentrope.db:"
        in made.stderr
    )


HOSTILE = "\x1b[31mred\x1b[0m\r2026-01-01 00:00:00  token.created  forged\n\u202eeman"


@pytest.fixture(scope="module")
def hostile(server: ServerInThread, environment: dict[str, str | None]) -> Rank:
    """A run, its metric, its control's author and a token, named to be obeyed by a terminal."""
    rank = Rank(
        server,
        run_id="hostile",
        name=HOSTILE,
        initial_control=ControlSnapshot(
            version=0, control=Control(reason=HOSTILE), author=HOSTILE, requested_at=1.0
        ),
    )
    rank.send(step_report(0, {HOSTILE: 1.0}, labels={"control/dead": HOSTILE}))
    server.backend.writer.submit(_as_an_older_server_stored).result(10)
    return rank


def _as_an_older_server_stored(transaction: Transaction) -> None:
    """It took any name for a token, and any author's for the trail."""
    access.add_token(transaction.connection, HOSTILE, TokenScope.READ)
    access.record_audit(
        transaction.connection, HOSTILE, "token.created", "tokens/1", {"name": HOSTILE}, 1.0
    )


@pytest.mark.parametrize(
    "words", ["runs", "metrics hostile", "control hostile", "token list", "audit"]
)
def test_names_from_outside_are_printed_so_that_no_terminal_obeys_them(
    hostile: Rank, environment: dict[str, str | None], words: str
) -> None:
    result = call(words, environment)
    assert result.exit_code == 0, result.output
    assert (
        "\\u001b[31mred\\u001b[0m\\u000d2026-01-01 00:00:00  token.created "
        " forged\\u000a\\u202eeman" in result.stdout
    )
    assert result.stdout.replace("\n", "").isprintable()
    assert not any(line.startswith("2026-01-01") for line in result.stdout.splitlines())


@pytest.mark.parametrize("words", ["runs", "token list", "audit"])
def test_json_keeps_names_from_outside_exactly(
    hostile: Rank, environment: dict[str, str | None], words: str
) -> None:
    assert json.dumps(HOSTILE) in call(f"{words} --json", environment).stdout


def test_an_error_that_names_what_was_given_is_printable(
    environment: dict[str, str | None],
) -> None:
    result = CliRunner().invoke(frame.main, ["metrics", "\x1b[31munknown"], env=environment)
    assert_one_sentence(result, 1)
    assert "\x1b" not in result.stderr


def test_commands_find_the_server_of_their_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ISENTROPE_URL", "ISENTROPE_GRPC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ISENTROPE_HOME", str(tmp_path))
    with locked_home(tmp_path, "http://127.0.0.1:8123", "127.0.0.1:8124"):
        assert (addresses.url(), addresses.grpc_target()) == (
            "http://127.0.0.1:8123",
            "127.0.0.1:8124",
        )
        monkeypatch.setenv("ISENTROPE_GRPC", "elsewhere:7071")
        assert (addresses.url(), addresses.pages_of("elsewhere:7071")) == (
            addresses.DEFAULT_URL,
            None,
        )
        for given, target in (
            ("elsewhere", "elsewhere:7071"),
            ("http://[::1]:8", "[::1]:8"),
            ("https://ingress.example", "https://ingress.example"),
        ):
            monkeypatch.setenv("ISENTROPE_GRPC", given)
            assert addresses.grpc_target() == target
        monkeypatch.delenv("ISENTROPE_GRPC")
    assert (addresses.url(), addresses.grpc_target()) == (
        addresses.DEFAULT_URL,
        addresses.DEFAULT_GRPC,
    )


def test_checks_are_a_table(server: ServerInThread, environment: dict[str, str | None]) -> None:
    Rank(server, run_id="checked").report(0, entropy=1.0)
    lines = call("checks checked", environment).output.splitlines()
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in lines}
    assert rows["collapse"] == "waits -"
    assert rows["plateau"] == "no data - would need the mean reward"


def test_runs_are_limited(server: ServerInThread, environment: dict[str, str | None]) -> None:
    for number in range(3):
        Rank(server, run_id=f"limited-{number}", project="limited")
    listed = call("runs --project limited --limit 2 --json", environment).stdout
    assert [run["id"] for run in json.loads(listed)] == ["limited-2", "limited-1"]
    assert_one_sentence(call("runs --limit 0", environment), 2)


def test_a_revert_takes_the_newest_applied_change_back(
    server: ServerInThread, environment: dict[str, str | None]
) -> None:
    rank = Rank(server)
    for version, (mu_low, state) in enumerate(
        [("2", "APPLIED"), ("1", "APPLIED"), ("0.5", "REJECTED")], start=1
    ):
        call(f"control {rank.run_id} --method clip_v --mu-low {mu_low}", environment)
        rank.answer(version, version, state, active=min(version, 2))
    result = call(f"control {rank.run_id} --revert --json", environment)
    item = json.loads(result.stdout)
    assert (item["version"], item["mu_low"], item["reason"]) == (4, 2.0, "Reverts version 2")

    rank.answer(4, 4, "APPLIED", active=4)
    call(f"control {rank.run_id} --method clip_v --mu-low 9", environment)
    result = call(f"control {rank.run_id} --revert --reason calm --guard alert --json", environment)
    item = json.loads(result.stdout)
    assert (item["mu_low"], item["reason"], item["guard"]) == (2.0, "calm", "alert")


def test_a_revert_of_the_only_change_ends_it(
    server: ServerInThread, environment: dict[str, str | None]
) -> None:
    rank = Rank(server)
    nothing = call(f"control {rank.run_id} --revert", environment)
    assert_one_sentence(nothing, 1)
    assert "nothing to revert" in nothing.stderr
    call(f"control {rank.run_id} --method clip_v --mu-low 2", environment)
    rank.answer(1, 1, "APPLIED", active=1)
    waited = f"control {rank.run_id} --revert --wait --wait-seconds 0.1"
    result = call(waited, environment)
    assert_one_sentence(result, 1)
    assert "version 2" in result.stderr
    item = server.http.get(f"{rank.path}/control").json()
    assert (item["version"], item["method"]) == (2, "none")


def test_deletes_what_is_confirmed(
    server: ServerInThread, environment: dict[str, str | None]
) -> None:
    first, second, live = [Rank(server).run_id for _ in range(3)]
    for run_id in (first, second):
        Rank(server, run_id=run_id).send(RunFinished(status="finished", finished_at=time.time()))
    asked = CliRunner().invoke(frame.main, ["delete", first], input="n\n", env=environment)
    assert (asked.exit_code, first in asked.stderr) == (1, True)
    assert_one_sentence(call(f"delete {first} nobody --yes", environment), 1)
    assert call(f"runs -q {first} --json", environment).stdout.count('"id"') == 1
    deleted = call(f"delete {first} {second} --yes", environment)
    assert deleted.stdout == f"Deleted {first}\nDeleted {second}\n"
    assert json.loads(call(f"runs -q {first} --json", environment).stdout) == []
    refused = call(f"delete {live} --yes", environment)
    assert (refused.exit_code, "still reporting" in refused.stderr) == (1, True)

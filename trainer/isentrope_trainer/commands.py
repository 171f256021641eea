"""`isentrope train` and `isentrope demo`. Heavy imports are inside functions: `--help` must not
wait for torch."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin

import click
from click.core import ParameterSource

from isentrope_trainer.settings import (
    HARD_LANGUAGE_MODEL,
    LANGUAGE_MODEL,
    SIZES,
    PolicyConfig,
    TrainingConfig,
    change_settings,
    options_of,
    training_config,
)
from isentrope_wire.control import Control, Scope
from isentrope_wire.errors import install_command
from isentrope_wire.methods import METHODS, name_and_value

if TYPE_CHECKING:
    from isentrope import Probe
    from isentrope_trainer.loop import StepResult
    from isentrope_trainer.server_process import ServerProcess

_INTERRUPTED = 130
_DELIVERY_SECONDS = 20.0
_REPLAY_SPEED = 2.0
"""Steps a second: the recorded run is over in a minute."""
_NEEDED = {
    "trainer": ("torch", "transformers", "reasoning_gym", "tqdm"),
    "llm": ("trl", "gguf", "pip"),
}
"""Extra -> what it brings."""
_BY_DEFAULT = ParameterSource.DEFAULT
_Command = TypeVar("_Command", bound=Callable[..., Any])


def _setting_options(*names: str) -> Callable[[_Command], _Command]:
    """Options of these settings: type, help and default are those of the field."""

    def declare(command: _Command) -> _Command:
        for name in reversed(names):
            declared, shown = _OPTIONS[name]
            inner = next(
                (part for part in get_args(declared) or (declared,) if part is not type(None)), str
            )
            choices = shown["choices"] or (
                get_args(declared) if get_origin(declared) is Literal else ()
            )
            kind = inner
            if choices:
                kind = click.Choice(choices)
            command = click.option(f"--{_flag(name)}", type=kind, help=shown["help"])(command)
        return command

    return declare


def _flag(name: str) -> str:
    return str(_OPTIONS[name][1]["flag"] or name.rpartition(".")[2].replace("_", "-"))


_OPTIONS = options_of(TrainingConfig)
_IN_DEMO = ("steps", "seed", "learning_rate", "prompts", "group_size", "model.path")


def _run_options(command: _Command) -> _Command:
    """What the run is called, and the control it starts with."""
    scopes = click.Choice([str(scope) for scope in Scope])
    for decorate in (
        click.option("--project", default="demo", show_default=True, help="The run's project."),
        click.option("--name", default="countdown", show_default=True, help="The run's name."),
        click.option(
            "--hold-target",
            metavar="NATS|SHARE%",
            help=(
                "Hold the mean entropy there: nats, or a share of its early level such as 75%. "
                " [default: never]"
            ),
        ),
        click.option(
            "--parameter",
            "-p",
            "parameters",
            multiple=True,
            metavar="NAME=VALUE",
            help="A parameter of the method, such as fraction=0.2; may be repeated.",
        ),
        click.option(
            "--scope", type=scopes, help="The tokens that the method acts on.  [default: all]"
        ),
        click.option(
            "--mu-high",
            type=float,
            help="Clip above the centre, in standard deviations.  [default: never]",
        ),
        click.option(
            "--mu-low",
            type=float,
            help="Clip below the centre, in standard deviations.  [default: never]",
        ),
        click.option(
            "--method",
            type=click.Choice(list(METHODS)),
            default="none",
            show_default=True,
            help="The clipping method.",
        ),
    ):
        command = decorate(command)
    return command


_port = click.IntRange(1, 65535)


@click.command()
@click.option(
    "--host", help="The server's host.  [default: ISENTROPE_URL and ISENTROPE_GRPC, or 127.0.0.1]"
)
@click.option(
    "--http-port", type=_port, help="The server's port for pages and REST.  [default: 7070]"
)
@click.option("--grpc-port", type=_port, help="The server's port for reports.  [default: 7071]")
@_run_options
@_setting_options(*_OPTIONS)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help=(
        "Any other setting of the training; may be repeated. loss.clip_high=0.28,"
        " loss.kl_coefficient=0.01, loss.entropy_coefficient=0.001, loss.aggregation=constant,"
        " sampler_lag=4; adaptive_entropy.target_entropy=0.4 lets a bonus follow the entropy. A"
        " wrong name lists all."
    ),
)
@click.option(
    "--model-size",
    type=click.Choice(list(SIZES)),
    default="1.1M",
    show_default=True,
    help="Parameters of the policy.",
)
@click.option(
    "--checkpoint", type=click.Path(file_okay=False), metavar="DIR", help="Save the run there."
)
@click.option(
    "--resume",
    type=click.Path(file_okay=False, exists=True),
    metavar="DIR",
    help="Continue the run saved there, with its own settings; --steps may be raised.",
)
@click.option("--json", "as_json", is_flag=True, help="Print events as JSON, one a line.")
def train(host: str | None, http_port: int | None, grpc_port: int | None, **options: Any) -> None:
    """Train the reference policy and report to a running server.

    Training never waits for the server: where none answers, reports stay in the spool and go up
    later (`isentrope sync`). Ctrl-C ends the run after the batch that it trains on, and saves it
    where --checkpoint says."""
    if options["resume"]:
        config, control = _resumed(options)
    else:
        config, control = _checked(options)
    if host or http_port or grpc_port:
        host = host or "127.0.0.1"
        _point_at_server(f"http://{host}:{http_port or 7070}", f"{host}:{grpc_port or 7071}")
    with _sigterm_as_interrupt():
        sys.exit(_train(config, control, options, announce=_announce_run))


@click.command()
@click.option("--host", help="Address the server listens on.  [default: 127.0.0.1]")
@click.option(
    "--http-port",
    type=_port,
    help="Port for pages and REST.  [default: 7070, or a free one where it is taken]",
)
@click.option(
    "--grpc-port",
    type=_port,
    help="Port for reports.  [default: 7071, or a free one where it is taken]",
)
@click.option(
    "--headless", is_flag=True, help="Open no browser, and exit when the run is over (for scripts)."
)
@click.option(
    "--exit-when-done", is_flag=True, help="Exit when the run is over; otherwise the pages stay up."
)
@click.option(
    "--llm",
    is_flag=True,
    help=(
        "Train a real language model under TRL: SmolLM2-135M-Instruct, loaded once, or the one"
        f" that --model names. By default {LANGUAGE_MODEL.steps} steps of {LANGUAGE_MODEL.prompts}"
        f" prompts by {LANGUAGE_MODEL.group_size} rollouts, half an hour on two cores."
    ),
)
@click.option(
    "--hard",
    is_flag=True,
    help=(
        "With --llm: a learning rate at which half of the entropy is gone in nine steps."
        f" {HARD_LANGUAGE_MODEL.steps} steps, some ten minutes."
    ),
)
@click.option(
    "--replay",
    is_flag=True,
    help="Train nothing: show a recorded run, for which torch is not needed.",
)
@click.option(
    "--speed",
    type=click.FloatRange(min=0, min_open=True),
    default=_REPLAY_SPEED,
    show_default=True,
    help="With --replay: steps a second.",
)
@_run_options
@_setting_options(*_IN_DEMO)
def demo(
    host: str | None,
    http_port: int | None,
    grpc_port: int | None,
    headless: bool,
    exit_when_done: bool,
    llm: bool,
    hard: bool,
    replay: bool,
    speed: float,
    **options: Any,
) -> None:
    """Start server and dashboard, and train a policy whose entropy collapses before your eyes.

    Where a server runs already with this home (ISENTROPE_HOME), the run reports to it."""
    if hard and not llm:
        raise click.UsageError("--hard belongs to --llm.")
    usual = TrainingConfig()
    if llm:
        usual = LANGUAGE_MODEL
    if hard:
        usual = HARD_LANGUAGE_MODEL
    config, control = _checked(options, usual)
    _check_mode(replay, llm, options)
    run: Callable[[Callable[[str], None]], int] = partial(_train, config, control, options)
    trainer = "isentrope_trainer.reference_run"
    if replay:
        run = partial(_replay, speed)
    elif llm:
        run = partial(_train_language_model, _language_model(config), config, control, options)
        trainer = "isentrope_trainer.language_model_run"
    from isentrope_trainer.server_process import ServerDidNotStart, choose_server

    server = choose_server(host, http_port, grpc_port)
    _point_at_server(server.url, server.grpc)
    try:
        # Imports take as long as the server's start: side by side. The server is stopped before its
        # thread is waited for.
        with _sigterm_as_interrupt(), ThreadPoolExecutor(2) as beside, server:
            shown = beside.submit(_show_address, server, headless)
            if not replay:
                _import_training(trainer, beside, shown)
            shown.result()
            status = _and_deliver(server, run)
            if status == 0 and server.is_own and not (headless or exit_when_done):
                _keep_pages_up(server)
    except ServerDidNotStart as error:
        sys.exit(error.status)
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    sys.exit(status)


def _check_mode(replay: bool, llm: bool, training_options: dict[str, Any]) -> None:
    """Refuse options that exclude each other, and a training without its libraries, before anything
    is started."""
    context = click.get_current_context()
    given = [
        name
        for name in (*training_options, "speed")
        if context.get_parameter_source(name) != _BY_DEFAULT
    ]
    if replay:
        training = ["llm"] * llm + [name for name in given if name != "speed"]
        if training:
            raise click.UsageError(
                "--replay shows a run as it was trained, with the settings it had: leave out"
                f" --{training[0].replace('_', '-')}."
            )
    elif "speed" in given:
        raise click.UsageError("--speed belongs to --replay; training is as fast as it can be.")
    elif "model" in given and not llm:
        raise click.UsageError(
            "--model belongs to --llm; `isentrope train --model` trains it without TRL."
        )
    extras = ("trainer", "llm") if llm else ("trainer",)
    for extra in () if replay and not llm else extras:
        if missing := [name for name in _NEEDED[extra] if find_spec(name) is None]:
            raise click.ClickException(
                f"Training needs the extra {extra}: {install_command(extra)} (there is no"
                f" {missing[0]}). `isentrope demo --replay` shows a recorded run without it."
            )


def _show_address(server: ServerProcess, headless: bool) -> None:
    login_url = server.wait_until_ready()
    # In a pipe it would stay in a log: it holds the owner's token, whose file the server names.
    shown_url = server.url
    if sys.stdout.isatty():
        shown_url = login_url
    click.echo(shown_url)
    if not headless:
        # There is no run yet: this page opens it with its first report.
        _open_browser(login_url.replace("/?", "/start?follow=yes&", 1))


def _import_training(trainer: str, beside: Executor, shown: Future[None]) -> None:
    """Import what trains while the kernel of the scores is compiled; no more where the server's
    address can't be had."""
    from isentrope.kernels import load_cpp

    compiled = beside.submit(load_cpp)
    _let_threads_sleep()
    for module in ("torch", "isentrope_trainer.models.policy", trainer):
        importlib.import_module(module)
        if shown.done():
            shown.result()
    # Scoring falls back by itself where it failed.
    wait([compiled])


def _open_browser(url: str) -> None:
    """Open the pages where there is a screen. Failures are ignored: the address has been
    printed."""
    if not sys.platform.startswith("linux"):
        click.launch(url)
    elif os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        with suppress(OSError):
            subprocess.Popen(
                ["xdg-open", url], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )


def _keep_pages_up(server: ServerProcess) -> None:
    click.echo(f"The run is over; the pages stay up at {server.url} until Ctrl-C.", err=True)
    try:
        server.wait()
    except KeyboardInterrupt:
        # How this command is meant to end.
        click.echo("Stopping.", err=True)


def _and_deliver(server: ServerProcess, run: Callable[[Callable[[str], None]], int]) -> int:
    """Train or replay, and wait until the server has the last report. Returns the exit status."""
    run_ids: list[str] = []

    def announce(run_id: str) -> None:
        run_ids.append(run_id)
        _announce_run(run_id)

    status = run(announce)
    if run_ids and not server.wait_for_end_of_run(run_ids[0], _DELIVERY_SECONDS):
        click.echo(
            f"The run's last reports are still in the spool after {_DELIVERY_SECONDS:.0f} s; "
            "`isentrope sync` uploads them when a server runs.",
            err=True,
        )
    return status


def _replay(steps_per_second: float, announce: Callable[[str], None]) -> int:
    from isentrope_trainer.recording import SHIPPED, read_recording, replay

    recording = read_recording(SHIPPED)
    click.echo(
        f"A recorded run, {len(recording.reports)} steps at {steps_per_second:g} a second.",
        err=True,
    )
    try:
        replay(recording, steps_per_second=steps_per_second, announce=announce)
    except KeyboardInterrupt:
        return _INTERRUPTED
    return 0


def _train(
    config: TrainingConfig,
    control: Control,
    options: dict[str, Any],
    announce: Callable[[str], None],
) -> int:
    _let_threads_sleep()
    from isentrope_trainer.reference_run import Course, train_reference_policy
    from isentrope_trainer.training_state import Checkpoints

    # A resumed run has the shape that it was started with.
    resumed_shape = options.get("policy")
    if resumed_shape:
        policy_config = PolicyConfig(**resumed_shape)
    else:
        policy_config = SIZES[options.get("model_size", "1.1M")]
    course, status = Course(), 0
    event = None
    if options.get("as_json"):
        event = _print_event
    folder = options.get("resume") or options.get("checkpoint")

    def follow(probe: Probe, result: StepResult) -> None:
        course.follow(probe, result)
        if event is None:
            return
        # Reports are built off the training thread: the latest may be that of the step before.
        report = probe.latest
        event(
            "step",
            **asdict(result),
            metrics_step=None if report.step < 0 else report.step,
            metrics=dict(report.scalars),
        )
        evaluated = {
            name: value for name, value in report.scalars.items() if name.startswith("eval/")
        }
        if evaluated:
            event("eval", step=report.step, **evaluated)

    try:
        train_reference_policy(
            config,
            control,
            name=options["name"],
            project=options["project"],
            policy_config=policy_config,
            checkpoints=None if folder is None else Checkpoints(Path(folder)),
            resume=bool(options.get("resume")),
            announce=(
                announce
                if event is None
                else lambda run_id: event("run", run_id=run_id, config=asdict(config))
            ),
            follow=follow,
            saved=lambda step, path: (
                None if event is None else event("checkpoint", step=step, path=str(path))
            ),
        )
    except KeyboardInterrupt:
        status = _INTERRUPTED
    if event is not None:
        event("end", status="interrupted" if status else "finished", steps=course.steps)
    elif closing_line := str(course):
        click.echo(closing_line)
    return status


def _language_model(config: TrainingConfig) -> Path:
    """The folder of the model that is trained; SmolLM2's is made, where it isn't there yet."""
    # Nothing is asked of a model hub, and TRL need not say that `rollout_func` may change: its
    # versions are pinned.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    from isentrope_trainer import smollm2

    if config.model is None:
        try:
            return smollm2.ensure()
        except (smollm2.ModelNotLoaded, OSError) as error:
            raise click.ClickException(str(error)) from error
    if not Path(config.model.path).is_dir():
        raise click.UsageError(
            f"--model must be a folder with a model and its tokenizer, got {config.model.path!r}."
        )
    return Path(config.model.path)


def _train_language_model(
    folder: Path,
    config: TrainingConfig,
    control: Control,
    options: dict[str, Any],
    announce: Callable[[str], None],
) -> int:
    from isentrope_trainer.language_model_run import train_language_model
    from isentrope_trainer.reference_run import Course

    named = click.get_current_context().get_parameter_source("name") != _BY_DEFAULT
    course, status, seconds = Course(), 0, dict[str, float]()
    try:
        train_language_model(
            folder,
            config,
            control,
            name=options["name"] if named else folder.name,
            project=options["project"],
            seconds=seconds,
            announce=announce,
            follow=course.follow,
        )
    except KeyboardInterrupt:
        status = _INTERRUPTED
    if closing_line := str(course):
        click.echo(closing_line)
        spent = ", ".join(f"{part} {mean:.1f}" for part, mean in seconds.items())
        click.echo(f"seconds of an average step: {spent}")
    return status


def _print_event(name: str, **fields: Any) -> None:
    click.echo(json.dumps({"event": name, **fields}))


def _let_threads_sleep() -> None:
    # Server, browser and training share a small machine's cores: torch's threads must sleep while
    # they wait for each other, not spin. Measured on 2 busy cores: 1.2 s a step instead of 6.5.
    # Read once, when torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def _checked(
    options: dict[str, Any],
    default: TrainingConfig = TrainingConfig(),  # noqa: B008  (frozen)
) -> tuple[TrainingConfig, Control]:
    """Settings that can't work end the command before anything is started."""
    by_flag = {_flag(name).replace("-", "_"): name for name in _OPTIONS}
    given = {
        by_flag[flag]: value
        for flag, value in options.items()
        if flag in by_flag and value is not None
    }
    if "model.path" in given:
        given |= {
            "model.path": str(Path(given["model.path"]).resolve()),
            "task.wording": "question",
        }
    config = change_settings(default, given)
    config = change_settings(config, dict(_setting(text) for text in options.get("settings", ())))
    control = Control(
        method=options["method"],
        mu_low=options["mu_low"],
        mu_high=options["mu_high"],
        scope=options["scope"],
        parameters=dict(name_and_value(text) for text in options["parameters"]),
        hold=None if options["hold_target"] is None else {"target": options["hold_target"]},
    )
    return config, control


def _setting(text: str) -> tuple[str, Any]:
    """`loss.clip_high=0.28` as a name and a value of JSON; a word is a text, `none` no value."""
    name, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not name:
        raise click.UsageError(
            f"--set takes NAME=VALUE, such as loss.clip_high=0.28; got {text!r}."
        )
    if value == "none":
        return name, None
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


def _resumed(options: dict[str, Any]) -> tuple[TrainingConfig, Control]:
    """The settings of a saved run. Its control comes with its checkpoint."""
    from isentrope_trainer.training_state import Checkpoints

    context, allowed = (
        click.get_current_context(),
        {"resume", "steps", "as_json", "host", "http_port", "grpc_port"},
    )
    given = [
        name
        for name in options
        if context.get_parameter_source(name) != _BY_DEFAULT and name not in allowed
    ]
    if given:
        superfluous = given[0].replace("_", "-")
        raise click.UsageError(
            f"--resume continues a run with its own settings: leave out --{superfluous}."
        )
    run = Checkpoints(Path(options["resume"])).run()
    config = training_config(run["config"])
    if context.get_parameter_source("steps") != _BY_DEFAULT:
        config = replace(config, steps=options["steps"])
    options |= run["started_with"]
    return config, Control()


def _point_at_server(url: str, grpc: str) -> None:
    # The probe and the side process it starts read these.
    os.environ["ISENTROPE_URL"] = url
    os.environ["ISENTROPE_GRPC"] = grpc


def _announce_run(run_id: str) -> None:
    click.echo(f"run: {run_id}")


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """SIGTERM unwinds like Ctrl-C, so that children are stopped and the run is ended."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)

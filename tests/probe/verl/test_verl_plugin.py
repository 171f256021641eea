"""What `import verl` does with the plugin, on a stand-in for verl's tracking and its registry of
engines."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from isentrope_wire.errors import ConfigurationError
from isentrope_wire.reports import StepReport

PLUGIN = "isentrope.integrations.verl_plugin"


class Tracking:
    """As verl's, as far as the plugin sees it."""

    supported_backend = ("console",)

    def __init__(
        self,
        project_name: str,
        experiment_name: str,
        default_backend: Any = "console",
        config: Any = None,
    ):
        assert set(
            [default_backend] if isinstance(default_backend, str) else default_backend
        ) <= set(self.supported_backend)
        self.logger: dict[str, Any] = {}

    def log(self, data: dict[str, float], step: int) -> None:
        for backend in self.logger.values():
            backend.log(data=data, step=step)

    def finish(self, exit_code: int = 0) -> None:
        self._finished = True


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    tracking = type(
        "Tracking", (Tracking,), {"__init__": Tracking.__init__, "finish": Tracking.finish}
    )
    for name, members in {
        "verl": {},
        "verl.utils": {},
        "verl.utils.tracking": {"Tracking": tracking},
    }.items():
        module = ModuleType(name)
        module.__dict__.update(members)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delenv("ISENTROPE_VERL", raising=False)
    yield importlib.import_module(PLUGIN)
    sys.modules.pop(PLUGIN, None)


def test_the_logger_reports_what_verl_logs(
    plugin: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ISENTROPE_MODE", "disabled")
    tracking = plugin.Tracking(
        "maths", "nightly", ["console", "isentrope"], {"trainer": {"nnodes": 1}}
    )
    probe = tracking.logger["isentrope"]._probe
    built: list[StepReport] = []
    monkeypatch.setattr(probe._transport, "put", lambda make: not built.append(make()))  # type: ignore[func-returns-value]
    tracking.log({"critic/rewards/mean": 0.5, "actor/pg_loss": 0.25, "note": "text"}, step=3)
    tracking.finish()
    assert built[0].step == 3
    assert {
        name: built[0].scalars[name]
        for name in ("critic/rewards/mean", "reward/mean", "actor/pg_loss")
    } == {
        "critic/rewards/mean": 0.5,
        "reward/mean": 0.5,
        "actor/pg_loss": 0.25,
    }


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, ("nightly", "maths")),
        (
            {"NAME": "qwen", "PROJECT": "algebra", "RUN_ID": "7"},
            ("qwen-driver", "algebra", "7-driver"),
        ),
    ],
)
def test_the_driver_is_named_as_the_workers_are(
    plugin: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    expected: tuple[str, ...],
) -> None:
    monkeypatch.setenv("ISENTROPE_MODE", "disabled")
    for name in ("NAME", "PROJECT", "RUN_ID"):
        monkeypatch.delenv(f"ISENTROPE_{name}", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(f"ISENTROPE_{name}", value)
    probe = plugin.Tracking("maths", "nightly", ["console", "isentrope"]).logger["isentrope"]._probe
    assert (probe.config.name, probe.config.project, probe.run_id)[: len(expected)] == expected


def test_without_the_logger_nothing_is_reported(plugin: ModuleType) -> None:
    assert plugin.Tracking("maths", "nightly", "console").logger == {}


def test_tracking_that_has_no_end_is_extended_too(
    plugin: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of verl 0.8."""
    monkeypatch.setenv("ISENTROPE_MODE", "disabled")
    theirs = type("Tracking", (), {"supported_backend": (), "__init__": Tracking.__init__})
    plugin._add_backend(theirs)
    assert "isentrope" in theirs("maths", "nightly", ["isentrope"]).logger


def test_activating_twice_changes_nothing(plugin: ModuleType) -> None:
    backends = plugin.Tracking.supported_backend
    plugin.activate()
    assert plugin.Tracking.supported_backend == backends == ["console", "isentrope"]


def test_a_failure_is_logged_for_verl_hides_it(
    plugin: ModuleType, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ISENTROPE_VERL", "perhaps")
    sys.modules.pop(PLUGIN)
    with (
        pytest.raises(ConfigurationError, match="perhaps"),
        caplog.at_level(logging.ERROR, "isentrope"),
    ):
        importlib.import_module(PLUGIN)
    assert "not attached to verl" in caplog.text


@pytest.fixture
def registry(plugin: ModuleType, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A registry whose engines remember what was attached to them."""

    def new(model_type: str, backend: str, *, forward_only: bool = False) -> SimpleNamespace:
        config = SimpleNamespace(forward_only=forward_only)
        return SimpleNamespace(engine_config=config, initialize=lambda: "built", events=[])

    made = SimpleNamespace(new=new)
    adapter = SimpleNamespace(
        ATTRIBUTE="probe",
        attach=lambda engine: engine.events.append("attached"),
        VERSIONS=SimpleNamespace(check=lambda: "0.9.1"),
        check_supported=lambda engine: engine.events.append("checked"),
    )
    modules = {
        "verl.workers.engine.base": SimpleNamespace(EngineRegistry=made),
        "isentrope.integrations.verl": adapter,
    }
    monkeypatch.setattr(plugin, "import_module", modules.__getitem__)
    plugin._attach_new_engines()
    plugin._attach_new_engines()
    return made


@pytest.mark.parametrize(
    ("model_type", "forward_only", "events"),
    [
        ("language_model", False, ["checked", "attached"]),
        ("language_model", True, []),
        ("value_model", False, []),
    ],
)
def test_only_actors_that_train_are_attached_to(
    registry: SimpleNamespace, model_type: str, forward_only: bool, events: list[str]
) -> None:
    engine = registry.new(model_type=model_type, backend="fsdp2", forward_only=forward_only)
    assert engine.initialize() == "built"
    assert engine.events == events

"""What the server says can be set of each method: parameters with their bounds, and presets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from isentrope_dashboard.controls import ControlValues
from isentrope_wire.numbers import measured


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterForm:
    """One parameter of a method: a number within bounds, or one of several words."""

    name: str
    kind: str
    """`number`, `whole` or `choice`."""
    default: float | int | str | None
    """None: off."""
    range: str
    """What it takes, in words."""
    sense: str
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    minimum_excluded: bool = False
    maximum: float | None = None

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> ParameterForm:
        return cls(
            name=str(body["name"]),
            kind=str(body.get("kind") or "number"),
            default=body.get("default"),
            range=str(body.get("range") or ""),
            sense=str(body.get("sense") or ""),
            choices=tuple(str(choice) for choice in body.get("choices") or ()),
            minimum=measured(body.get("minimum")),
            minimum_excluded=bool(body.get("minimum_excluded")),
            maximum=measured(body.get("maximum")),
        )

    def to_json(self) -> dict[str, Any]:
        """As the form in the browser checks by it."""
        return {
            "kind": self.kind,
            "default": self.default,
            "range": self.range,
            "minimum": self.minimum,
            "minimumExcluded": self.minimum_excluded,
            "maximum": self.maximum,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodForm:
    """A method the server knows, and what can be set of it."""

    method: str
    parameters: tuple[ParameterForm, ...] = ()
    presets: Mapping[str, ControlValues] = field(default_factory=dict)
    """By name, each as a whole control."""

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> MethodForm:
        parameters = tuple(ParameterForm.from_json(item) for item in body.get("parameters") or ())
        method = str(body["method"])
        presets = {
            str(name): ControlValues.from_json({**values, "method": method})
            for name, values in (body.get("preset_values") or {}).items()
        }
        return cls(method=method, parameters=parameters, presets=presets)

"""The shapes in the signatures of the probe's mathematics, checked while tests run."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import jaxtyping
from beartype import beartype
from jaxtyping import AbstractArray, install_import_hook

PROBE = Path(__file__).parents[2] / "probe"
FOLDERS = ("scores", "methods", "statistics")


def check_shapes() -> None:
    """Check the shapes of every call within FOLDERS. None of their modules may be imported yet."""
    modules = [
        ".".join(path.relative_to(PROBE).with_suffix("").parts)
        for folder in FOLDERS
        for path in (PROBE / "isentrope" / folder).glob("*.py")
        if "from jaxtyping import" in path.read_text()
    ]
    # The modules import these names for type checkers alone; the hook looks them up as it would any
    # other.
    for name in ("Bool", "Float", "Float64", "Int", "Shaped"):
        setattr(builtins, name, getattr(jaxtyping, name))
    install_import_hook(modules, f"{__name__}.checked")


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Check the annotations that have a shape: mypy checks the others, and a wrong type is the
    function's own error."""
    for name, annotation in function.__annotations__.items():
        if not has_shape(annotation):
            function.__annotations__[name] = Any
    return beartype(function)


def has_shape(annotation: Any) -> bool:
    if isinstance(annotation, type) and issubclass(annotation, AbstractArray):
        return True
    return any(has_shape(part) for part in get_args(annotation))

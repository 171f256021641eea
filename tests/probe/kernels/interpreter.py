"""Triton's interpreter, several times faster: the language is made ready once per module, not at every inner call.

A pytest plugin (`-p tests.probe.kernels.interpreter`), and what `conftest.py` here loads. Remove when Triton's own
`InterpretedFunction.__call__` stops calling `_patch_lang` again for a module that it has patched.
"""

from __future__ import annotations

from typing import Any

from triton.runtime import interpreter

_ready: set[str] = set()


def _call(self: Any, *args: Any, **kwargs: Any) -> Any:
    """What the original does, which never undoes the patch of an inner call either."""
    if self.fn.__module__ not in _ready:
        interpreter._patch_lang(self.fn)
        _ready.add(self.fn.__module__)
    return self.rewrite()(*args, **kwargs)


def pytest_configure() -> None:
    interpreter.InterpretedFunction.__call__ = _call

"""A busy machine fails no test that makes its own examples."""

from __future__ import annotations

import ast
from pathlib import Path

from hypothesis import HealthCheck, settings

TESTS = Path(__file__).parents[1]


def test_slowness_alone_fails_no_example() -> None:
    assert settings().deadline is None
    assert HealthCheck.too_slow in settings().suppress_health_check


def test_no_test_s_own_settings_bring_slowness_back() -> None:
    for path in TESTS.rglob("*.py"):
        for call in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)):
            if not (isinstance(call.func, ast.Name) and call.func.id == "settings"):
                continue
            given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
            assert given.get("deadline", "None") == "None", f"{path}:{call.lineno}"
            if path != TESTS / "fuzz" / "budget.py":
                assert "suppress_health_check" not in given, f"{path}:{call.lineno}"

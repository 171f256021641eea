"""What holds for every test of the kernels."""

from __future__ import annotations

from tests.probe.kernels import interpreter

interpreter.pytest_configure()

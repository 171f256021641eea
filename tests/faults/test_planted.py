"""The bugs to be planted fit the sources; `make faults ARGS="--planted"` plants them."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.faults.catalogue import BY_NAME
from tests.faults.planted import BUGS, Bug


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_can_be_planted_and_its_fault_exists(bug: Bug) -> None:
    package, _, file = bug.file.partition("/")
    found = importlib.util.find_spec(package)
    assert found is not None
    assert found.origin is not None
    source = (Path(found.origin).parent / file).read_text(encoding="utf-8")
    planted = bug.planted_in(source)
    assert planted != source
    compile(planted, bug.file, "exec")
    assert bug.fault in BY_NAME

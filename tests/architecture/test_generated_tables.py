"""README and guides hold what the wire's rows say."""

from __future__ import annotations

import pytest

from tests.architecture.generated_tables import PAGES, ROOT


@pytest.mark.parametrize("name", PAGES)
def test_generated_table_is_fresh(name: str) -> None:
    held = (ROOT / name).read_text()
    assert held == PAGES[name](held), "run python -m tests.architecture.generated_tables"

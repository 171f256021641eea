"""Guides made from the wire's rows are as their rows are."""

from __future__ import annotations

import pytest

from tests.architecture.generated_tables import DOCS, PAGES


@pytest.mark.parametrize("name", PAGES)
def test_generated_page_is_fresh(name: str) -> None:
    assert (DOCS / name).read_text() == PAGES[name](), "run python -m tests.architecture.generated_tables"

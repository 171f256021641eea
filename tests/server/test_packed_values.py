"""A chunk's values: what halves is packed, noise is not even tried, and all come back bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from isentrope_server.store.reports import compacting
from isentrope_server.store.reports.blocks import inflate

ROWS = 1_000
_RANDOM = np.random.default_rng(0)
REGULAR = {
    "constant": np.full(ROWS, 0.3),
    "counter": np.arange(ROWS, dtype=np.float64),
    "counts": _RANDOM.integers(0, 10**6, ROWS).astype(np.float64),
    "once float32": _RANDOM.random(ROWS).astype(np.float32).astype(np.float64),
    "mostly not measured": np.where(_RANDOM.random(ROWS) < 0.9, np.nan, _RANDOM.random(ROWS)),
    "shares of 96": _RANDOM.integers(0, 97, ROWS) / 96,
    "few": np.full(64, 0.1),
}
NOISY = {"uniform": _RANDOM.random(ROWS), "normal": _RANDOM.normal(size=ROWS), "few": _RANDOM.random(64)}


@pytest.mark.parametrize("values", REGULAR.values(), ids=REGULAR)
def test_what_halves_is_packed_and_comes_back_bit_for_bit(values: NDArray[np.float64]) -> None:
    stored = compacting._values(values)
    assert len(stored) * 2 <= values.nbytes
    assert inflate(stored, values.dtype).tobytes() == values.tobytes()


@pytest.mark.parametrize("values", NOISY.values(), ids=NOISY)
def test_noise_is_stored_as_it_is_without_a_try(values: NDArray[np.float64], monkeypatch: pytest.MonkeyPatch) -> None:
    def tried(_: object) -> None:
        raise AssertionError("trying gives up Python's lock, and takes a turn's wait")

    monkeypatch.setattr(compacting, "deflate", tried)
    assert compacting._values(values) == values.tobytes()

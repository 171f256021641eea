"""Starting Ray on a machine that is busy with other tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")


def started(start: Callable[[], _T]) -> _T:
    """What `start` returns. Ray gives a node thirty seconds to start, which is not always enough
    here: it gets three attempts."""
    for _ in range(2):
        try:
            return start()
        except Exception as error:  # Ray raises no other
            if "timed out during startup" not in str(error):
                raise
            import ray  # half a second, which few who collect this need

            ray.shutdown()
    return start()

"""Never hurt the run: what the probe does when its own code fails inside somebody's training loop."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from isentrope.errors import IsentropeError

logger = logging.getLogger("isentrope")


class Guard:
    """Turns failures inside the probe into few log lines and a count, and lets the loop go on.

    Of each kind of work the first failure is logged, then the 10th, the 100th ...: a failure that repeats does not fill
    the log, and one that hides behind another is still seen.

    Until the first step has closed, errors of ours (wrong shapes, unknown method ...) are raised: that is the moment
    when a person is watching. Under pytest everything is raised.
    """

    def __init__(self) -> None:
        self.failed: Counter[str] = Counter()
        """How often each kind of work did not happen."""
        self.settled = False
        """True once a step has closed without failure."""

    @property
    def failures(self) -> int:
        """Of all kinds of work together."""
        return self.failed.total()

    @property
    def in_words(self) -> str:
        """What failed and how often, `gating a batch 12, logging scalars 1`; empty when nothing did."""
        return ", ".join(f"{what} {times}" for what, times in sorted(self.failed.items()))

    @contextmanager
    def protect(self, what: str) -> Iterator[None]:
        """Run the body; on failure count that `what`, one of few phrases, did not happen."""
        try:
            yield
        except Exception as error:
            first_use = isinstance(error, IsentropeError) and not self.settled
            if first_use or "PYTEST_CURRENT_TEST" in os.environ:
                raise
            self.failed[what] += 1
            times = self.failed[what]
            if str(times).rstrip("0") == "1":
                logger.exception(
                    "Isentrope: %s failed (%d times so far); training goes on, the reports count it.", what, times
                )

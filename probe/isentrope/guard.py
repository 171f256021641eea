"""Never hurt the run: what the probe does when its own code fails inside somebody's training loop."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from isentrope.errors import IsentropeError

logger = logging.getLogger("isentrope")


class Guard:
    """Turns a failure inside the probe into one log line and a count, and lets the loop go on.

    Until the first step has closed, errors of ours (wrong shapes, unknown method ...) are raised: that is the moment
    when a person is watching. Under pytest everything is raised.
    """

    def __init__(self) -> None:
        self.failures = 0
        self.settled = False
        """True once a step has closed without failure."""

    @contextmanager
    def protect(self, what: str) -> Iterator[None]:
        """Run the body; on failure say once that `what` did not happen."""
        try:
            yield
        except Exception as error:
            first_use = isinstance(error, IsentropeError) and not self.settled
            if first_use or "PYTEST_CURRENT_TEST" in os.environ:
                raise
            self.failures += 1
            if self.failures == 1:
                logger.exception("Isentrope: %s failed; training goes on, later failures are only counted.", what)

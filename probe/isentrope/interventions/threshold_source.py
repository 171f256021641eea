"""Where the thresholds of a step come from: a first pass over its tokens, the step before, or the micro-batch itself."""

from __future__ import annotations

import logging

from torch import Tensor

from isentrope.interventions.threshold_statistics import ThresholdStatistics, threshold_statistics
from isentrope.scores import TokenScores

logger = logging.getLogger(__name__)

SOURCES = ("first_pass", "previous_step", "micro_batch")
"""From the best to the one that is always there."""


class ThresholdSources:
    """Remembers what thresholds can be counted from, and chooses.

    A source that is wanted but not there yet is replaced by the next one in SOURCES, and what was used is what is
    reported.
    """

    def __init__(self, wanted: str) -> None:
        """
        Args:
            wanted: one of SOURCES, or "auto" for the best there is.
        """
        self._wanted = wanted
        self._first_pass: ThresholdStatistics | None = None
        self._previous_step: ThresholdStatistics | None = None
        self._told = False

    def first_pass(self, sums: Tensor) -> None:
        """The sums [parts, SUMS] of the whole batch the next steps are made from."""
        self._first_pass = ThresholdStatistics.of_sums(sums)

    def step_closed(self, sums: Tensor) -> None:
        """The sums [parts, SUMS] of the step that just ended."""
        self._previous_step = ThresholdStatistics.of_sums(sums)

    def choose(self, scores: TokenScores, mask: Tensor) -> tuple[str, ThresholdStatistics]:
        """The source to count the thresholds of this micro-batch from, and its statistics."""
        if self._wanted in ("auto", "first_pass"):
            if self._first_pass is not None:
                return "first_pass", self._first_pass
            self._say_what_is_missing()
        if self._wanted != "micro_batch" and self._previous_step is not None:
            return "previous_step", self._previous_step
        return "micro_batch", threshold_statistics([scores], [mask])

    def _say_what_is_missing(self) -> None:
        if self._wanted == "first_pass" and not self._told:
            self._told = True
            logger.warning(
                "Thresholds were to be counted from a first pass, but probe.first_pass was not called before the gate; "
                "they come from the previous step or the micro-batch instead."
            )

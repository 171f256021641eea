"""The course of a run's entropy: its pace, where it is going, and how urgent that is.

- `course.py`: the whole, from which the rest is called
- `levels.py`: log H of the last steps; `line.py`: how fast it moves; `forecast.py`: where it goes
- `urgency.py`: when a person is told
- `tuning.py`: every constant that was chosen, and what it was chosen on"""

from isentrope_wire.diagnosis.course.course import Course
from isentrope_wire.diagnosis.course.forecast import effect_in
from isentrope_wire.diagnosis.course.levels import name_end, own_share
from isentrope_wire.diagnosis.course.tuning import (
    ACT_LEFT,
    AHEAD,
    BACK_LEFT,
    DIRECTIONS,
    LEAST_POINTS,
    MOVES,
    NORMAL_95,
    OVER_LEFT,
    STEPS_READ,
    WATCH_LEFT,
)

__all__ = [
    "ACT_LEFT",
    "AHEAD",
    "BACK_LEFT",
    "DIRECTIONS",
    "LEAST_POINTS",
    "MOVES",
    "NORMAL_95",
    "OVER_LEFT",
    "STEPS_READ",
    "WATCH_LEFT",
    "Course",
    "effect_in",
    "name_end",
    "own_share",
]

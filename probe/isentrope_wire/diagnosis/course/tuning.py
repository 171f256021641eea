"""Every constant of the diagnosis of a run's entropy that was chosen rather than derived.

None is in nats or steps of one run: a run is compared with its own early level, its own noise and
its own age. What half of a value and half as much again do is measured by
`tests/benchmarks/tuned_constants.py`, and stands in `tuned_constants.csv` beside it. Read them as
`tuning.NAME`, so that the script can change them."""

from __future__ import annotations

import math
from statistics import NormalDist

STEPS_READ = 500
"""Stored steps that a course is made of: what lies further back has no weight left."""
AHEAD = 50
"""Steps that a forecast reaches."""
DIRECTIONS = {"collapse": -1, "explosion": 1}
"""The kinds of alerts about the entropy's course, and where it goes."""
LEAST_POINTS = 5
"""Steps that a pace needs."""
LEAST_FORECAST = 10
"""Steps that a forecast needs."""
NORMAL_95 = 1.6449
"""A normal variable lies below it with a probability of 95 %: the ends of a 90 % interval."""
FLOOR, CEILING = 1e-6, 1e6
"""In nats; an entropy, or a change of one, beyond counts as this one: the log of 0 is no number,
nor the exponential of a large one."""

# ---- line: how fast the entropy moves

LEAST_MEMORY, PART_OF_AGE, LONGEST_MEMORY = 12.0, 8.0, 60.0
"""Steps after which a step's weight is 1 / e: an eighth of the age, within these bounds."""
KEPT_OF_WEIGHTS = 0.05
"""What is kept of the weights when another control is applied."""
TRACKED = 0.15
"""Weight of the newest step in the mean error of the line about the next one."""
TURNED = 1.0
"""How large that error is where the course has turned, in standard deviations of a step. Noise
alone reaches a third of it."""
KEPT_OF_A_TURN = 0.6
"""What is kept of the weights where the course has turned."""

# ---- forecast: where it goes

PACE_LASTS, RISE_LASTS, EFFECT_LASTS = 2.0, 0.4, 3.0
"""Memories after which a pace has faded to 1 / e: what lasted long goes on for long, rises end
sooner, and what a control adds later."""
TRIAL = 20
"""Steps under a control after which its pace counts half in a forecast; the rest is what is
expected of it."""
ADDED_STEPS = 10
"""Steps whose mean is what a control adds."""
SURPRISE = 0.2
"""Share of a step's surprise that the followed level takes on: one step's mean is mostly noise."""
USUAL_OWN, OWN_PRIOR, LEAST_OWN = 0.75, 0.3, 0.3
"""Change of the entropy per change on own tokens: its prior; the change of log H that the prior
weighs as much as; its lowest value, and its highest is 1 / that. A real language model had 1.8."""

# ---- band: how far off a forecast may be

HORIZONS = (1, 10, 20, 50)
USUAL_ERRORS = (0.12, 0.15, 0.20, 0.26)
"""What nine of ten forecasts of recorded runs were off by at most at these horizons, in log H."""
USUAL_NOISE = 0.04
"""Standard deviation of their steps, in log H."""
OFF_OF_MOVED = 1.1
"""Share of the way to a forecast that nine of ten were off by at most, where runs move faster than
recorded ones."""
USUAL = [NormalDist().inv_cdf(0.5 + (place + 0.5) / 20) / NORMAL_95 for place in range(10)]
"""They count as ten errors, spread as a normal variable's are."""
OWN_ERRORS, ORIGIN_EVERY = 30, 5
"""Newest own errors that count; steps from one forecast that is compared to the next."""

# ---- urgency: when a person is told

WATCH_LEFT, ACT_LEFT = 0.75, 0.5
"""Shares of the early entropy: with so much left a collapse is to be watched, and to be acted on.
An explosion is judged at their reciprocals, 1 / 0.75 and 1 / 0.5."""
OVER_LEFT, BACK_LEFT = 0.875, 0.625
"""With more than this left there is nothing to watch any more, and nothing to act on. A held
entropy is near a target it is as close to as OVER_LEFT."""
MOVES = -math.log(0.9)
"""A course that changes the entropy by less than a tenth over the forecast is level."""
NOISES = 4.0
"""How many standard errors the change of log H must be away from 0."""
SURE = 1.6
"""Times the band: where even its near end is past half, half is expected to go."""
IN_A_ROW, CALM = 8, 20
"""Steps for which half must be expected to go before that is acted on, and for which the course
must be level after it."""
UNEXPLAINED = 0.25
"""Where the updates changed their own tokens' entropy by less than this share of a fall, the
prompts changed."""

# ---- health: what is said

RECENT_STEPS = 50
"""Least number of newest steps whose findings count for the health line."""
SLIGHT = 0.05
"""A share lost or gained below which a level entropy is near its early level."""
HOLD_SETTLES = 10.0
"""Steps after which a hold that acts has left 1 / e of the way to its target."""

FIXED = frozenset(
    {
        "AHEAD",
        "CEILING",
        "FLOOR",
        "HORIZONS",
        "LEAST_FORECAST",
        "LEAST_POINTS",
        "NORMAL_95",
        "STEPS_READ",
    }
)
"""What was not chosen on runs: promised numbers, bounds of arithmetic, and a quantile."""

_SEED_0 = "runs of the reference trainer, seed 0"
_FORKS = "forks of runs, with and without a control"
_SYNTHETIC = "synthetic courses"
CHOSEN_ON = {
    "PACE_LASTS": _SEED_0,
    "RISE_LASTS": _SEED_0,
    "USUAL_ERRORS": _SEED_0,
    "USUAL_NOISE": _SEED_0,
    "EFFECT_LASTS": _FORKS,
    "TRIAL": _FORKS,
    "KEPT_OF_WEIGHTS": _FORKS,
    "USUAL_OWN": _FORKS,
    "HOLD_SETTLES": f"{_FORKS}; a language model, seed 0",
    "WATCH_LEFT": _SYNTHETIC,
    "ACT_LEFT": _SYNTHETIC,
    "OVER_LEFT": _SYNTHETIC,
    "BACK_LEFT": _SYNTHETIC,
    "MOVES": _SYNTHETIC,
    "NOISES": _SYNTHETIC,
    "SURE": _SYNTHETIC,
    "IN_A_ROW": _SYNTHETIC,
    "CALM": _SYNTHETIC,
    "UNEXPLAINED": _SYNTHETIC,
}
"""What a constant was chosen on; of the others that was not recorded."""

"""How a run is doing, and what to do: `diagnose` and `preview`.

- `health.py`: the two, from which the rest is called
- `measured.py`: what they are made of; `answers.py`: what they answer
- `state.py`: the level of a run; `sentences.py`: what is said of it
- `held.py`: the next steps of a held entropy; `suggestion.py`: the control to push"""

from isentrope_wire.diagnosis.health.answers import Diagnosis, Preview, Suggestion
from isentrope_wire.diagnosis.health.health import diagnose, preview
from isentrope_wire.diagnosis.health.measured import Measured, finite
from isentrope_wire.diagnosis.health.sentences import describe_findings
from isentrope_wire.diagnosis.health.state import counts_since, level_with, recent_findings
from isentrope_wire.diagnosis.health.suggestion import PRICE

__all__ = [
    "PRICE",
    "Diagnosis",
    "Measured",
    "Preview",
    "Suggestion",
    "counts_since",
    "describe_findings",
    "diagnose",
    "finite",
    "level_with",
    "preview",
    "recent_findings",
]

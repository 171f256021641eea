"""The vocabulary that every process shares: dataclasses, tables and their checks. No torch, no web
framework.

- `metrics`, `methods`: METRICS and METHODS, one row for each metric and each method
- `control`: Control and Hold, checked where they are built
- `hold_decision`: which thresholds hold an entropy; `what_if`: what other thresholds would have
    done to a step
- `reports`: what a start, a step and a finish report; `codec`: these dataclasses as bytes and
    back
- `answers`, `control_answers`: what REST answers
- `numbers`: dataclasses and numbers in JSON, and text of others in a line of ours; `environment`:
  the ISENTROPE_* variables that several processes read
- `backoff`: a growing pause between attempts; `errors`: the root of every error raised on purpose
- `v1`: telemetry.proto and its generated code
"""

__version__ = "0.1.0"

"""The words probe and server share; no torch, no web framework.

- `messages`: frozen dataclasses of the domain (RunStarted, StepReport, ControlSnapshot ...)
- `control`: the control document, checked where it is built
- `metrics`, `methods`: METRICS and METHODS, one row for each metric and each method
- `hold`: an entropy to be held, and its limits
- `what_if`: what other thresholds would have done to a step
- `codec`: dataclass <-> protobuf, the only file that knows both
- `run_limits`: how much a run may say of itself; `printable`: text of others in a line of ours
- `errors`: the root of every error raised on purpose
- `v1`: telemetry.proto and its generated code
"""

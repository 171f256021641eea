"""The control plane: the versions of a run's control, who requested them, and how each ended; the diagnosis of its run.

- `requests`: a person or a hold controller requests a new version
- `state`: changes of state, the version a run started with, the snapshot sent to probes
- `versions`: versions as users read them, with prediction and verdict
- `diagnosis`: what a run's diagnosis is made of
- `outcomes`: what ranks report about a version; versions that no rank answered in time
"""

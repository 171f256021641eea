"""The control plane: the versions of a run's control, who requested them, and how each ended; the
diagnosis of its run.

- `requests`: a person or a hold controller requests a new version; the snapshot sent to probes;
    changes of state
- `versions`: versions as users read them, the active one, with prediction and verdict
- `diagnosis`: what a run's diagnosis is made of
- `outcomes`: what ranks report about a version; versions that no rank answered in time
"""

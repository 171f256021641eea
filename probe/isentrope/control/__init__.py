"""Which control is in force on this rank, how a new one takes effect and how that is answered. No torch here.

- `desk`: at a step boundary decides what becomes of the desired control: applied, rejected, expired, superseded
- `step_boundary`: asks the desk when a step begins, keeps the outcomes until a report has taken them
- `relay`: with several ranks, rank 0's desired control is told to all of them, so that they switch at the same step
- `snapshot_document`: a desired control as JSON
- `control_file`: the desired control as a small file, written by the shipper and read by the training process
- `control_handover`: the shipper's side of it: several threads take turns, the newest stands
"""

"""A step of a run, from its first micro-batch to its report.

- `parts.py`: what a probe is made of, shared by its steps, its checkpoint and its end
- `open_step.py`: what is collected while a step is open
- `closing.py`: how it is measured and exchanged when it closes, on the training thread
- `report.py`: the report that is built of it, on the writer thread
- `acknowledgement.py`: which controls' outcomes a report may carry
- `machine.py`: what a step took of its machine"""

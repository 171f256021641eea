"""Hold an entropy: moves the thresholds from step to step so that the mean entropy stays at a target. No torch here.

- `effect`: how much a step's unit prediction moves the entropy, told apart from what happens anyway
- `entropy_estimate`: where the entropy stands after a step, and where it will come to rest
- `trust`: whether the calibrated prediction may be acted on
- `controller`: the decision for a step, a pure function of what was measured and of its own small state
- `action`: what was decided; which control that puts in force, what reports say of it, how rank 0 tells the others
- `pilot`: brings the numbers from the writer's thread to the decision, and the decision to the step

Read `controller.py` first.
"""

"""Holds the mean entropy at a target by moving the thresholds from step to step. No torch here.

- `estimate.py`: what a step's update does to the entropy, and where the entropy comes to rest
- `reward_guard.py`: whether the reward began to fall since a hold acts
- `controller.py`: takes the numbers of reported steps, decides, and sets the control of the step
    that begins

The decision itself is a pure function of what was measured (`isentrope_wire.hold_decision`), which
the page's preview uses too."""

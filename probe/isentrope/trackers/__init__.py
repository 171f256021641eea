"""The scalars of each report, written into the run of a tracker that the training uses already.

    probe = isentrope.Probe("countdown", trackers="wandb")       # or trackio, mlflow, tensorboard; or ISENTROPE_TRACKERS

- `base`: what a tracker must be able to do, and the thread with a bounded queue in front of each
- `known`: W&B, Trackio, MLflow, TensorBoard, a function; and what `trackers=` may be

No tracker is imported here: an active run exists only where the training has imported its tracker itself.
"""

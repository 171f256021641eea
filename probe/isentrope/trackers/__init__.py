"""The scalars of each report, written a second time into the run of a tracker that the training uses already.

    probe = isentrope.Probe("countdown", mirror="wandb")          # or trackio, mlflow, tensorboard; or ISENTROPE_MIRROR

- `wanted.py`: what `mirror=` may be
- `destination.py`: what a tracker must be able to do
- `wandb_run.py`, `trackio_run.py`, `mlflow_run.py`, `tensorboard_writer.py`, `own_function.py`: one tracker each
- `mirror_thread.py`: the thread and the bounded queue in front of each
- `open_mirrors.py`: all mirrors of one probe

No tracker is imported here: an active run exists only where the training has imported its tracker itself.
"""

"""`isentrope reproduce`: the claims of the two papers, run again and judged.

settings   what determines a run, its key, and the plan that figures take their runs from
runs       how a run is made, and the folder that keeps it
executors  where runs are made: processes of this machine, or a Ray cluster
figure     what a figure is: runs, picture, table, verdict
evidence   the statistical tests behind verdicts
drawing    how pictures look
report     REPRODUCTION.md
commands   the command line
dynamics   figures of arXiv 2602.03392
mechanism  figures of arXiv 2505.22617
beyond     what neither paper shows: predictions, held entropies, alarms

A figure is a class in a file of one of the last three folders; `figure.py` has what it must define.
"""

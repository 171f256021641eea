"""One file per reproduced figure. Each runs with `python -m isentrope_trainer.experiments.NAME`.

collapse_and_cure  entropy collapses in a vanilla run, and Clip_V holds it up
"""

"""One file per question. Each command runs with `python -m isentrope_trainer.figures.NAME`.

collapse_and_cure  entropy collapses in a vanilla run, and Clip_V holds it up
hold_target        a held entropy beside fixed thresholds and an adaptive entropy bonus
recorded_runs      finished runs that are kept and not trained again; others measure on them too
prediction_series  predictions and observations of a run, for the next two
coverage           how often the observed change lay in its interval
regressors         what predicts the observed change best
what_if_truth      what a step's curve showed, and what the next step had
alert_quality      how early alerts come, and how often for nothing
step_cost          what the probe adds to a step, and how large its reports are
"""

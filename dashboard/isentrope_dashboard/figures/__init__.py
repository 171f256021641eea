"""Data in, `plotly` figure out: no dash, no HTTP, no state.

entropy             entropy over steps; below it the predicted and the observed change
score_distribution  heat map of a score's histogram over steps, with quantiles
histogram_axis      histograms of different ranges brought onto one axis, exactly
held_entropy        the target with its band, and the thresholds moved for it
missing_steps       steps that were never reported
marker_labels       where the labels of control markers have room
change_split        the unit prediction split by the signs of advantage and score
what_if             clip fraction and predicted change over the thresholds
law                 reward against entropy, with the fitted law
sparkline           the last values of a metric, normalised
metric_panels       any metrics, of one run or several, one below the other
placeholder         what a chart says while there is nothing to draw
"""

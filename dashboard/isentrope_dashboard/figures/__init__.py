"""Data in, `plotly` figure out: no dash, no HTTP, no state.

- `panels`: every chart over steps as a row; `panel`: what a row says, and how its lines are drawn
- `entropy`: entropy over steps with levels and forecasts; reward against entropy, with the fitted curve
- `heat`: a score's histogram over steps, with quantiles and thresholds
- `what_if`: clip fraction and predicted change over the thresholds
- `metric_lines`: any metric, of one run or several
- `chart`: what all share: axes, ticks, lines with gaps, bands, levels and marks
"""

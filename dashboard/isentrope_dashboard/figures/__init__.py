"""Data in, `plotly` figure out: no dash, no HTTP, no state.

- `panels`: the charts of the overview and of the distributions, each a row; `panel`: what a row
  says, how its lines are drawn, and the row of any metric, of one run or several
- `entropy`: entropy over steps with levels and forecasts; reward against entropy, with the fitted
    curve
- `heat`: a score's histogram over steps, with quantiles and thresholds
- `what_if`: clip fraction and predicted change over the thresholds
- `chart`: what all share: axes, ticks, lines with gaps, bands, levels and marks
"""

"""Data in, `plotly` figure out: no dash, no HTTP, no state.

- `entropy`: entropy over steps; below it the predicted and the observed change
- `held_entropy`: its target with the band, and the thresholds moved for it
- `scores`: heat map of a score's histogram over steps, with quantiles
- `change_split`: the unit prediction split by the signs of advantage and score
- `what_if`: clip fraction and predicted change over the thresholds
- `law`: reward against entropy, with the fitted curve
- `metric_panels`: any metrics, of one run or several, one below the other
- `lines`: what line charts share: rows of steps, gaps, bands, labels, sparklines
"""

"""The fit of a run's reward against its entropy, without store or web.

- `fit`: R = -a exp(H) + b with its checks, ceiling and forecast
- `slow_noise`: regression and smoothing of series whose errors drift slowly
"""

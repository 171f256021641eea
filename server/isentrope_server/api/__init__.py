"""REST under /api/v1: one router per noun, one error body.

- `dependencies`: look-ups that may fail, written once; `error_answers`: every failure becomes the one body
- `schemas`, `control_schemas`: what goes over the line, `request_body`: what every body keeps to; `numbers`: NaN and infinities in JSON; `cursors`: opaque places in lists
- `runs`, `metrics`, `export`, `steps`, `histograms`, `tokens`, `alerts`, `law`, `what_if`, `control`, `methods`, `live`, `access_tokens`: the routes
- `health`: /healthz, /readyz, /metrics; `log_out`: /logout; `reference`: /docs
"""

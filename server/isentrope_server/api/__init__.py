"""REST under /api/v1. The answers are the dataclasses of `isentrope_wire.answers` and
`control_answers`.

- `dependencies`: what routes share: the run in the path, steps in the query, cursors, the strict
    body
- `runs`, `metrics`, `tokens`, `control`, `law`, `export`, `admin`: the routes;
  `health`: /healthz, /readyz, /metrics
  A new route: here, its scope in `security.permissions`, its call in `isentrope.client.calls` and a
  method of `Client`. A list is answered as a `Page`
- `responses`: errors in the one body, large answers as JSON; `openapi`: what FastAPI's description
  lacks; `reference`: /docs
"""

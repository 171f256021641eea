"""The dashboard: what a run's entropy does, why, and the control that steers it. Knows the server over HTTP only.

app             attach(app, api_url=...): the pages on the server's ASGI application
api_client      the REST API, called with the browser user's own credentials
records         what the REST API tells, as dataclasses
predictions     what it foretells: thresholds not pushed yet, rewards by the run's law
json_values     how numbers travel in JSON
credentials     whose request is being answered, for HTTP and WebSocket callbacks alike
ids, theme      component ids; colours, fonts and chart templates
formatting      numbers and names as they are printed
control_changes what a control changed, in words
figures/        data -> plotly figure, without dash
components/     cards, panels, grids, the control form
pages/          the pages and their callbacks
assets/         style sheet, scripts, font: everything the browser loads
"""

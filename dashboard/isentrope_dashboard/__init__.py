"""The dashboard: a run's entropy, what changes it, and the control that steers it. It uses the server's REST API only.

- `app`: `attach(app)`: the pages on the server's ASGI application
- `access`: the REST API in process, with the credentials of the browser's user
- `pages/`: the pages and their callbacks; `live` keeps an open page up to date
- `components/`: cards, panels, grids, the control form
- `figures/`: data -> plotly figure, without dash
- `formatting`, `theme`, `ids`: numbers as they are printed; colours, fonts and chart templates; component ids
- `assets/`: style sheet, scripts, font: everything that the browser loads
"""

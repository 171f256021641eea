"""The dashboard: a run's entropy, what changes it, and the control that steers it. It uses the
server's REST API only.

- `app`: `attach(app)`: the pages on the server's ASGI application
- `pages/`: the pages and their callbacks; `pages/charts` reads what a tab's panels name, and draws
    them
- `live`: the REST API in process, with the credentials of the browser's user; it keeps an open page
    up to date
- `view`: the address, which says what is shown
- `components/`: cards, panels, grids, the control form
- `figures/`: data -> plotly figure, without dash
- `formatting`, `theme`: numbers as they are printed; colours, fonts and chart templates
- `assets/`: style sheet, scripts, font: everything that the browser loads
"""

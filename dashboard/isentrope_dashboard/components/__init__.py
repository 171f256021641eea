"""Pieces of the pages. Each builds components and knows no server.

- `shell`: header, status line, colour-scheme switch, notifications, the stores that every page needs
- `panel`: a card with a title, icons, a chart in a card, export links
- `load_errors`: the note in the place of a part that failed to load
- `kpi_cards`: four numbers with their trend
- `control_panel`: the form that pushes a control, and the progress of the last push; `what_if`: the preview below it
- `facts`: a held entropy and the fit of reward against entropy, in words
- `diagnosis`: alerts, top contributing tokens, whether the record is complete
- `metrics`: any metric by name, several runs side by side
- `grids`: every run, every control version
"""

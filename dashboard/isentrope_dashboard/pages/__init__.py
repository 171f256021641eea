"""The pages, and the callbacks that keep them up to date.

- `routing`: address -> page; the list of runs at /, notifications
- `snapshot`: what a run page shows, read side by side
- `run`: a run page at /runs/<id>: its layout, and its content as component id -> properties
- `live`: the one way an open page is updated: it asks for news
- `control_form`: the form read, checked and pushed; `what_if`: what it would do to the newest step
- `metrics`: several runs at /compare, and any metric of one run
- `browser`: what the browser does by itself
"""

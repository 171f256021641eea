"""The pages, and the callbacks that keep them true.

runs            the list of runs at /
run             one run at /runs/<id>: its layout
run_content     what stands in a run page at one moment: component id -> properties
run_state       the moments themselves: a snapshot, moved on by live events
live            one persistent WebSocket callback that keeps the open page up to date
polling         the same, slowly, for browsers without a SharedWorker
push            pushing a control, and its conflicts
what_if         what the form's thresholds would have done to the newest step
routing         address -> page
browser         what the browser does alone: colour scheme, form, age, export
notice          error messages and notifications
"""

"""The pages, and the callbacks that keep them true.

runs            the list of runs at /
run             one run at /runs/<id>: its layout
run_content     what stands in a run page at one moment: component id -> properties
run_state       the moments themselves: a snapshot, moved on by live events
live            one persistent WebSocket callback that keeps the open page up to date
page_socket     the page at the other end of the socket
listening       a live stream as a queue
polling         the same, slowly, for browsers without a SharedWorker
push            pushing a control, and its conflicts
what_if         what the form would do to the newest step
form            the form as the browser works it
all_metrics     any metric by its name
compare         several runs at /compare
routing         address -> page
browser         what the browser does alone: colour scheme, age, grids
notice          error messages and notifications
"""

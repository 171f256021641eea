"""Pieces of the pages; each builds components and knows no server.

shell          header, colour-scheme switch, notifications, the stores every page needs
panel          a card with a title; icons; a chart in a card
record_line    whether the record is complete
hold_facts     how a held entropy stands
hold_fields    the part of the form that holds an entropy
all_metrics    any metric by its name
comparison     several runs side by side
export_links   download everything of a run
kpi_cards      four numbers with their trend
status_line    which run, how far, how fresh
control_panel  the form that pushes a control, and what became of the last push
what_if        under the thresholds: what they would have done
diagnosis      alerts, and the tokens that counted most
law_facts      what the law says, in numbers
history_grid   every control version
runs_grid      every run
"""

"""What the steps reported: the records, and how they are read as series, histograms and whole steps.

- `records`: each payload once; `attachments`: the alerts, top tokens and what-if sums that came with it
- `layouts`: the order of a record's scalars; `blocks`, `compacting`: many reports packed into one row
- `series`, `histograms`, `steps`: reading
"""

"""What the steps reported: the records, and how they are read as series, histograms and whole
steps.

- `records`: each payload once; `attachments`: the alerts, top tokens and what-if sums that came
    with it
- `packing`: neighbouring rows are joined; their form is in `store.rows`
- `series`, `histograms`, `steps`: reading
"""

"""What the steps reported: the records, and how they are read as series, histograms and whole
steps.

- `records`: each payload once; `attachments`: the top tokens, rollouts and what-if sums that came
    with it
- `alerts`: those of reports and the server's own; `notices`: which were sent to whom
- `packing`: neighbouring rows are joined; their form is in `store.rows`
- `series`, `histograms`, `steps`: reading
"""

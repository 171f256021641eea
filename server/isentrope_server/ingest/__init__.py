"""What probes send: gRPC -> domain message -> store.

- `arrivals`: wire records -> readable arrivals and refused ones, no database
- `hello_limits`, `report_limits`: how much a Hello, a push and a report may hold; `series_limit`: how many different series a run may have
- `succession`: which incarnation is the newest
- `opening`: Hello; `intake`: Push; both inside one transaction of the store's writer
- `servicer`: the gRPC methods; `listener`: the port they stand on
"""

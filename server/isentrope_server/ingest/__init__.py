"""What probes send: gRPC -> domain message -> store.

- `arrivals`: wire records -> readable arrivals and refused ones, no database
- `opening`: Hello; `intake`: Push; both inside one transaction of the store's writer
- `servicer`: the gRPC methods; `listener`: the port they stand on
"""

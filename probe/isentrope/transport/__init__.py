"""From the training process to the server: a bounded queue, a spool on disk, a side process that ships it. No torch here.

- `transport`: what a probe needs of a transport (the protocol), and the counts it can show
- `open_transport`: the transport for a mode: online, offline, disabled
- `in_memory`: keeps messages in a list; for tests and for mode disabled
- `spool`: queue, writer thread, segments: all that happens inside the training process
- `spool_folder`: the names of the files through which training process and shipper talk
- `segments`: the file format of the spool, and how to read it after a crash
- `shipper`: the side process that speaks gRPC; `python -m isentrope.transport.shipper DIR`
- `shipper_supervisor`: starts the shipper and restarts it when it died
"""

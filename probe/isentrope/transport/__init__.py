"""From the training process to the server: a bounded queue, a spool on disk, a side process that ships it. No torch here.

- `transport`: what a probe needs of a transport (the protocol), and the counts it can show
- `open_transport`: the transport for a mode: online, offline, disabled
- `in_memory`: keeps messages in a list; for tests and for mode disabled
- `spool`: all that happens inside the training process; `message_queue` and `spool_writer` are its two halves
- `spool_disk`: the disk under it and how it fails; `shedding`: what reports go without when it is full
- `delivery_lag`: how old the oldest record is that has not arrived
- `spool_folder`: the files through which training process and shipper talk; `shipper_status`, `process_lock` are two
- `segments`: the file format of the spool, and how to read it after a crash
- `shipper`: the side process that speaks gRPC; `python -m isentrope.transport.shipper DIR`
- `telemetry_connection`: the gRPC calls it makes; `server_clock`: what time it is there
- `spool_reader`: the records of a spool in order, gaps named
- `shipper_supervisor`: starts the shipper and restarts it when it died
- `sync`: delivers spools that were left behind
"""

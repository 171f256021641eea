"""Whatever is killed, frozen, cut, filled or damaged: what was accepted is stored once, or shown as
a gap.

    python -m tests.faults [NAME ...] [--short]      the fault matrix, or some of it; `make faults`
    python -m tests.faults --planted                 planted bugs, each of which must be caught

- `catalogue`: the faults by name; one module for each thing that fails: `process_faults`,
  `network_faults`, `disk_faults`, `database_faults`, `spool_damage`, `wire_faults`,
  `control_faults`, `operating_faults`, `postgresql_faults`
- `stage`: a server and training processes in a folder of their own, for one fault
- `reporting_process`: a training process that writes down, outside the faulted home, what it hands
    over (`ledger`)
- `oracle`: compares the ledgers with what the server stored (`stored`)
- `faulty_libc`, `crashing_server`, `network`: the means of failing
- `planted`: the bugs, planted through `seam`
"""

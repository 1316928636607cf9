"""The builders, one per file: functions that write one rank's schedule.

``bcast/chain`` in the catalogue is ``bcast_chain(w)`` in ``bcast_chain.py``; `hpcoll.schedules.row.schedule` calls it for two and more
ranks. ``w`` is a `hpcoll.schedules.ir.Writer`: it has ``w.rank``, ``w.nranks``, ``w.root`` and ``w.nchunks``, and appends steps by
``w.send``, ``w.recv``, ``w.recv_reduce``, ``w.copy`` and ``w.reduce``. ``inputs``, ``outputs`` and ``w.scratch`` name chunks;
`hpcoll.schedules.collectives` says which chunks a collective has. Peers come from `hpcoll.schedules.patterns`.

In docstrings p is the number of ranks, m the bytes of the message, q = ceil(log2 p). The catalogue has the sources of the algorithms;
a builder names one only where it adds something.
"""

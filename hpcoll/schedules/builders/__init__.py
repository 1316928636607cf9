"""One file per algorithm: a function that writes one rank's schedule.

``bcast/chain`` in the catalogue is ``bcast_chain(w)`` in ``bcast_chain.py``; `hpcoll.schedules.row.schedule` calls it for two and more
ranks. ``w`` is a `hpcoll.schedules.ir.Writer`: it says who writes (``w.rank``, ``w.nranks``, ``w.root``, ``w.nchunks``) and takes the
steps (``w.send``, ``w.recv``, ``w.recv_reduce``, ``w.copy``, ``w.reduce``). ``inputs``, ``outputs`` and ``w.scratch`` name chunks; which
ones a collective has, `hpcoll.schedules.collectives` says. Peers come from `hpcoll.schedules.patterns`.
"""

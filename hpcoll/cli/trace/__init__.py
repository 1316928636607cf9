"""``hpcoll trace``: reads what a run has left in its trace, and says who waited for whom, how long, and where.

command   arguments, the report            summary   waits of each rank; calls by operation and place
reading   the trace of a run in columns    compare   two runs, and what differs
foreign   slices of other tools            page      a page with a timeline, which needs no network
owners    who was awaited, how long        perfetto  what ui.perfetto.dev opens
"""

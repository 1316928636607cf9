"""``hpcoll trace``: reads what a run has left in its trace, and says who waited for whom, how long, and where.

command   arguments, the report            summary   waits of each rank; calls by operation and place
events    files, event by event            compare   two runs, and what differs
reading   the trace of a run in columns    page      a page with a timeline, which needs no network
owners    who was awaited, how long
"""

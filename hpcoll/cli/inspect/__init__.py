"""``hpcoll inspect``: explains a hang or a failure from the records of ranks, or shows who waits for whom now.

command         arguments, the report          judgement    all findings, and the cause
flight_records  files, read and merged         live         ranks that run: a table, a sentence for each call
differences     calls that differ              ranks_here   ranks that run, found by their status pages
"""

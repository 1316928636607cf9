"""``hpcoll tune``: algorithms measured, and a table of the best written."""

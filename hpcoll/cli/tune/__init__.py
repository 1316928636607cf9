"""``hpcoll tune``: measures all algorithms, and writes a table of the best."""

"""``hpcoll simulate``: predicted times of algorithms on a network of many nodes."""

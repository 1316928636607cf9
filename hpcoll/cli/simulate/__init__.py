"""``hpcoll simulate``: algorithms played on a network of many nodes."""

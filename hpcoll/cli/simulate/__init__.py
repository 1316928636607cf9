"""``hpcoll simulate``: predicts times of algorithms on a network of many nodes."""

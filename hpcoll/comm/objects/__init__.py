"""The lower-case collectives, on Python objects: pickled, and sent in calls of cells and the parts that go on with them."""

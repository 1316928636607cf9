"""``hpcoll inspect``: what happened, from the records that ranks wrote when they hung or failed; or who waits for whom now."""

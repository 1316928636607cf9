"""Why a collective does not end, or must not: the watchdog, what ranks know of each other, and how failures are raised and told."""

"""The team: what all communicators of the same ranks share, and how its ranks first meet."""

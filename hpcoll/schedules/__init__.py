"""Builders: one file per algorithm, ``<collective>_<algorithm>.py``, each writing one rank's steps. Floor 3."""

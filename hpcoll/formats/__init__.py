"""Readers and writers of the file formats in which others keep schedules."""

"""Plans: how calls of one kind run. Engines are built for them, kept and counted."""

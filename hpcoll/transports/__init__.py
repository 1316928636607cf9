"""How bytes get from rank to rank. Floor 5."""

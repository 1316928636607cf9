"""Requests of collectives in flight, the operations behind them, and the threads that move and watch these."""

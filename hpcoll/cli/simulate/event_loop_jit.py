"""`hpcoll.analysis.event_loop`, compiled. The same functions, as Numba sees them."""

from numba import njit

from hpcoll.analysis import event_loop as plain

for name in ("push", "pop", "send", "land"):
    setattr(plain, name, njit(nogil=True, cache=True, inline="always")(getattr(plain, name)))
play = njit(nogil=True, cache=True)(plain.play)
play_in_step = njit(nogil=True, cache=True)(plain.play_in_step)

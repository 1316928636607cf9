"""Which algorithms are worth measuring for a call, and with which segments."""

from hpcoll.schedules.catalogue import CATALOGUE
from hpcoll.schedules.row import Algorithm
from hpcoll.selection.choose import Need, best_modelled, fitting, modelled, worth_trying

MIN_SEGMENT = 8 << 10  # bytes


def candidates(need: Need) -> list[tuple[str, int]]:
    """Our algorithms for a call, each with some segment sizes; those first that the model likes best."""
    assert need.nbytes is not None
    found = []
    for name in fitting(need):
        row = CATALOGUE.get(f"{need.collective}/{name}")
        if row is not None and row.reproducible and worth_trying(row, need):
            found += [(modelled(need, row, segment), name, segment) for segment in _segments(row, need)]
    return [(name, segment) for _, name, segment in sorted(found)]


def _segments(row: Algorithm, need: Need) -> list[int]:
    """The whole message where there is no pipeline, else the model's best segment and its quarter and fourfold."""
    assert need.nbytes is not None
    whole = max(1, need.nbytes)
    if not (row.pipelined or row.chunked):
        return [whole]
    best = best_modelled(need, row)[1]
    return sorted({min(whole, max(MIN_SEGMENT, segment)) for segment in (best // 4, best, 4 * best)})

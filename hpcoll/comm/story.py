"""In words: what each rank of a communicator calls, what it does, and who waits for whom."""

import time

from hpcoll.base.processes import RUNNING
from hpcoll.base.units import ranks_in_words
from hpcoll.comm.knowledge import Knowledge
from hpcoll.runtime.program import fields as f

_MOST = 64  # ranks that are followed
_LINKS = 4  # that are told from either end


def doing(known: Knowledge, rank: int, number: int) -> str:
    """What a rank does that is not known to wait in a call."""
    if not known.answers(rank):
        return "does not answer: it is stopped, or in code that lets no thread of Python run"
    state, notice = known.state(rank), known.notice(rank)
    if state not in (RUNNING, ""):
        return f"is {state}"
    if notice.get("left"):
        return str(notice["left"])
    elsewhere = [one for one in notice.get("waits", ()) if (one["key"], one["lane"], one["number"]) != (known.key, known.lane, number)]
    if elsewhere:
        return f"waits in {elsewhere[-1]['what']} since {_clock(elsewhere[-1]['since'])}"
    begun, ended, when = known.begun(rank) or (0, 0, 0.0)
    if begun > ended:
        return f"is in call {begun}"
    if known.served(rank):
        return f"is in {known.served(rank)}"
    return f"is in no collective since {_clock(when)}, after call {ended}" if ended else "has called no collective yet"


def story(known: Knowledge, rank: int, number: int) -> str:
    """Who waits for whom in a call, from a rank down to one that does not wait in it, and what that does."""
    parts, seen = list[str](), list[int]()
    while rank not in seen:
        seen.append(rank)
        waits = awaits(known, rank, number)
        if not waits:
            return "; ".join([*_ends(parts), f"rank {rank} {doing(known, rank, number)}"])
        parts.append(f"rank {rank} waits for {ranks_in_words(waits)}")
        rank = next((one for one in waits if one not in seen), waits[0])
    return "; ".join(_ends(parts))


def _ends(parts: list[str]) -> list[str]:
    """The first and the last of many."""
    left_out = len(parts) - 2 * _LINKS
    return [*parts[:_LINKS], f"{left_out} more in between", *parts[-_LINKS:]] if left_out > 1 else parts


def awaits(known: Knowledge, rank: int, number: int) -> list[int]:
    """Ranks that a rank waits for in a call; none where it is not in it, waits for nobody, or that is not known."""
    call = known.waiting(rank, number)
    return call["awaits"] if call is not None and known.state(rank) in (RUNNING, "") else []


def behind(known: Knowledge, ranks: list[int], number: int) -> list[int]:
    """Some ranks, and those that they wait for, and so on, as far as that is known and there are few."""
    found = list(ranks)
    for rank in found:
        if len(found) >= _MOST:
            break
        found += [one for one in awaits(known, rank, number) if one not in found][: _MOST - len(found)]
    return found


def first_difference(known: Knowledge, nranks: int, number: int) -> int:
    """The first call, of those that are remembered and before a number, that was not the same everywhere; else the number."""
    for earlier in range(max(1, number - f.REMEMBERED), number):
        found = [one for one in (known.remembered(rank, earlier) for rank in range(nranks)) if one is not None]
        if any(not one.alike(found[0]) for one in found):
            return earlier
    return number


def difference(known: Knowledge, nranks: int, number: int, title: str) -> str:
    """What each rank called as its so-manieth call."""
    calls: dict[str, list[int]] = {}
    remembered = [known.remembered(rank, number) for rank in range(nranks)]
    only_how = len({(one.signature._replace(algorithm=0, segment=0), one.ncounted) for one in remembered if one}) == 1
    for rank, found in enumerate(remembered):
        call = known.waiting(rank, number)
        text = (call["what"] if call else "") or (found.signature.text(found.ncounted) if found else doing(known, rank, number))
        text += f", algorithm {found.signature.algorithm_name}" if found and only_how else ""
        calls.setdefault(text, []).append(rank)
    each = "; ".join(f"{ranks_in_words(ranks)}: {text}" for text, ranks in calls.items())
    return f"ranks do not call the same, in call {number} on {title}: {each}"


def _clock(seconds: float) -> str:
    """Time of day."""
    return time.strftime("%H:%M:%S", time.localtime(seconds))

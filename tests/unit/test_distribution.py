"""Distributions of arrays: who has which part, what is refused, and moves that bring each element to its places once."""

import pickle
import time
import tracemalloc
from typing import Any

import numpy as np
import pytest
from distributions import local, random_distribution, random_shape
from slowness import slowed

from hpcoll import ArgumentError, Distribution
from hpcoll.grids.moves import Move, received, sent
from hpcoll.grids.parts import cut_up

SHAPE = (10, 7)
WHOLE = np.arange(70).reshape(SHAPE)
ALL = ((0, 10), (0, 7))

# --- parts


def test_blocks_are_those_of_array_split() -> None:
    rows = Distribution(SHAPE, 4, split=0)
    for rank, part in enumerate(np.array_split(WHOLE, 4)):
        assert rows.local_shape(rank) == part.shape
        assert (local(rows, WHOLE, rank) == part).all()
    assert rows.boxes(3) == [((8, 10), (0, 7))]
    assert [rows.owner((i, 0)) for i in (0, 2, 3, 9)] == [0, 0, 1, 3]
    assert Distribution((2, 3), 4, split=-1).local_shape(3) == (2, 0)


def test_given_sizes() -> None:
    rows = Distribution(SHAPE, 4, split=0, sizes=(5, 0, 3, 2))
    assert [rows.local_shape(rank) for rank in range(4)] == [(5, 7), (0, 7), (3, 7), (2, 7)]
    assert rows.boxes(1) == []
    assert rows.owner((5, 6)) == 2
    grid = Distribution(SHAPE, 4, grid=(2, 2), sizes=[(9, 1), None])
    assert [grid.local_shape(rank) for rank in range(4)] == [(9, 4), (9, 3), (1, 4), (1, 3)]


def test_grid_of_ranks() -> None:
    """The last dimension is the fastest; dimensions may cut any axis, or none."""
    grid = Distribution(SHAPE, 4, grid=(2, 2))
    assert grid.boxes(1) == [((0, 5), (4, 7))]
    assert grid.boxes(2) == [((5, 10), (0, 4))]
    columns = Distribution(SHAPE, 4, grid=(2, 2), split=(1, None))
    assert columns.boxes(0) == columns.boxes(1) == [((0, 10), (0, 4))]
    assert columns.owner((9, 6)) == 2


def test_blocks_in_turns() -> None:
    cyclic = Distribution(SHAPE, 4, grid=(2, 2), block=(2, 3))
    assert cyclic.local_shape(0) == (6, 4)
    assert cyclic.boxes(3) == [((2, 4), (3, 6)), ((6, 8), (3, 6))]
    assert cyclic.owner((8, 6)) == 0
    rows = [0, 1, 4, 5, 8, 9]
    assert (local(cyclic, WHOLE, 0) == WHOLE[np.ix_(rows, [0, 1, 2, 6])]).all()
    assert Distribution(SHAPE, 2, split=0, block=100).boxes(1) == []


def test_boxes() -> None:
    mine = Distribution(SHAPE, 3, boxes=[((0, 10), (0, 4)), None, [((0, 3), (4, 7)), ((3, 10), (4, 7))]])
    assert [mine.local_shape(rank) for rank in range(3)] == [(10, 4), (0, 0), (10, 3)]
    assert mine.boxes(2) == [((0, 10), (4, 7))], "intervals that touch are one"
    assert mine.owner((0, 6)) == 2
    cyclic = Distribution(SHAPE, 4, grid=(2, 2), block=2)
    assert Distribution(SHAPE, 4, boxes=[cyclic.boxes(rank) for rank in range(4)]) == cyclic


def test_replicated() -> None:
    everywhere = Distribution(SHAPE, 3)
    assert everywhere.local_shape(2) == SHAPE
    assert everywhere.owner((9, 6)) == 0
    assert Distribution(SHAPE, 3, boxes=[None, ALL, ALL]).owner((0, 0)) == 1


def test_values() -> None:
    """Equal by their parts, whatever they were made of; immutable; whole after a pickle."""
    rows = Distribution(SHAPE, 2, split=0)
    same = Distribution(list(SHAPE), 2, grid=(2, 1), sizes=[(5, 5), None])
    others = [Distribution(SHAPE, 2), Distribution((10, 8), 2, split=0), Distribution(SHAPE, 3, split=0)]
    assert rows == same == pickle.loads(pickle.dumps(rows))  # noqa: S301
    assert len({rows, same, *others}) == 4
    assert all(rows != other for other in (*others, "rows"))
    assert repr(rows) == "hpcoll.Distribution((10, 7), 2, split=0)"
    sized = Distribution(SHAPE, 2, split=0, sizes=np.array([3, 7]))
    assert repr(sized) == "hpcoll.Distribution((10, 7), 2, split=0, sizes=[3, 7])"
    assert Distribution(SHAPE, 2, boxes=np.array([rows.boxes(rank)[0] for rank in range(2)])) == rows
    assert len(repr(Distribution((10**4,), 10**4, boxes=[[(i, i + 1)] for i in range(10**4)]))) < 200
    with pytest.raises(AttributeError):
        rows.shape = (1, 1)  # type: ignore[misc]


def test_a_billion_elements() -> None:
    """No element is looked at by itself."""
    n = 1 << 40
    rows = Distribution((n, 3), 3, split=0)
    assert Distribution((n, 3), 3, boxes=[rows.boxes(rank)[0] for rank in range(3)]) == rows
    assert rows.owner((n - 1, 2)) == 2
    (move,) = sent(rows.parts, rows.parts, 0)
    assert move.nelements == 3 * -(-n // 3)
    starts, lengths = cut_up(*move.pieces[0], 1 << 30)
    assert lengths.sum() == -(-n // 3)
    assert (starts[1:] == (starts + lengths)[:-1]).all()
    assert lengths.max() == 1 << 30


# --- errors


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"boxes": [((0, 6), (0, 7)), ((5, 10), (0, 7))]}, r"got element \(5, 0\) on ranks 0-1"),
        ({"boxes": [((0, 10), (0, 4)), ((0, 10), (3, 7))]}, r"got element \(0, 3\) on ranks 0-1"),
        ({"boxes": [((0, 5), (0, 7)), ((5, 10), (0, 6))]}, r"got element \(5, 6\) on no rank"),
        ({"boxes": [((1, 10), (0, 7)), None]}, r"got element \(0, 0\) on no rank"),
        ({"boxes": [None, None]}, r"got element \(0, 0\) on no rank"),
        ({"boxes": [ALL, ((3, 4), (0, 7))]}, r"got element \(3, 0\) on ranks 0-1"),
        ({"boxes": [[ALL, ((3, 4), (2, 7))], None]}, r"got element \(3, 2\) on rank 0 several times"),
        (
            {"boxes": [((0, 5), (0, 7)), [((5, 10), (0, 2)), ((5, 9), (2, 7)), ((9, 10), (2, 7))]]},
            "rank 1 .*all",
        ),
        ({"boxes": [ALL]}, "a value for each of 2 ranks"),
        ({"boxes": 2}, "a value for each of 2 ranks"),
        ({"boxes": [((0, 10), (0, 8)), None]}, "boxes of rank 0 with"),
        ({"boxes": [None, ((0, 10), (7, 0))]}, "boxes of rank 1 with"),
        ({"boxes": [None, ((-1, 10), (0, 7))]}, "boxes of rank 1 with"),
        ({"boxes": [None, (0, 10)]}, "boxes of rank 1 with"),
        ({"boxes": [None, ((0, 10), (0, 7, 8))]}, "boxes of rank 1 with"),
        ({"boxes": [None, ((0, 10), (0, 7.0))]}, "boxes of rank 1 with"),
        ({"boxes": [ALL, None], "split": 0}, "boxes= alone, got split"),
        ({"split": 2}, "an axis of 2 to split, got 2"),
        ({"split": "rows"}, "an axis of 2 to split, got 'rows'"),
        ({"grid": (1, 3)}, "a grid of 2 ranks"),
        ({"grid": 2}, "a grid of 2 ranks"),
        ({"grid": (2, 1), "split": (0, -2)}, "different axes to split"),
        ({"grid": (2, 1), "split": 0}, "split= with a value for each dimension"),
        ({"grid": (2, 1, 1)}, "an axis of 2 to split, got 2"),
        ({"split": 0, "sizes": (5, 4)}, r"2 sizes of 0 or more that add up to 10 along axis 0, got \(5, 4\)"),
        ({"split": 0, "sizes": (11, -1)}, "2 sizes of 0 or more"),
        ({"split": 0, "sizes": (5, 3, 2)}, "2 sizes of 0 or more"),
        ({"split": 0, "sizes": (5, 5), "block": 2}, "sizes= or block= for axis 0"),
        ({"split": 0, "block": 0}, "blocks of 1 element or more"),
        ({"block": 3}, "split= or grid= for block="),
    ],
)
def test_refused(given: dict[str, Any], text: str) -> None:
    with pytest.raises(ArgumentError, match=f"Distribution needs .*{text}"):
        Distribution(SHAPE, 2, **given)


@pytest.mark.parametrize(
    ("shape", "nranks"), [((), 2), ((3, -1), 2), (5, 2), ((3.5,), 2), ((3,), 0), ((3,), "2"), ((1 << 70,), 2)]
)
def test_shapes_and_ranks_refused(shape: Any, nranks: Any) -> None:
    with pytest.raises(ArgumentError, match="Distribution needs"):
        Distribution(shape, nranks)


def test_questions_refused() -> None:
    rows = Distribution(SHAPE, 2, split=0)
    for index in ((10, 0), (-1, 0), 3, "ab", (0, 0, 0)):
        with pytest.raises(ArgumentError, match="owner needs an index"):
            rows.owner(index)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="a rank from 0 to 1, got 2"):
        rows.boxes(2)
    with pytest.raises(ArgumentError, match="a rank from 0 to 1, got -1"):
        rows.local_shape(-1)


def test_boxes_are_proven_as_by_counting() -> None:
    """Boxes of which one is moved or left out: refused exactly where an element is not on one rank, and the first of these is named."""
    random = np.random.default_rng(1)
    nrefused = 0
    for _ in range(400):
        shape = tuple(int(n) for n in random.integers(1, 6, random.integers(1, 4)))
        rows = Distribution(shape, 4, grid=(2, 2) if len(shape) > 1 else (4,))
        boxes = [np.array(rows.boxes(rank) or [[(0, 0)] * len(shape)])[0] for rank in range(4)]
        if random.random() < 0.8:
            boxes[random.integers(4)] = np.sort([random.integers(0, n + 1, 2) for n in shape])
        times = np.zeros(shape, int)
        for box in boxes:
            times[tuple(slice(*one) for one in box)] += 1
        wrong = np.argwhere(times != 1)
        whole = all((box == [(0, n) for n in shape]).all() for box in boxes if (box[:, 0] < box[:, 1]).all())
        if len(wrong) == 0 or (whole and times.all()):
            Distribution(shape, 4, boxes=boxes_as_lists(boxes))
        else:
            nrefused += 1
            first = tuple(wrong[0].tolist())
            with pytest.raises(ArgumentError) as caught:
                Distribution(shape, 4, boxes=boxes_as_lists(boxes))
            assert f"got element {first} on " in str(caught.value)
    assert 100 < nrefused < 390


def boxes_as_lists(boxes: list[Any]) -> list[Any]:
    return [box.tolist() for box in boxes]


# --- moves


def places(move: Move) -> Any:
    """The index of a move's elements in the local array."""
    return np.ix_(
        *(
            np.concatenate([np.arange(at, at + n) for at, n in zip(starts, lengths, strict=True)])
            for starts, lengths in move.pieces
        )
    )


def moved(source: Distribution, target: Distribution, whole: Any, axes: Any) -> None:
    """Hand elements over as the moves say; each place is filled once, from one rank, and with the right element."""
    nranks, parts = source.nranks, source.parts.transposed(axes)
    locals_ = [local(source, whole, rank).transpose(axes) for rank in range(nranks)]
    messages = {
        (rank, move.peer): locals_[rank][places(move)]
        for rank in range(nranks)
        for move in sent(parts, target.parts, rank)
    }
    for rank in range(nranks):
        result = np.full(target.local_shape(rank), -1)
        times = np.zeros(result.shape, int)
        for move in received(parts, target.parts, rank):
            message = messages.pop((move.peer, rank))
            result[places(move)] = message
            times[places(move)] += 1
            assert message.size == move.nelements > 0
        assert (times == 1).all()
        assert (result == local(target, whole.transpose(axes), rank)).all()
    assert messages == {}, "sent, and not received"


@pytest.mark.parametrize("seed", range(10))
def test_moves_of_random_pairs(seed: int) -> None:
    random = np.random.default_rng(seed)
    for _ in range(60):
        nranks = int(random.integers(1, 7))
        shape = random_shape(random)
        axes = random.permutation(len(shape))
        source = random_distribution(random, shape, nranks)
        target = random_distribution(random, tuple(shape[axis] for axis in axes), nranks)
        moved(source, target, np.arange(np.prod(shape)).reshape(shape), axes)


def test_rounds_cut_a_move_alike_for_both_ranks() -> None:
    """Each element is in one round; both ranks cut to the same shapes, of which the first is the largest and none exceeds `most`."""
    random = np.random.default_rng(5)
    for _ in range(40):
        shape = random_shape(random)
        source, target = (random_distribution(random, shape, 3) for _ in range(2))
        for move in sent(source.parts, target.parts, 1):
            (other,) = (one for one in received(source.parts, target.parts, move.peer) if one.peer == 1)
            nrounds, order = int(random.integers(1, 20)), str(random.choice(["C", "F"]))
            parts = [
                [part for at in range(nrounds) if (part := one.part(at, nrounds, order))]
                for one in (move, other)
            ]
            assert [part.shape for part in parts[0]] == [part.shape for part in parts[1]]
            sizes = [part.nelements for part in parts[0]]
            assert sizes[0] == max(sizes) == move.most(nrounds, order)
            times = np.zeros(source.local_shape(1), int)
            for part in parts[0]:
                times[part.places] += 1
            assert (times[move.places] == 1).all()
            assert times.sum() == move.nelements


def test_what_several_have_comes_from_this_rank_or_from_all_in_turns() -> None:
    everywhere, rows = Distribution((12,), 4), Distribution((12,), 4, split=0)
    two = Distribution((12,), 4, boxes=[[(0, 12)], None, [(0, 12)], None])
    senders = [[move.peer for move in received(everywhere.parts, rows.parts, rank)] for rank in range(4)]
    assert senders == [[0], [1], [2], [3]], "nothing travels"
    senders = [[move.peer for move in received(two.parts, rows.parts, rank)] for rank in range(4)]
    assert senders == [[0], [2], [2], [2]]
    senders = [[move.peer for move in received(two.parts, everywhere.parts, rank)] for rank in range(4)]
    assert senders == [[0], [2], [2], [2]]


def test_a_plan_for_thousands_of_ranks() -> None:
    """Pencils along one axis become pencils along another: at most 100 ms and about 1 MB."""
    shape, nranks = (512, 512, 512), 4096
    tracemalloc.start()
    start = time.perf_counter()
    source = Distribution(shape, nranks, grid=(64, 64), split=(0, 1))
    target = Distribution(shape, nranks, grid=(64, 64), split=(1, 2))
    moves = [plan(source.parts, target.parts, 77) for plan in (sent, received)]
    seconds = time.perf_counter() - start
    nbytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [len(one) for one in moves] == [64, 64]
    assert sum(move.nelements for move in moves[0]) == 8 * 8 * 512
    assert seconds < slowed(0.1)
    assert nbytes < 1.5e6

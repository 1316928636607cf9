"""The canonical expression: what it is, and which rows give it."""

from collections.abc import Iterator

import pytest
from handmade import made

from hpcoll.analysis.prove import placements, prove, prove_schedules
from hpcoll.analysis.verify import Proof, verify_schedules
from hpcoll.base.canonical import fold, split
from hpcoll.base.errors import ScheduleError
from hpcoll.cli import main
from hpcoll.schedules.catalogue import CATALOGUE
from hpcoll.schedules.collectives import COLLECTIVES
from hpcoll.schedules.ir import Writer, inputs, outputs
from hpcoll.schedules.placement import Nodes
from hpcoll.schedules.row import Algorithm

REDUCING = [
    row for row in CATALOGUE.values() if COLLECTIVES[row.collective].reduces and row.collective != "barrier"
]


def text(left: str, right: str) -> str:
    return f"({left}{right})"


def test_the_expression_is_that_of_a_binary_counter() -> None:
    """Each value is a block of one; equal blocks join, and what is left joins from the right: another way to say the same."""
    names = [chr(ord("A") + i) for i in range(64)]
    for n in range(1, 65):
        blocks: list[tuple[int, str]] = []
        for name in names[:n]:
            blocks.append((1, name))
            while len(blocks) > 1 and blocks[-1][0] == blocks[-2][0]:
                (size, left), (_, right) = blocks[-2:]
                blocks[-2:] = [(2 * size, text(left, right))]
        while len(blocks) > 1:
            (size, left), (more, right) = blocks[-2:]
            blocks[-2:] = [(size + more, text(left, right))]
        assert blocks[0][1] == fold(text, names[:n])
        assert n == 1 or n / 2 <= split(n) < n


def instances(row: Algorithm, nranks: int) -> Iterator[tuple[Nodes, Proof]]:
    """Proofs for every placement that matters, some roots and numbers of chunks."""
    roots = {0, 1 % nranks, nranks // 2, nranks - 1} if COLLECTIVES[row.collective].rooted else {0}
    for nodes in placements(nranks) if row.placed else [()]:
        for root in roots:
            for nchunks in (1, 3) if row.chunked else (1,):
                yield nodes, prove(row, nranks, root, nchunks, nodes)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("row", REDUCING, ids=[row.key for row in REDUCING])
def test_rows_give_it_just_where_their_formula_says(row: Algorithm, short: bool) -> None:
    for nranks in (*range(1, 10), 12, 15, 16, 17) if short else range(1, 65):
        found: dict[Nodes, bool] = {}
        for nodes, proof in instances(row, nranks):
            found[nodes] = found.get(nodes, True) and proof.canonical
        assert found == {nodes: row.is_canonical(nranks, nodes) for nodes in found}, nranks


def test_every_collective_has_rows_that_give_it_for_any_number_of_ranks() -> None:
    always = {row.key for row in REDUCING if row.canonical == "1"}
    assert {row.collective for row in REDUCING} == {CATALOGUE[key].collective for key in always}
    assert {
        "allreduce/binomial",
        "allreduce/direct",
        "allreduce/two_shot",
        "reduce/binomial",
        "reduce/direct",
    } <= always


def test_rank_order_alone_is_not_enough() -> None:
    """A line of ranks keeps order and adds from one end: ((ab)c)d."""

    def line(w: Writer) -> None:
        if w.rank == 0:
            for peer in (1, 2, 3):
                w.recv_reduce(peer, inputs(0) if peer == 1 else outputs(0), outputs(0))
        else:
            w.send(0, inputs(0))

    schedules = made("reduce", line, nranks=4)
    proof = verify_schedules(schedules, in_place=False)
    assert (proof.ordered, proof.canonical) == (True, False)
    with pytest.raises(ScheduleError, match="reduce/direct is said to be canonical, and is not on 4 ranks"):
        prove_schedules(CATALOGUE["reduce/direct"], schedules)


def test_simulate_in_rank_order_leaves_out_other_expressions(capsys: pytest.CaptureFixture[str]) -> None:
    assert main("simulate allreduce -n 4 --bytes 8 --algorithms ring,binomial --order rank".split()) == 0
    shown = capsys.readouterr().out
    assert 'left out: ring: it does not combine as order="rank" asks' in shown
    assert [line.split()[0] for line in shown.splitlines()[1:3]] == ["algorithm", "binomial"]

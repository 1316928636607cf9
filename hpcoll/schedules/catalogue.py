"""The catalogue of algorithms: use, source, costs and restrictions of each. `hpcoll.schedules.row.Algorithm` explains the fields."""

from hpcoll.base.errors import ArgumentError
from hpcoll.base.text import one_of
from hpcoll.schedules.collectives import COLLECTIVES
from hpcoll.schedules.row import Algorithm, OnGpu

CATALOGUE: dict[str, Algorithm] = {
    row.key: row
    for row in (
        Algorithm("allreduce", "ring", "least volume, p-1 neighbour messages per phase: large messages, few ranks",
            "Patarasuk and Yuan, J. Parallel Distrib. Comput. 2009", rounds="2*(p-1)", critical="2*(p-1)/p", sent="2*(p-1)/p",
            largest="1/p", chunks="p", pipelined=True, neighbours=True),
        Algorithm("allreduce", "circulant", "the ring's volume in 2q rounds, for any number of ranks: medium and large messages",
            "Traeff, arXiv 2407.18004", rounds="2*q", critical="2*(p-1)/p", sent="2*(p-1)/p", largest="(p//2)/p", chunks="p",
            pipelined=True),
        Algorithm("allreduce", "rabenseifner", "the ring's volume in 2 log2 p rounds, largest parts to the nearest rank: powers of two",
            "Rabenseifner, ICCS 2004; Thakur, Rabenseifner and Gropp, IJHPCA 2005", rounds="2*log2(f)+2*(p>f)",
            critical="2*(f-1)/f+2*(p>f)", sent="2*(f-1)/f+(p>f)", largest="(1+(p>f))/2", chunks="f", ordered=True, pipelined=True,
            sharers="1+log2(c)/2", canonical="log2(2*f-p)%1==0"),
        Algorithm("allreduce", "swing", "the ring's volume in 2q rounds, shortest ways: several ranks per node, even numbers of ranks",
            "De Sensi et al., NSDI 2024; arXiv 2508.17311", rounds="2*ceil(log2(p-p%2))", messages="p%2*2*(p-1)",
            critical="2*(p-1)/p+(1+(p>f))/2", sent="(2*(p-p%2-1)+p%2)/(p-p%2)", largest="1/2", chunks="p-p%2", pipelined=True,
            chosen="nodes", sharers="1+log2(c)/3"),
        Algorithm("allreduce", "recursive_doubling", "fewest rounds, whole message each time: small messages",
            "classic; Thakur, Rabenseifner and Gropp, IJHPCA 2005", rounds="log2(f)+2*(p>f)", critical="log2(f)+2*(p>f)",
            sent="log2(f)+(p>f)", ordered=True, canonical="log2(2*f-p)%1==0"),
        Algorithm("allreduce", "recursive_multiplying",
            "half the rounds of recursive doubling, three messages at once: small messages where latency is wire rather than CPU",
            "Ruefenacht, Bull and Booth, Parallel Computing 2017", rounds="ceil(log2(f)/2)+2*(p>f)",
            messages="3*(log2(f)//2)+log2(f)%2+2*(p>f)", critical="3*(log2(f)//2)+log2(f)%2+2*(p>f)",
            sent="3*(log2(f)//2)+log2(f)%2+(p>f)", ordered=True, chosen="a node each", canonical="log2(2*f-p)%1==0"),
        Algorithm("allreduce", "binomial", "a binomial tree up and down, in rank order: small messages, many ranks",
            "classic", rounds="2*log2(f)", messages="2*q", critical="2*q", sent="q", ordered=True, pipelined=True, canonical="1"),
        Algorithm("allreduce", "tree", "reduce, then broadcast over a binary tree: operators that are not commutative, uneven arrival",
            "classic", rounds="2*log2(f)", critical="4*log2(p+1)-4", sent="1+(p>2)+(p>5)", ordered=True, pipelined=True,
            canonical="p in (2, 4)"),
        Algorithm("allreduce", "double_tree",
            "two complementary trees, half the message each: many ranks, medium and large messages in segments",
            "Sanders, Speck and Traeff, Parallel Computing 2009; NCCL 2.4", rounds="2*q", critical="2*q-1/2", sent="2-max(0,4-p)/2",
            largest="1/2", chunks="2", ordered=True, pipelined=True, canonical="p==2"),
        Algorithm("allreduce", "dual_root",
            "a tree for each half of the ranks, the roots exchange: operators that are not commutative, two nodes of several ranks",
            "Traeff, arXiv 2109.12626", rounds="log2(p//2)//1+log2((p+1)//2)//1+1", critical="4*log2((p+1)//2+1)-3",
            sent="1+(p>2)+(p>4)", ordered=True, pipelined=True, chosen="nodes",
            sharers="c-(c-1)*(h==2)*(c==l)", canonical="p in (2, 4, 8)"),
        Algorithm("allreduce", "direct",
            "everything to everybody at once: smallest messages, few ranks, or latency that is wire rather than CPU",
            "classic (one-shot)", rounds="1", messages="p-1", critical="p-1", sent="p-1", ordered=True, staged="1", shared="(p+3)/5",
            one_fold=True, on_gpu=OnGpu("p+1", launches=1), canonical="1"),
        Algorithm("allreduce", "two_shot",
            "least volume in two rounds of p-1 messages: few ranks, or latency that is wire rather than CPU",
            "classic (direct reduce-scatter, direct allgather)", rounds="2", messages="2*(p-1)", critical="2*(p-1)/p", sent="2*(p-1)/p",
            largest="1/p", chunks="p", ordered=True, pipelined=True, staged="1", shared="(5-1/p)/5", one_fold=True,
            on_gpu=OnGpu("2", turns=1, launches=1), canonical="1"),
        Algorithm("allreduce", "hierarchical",
            "each rank of a node takes its part of the message to the other nodes, all parts at once: large messages",
            "Traeff and Hunold, arXiv 1910.13373", rounds="2*(c>1)+2*r", messages="2*(c-1)+2*r", critical="2*(c-1)/l+2*(h-1)/h/l",
            sent="2*(c-1)/l+2*(h-1)/h/l", largest="max(h//2,1)/h/l", chunks="l*h", staged="1", pipelined=True, hierarchical=True,
            stripes="l", inner=("reduce_scatter/direct", "allgather/direct"), outer="allreduce/circulant", canonical="h==1"),
        Algorithm("allreduce", "hierarchical_two_shot",
            "as hierarchical, with two rounds of messages between the nodes: few nodes, or latency that is wire rather than CPU",
            "Traeff and Hunold, arXiv 1910.13373", rounds="2*(c>1)+2*(h>1)", messages="2*(c-1)+2*(h-1)",
            critical="2*(c-1)/l+2*(h-1)/h/l", sent="2*(c-1)/l+2*(h-1)/h/l", largest="1/h/l", chunks="l*h", staged="1", pipelined=True,
            hierarchical=True, stripes="l", inner=("reduce_scatter/direct", "allgather/direct"), outer="allreduce/two_shot",
            canonical="aligned"),
        Algorithm("allreduce", "leaders", "one rank of each node combines for all of it: small messages", "classic (two-level)",
            rounds="2*(c>1)+log2(g)+2*(h>g)", messages="2*(c-1)+log2(g)+2*(h>g)", critical="2*(c-1)+log2(g)+2*(h>g)",
            sent="c-1+log2(g)+(h>g)", staged="1", hierarchical=True, inner=("reduce/direct", "bcast/direct"),
            outer="allreduce/recursive_doubling", canonical="aligned*(log2(2*g-h)%1==0)"),
        Algorithm("allreduce", "gpu_leaders", "one rank of each GPU reads all inputs and writes all outputs: ranks that share GPUs",
            "two-shot allreduce of one rank per GPU", rounds="2", messages="2*(p-1)", critical="2*(p-1)/h", sent="(p+h-2)/h",
            received="(p+h-2)/h", largest="1/h", chunks="h", staged="1", ordered=True, pipelined=True, one_fold=True, per_gpu=True,
            on_gpu=OnGpu("2*p/h", turns=1, launches=1, one_works=True), canonical="1"),
        Algorithm("bcast", "binomial", "fewest rounds, whole message each time: small messages",
            "classic; Thakur, Rabenseifner and Gropp, IJHPCA 2005", rounds="log2(f)", critical="q", sent="q", pipelined=True),
        Algorithm("bcast", "bine", "as the binomial tree, with shorter ways: several ranks per node, though not two, four or eight",
            "De Sensi et al., arXiv 2508.17311", rounds="log2(f)", critical="q", sent="q", pipelined=True, chosen="none"),
        Algorithm("bcast", "tree",
            "a flat 4-nomial tree, half as deep as the binomial one: small messages where latency is wire rather than CPU",
            "classic; k-nomial trees as in MPICH", rounds="ceil(log2(3*p-1)/2)-1", critical="3*ceil(q/2)-4+ceil(p/4**(ceil(q/2)-1))",
            sent="3*ceil(q/2)-4+ceil(p/4**(ceil(q/2)-1))", pipelined=True),
        Algorithm("bcast", "chain", "a line of ranks, every link carries the message once: very large messages in segments, few ranks",
            "classic (linear pipeline)", rounds="p-1", critical="p-1", sent="1", pipelined=True, neighbours=True),
        Algorithm("bcast", "double_tree", "two complementary binary trees, half the message each: large messages in segments, many ranks",
            "Sanders, Speck and Traeff, Parallel Computing 2009", rounds="q", critical="q", sent="1", largest="1/2", chunks="2",
            pipelined=True),
        Algorithm("bcast", "circulant",
            "n blocks in n-1+q rounds, the fewest possible on one port: medium and large messages, any number of ranks",
            "Traeff, arXiv 2312.11236 and 2407.18004", rounds="n-1+q", critical="(n-1+q)/n", sent="(n-1+q)/n", chunked=True),
        Algorithm("bcast", "direct", "the root sends to everybody: smallest messages, few ranks, shared memory", "classic (linear)",
            rounds="1", messages="p-1", critical="p-1", sent="p-1", staged="1", shared="1", on_gpu=OnGpu("2*(p-1)", one_works=True)),
        Algorithm("bcast", "hierarchical",
            "each rank of a node takes its part of the message to the other nodes, all parts at once: large messages",
            "Traeff and Hunold, arXiv 1910.13373", rounds="2*(c>1)+r", messages="2*(c-1)+r", critical="2*(c-1)/l+r", sent="2*(c-1)/l+1",
            largest="1/2/l", chunks="2*l", staged="1", pipelined=True, hierarchical=True, stripes="l",
            inner=("scatter/direct", "allgather/direct"), outer="bcast/double_tree"),
        Algorithm("reduce", "binomial", "fewest rounds, whole message each time: small messages",
            "classic; Thakur, Rabenseifner and Gropp, IJHPCA 2005", rounds="q", critical="q", sent="1", received="q", ordered=True,
            pipelined=True, canonical="1"),
        Algorithm("reduce", "bine", "as the binomial tree, with shorter ways: several ranks per node, though not two, four or eight",
            "De Sensi et al., arXiv 2508.17311", rounds="log2(f)", critical="q", sent="1", received="q", pipelined=True, chosen="none",
            canonical="p==2"),
        Algorithm("reduce", "tree", "an in-order binary tree below any root: operators that are not commutative",
            "classic; in-order numbering as in Sanders, Speck and Traeff, Parallel Computing 2009", rounds="q", critical="2*log2(p)-1",
            sent="1", received="2-(p==2)", ordered=True, pipelined=True, canonical="p==2"),
        Algorithm("reduce", "chain", "a line of ranks, every link carries the message once: very large messages in segments, few ranks",
            "classic (linear pipeline)", rounds="p-1", critical="p-1", sent="1", pipelined=True, neighbours=True, canonical="p==2"),
        Algorithm("reduce", "double_tree",
            "two complementary binary trees, half the message each: large messages in segments, many ranks",
            "Sanders, Speck and Traeff, Parallel Computing 2009", rounds="q", critical="q", sent="1", largest="1/2", chunks="2",
            pipelined=True, canonical="p==2"),
        Algorithm("reduce", "circulant",
            "n blocks in n-1+q rounds, the fewest possible on one port: medium and large messages, any number of ranks",
            "Traeff, arXiv 2312.11236 and 2407.18004", rounds="n-1+q", critical="(n-1+q)/n", sent="1", received="(n-1+q)/n", chunked=True),
        Algorithm("reduce", "direct", "everybody sends to the root, which folds once: few ranks, operators that are not commutative",
            "classic (linear)", rounds="1", messages="p-1", critical="p-1", sent="1", received="p-1", ordered=True, staged="1",
            shared="(p+1)/5", one_fold=True, on_gpu=OnGpu("p+1", launches=1, one_works=True), canonical="1"),
        Algorithm("reduce", "hierarchical",
            "each rank of a node takes its part of the message to the other nodes, all parts at once: large messages",
            "Traeff and Hunold, arXiv 1910.13373", rounds="2*(c>1)+r", messages="2*(c-1)+r", critical="2*(c-1)/l+r", sent="(c-1)/l+1",
            largest="1/2/l", chunks="2*l", staged="1", pipelined=True, hierarchical=True, stripes="l",
            inner=("reduce_scatter/direct", "gather/direct"), outer="reduce/double_tree", canonical="aligned*(h<3)"),
        Algorithm("scan", "recursive_doubling", "fewest rounds, whole message each time",
            "classic, as in MPI libraries", rounds="q", critical="q", sent="q", ordered=True, canonical="1"),
        Algorithm("scan", "direct", "everything to all ranks above at once, one fold: few ranks, sums that are rounded once",
            "classic (linear)", rounds="1", messages="p-1", critical="p-1", sent="p-1", ordered=True, staged="1", shared="(p+2)/5",
            one_fold=True, on_gpu=OnGpu("p+1", launches=1), canonical="1"),
        Algorithm("exscan", "recursive_doubling", "fewest rounds, whole message each time",
            "classic, as in MPI libraries", rounds="q", critical="q", sent="q", ordered=True, canonical="1"),
        Algorithm("exscan", "direct", "everything to all ranks above at once, one fold: few ranks, sums that are rounded once",
            "classic (linear)", rounds="1", messages="p-1", critical="p-1", sent="p-1", ordered=True, staged="1",
            shared="(p+1-(p==2))/5", one_fold=True, on_gpu=OnGpu("p", launches=1), canonical="1"),
        Algorithm("allgather", "ring", "least volume, p-1 neighbour messages: large blocks, few ranks",
            "classic; Thakur, Rabenseifner and Gropp, IJHPCA 2005", rounds="p-1", critical="(p-1)/p", sent="(p-1)/p", largest="1/p",
            neighbours=True, pipelined=True),
        Algorithm("allgather", "circulant", "fewest rounds and least volume for any number of ranks", "Traeff, arXiv 2407.18004",
            rounds="q", critical="(p-1)/p", sent="(p-1)/p", largest="(p//2)/p", pipelined=True),
        Algorithm("allgather", "pat", "as few rounds and bytes, single blocks sent far and many near: several ranks per node",
            "Jeaugey, arXiv 2506.20252; NCCL 2.23", rounds="q", critical="(p-1)/p+(1+(p>f))/4", sent="(p-1)/p",
            largest="(p//2)/p", pipelined=True, chosen="nodes", sharers="1+log2(c)/2"),
        Algorithm("allgather", "bine", "as few rounds and bytes, shortest ways: several ranks per node, even numbers of ranks",
            "De Sensi et al., arXiv 2508.17311", rounds="ceil(log2(p-p%2))", messages="p%2*(p-1)", critical="(p-1)/p+(1+(p>f))/4",
            sent="(p-1)/p", largest="(p//2)/p", pipelined=True, chosen="nodes", sharers="1+log2(c)/3"),
        Algorithm("allgather", "direct", "all blocks at once: few ranks, or latency that is wire rather than CPU", "classic", rounds="1",
            messages="p-1", critical="(p-1)/p", sent="(p-1)/p", largest="1/p", staged="1", shared="(1+1/p)/2",
            pipelined=True, on_gpu=OnGpu("2")),
        Algorithm("allgather", "hierarchical", "every block goes to each other node once: several ranks per node",
            "Traeff and Hunold, arXiv 1910.13373", rounds="(c>1)+(c>l)+r", messages="2*(c-1)+r", critical="(h-1)/h/l+(c-1)/l",
            sent="((c-1)*t+(h-1)*ceil(c/l))/p", largest="max(h//2,1)/h/l", staged="1", hierarchical=True, stripes="l",
            inner=("allgather/direct",), outer="allgather/circulant"),
        Algorithm("reduce_scatter", "ring", "least volume, p-1 neighbour messages: large blocks, few ranks",
            "Patarasuk and Yuan, J. Parallel Distrib. Comput. 2009", rounds="p-1", critical="(p-1)/p", sent="(p-1)/p", largest="1/p",
            pipelined=True, neighbours=True),
        Algorithm("reduce_scatter", "circulant", "fewest rounds and least volume for any number of ranks", "Traeff, arXiv 2407.18004",
            rounds="q", critical="(p-1)/p", sent="(p-1)/p", largest="(p//2)/p", pipelined=True),
        Algorithm("reduce_scatter", "pat", "as few rounds and bytes, single blocks sent far and many near: several ranks per node",
            "Jeaugey, arXiv 2506.20252; NCCL 2.23", rounds="q", critical="(p-1)/p+(1+(p>f))/4", sent="(p-1)/p",
            largest="(p//2)/p", pipelined=True, chosen="nodes", sharers="1+log2(c)/2"),
        Algorithm("reduce_scatter", "bine", "as few rounds and bytes, shortest ways: several ranks per node, even numbers of ranks",
            "De Sensi et al., arXiv 2508.17311", rounds="ceil(log2(p-p%2))", messages="p%2*(p-1)", critical="(p-1)/p+(1+(p>f))/4",
            sent="(p-1)/p", largest="(p//2)/p", pipelined=True, chosen="nodes", sharers="1+log2(c)/3"),
        Algorithm("reduce_scatter", "direct", "all blocks at once, one reduction of p inputs in rank order: few ranks, any operator",
            "classic", rounds="1", messages="p-1", critical="(p-1)/p", sent="(p-1)/p", largest="1/p", ordered=True, pipelined=True,
            staged="1", shared="(3-1/p)/5", one_fold=True, on_gpu=OnGpu("1+1/p", launches=1), canonical="1"),
        Algorithm("reduce_scatter", "hierarchical", "of every block one partial sum leaves a node: several ranks per node",
            "Traeff and Hunold, arXiv 1910.13373", rounds="t*(c>1)+(c>l)+r", messages="t*(c-1)+r", critical="(c-1)/c+(h-1)/h/l",
            sent="(p-1+(c>l))/p", largest="max(h//2,1)/h/l", staged="2", pipelined=True, hierarchical=True, stripes="l",
            inner=("reduce_scatter/direct",), outer="reduce_scatter/circulant", canonical="h==1"),
        Algorithm("gather", "binomial", "fewest messages at the root: small blocks",
            "classic; Thakur, Rabenseifner and Gropp, IJHPCA 2005", rounds="log2(f)", critical="(p-1)/p",
            sent="max(p-2**(q-1), 2**(q-2))/p", received="(p-1)/p", largest="1/2", pipelined=True),
        Algorithm("gather", "bine", "as the binomial tree, with shorter ways: several ranks per node, though not two, four or eight",
            "De Sensi et al., arXiv 2508.17311", rounds="log2(f)", critical="(p-1)/p", sent="(p//2)/p", received="(p-1)/p",
            largest="(p//2)/p", pipelined=True, chosen="none"),
        Algorithm("gather", "direct", "every block moves once: large blocks", "classic", rounds="1", messages="p-1", critical="(p-1)/p",
            sent="1/p", received="(p-1)/p", largest="1/p", staged="1", pipelined=True,
            on_gpu=OnGpu("2", one_works=True)),
        Algorithm("scatter", "binomial", "fewest messages at the root: small blocks",
            "classic; Thakur, Rabenseifner and Gropp, IJHPCA 2005", rounds="log2(f)", critical="(p-1)/p", sent="(p-1)/p", largest="1/2",
            pipelined=True),
        Algorithm("scatter", "bine", "as the binomial tree, with shorter ways: several ranks per node, though not two, four or eight",
            "De Sensi et al., arXiv 2508.17311", rounds="log2(f)", critical="(p-1)/p", sent="(p-1)/p",
            largest="(p//2)/p", pipelined=True, chosen="none"),
        Algorithm("scatter", "direct", "every block moves once: large blocks", "classic", rounds="1", messages="p-1", critical="(p-1)/p",
            sent="(p-1)/p", largest="1/p", staged="1", pipelined=True, on_gpu=OnGpu("2", one_works=True)),
        Algorithm("alltoall", "pairwise", "every block moves once, one peer at a time: large blocks",
            "classic; Thakur, Rabenseifner and Gropp, IJHPCA 2005", rounds="p-1", critical="(p-1)/p", sent="(p-1)/p", largest="1/p",
            staged="1", pipelined=True),
        Algorithm("alltoall", "bruck", "fewest rounds, blocks travel up to q times: small blocks, many ranks",
            "Bruck et al., IEEE TPDS 1997", rounds="q", critical="log2(p)/2+2", sent="log2(p)/2", largest="1/2", uniform=True),
        Algorithm("alltoall", "direct", "all blocks at once: few ranks, or blocks of very different sizes", "classic", rounds="1",
            messages="p-1", critical="(p-1)/p", sent="(p-1)/p", largest="1/p", staged="1", pipelined=True, on_gpu=OnGpu("2")),
        Algorithm("alltoall", "hierarchical",
            "one message from every node instead of one from every rank: small blocks, several ranks per node",
            "Collom, Li and Bienz, EuroMPI 2023", rounds="t*(c>1)+1", messages="t*(c-1)+h-1", critical="(c-1)/c+(h-1)/h",
            sent="(p-1+k)/p", largest="c/p", staged="1", uniform=True, hierarchical=True, stripes="c", inner=("alltoall/direct",),
            outer="alltoall/direct"),
        Algorithm("neighbor_allgather", "direct", "the block to every neighbour at once", "classic", rounds="1", messages="a",
            critical="a/d", sent="b/d", received="y/d*(y>b)", largest="1/d", staged="1/d", pipelined=True),
        Algorithm("neighbor_allgather", "hierarchical", "a block goes to each other node once: small blocks, several ranks per node",
            "Collom, Li and Bienz, arXiv 2308.13869", rounds="1+2*(c>1)", messages="a+e", critical="(i+x)/d", sent="b/d",
            received="y/d*(y>b)", largest="w/d", staged="b/d", uniform=True, hierarchical=True, stripes="c",
            outer="neighbor_allgather/direct"),
        Algorithm("neighbor_alltoall", "direct", "all blocks at once", "classic", rounds="1", messages="a", critical="a/d", sent="b/d",
            received="y/d*(y>b)", largest="1/d", staged="1", pipelined=True),
        Algorithm("neighbor_alltoall", "hierarchical", "one message from a node to another: small blocks, several ranks per node",
            "Collom, Li and Bienz, arXiv 2308.13869", rounds="1+2*(c>1)", messages="a+e", critical="(i+x)/d", sent="b/d",
            received="y/d*(y>b)", largest="w/d", staged="b/d", uniform=True, hierarchical=True, stripes="c",
            outer="neighbor_alltoall/direct"),
        Algorithm("barrier", "dissemination", "fewest rounds for any number of ranks",
            "Hensgen, Finkel and Manber, Int. J. Parallel Program. 1988", rounds="q", critical="q", sent="q"),
        Algorithm("barrier", "hierarchical", "fewest messages between the nodes: several ranks per node", "classic (two-level)",
            rounds="2*(c>1)+r", messages="2*(c-1)+r", critical="2*(c-1)+r", sent="c-1+r", hierarchical=True,
            inner=("reduce/direct", "bcast/direct"), outer="barrier/dissemination"),
    )
}  # fmt: skip


PACKAGE = tuple(CATALOGUE)  # keys of the package's own rows
_VARYING = ("allgather", "gather", "scatter", "alltoall", "neighbor_allgather", "neighbor_alltoall")
_OTHERS = {"reduce_scatter_block": "reduce_scatter", "alltoallw": "alltoall", "neighbor_alltoallw": "neighbor_alltoall"}
_FORMS = _OTHERS | {f"{name}v": name for name in _VARYING}


def register(row: Algorithm) -> None:
    """Add a row; ArgumentError where its name is taken."""
    if row.key in CATALOGUE:
        raise ArgumentError(f"algorithm {row.key} exists already: give this one another name")
    CATALOGUE[row.key] = row


def registered(collective: str | None = None) -> tuple[Algorithm, ...]:
    """Return the rows that are not the package's own, in the order in which they were added; of one collective, or of all."""
    rows = list(CATALOGUE.values())[len(PACKAGE) :]
    return tuple(row for row in rows if collective in (None, row.collective))


def algorithms_of_form(form: str) -> tuple[str, ...]:
    """Return the names of the algorithms that serve a collective or one of its forms.

    Args:
        form: MPI's name in lower case, such as ``"allreduce"``, ``"reduce_scatter_block"`` or ``"alltoallv"``.

    Returns:
        Names for ``algorithm=``, in the catalogue's order. ``"native"``, the MPI library's own, is not among them.

    Raises:
        ArgumentError: no such collective.

    Examples:
        >>> algorithms_of_form("alltoall"), algorithms_of_form("alltoallv")
        (('pairwise', 'bruck', 'direct', 'hierarchical'), ('pairwise', 'direct'))
    """
    names = algorithms(_FORMS.get(form, form))
    return tuple(name for name in names if not (form.endswith(("v", "w")) and CATALOGUE[f"{_FORMS[form]}/{name}"].uniform))


def algorithms(collective: str) -> tuple[str, ...]:
    """Return the names of a collective's algorithms, in the catalogue's order; ArgumentError where there is no such collective."""
    if collective not in COLLECTIVES:
        raise ArgumentError(f"collective must be {one_of(sorted(COLLECTIVES), collective)}")
    return tuple(row.name for row in CATALOGUE.values() if row.collective == collective)


def find(collective: str, algorithm: str, others: tuple[str, ...] = ()) -> Algorithm:
    """Return a row of the catalogue; ``others``: further names that its place takes, for the text of the error.

    Raises:
        ArgumentError: no such collective, or no such algorithm of it.
    """
    names = algorithms(collective)
    if algorithm not in names:
        raise ArgumentError(f"{collective} algorithm must be {one_of((*names, *others), algorithm)}")
    return CATALOGUE[f"{collective}/{algorithm}"]

"""The model's constants in the tuning file: what is written, merged, and found for a communicator."""

import json
from pathlib import Path

import pytest
from test_tuning import DOCUMENT, HERE, NETWORK, NODE

from hpcoll.selection.tuning import (
    FORMAT,
    Constants,
    Document,
    Misfit,
    Site,
    fit,
    fit_levels,
    merge_constants,
    read,
    write,
)

ONE_HOST = Site("Some MPI 1.0", 2, (("a", 2),))
INSIDE = NETWORK._replace(site=ONE_HOST)  # the MPI library's messages, but on one host


def test_a_file_without_constants_is_as_it_always_was(tmp_path: Path) -> None:
    write(tmp_path / "table", DOCUMENT._replace(constants=()))
    assert json.loads((tmp_path / "table").read_text()).keys() == {"format", "hpcoll", "sections"}


def test_the_same_site_and_level_again_replaces_the_constants(tmp_path: Path) -> None:
    again, elsewhere = NODE._replace(network=NETWORK.network), NODE._replace(site=HERE._replace(nranks=4))
    assert merge_constants((NODE, NETWORK), (again, elsewhere)) == (NETWORK, again, elsewhere)
    write(tmp_path / "table", Document(FORMAT, "", (), (NODE, NETWORK, again)))
    assert read(tmp_path / "table").constants == (NETWORK, again)


@pytest.mark.parametrize(
    ("constants", "site", "expected"),
    [
        ((NODE, NETWORK), HERE, {"node": NODE, "network": NETWORK}),
        ((NODE,), HERE, {"node": NODE}),
        ((), HERE, {}),
        (
            (NODE, NETWORK),
            HERE._replace(nranks=2, hosts=(("c", 1), ("d", 1))),
            {"node": NODE, "network": NETWORK},
        ),
        ((NODE, NODE._replace(site=ONE_HOST)), HERE, {"node": NODE}),
        (
            (NODE, NODE._replace(site=ONE_HOST)),
            ONE_HOST._replace(nranks=3),
            {"node": NODE._replace(site=ONE_HOST)},
        ),
        ((NODE, NODE._replace(site=ONE_HOST._replace(hosts=(("c", 2),)))), ONE_HOST, {"node": NODE}),
        ((NETWORK, INSIDE), HERE, {"network": NETWORK}),
        ((NETWORK, INSIDE), ONE_HOST, {"network": INSIDE}),
        ((INSIDE,), HERE, {}),
        ((NETWORK,), ONE_HOST, {}),
    ],
)
def test_the_nearest_constants_of_the_same_library_are_taken(
    constants: tuple[Constants, ...], site: Site, expected: dict[str, Constants]
) -> None:
    assert fit_levels(Document(FORMAT, "", (), constants), site) == (expected, None)


def test_constants_of_another_library_are_refused() -> None:
    document = DOCUMENT._replace(sections=())
    other = HERE._replace(mpi="MPI 2")
    assert fit_levels(document, other) == ({}, Misfit("mpi", "Some MPI 1.0", "MPI 2"))
    assert fit(document, other) == fit(document, HERE) == ({}, None)

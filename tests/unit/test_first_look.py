"""What a newcomer sees of objects: names that complete, texts of objects, and the package's name before what it says."""

import rlcompleter
import subprocess
import sys

import numpy as np
import pytest

import hpcoll
from hpcoll.analysis.waits import judge
from hpcoll.base.text import as_html, meant, one_of
from hpcoll.comm.plans.ledger import Ledger
from hpcoll.schedules.catalogue import CATALOGUE


def test_dir_has_all_that_is_public_and_nothing_else() -> None:
    assert {name for name in dir(hpcoll) if not name.startswith("__")} == set(hpcoll.__all__)
    found = rlcompleter.Completer({"hpcoll": hpcoll}).attr_matches("hpcoll.C")
    assert {name.rstrip("(") for name in found} == {
        "hpcoll.CartCommunicator",
        "hpcoll.CollectiveTimeout",
        "hpcoll.Communicator",
    }


def test_dir_of_the_backend_of_torch() -> None:
    pytest.importorskip("torch")
    import hpcoll.torch

    assert {name for name in dir(hpcoll.torch) if not name.startswith("__")} == {"GroupOptions"}


def test_a_misspelled_name_of_the_package_is_asked_about() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", "import hpcoll; hpcoll.Comunicator"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Did you mean: 'Communicator'?" in ended.stderr


def test_what_is_logged_begins_with_the_name_of_the_package() -> None:
    program = "from hpcoll.selection.config import log; log.warning('the %s is late', 'rank')"
    plain = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert plain.stderr == "hpcoll: the rank is late\n"
    program = f"import logging; logging.basicConfig(format='%(name)s says: %(message)s'); {program}"
    configured = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert configured.stderr == "hpcoll says: the rank is late\n", (
        "a program that names the logger is left alone"
    )


def test_names_that_are_meant() -> None:
    assert one_of(("ring", "double_tree"), "double-tree").endswith(
        "got 'double-tree': did you mean double_tree?"
    )
    assert meant(("ring",), "RING") == ": did you mean ring?"
    assert (
        meant(("HPCOLL_ALLREDUCE", "HPCOLL_BCAST"), "HPCOLL_ALREDUCE", "HPCOLL_")
        == ": did you mean HPCOLL_ALLREDUCE?"
    )
    assert meant(("HPCOLL_TRACE",), "HPCOLL_XYZ", "HPCOLL_") == "", "the prefix makes no names alike"
    assert meant(("ring",), object()) == meant((), "ring") == ""


def test_texts_of_ledgers_and_stragglers() -> None:
    ledger = Ledger()
    assert repr(ledger) == "<hpcoll ledger: 0 calls of 0 operations, 0 B, 0 us; print() shows all>"
    ledger.account("allreduce", "ring", "float64").note(1 << 20, 2_500_000)
    ledger.account("bcast", "tree", "<b>").note(1 << 20, 2_500_000)
    assert repr(ledger) == "<hpcoll ledger: 2 calls of 2 operations, 2 MiB, 5 ms; print() shows all>"
    assert ledger._repr_html_() == as_html(ledger)
    assert as_html("<b>") == "<pre>&lt;b&gt;</pre>"
    nobody = judge([])
    assert repr(nobody) == "<hpcoll.Stragglers: no rank has told of its calls>"
    assert nobody._repr_html_().startswith("<pre>no rank has told")


def test_texts_of_algorithms_and_their_parts() -> None:
    assert repr(CATALOGUE["bcast/tree"]).startswith("<hpcoll algorithm bcast/tree: ")
    writer = hpcoll.Writer(4, 1, 0, 2)
    writer.send(0, hpcoll.inputs(0, 2))
    assert repr(writer) == "<hpcoll.Writer: rank 1 of 4, root 0, 2 chunks, 1 step so far>"
    assert repr([hpcoll.inputs(0, 2), hpcoll.outputs(1)]) == "[input[0..1], output[1]]"
    total = hpcoll.ExactAccumulator()
    total.add(np.ones(3))
    assert repr(total) == "ExactAccumulator(float64, shape=(), count=3)"

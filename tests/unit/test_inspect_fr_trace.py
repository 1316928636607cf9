"""Flight records in the format of torch's fr_trace: what its reader takes for granted."""

import pickle
from pathlib import Path
from typing import Any

import flight_cases as cases
import pytest

from hpcoll.cli import main
from hpcoll.cli.inspect.flight_records import read
from hpcoll.cli.inspect.fr_trace import PREFIX, dumps


def dumped(folder: Path, records: list[Any]) -> dict[int, dict[str, Any]]:
    return dumps(read(cases.write(folder, records)))


def test_the_command_writes_a_pickle_for_each_rank_in_words_that_the_reader_knows(tmp_path: Path) -> None:
    """Its reader finds rank and prefix in the name, and knows no backends but some."""
    gathered = {"collective": "allgather", "count": 3, "op": ""}
    files = cases.write(
        tmp_path,
        cases.world(
            *(
                [cases.call(1), cases.call(2, **gathered)],
                [cases.call(1), cases.call(2, "waiting", **gathered)],
            )
        ),
    )
    assert main(["inspect", *files, "--fr-trace", str(tmp_path / "new" / "folder")]) == 1
    dump = pickle.loads((tmp_path / "new" / "folder" / f"{PREFIX}1").read_bytes())
    assert (dump["version"], dump["pg_config"]) == (
        "2.10",
        {"0": {"name": "0", "desc": cases.WORLD, "ranks": "[0, 1]"}},
    )
    first, last = dump["entries"]
    assert first["profiling_name"].startswith("nccl:all_reduce Allreduce(")
    assert (last["process_group"], last["collective_seq_id"], last["record_id"], last["state"]) == (
        ("0", cases.WORLD),
        2,
        1,
        "started",
    )
    assert (last["input_sizes"], last["output_sizes"], last["input_dtypes"]) == ([[3]], [[6]], ["float64"])
    assert (last["time_created_ns"], last["time_discovered_completed_ns"]) == (1700000002 * 10**9, None)
    assert last["frames"] == [{"name": "allgather", "filename": "train.py", "line": "12"}]
    assert last["profiling_name"].count(":") == 1


def test_all_ranks_begin_with_the_same_call(tmp_path: Path) -> None:
    """The reader compares from the latest first record on, and takes a rank that forgot a call for one that never came."""
    found = dumped(
        tmp_path, cases.world([cases.call(n) for n in (3, 4, 5)], [cases.call(n) for n in (4, 5, 6)])
    )
    assert {
        rank: [entry["collective_seq_id"] for entry in dump["entries"]] for rank, dump in found.items()
    } == {0: [4, 5], 1: [4, 5, 6]}
    assert {dump["entries"][0]["record_id"] for dump in found.values()} == {0}


def test_lanes_are_groups_and_communicators_that_a_rank_has_freed_are_left_out(tmp_path: Path) -> None:
    """Calls of two lanes have the same numbers, and what a rank called on a communicator is forgotten with it."""
    lanes = [cases.call(1), cases.call(1, lane="in flight 1")]
    kept, freed = (
        [cases.part(rank, [0, 1], calls, name) for rank in (0, 1)]
        for calls, name in ((lanes, "kept"), ([cases.call(1)], "freed"))
    )
    found = dumped(tmp_path, [cases.record(0, 2, kept[0], freed[0]), cases.record(1, 2, kept[1])])
    assert [group["desc"] for group in found[0]["pg_config"].values()] == ["kept", "kept in flight 1"]
    assert [entry["process_group"] for entry in found[0]["entries"]] == [
        ("0", "kept"),
        ("1", "kept in flight 1"),
    ]


def test_a_folder_that_cannot_be_made_is_an_error_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    files = cases.write(tmp_path, cases.world([cases.call(1)]))
    assert main(["inspect", *files, "--fr-trace", str(tmp_path / "file")]) == 2
    assert "--fr-trace" in capsys.readouterr().err

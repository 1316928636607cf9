"""The benchmark's arithmetic and formats: what needs no MPI."""

import json

import numpy as np
import pytest

from hpcoll.base.dtypes import kind
from hpcoll.base.errors import ArgumentError
from hpcoll.cli.bench.messages import (
    OPERATORS,
    PERIOD,
    combined,
    contribution,
    count_wrong,
    find_dtype,
    find_op,
    repeat,
    type_name,
)
from hpcoll.cli.bench.report import (
    FORMATS,
    Report,
    ResultRow,
    as_json,
    as_nccl,
    average_bus_bandwidth,
    bus_factor,
    rows_so_far,
    summarise,
    total_wrong,
)

NCCL_NAMES = "size count type redop root time algbw busbw #wrong time algbw busbw #wrong"
TYPES = ["bool", "int8", "uint64", "half", "bfloat16", "float", "double", "complex64"]


def row(
    algorithm: str = "ring",
    ran: str = "ring",
    size: int = 4096,
    *,
    nwrong: int | None = 0,
    in_place: bool = True,
) -> ResultRow:
    side = summarise(
        np.array([3.0, 1.0, 2.0]) * 1e-6,
        size,
        1.5,
        nwrong=nwrong,
        native=np.array([8e-6, 4e-6, 4e-6]),
        batch=10,
    )
    return ResultRow(algorithm, ran, size, size // 4, "float", "sum", -1, side, side if in_place else None)


def report(*rows: ResultRow, collective: str = "allreduce") -> Report:
    return Report(collective, 4, ["hpcoll on 4 ranks"], rows, ["a note"], {"args": ["bench"]})


@pytest.mark.parametrize(
    ("collective", "factor"),
    [
        *[
            ("allreduce", 1.5),
            ("reduce_scatter", 0.75),
            ("allgather", 0.75),
            ("gather", 0.75),
            ("scatter", 0.75),
            ("alltoall", 0.75),
        ],
        *[("bcast", 1), ("reduce", 1), ("scan", 1), ("exscan", 1), ("barrier", 1)],
    ],
)
def test_bus_bandwidth_factors_are_those_of_nccl_tests(collective: str, factor: float) -> None:
    assert bus_factor(collective, 4) == factor


def test_summary_is_of_medians() -> None:
    side = row().out_of_place
    assert side is not None
    assert (side.p50_us, side.min_us, side.max_us, side.avg_us) == pytest.approx((2, 1, 3, 2))
    assert (side.p90_us, side.p95_us, side.p99_us) == pytest.approx((2.8, 2.9, 2.98))
    assert (side.alg_bw, side.bus_bw, side.ratio) == pytest.approx((2.048, 3.072, 2))
    assert (side.iterations, side.batch) == (3, 10)


def test_nccl_columns() -> None:
    lines = as_nccl(report(row("native", "native"), row(), row(in_place=False, nwrong=None))).splitlines()
    assert lines[0] == "# hpcoll on 4 ranks"
    assert "# a note" in lines
    assert [line for line in lines if line.startswith("# allreduce/")] == [
        "# allreduce/native",
        "# allreduce/ring",
    ]
    header = next(line for line in lines if " size " in line)
    assert rows_so_far(report(row("native", "native"), row())) == lines[: lines.index(header) + 4]
    assert header.split()[1:] == [
        *NCCL_NAMES.split(),
        "ratio",
        "ratio",
        "P90",
        "P90",
        "P99",
        "P99",
        "algorithm",
    ]
    table = [line for line in lines if not line.startswith("#")]
    assert (
        " ".join(table[0].split())
        == "4096 1024 float sum -1 2.00 2.05 3.07 0 2.00 2.05 3.07 0 2.00 2.00 2.80 2.80 2.98 2.98 native"
    )
    assert (
        " ".join(table[2].split())
        == "4096 1024 float sum -1 2.00 2.05 3.07 N/A N/A N/A N/A N/A 2.00 - 2.80 - 2.98 - ring"
    )
    assert {line.rindex(" ") for line in (*table, header)} == {header.rindex(" ")}
    assert lines.count("# Out of bounds values : 0 OK") == 2
    assert lines.count("# Avg bus bandwidth    : 3.072") == 2


def test_wrong_answers_show_in_every_format() -> None:
    bad = report(row(), row("tree", nwrong=2))
    assert total_wrong(bad.rows) == 4
    assert "# Out of bounds values : 4 FAILED" in as_nccl(bad)
    document = json.loads(as_json(bad))
    assert document["out_of_bounds"] == {"count": 4, "okay": "false"}
    assert document["errors"] == ["4 wrong elements"]
    assert [result["in_place"]["nwrong"] for result in document["results"]] == [0, 2]


def test_auto_says_what_ran() -> None:
    rows = [row("auto", ran, size) for ran, size in (("native", 8), ("native", 64), ("ring", 65536))]
    assert "# allreduce/auto: native from 8 B, ring from 64 KiB" in as_nccl(report(*rows)).splitlines()


def test_json_members() -> None:
    document = json.loads(as_json(report(row(in_place=False))))
    assert {
        "version",
        "args",
        "results",
        "out_of_bounds",
        "average_bus_bandwidth",
        "errors",
    } <= document.keys()
    assert document["average_bus_bandwidth"]["bandwidth"] == pytest.approx(3.072)
    result = document["results"][0]
    assert [result[key] for key in ("algorithm", "size", "count", "type", "redop")] == [
        "ring",
        4096,
        1024,
        "float",
        "sum",
    ]
    assert (result["root"], result["in_place"]) == ("    -1", None)
    assert {"time", "alg_bw", "bus_bw", "nwrong", "p50_us", "p90_us", "p95_us", "p99_us"} <= result[
        "out_of_place"
    ].keys()
    assert (document["version"], result["actual_iterations"], result["experiment_name"]) == (3, 3, "ring")


def test_every_format_takes_an_empty_report() -> None:
    for render in FORMATS.values():
        assert render(report()).endswith("\n")
    assert average_bus_bandwidth([]) == 0


@pytest.mark.parametrize("name", TYPES)
def test_sums_are_exact_and_answers_differ_by_place(name: str) -> None:
    dtype = find_dtype(name)
    op = find_op("lxor" if name == "bool" else "sum")
    answer = combined(0, range(5), 5, op, dtype)
    parts = [contribution(0, rank, op, dtype) for rank in range(5)]
    wide = np.complex128 if name == "complex64" else np.float64
    total = (
        np.logical_xor.reduce(parts)
        if name == "bool"
        else np.sum([part.astype(wide) for part in parts], axis=0)
    )
    np.testing.assert_array_equal(answer.astype(total.dtype), total)
    for shift in (1, 11, 64, 512):
        assert np.count_nonzero(np.roll(answer, shift) != answer) > PERIOD // 4
    assert not np.array_equal(contribution(0, 0, op, dtype), contribution(0, 1, op, dtype))
    assert not np.array_equal(contribution(0, 0, op, dtype), contribution(1, 0, op, dtype))


@pytest.mark.parametrize(
    ("op", "name"),
    [(op, name) for op in OPERATORS for name in TYPES if kind(find_dtype(name)) in OPERATORS[op].kinds],
)
def test_answers_keep_the_element_type(op: str, name: str) -> None:
    dtype = find_dtype(name)
    answer = combined(3, [1, 2, 4], 5, OPERATORS[op], dtype)
    assert (answer.dtype, answer.size) == (dtype, PERIOD)


def test_average_divides_by_all_ranks() -> None:
    dtype = find_dtype("float")
    parts = sum(contribution(0, rank, find_op("avg"), dtype) for rank in range(3))
    np.testing.assert_array_equal(combined(0, range(3), 3, find_op("avg"), dtype), (parts / 3).astype(dtype))


@pytest.mark.parametrize("count", [0, 1, PERIOD - 1, PERIOD, 2 * PERIOD + 5])
def test_wrong_elements_are_counted(count: int) -> None:
    period = contribution(0, 0, None, np.dtype(np.int32))
    found = np.empty(count, np.int32)
    repeat(period, found)
    assert found.tolist() == [period[i % PERIOD] for i in range(count)]
    assert count_wrong(found, period) == 0
    found[::7] += 1
    assert count_wrong(found, period) == len(found[::7])


def test_a_bool_that_is_neither_counts_as_wrong() -> None:
    period = contribution(0, 0, None, np.dtype(bool))
    found = period.copy()
    found.view(np.uint8)[3:5] = 0xA5
    assert count_wrong(found, period) == 2


def test_names() -> None:
    assert [type_name(find_dtype(name)) for name in ("float32", "float16", "double", "bfloat16", "int8")] == [
        *("float", "half", "double", "bfloat16", "int8")
    ]
    with pytest.raises(ArgumentError, match="datatype must be one of int8"):
        find_dtype("quad")
    with pytest.raises(ArgumentError, match="op must be one of sum"):
        find_op("xor")

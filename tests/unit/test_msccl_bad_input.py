"""MSCCL XML that is broken, hostile or huge ends in one line that names the place, soon and in little memory."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msccl_files import XmlProgram, pairs_allreduce, ring_allgather

from hpcoll.base.errors import HpcollError
from hpcoll.formats.reading import prove_program, read_program

TEXT = ring_allgather(4).text()
LIMITED = """import resource, sys
resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, 1 << 30))
from hpcoll.cli import main
sys.exit(main())"""
STEP = '<step s="{}" type="nop" srcbuf="i" srcoff="-1" dstbuf="o" dstoff="-1" cnt="0" depid="-1" deps="-1" hasdep="0"/>'


def changed(old: str, new: str) -> str:
    assert old in TEXT
    return TEXT.replace(old, new, 1)


def cyclic() -> str:
    """A program whose two thread blocks wait for each other."""
    program = XmlProgram("allreduce", 1, 1, (1, 1, 1), inplace=0)
    blocks = [program.block(0), program.block(0)]
    for block in blocks:
        program.step(0, block, "cpy", ("i", 0), ("s", 0))
    for block in blocks:
        program.step(0, block, "cpy", ("i", 0), ("o", 0), after=(1 - block, 0))
    for block, other in ((0, 1), (1, 0)):
        first = program.gpus[0][block][0]
        first.set("depid", str(other))
        first.set("deps", "0")
    return program.text()


CASES = {
    "truncated": (TEXT[: len(TEXT) // 2], "expected XML, got"),
    "empty": ("", "expected XML, got"),
    "no algo": ("<a/>", "expected algo in the file, got 'a'"),
    "doctype": (
        '<!DOCTYPE algo [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]>' + TEXT,
        "line 1: expected no doctype",
    ),
    "external entity": ('<!DOCTYPE algo SYSTEM "/etc/passwd">' + TEXT, "line 1: expected no doctype"),
    "unknown entity": (changed('type="s"', 'type="&s;"'), "undefined entity"),
    "nested elements": (changed("<gpu", "<gpu><gpu>"), "expected"),
    "unknown element": (changed("<tb", "<block"), "expected tb in gpu, got 'block'"),
    "unknown type": (
        changed('type="s"', 'type="snd"'),
        "line 4, gpu 0, thread block 0, step 0: expected type to be one of s, r, rcs",
    ),
    "unknown buffer": (
        changed('srcbuf="o"', 'srcbuf="x"'),
        "gpu 0, thread block 0, step 0: expected srcbuf to be one of i, o, s",
    ),
    "unknown collective": (
        changed('coll="allgather"', 'coll="hello"'),
        "expected coll to be one of allreduce",
    ),
    "missing attribute": (changed('type="s" ', ""), "step 0: expected type to be one of s, r"),
    "missing coll": (changed('coll="allgather"', ""), "got none, and conditions beside the file can say it"),
    "no number": (changed('cnt="1"', 'cnt="one"'), "step 0: expected cnt to be an integer from 0"),
    "digits of another script": (changed('cnt="1"', 'cnt="\u0661"'), "expected cnt to be an integer"),
    "a long number": (changed('cnt="1"', f'cnt="{"9" * 10000}"'), "expected cnt to be an integer"),
    "negative offset": (
        changed('srcoff="0"', 'srcoff="-5"'),
        "step 0: expected srcoff to be an integer from -1",
    ),
    "no offset": (
        changed('srcoff="0"', 'srcoff="-1"'),
        "gpu 0, thread block 0, step 0: o[-1..-1] is outside its buffer of 4",
    ),
    "offset beyond": (
        changed('srcoff="0"', 'srcoff="4"'),
        "step 0: o[4..4] is outside its buffer of 4 chunks",
    ),
    "count beyond": (changed('cnt="1"', 'cnt="5"'), "o[0..4] is outside its buffer of 4 chunks"),
    "peer out of range": (
        changed('send="1"', 'send="4"'),
        "line 3, gpu 0: expected send to be an integer from -1 to 3, got '4'",
    ),
    "no channel": (
        changed('chan="0"', 'chan="-1"'),
        "expected a channel of thread block 0, which has peers, got -1",
    ),
    "itself as peer": (
        changed('send="1"', 'send="0"'),
        "expected another gpu as the peer of thread block 0, got 0 itself",
    ),
    "no peer": (changed('send="1"', 'send="-1"'), "a step s in a thread block with send=-1"),
    "duplicate gpu": (
        changed('id="1" i_chunks', 'id="0" i_chunks'),
        "expected one gpu with id 0, got a second",
    ),
    "missing gpu": (changed('ngpus="4"', 'ngpus="5"'), "expected 5 gpus, got none with id 4"),
    "duplicate block": (
        changed('<tb id="1"', '<tb id="0"'),
        "expected one thread block with id 0, got a second",
    ),
    "one connection twice": (
        changed('send="-1" recv="3"', 'send="1" recv="3"'),
        "1: sends to gpu 1 in channel 0, as thread block 0",
    ),
    "steps out of order": (changed('<step s="1"', '<step s="2"'), "step 1: expected s to be 1, got '2'"),
    "dependency on nobody": (
        changed('depid="1"', 'depid="7"'),
        "it waits for thread block 7, which gpu 0 does not have",
    ),
    "dependency without a signal": (
        TEXT.replace('hasdep="1"', 'hasdep="0"'),
        "step 0 of thread block 1, which never says that it is done",
    ),
    "dependency on itself": (
        changed('depid="1" deps="0"', 'depid="0" deps="1"'),
        "it waits for step 1 of its own thread block",
    ),
    "cyclic dependencies": (cyclic(), "deadlock: it waits for another thread block: line 8"),
    "no chunks": (
        changed('nchunksperloop="4"', 'nchunksperloop="0"'),
        "expected nchunksperloop to be an integer from 1",
    ),
    "many chunks": (
        changed('o_chunks="4"', 'o_chunks="1000000000"'),
        "expected o_chunks to be an integer from 0 to 65536",
    ),
    "many gpus": (changed('ngpus="4"', 'ngpus="100000"'), "expected ngpus to be an integer from 1 to 1024"),
    "chunks that no gpu has a block of": (
        changed('nchunksperloop="4"', 'nchunksperloop="6"'),
        "a multiple of 4 gpus",
    ),
    "nothing to do": (changed(TEXT[TEXT.index("<tb") : TEXT.rindex("</gpu>")], "</gpu>"), "expected"),
    "for no calls": (
        changed('inplace="1"', 'inplace="0"'),
        "in place, out of place or both, got one for none",
    ),
    "another format": ('{"name": "plan"}', "expected XML, got"),
    "binary": (b"\x7fELF\x02\x01\x01\0\0".decode("latin1"), "expected XML, got"),
    "a terminal's sequences": (changed('type="s"', 'type="\u202e\u009b31m"'), "expected type to be one of"),
}


@pytest.mark.parametrize("name", CASES)
def test_broken_files_are_refused_in_one_line(name: str, tmp_path: Path) -> None:
    text, expected = CASES[name]
    path = tmp_path / "broken.xml"
    path.write_text(text)
    with pytest.raises(HpcollError) as caught:
        prove_program(read_program(path))
    found = str(caught.value)
    assert "broken.xml" in found
    assert expected in found
    assert found.isprintable()


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cut.xml"
    text = pairs_allreduce(3).text().rstrip()
    for end in range(0, len(text) - 1, 97):
        path.write_text(text[:end])
        with pytest.raises(HpcollError, match=r"cut\.xml"):
            read_program(path)


def huge_steps() -> Iterator[str]:
    yield TEXT[: TEXT.index("<step")]
    yield from (STEP.format(s) for s in range(1_000_000))


def huge_attributes() -> Iterator[str]:
    yield "<algo "
    yield from (f'a{i}="" ' for i in range(4_000_000))


def huge_text() -> Iterator[str]:
    yield "<algo name='"
    yield from ("x" * 1_000_000 for _ in range(60))


def huge_buffers() -> Iterator[str]:
    """Small, but with as many chunks in buffers and messages as the limits allow."""
    program = XmlProgram("allreduce", 32, 65536, (65536, 0, 0), inplace=1)
    for gpu in range(32):
        block = program.block(gpu, send=(gpu + 1) % 32, recv=(gpu - 1) % 32)
        program.step(gpu, block, "s", ("i", 0), cnt=65536)
        program.step(gpu, block, "r", dst=("i", 0), cnt=65536)
    yield program.text()


@pytest.mark.parametrize("write", [huge_steps, huge_attributes, huge_text, huge_buffers])
def test_huge_files_end_soon_and_within_a_gigabyte(write: object, tmp_path: Path) -> None:
    path = tmp_path / "huge.xml"
    with open(path, "w") as file:
        file.writelines(write())  # type: ignore[operator]
    start = time.monotonic()
    result = subprocess.run(
        [sys.executable, "-c", LIMITED, "verify", str(path)], capture_output=True, text=True, check=False
    )
    assert result.returncode in (1, 2), result.stderr
    assert len((result.stdout + result.stderr).splitlines()) == 1, result.stderr
    assert "memory" not in result.stdout + result.stderr
    assert time.monotonic() - start < 90  # seconds: alone it takes 4


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path, reason in (
        (tmp_path / "none.xml", "No such file"),
        (tmp_path, "suffix"),
        (Path("/etc/hostname.xml/"), "cannot read"),
    ):
        with pytest.raises(HpcollError, match=reason if reason != "suffix" else "files that end in"):
            read_program(path)

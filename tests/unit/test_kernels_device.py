"""GPU kernels without a GPU: what they are compiled to, for three architectures, and what that computes."""

import re
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernel_numbers import BFLOAT16, COMPLEX, DTYPES, HALVES, SCALES, numbers
from ptx_assembler import assemble

pytest.importorskip("numba.cuda.cudadrv.nvrtc", reason="needs numba-cuda", exc_type=ImportError)

from cuda.bindings import nvjitlink
from kernel_cases import KernelCases
from numba.cuda.cudadrv import nvrtc

from hpcoll.base import disk_cache, ops
from hpcoll.base.dtypes import kind
from hpcoll.base.errors import KernelError
from hpcoll.base.files import OwnedFolder
from hpcoll.base.ops import BUILTIN, reduce_op
from hpcoll.kernels import MAX_DESTINATIONS, device
from hpcoll.kernels.device import Capability, Kernel
from hpcoll.kernels.one_shot_layout import NPARAMETERS

CCS = [(8, 0), (9, 0), (10, 0)]
pytestmark = pytest.mark.timeout(600)  # compiles some hundred kernels

ARITHMETIC = {"sum": "add", "prod": "mul"}


def named(cc: Capability) -> str:
    return f"sm_{cc[0]}{cc[1]}"


def each_of(every: list[Capability], *short: Capability) -> Any:
    """Runs a test for capabilities, of which the short run has some."""
    params = [pytest.param(cc, id=named(cc), marks=() if cc in short else pytest.mark.full) for cc in every]
    return pytest.mark.parametrize("cc", params)


SHORT = {("sum", (9, 0)): ("int8", "float16", "float32", "complex128"), ("land", (10, 0)): ("bool",)}
FOLDS = [pytest.param(name, cc, types, id=f"{name}-{named(cc)}-few") for (name, cc), types in SHORT.items()]
FOLDS += [
    pytest.param(name, cc, (), id=f"{name}-{named(cc)}", marks=pytest.mark.full)
    for name in BUILTIN
    for cc in CCS
]
every_cc = each_of(CCS, (9, 0))


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A folder of its own for every test."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    forget()
    yield disk_cache.folder()
    forget()


def forget() -> None:
    for function in (device.fold, device.scale, device.move, device.one_shot):
        function.cache_clear()


def check(kernel: Kernel, cc: Capability, nparameters: int) -> str:
    """Check what every kernel keeps; return its text."""
    text = kernel.ptx.decode()
    entry = re.findall(r"\.entry\s+(\w+)\s*\(([^)]*)\)", text)
    assert [name for name, _ in entry] == [kernel.name]
    parameters = re.findall(r"\.param\s+\.(\w+)", entry[0][1])
    assert len(parameters) == nparameters
    assert set(parameters) <= {"u64", "b64", "s64", "f64"}, "a parameter is not 8 bytes wide"
    assert f".target sm_{cc[0]}{cc[1]}\n" in text
    assert not re.search(r"\.local|\.func|\bcall\b|\btrap\b", text), "memory of its own, or a call"
    assert not re.search(r"\bfma\.", text), "a product fused with a sum"
    assert re.search(r"mul\.wide\.[su]32", text), "the index of a thread has 64 bits"
    log = assemble(kernel, cc)
    assert f"'{kernel.name}'" in log
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in log
    return text


@pytest.fixture
def cases(cc: Capability) -> KernelCases:
    return KernelCases(cc)


def body(text: str) -> str:
    """Without names and comments."""
    return "\n".join(
        line for line in text.splitlines() if not re.search(r"//|\.param|\.entry|\.global \.align", line)
    )


@pytest.mark.parametrize(("name", "cc", "few"), FOLDS)
def test_folds(name: str, cc: Capability, few: tuple[str, ...], cases: KernelCases) -> None:
    op, rng = BUILTIN[name], np.random.default_rng(7)
    for dtype in [dtype for dtype in DTYPES if kind(dtype) in op.kinds and (not few or dtype.name in few)]:
        kernel = device.fold(op, dtype, cc)
        assert kernel.name == f"fold_{name}_{dtype.name}"
        text = check(kernel, cc, 19)
        assert len(re.findall(r"\tld\.global\.v4\.u32", text)) >= 8, (
            "a load of 16 bytes for each source; the compiler may copy loops"
        )
        assert len(re.findall(r"\tst\.global\.v4\.u32", text)) >= 1
        if dtype in HALVES:
            check_half(body(text), name, dtype)
        values = [numbers(dtype, 35, rng) for _ in range(8)]
        cases.check_fold(op, values[:2], shift=0, into=None)
        cases.check_fold(op, values[:3], shift=0, into=1)
        cases.check_fold(op, values, shift=0, into=7)
        cases.check_fold(op, values, shift=1, into=None, further=7)
        cases.check_fold(op, values[:2], shift=1, into=None, further=1, apart=True)


def check_half(text: str, name: str, dtype: np.dtype) -> None:
    """All arithmetic in float32; one rounding for each element, in however many arrays it is stored."""
    # add.rn.f32.f16 reads a half and adds in float32
    found = re.findall(r"\b(?:add|mul|sub|fma|min|max)\.(?:rn\.)?(\w+)", text)
    assert not {"f16", "bf16", "f16x2", "bf16x2"} & set(found)
    assert re.search(rf"\b{ARITHMETIC.get(name, 'setp')}\.(\w+\.)*f32", text)
    stored = 8 * len(re.findall(r"st\.global\.v4\.u32", text)) + len(re.findall(r"st\.global\.[ub]16", text))
    rounded = r"cvt\.rn\.f16\.f32" if dtype == np.float16 else r"\badd\.s(?:32|64)\s+%\w+, %\w+, 32767"
    assert len(re.findall(rounded, text)) == stored / MAX_DESTINATIONS > 8


@every_cc
def test_scales(cc: Capability, cases: KernelCases) -> None:
    for src, dst in SCALES:
        kernel = device.scale(src, dst, cc)
        assert kernel.name == f"scale_{src.name}_{dst.name}"
        text = check(kernel, cc, 6)
        wide = {16: "v4.u32", 8: "v2.u32"}
        nlanes = 16 // max(src.itemsize, dst.itemsize)
        assert f"ld.global.{wide[nlanes * src.itemsize]} " in text
        assert f"st.global.{wide[nlanes * dst.itemsize]} " in text
        assert re.search(r"(div|rcp)\.rn\.f(32|64)", text)
        cases.check_scale(src, dst)
    cases.check_rounding()


@every_cc
def test_move(cc: Capability, cases: KernelCases) -> None:
    for itemsize in (1, 2, 4, 8, 16):
        kernel = device.move(itemsize, cc)
        assert kernel.name == f"move_{itemsize}"
        text = check(kernel, cc, 7)
        moves = re.findall(r"\t(ld|st)\.global\.\w(\d+)\s", text)
        bits = str(8 * min(itemsize, 8))
        assert set(moves) == {("ld", "64"), ("ld", bits), ("st", bits)}, "pieces, and items as they are"
    cases.strided()


@every_cc
def test_one_shots(cc: Capability) -> None:
    """What they compute is in test_one_shot_kernel.py."""
    check(device.one_shot(None, None, cc), cc, NPARAMETERS)
    for dtype in (BFLOAT16, COMPLEX[1]):
        kernel = device.one_shot(ops.SUM, dtype, cc)
        assert kernel.name == f"oneshot_sum_{dtype.name}"
        check(kernel, cc, NPARAMETERS)


@every_cc
def test_special_numbers(cc: Capability, cases: KernelCases) -> None:
    cases.check_specials()
    cases.check_alignment()


@each_of([(7, 5), (8, 6), (8, 7), (8, 9), (10, 3), (12, 0), (12, 1)], (7, 5), (12, 1))
def test_older_drivers_read_the_text(cc: Capability) -> None:
    for kernel in (
        device.fold(ops.MAX, BFLOAT16, cc),
        device.scale(COMPLEX[0], COMPLEX[0], cc),
        device.move(2, cc),
    ):
        assemble(kernel, cc)
        found = re.search(rb"^\.version (\d+)\.(\d+)$", kernel.ptx, re.MULTILINE)
        assert found
        assert (int(found[1]), int(found[2])) <= (8, 8)


def test_a_version_that_lacks_an_instruction_is_refused() -> None:
    kernel = device.move(4, (9, 0))
    with pytest.raises(nvjitlink.nvJitLinkError):
        assemble(kernel._replace(ptx=re.sub(rb"\.version .*", b".version 7.0", kernel.ptx)), (9, 0))


def test_a_newer_gpu_gets_the_newest_text_that_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "get_supported_ccs", lambda: [(8, 0), (9, 0)])
    assert b".target sm_90\n" in device.move(1, (10, 3)).ptx
    assert b".target sm_80\n" in device.move(1, (8, 9)).ptx
    with pytest.raises(
        KernelError, match=r"GPUs of compute capability 7\.0 are too old for this CUDA compiler: "
    ):
        device.move(1, (7, 0))


def test_what_adds_is_a_sum_here() -> None:
    """Average, premultiplied sum."""
    kernels = [device.fold(op, np.dtype("f4"), (9, 0)) for op in (ops.AVG, ops.premul_sum(3.0), ops.SUM)]
    assert set(kernels) == {kernels[0]}
    assert kernels[0].name == "fold_sum_float32"


def test_operators_of_the_user_have_names_of_their_own(cache: Path) -> None:
    one, other = reduce_op(lambda a, b: a - b * 0.3, name="not a name"), reduce_op(max, name="largest")
    f4 = np.dtype("f4")
    kernels = [
        device.fold(one, f4, (9, 0)),
        device.fold(one, np.dtype("f2"), (9, 0)),
        device.fold(other, np.dtype("i4"), (9, 0)),
    ]
    assert device.fold(one, f4, (9, 0)) is kernels[0]
    assert [re.sub(r"\d+", "N", kernel.name, count=1) for kernel in kernels] == [
        "fold_not_a_name_N_float32",
        "fold_not_a_name_N_float16",
        "fold_largest_N_int32",
    ]
    assert len({kernel.name for kernel in kernels}) == 3
    assert device.OPERATORS[kernels[0].name] is one
    for kernel in kernels:
        text = kernel.ptx.decode()
        assert re.findall(r"\.entry\s+(\w+)", text) == [kernel.name]
        assert not re.search(r"\bfma\.|\b(add|sub|mul)\.f", text), (
            "a product that may be fused with a sum, as on no host"
        )
        assert len(re.findall(r"\tld\.global\.v4\.u32", text)) == 8
        assemble(kernel, (9, 0))
    assert not cache.exists(), "only built-in operators are kept on disk"


@pytest.mark.parametrize(
    "function",
    [lambda a, b: a.append(b), lambda a: a, lambda a, b: repr(a).missing, lambda a, b: "text"],
    ids=["no-such-method", "one-argument", "no-such-attribute", "no-number"],
)
def test_what_does_not_compile_names_operator_and_type(function: Callable[..., Any]) -> None:
    with pytest.raises(KernelError, match=r"operator novel could not be compiled for float64: \w"):
        device.fold(reduce_op(function, name="novel"), np.dtype(np.float64), (9, 0))


def test_texts_are_kept_on_disk(cache: Path) -> None:
    first = device.move(8, (9, 0))
    (path,) = cache.iterdir()
    assert path.read_bytes().endswith(first.ptx)
    with closing(OwnedFolder(cache)) as folder:
        folder.write(path.name, b"the kept one")
    forget()
    assert device.move(8, (9, 0)).ptx == b"the kept one"
    assert b"sm_80" in device.move(8, (8, 0)).ptx


@pytest.mark.parametrize("what", ["source", "compiler"])
def test_those_of_another_source_or_compiler_are_not_taken(
    what: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, read = device.move(8, (9, 0)), Path.read_bytes
    forget()
    if what == "source":
        monkeypatch.setattr(Path, "read_bytes", lambda path: read(path) + b"#" * (path.suffix == ".py"))
    else:
        (tmp_path / "numba_cuda-9.dist-info").mkdir()
        (tmp_path / "numba_cuda-9.dist-info/METADATA").write_text("Name: numba-cuda\nVersion: 9\n")
        monkeypatch.syspath_prepend(tmp_path)
    device._digest.cache_clear()
    assert device.move(8, (9, 0)) == first
    assert len(list(cache.iterdir())) == 2
    monkeypatch.undo()
    device._digest.cache_clear()


def test_without_a_place_to_keep_texts_everybody_compiles(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file" / "below"))
    assert device.move(4, (9, 0)).name == "move_4"

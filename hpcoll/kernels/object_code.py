"""Object files of functions that Numba has compiled, which need no Numba when they are loaded.

Imported only where something has to be compiled.
"""

import gc
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from inspect import signature as signature_of
from typing import Any

import llvmlite.binding as llvm
import numba
from llvmlite import ir

from hpcoll.base.launchers import local_rank
from hpcoll.base.text import LINE, printable
from hpcoll.kernels.machine_code import RAISED, note_compilers, target_machine

_RAISED = b"compiled code of hpcoll raised an exception\0"
_INT, _LONG, _POINTER = ir.IntType(32), ir.IntType(64), ir.IntType(8).as_pointer()

_CALLED = re.compile(r'^declare .*@"?(_Z\w+)', re.MULTILINE)  # code of Numba's that a module has not got
_Method = tuple[Callable[..., Any], Any, str]  # with its class, and its name


def object_file(
    function: Callable[..., Any],
    signature: Any,
    name: str,
    *,
    for_python: bool = False,
    on_objects: int | None = None,
) -> bytes:
    """Return a function as an object file.

    Args:
        function: As ``numba.cfunc`` takes it. It may not raise and not allocate.
        signature: Types of its arguments and result, as Numba takes them.
        name: For the function in the file; all others are out of sight.
        for_python: Its arguments and result are int64. Make it a function that Python calls (``METH_FASTCALL``), with the GIL. The result
            `RAISED` raises the error that is set.
        on_objects: Called with one argument less, it has this one as the first, and takes the addresses of all objects behind the next,
            as ``id`` gives them; None: it always has all.
    """
    compiled = _compiled(function, signature)
    module = llvm.parse_assembly(compiled.inspect_llvm())
    exported = compiled.native_name
    for text in (
        _what_raises(module),
        _python_function(exported, len(signature_of(function).parameters), name, on_objects)
        if for_python
        else "",
    ):
        module.link_in(llvm.parse_assembly(text))
    module.get_function(name if for_python else exported).name = name
    for value in (*module.functions, *module.global_variables):
        if not value.is_declaration and value.name != name:
            value.linkage = "internal"
    module.verify()
    note_compilers()
    return bytes(target_machine().emit_object(module))


def _compiled(function: Callable[..., Any], signature: Any) -> Any:
    """Return a C function by Numba, of which only the optimized code in LLVM's language is used."""
    try:
        left_out = _left_out()
        with _without_machine_code(left_out):
            compiled = numba.cfunc(signature)(function)
        left_out[_OPTIMIZE][0](compiled._library)
        if missing := _CALLED.search(compiled.inspect_llvm()):
            raise RuntimeError(f"the code of {missing[1]} is missing")
    except Exception as error:  # private methods may do anything in another release
        _say_slower(f"{type(error).__name__}: {error}")
        return numba.cfunc(signature)(function)
    return compiled


@cache
def _say_slower(why: str) -> None:
    if not local_rank(os.environ):
        text = f"Numba {numba.__version__} is not as hpcoll knows it ({why}): compiling takes several times as long"
        print(printable(f"hpcoll: {text}", LINE), file=sys.stderr, flush=True)


@contextmanager
def _without_machine_code(left_out: Sequence[_Method]) -> Iterator[None]:
    """Let Numba neither optimize each function by itself nor make machine code of it: that is most of the time, and is not needed.

    Functions that were compiled meanwhile cannot be called from Python.
    """
    with import_module("numba.core.compiler_lock").global_compiler_lock:
        collects = gc.isenabled()
        gc.disable()  # a tenth of the time
        try:
            for (_, owner, name), instead in zip(left_out, _LEFT_OUT.values(), strict=True):
                setattr(owner, name, instead)
            yield
        finally:
            for method, owner, name in left_out:
                setattr(owner, name, method)
            if collects:
                gc.enable()


def _lay_out(library: Any, module: Any) -> None:
    module.data_layout = library._codegen._data_layout


def _no_wrappers(compiler: Any, flags: Any) -> Any:
    flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
    return flags


# Private methods of Numba, and those in their place. An entry point for Python must be a built-in function of its own; that of
# `get_executable` raises.
_LEFT_OUT: dict[str, Callable[..., Any]] = {
    "codegen.CPUCodeLibrary._optimize_final_module": lambda library: None,
    "codegen.CPUCodeLibrary._optimize_functions": _lay_out,
    "codegen.JITCodeLibrary._finalize_specific": lambda library: None,
    "codegen.JITCPUCodegen._add_module": lambda codegen, module: None,
    "cpu.CPUContext.get_executable": lambda context, library, function, environment: [].pop,
    "dispatcher._FunctionCompiler._customize_flags": _no_wrappers,
}
_OPTIMIZE = 0  # of these


def _left_out() -> list[_Method]:
    """Return private methods of Numba, each with its class and name; AttributeError names one that is not as it was."""
    found: list[_Method] = []
    for path, instead in _LEFT_OUT.items():
        module, owner, name = path.split(".")
        kind = getattr(import_module(f"numba.core.{module}"), owner)
        method = vars(kind).get(name)
        if method is None or len(signature_of(method).parameters) != len(signature_of(instead).parameters):
            raise AttributeError(path)
        found.append((method, kind, name))
    return found


def _what_raises(module: Any) -> str:
    """Return functions in place of Numba's runtime that end the process: only code that raises asks for it."""
    needed = [
        function.name
        for function in module.functions
        if function.is_declaration and function.name.startswith(("numba_", "NRT_"))
    ]
    allocates = [name for name in needed if "alloc" in name.lower()]
    assert not allocates, f"compiled code allocates: {allocates}"
    made = _module()
    text = ir.Constant(ir.ArrayType(ir.IntType(8), len(_RAISED)), bytearray(_RAISED))
    raised = ir.GlobalVariable(made, text.type, "hpcoll_raised")
    raised.global_constant, raised.initializer = True, text
    fail = ir.Function(made, ir.FunctionType(ir.VoidType(), [_POINTER]), "Py_FatalError")
    for name in needed:
        builder = ir.IRBuilder(
            ir.Function(made, ir.FunctionType(ir.VoidType(), []), name).append_basic_block()
        )
        builder.call(fail, [builder.bitcast(raised, _POINTER)])
        builder.unreachable()
    return str(made)


def _module() -> ir.Module:
    made, machine = ir.Module(), target_machine()
    made.triple, made.data_layout = machine.triple, str(machine.target_data)
    return made


def _python_function(target: str, nargs: int, name: str, on_objects: int | None) -> str:
    """Return a module with ``PyObject *name(PyObject *self, PyObject **args, Py_ssize_t nargs)``."""
    made = _module()
    function = _declared(made, _POINTER, name, _POINTER, _POINTER.as_pointer(), _LONG)
    builder = ir.IRBuilder(function.append_basic_block())
    call = function.append_basic_block()
    ways: list[tuple[Any, list[Any]]] = []  # from which block, with which values
    if on_objects is not None:
        with builder.if_then(builder.icmp_signed("==", function.args[2], _LONG(nargs - 1))):
            addresses = [builder.ptrtoint(_argument(builder, i), _LONG) for i in range(1, nargs - 1)]
            first = builder.call(
                _declared(made, _LONG, "PyLong_AsLongLong", _POINTER), [_argument(builder, 0)]
            )
            ways.append((builder.block, [_LONG(on_objects), first, *addresses]))
            builder.branch(call)
    ints = _ints(builder, nargs)
    ways.append((builder.block, ints))
    builder.branch(call)
    builder.position_at_end(call)
    arguments = [builder.phi(_LONG) for _ in range(nargs)]
    for block, values in ways:
        for argument, value in zip(arguments, values, strict=True):
            argument.add_incoming(value, block)
    result = builder.call(_declared(made, _LONG, target, *[_LONG] * nargs), arguments)
    with builder.if_then(builder.icmp_signed("==", result, _LONG(RAISED)), likely=False):
        builder.ret(ir.Constant(_POINTER, None))
    builder.ret(builder.call(_declared(made, _POINTER, "PyLong_FromLongLong", _LONG), [result]))
    return str(made)


def _ints(builder: ir.IRBuilder, nargs: int) -> list[Any]:
    """Return a Python function's arguments as int64; it raises where they are none, or are not so many."""
    made, null = builder.module, ir.Constant(_POINTER, None)
    with builder.if_then(builder.icmp_signed("!=", builder.function.args[2], _LONG(nargs)), likely=False):
        builder.call(_declared(made, _INT, "PyErr_BadArgument"), [])
        builder.ret(null)
    convert = _declared(made, _LONG, "PyLong_AsLongLong", _POINTER)
    values = [builder.call(convert, [_argument(builder, i)]) for i in range(nargs)]
    odd = ir.Constant(ir.IntType(1), 0)
    for value in values:
        odd = builder.or_(odd, builder.icmp_signed("==", value, _LONG(-1)))
    with builder.if_then(odd, likely=False):  # -1, or no integer
        raised = builder.call(_declared(made, _POINTER, "PyErr_Occurred"), [])
        with builder.if_then(builder.icmp_unsigned("!=", raised, null)):
            builder.ret(null)
    return values


def _argument(builder: ir.IRBuilder, i: int) -> Any:
    return builder.load(builder.gep(builder.function.args[1], [_LONG(i)]))


def _declared(made: ir.Module, result: ir.Type, name: str, *parameters: ir.Type) -> ir.Function:
    function: ir.Function = made.globals.get(name) or ir.Function(
        made, ir.FunctionType(result, parameters), name
    )
    return function

"""_C.pyi names and types everything that the compiled module offers, and nothing else."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import kernel_coder
import torch
from kernel_coder import _C

STUB = ast.parse((Path(kernel_coder.__file__).parent / "_C.pyi").read_text(encoding="utf-8"))
#: The type of an argument in a schema of the dispatcher, and in the stub.
TYPES = {
    "Tensor": "Tensor",
    "Optional[Tensor]": "Tensor | None",
    "str": "str",
    "float": "float",
    "int": "int",
    "bool": "bool",
    "List[float]": "Sequence[float]",
}


def named(body: list[ast.stmt]) -> dict[str, ast.stmt]:
    """The definitions in a stub, by name."""
    found: dict[str, ast.stmt] = {}
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            found[statement.name] = statement
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            found[statement.target.id] = statement
    return found


def public(thing: object) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


def arguments_of(function: ast.stmt) -> list[tuple[str, str]]:
    assert isinstance(function, ast.FunctionDef)
    return [(one.arg, ast.unparse(one.annotation)) for one in function.args.args if one.annotation is not None]


def bound_arguments(function: object) -> list[str]:
    """The names of a pybind11 function's arguments, from the signature that it keeps in its docstring."""
    line = (function.__doc__ or "").splitlines()[0]
    inside = line[line.index("(") + 1 : line.rindex(") ->")]
    return re.findall(r"(?:^|, )(\w+): ", inside)


def test_stub_and_module_have_the_same_names() -> None:
    assert set(named(STUB.body)) == public(_C)


def test_sandbox_has_the_same_names() -> None:
    stub = named(STUB.body)["sandbox"]
    assert isinstance(stub, ast.ClassDef)
    names = named(stub.body)
    assert set(names) == public(_C.sandbox)
    memory = names["DeviceMemory"]
    assert isinstance(memory, ast.ClassDef)
    assert set(named(memory.body)) == public(_C.sandbox.DeviceMemory)


def test_ops_have_the_arguments_and_results_of_their_schemas() -> None:
    stub = named(STUB.body)
    schemas = [s for s in torch._C._jit_get_all_schemas() if s.name.startswith("kernel_coder::")]
    assert len(schemas) >= 14
    for schema in schemas:
        name = schema.name.partition("::")[2]
        function = stub[name]
        assert arguments_of(function) == [(a.name, TYPES[str(a.type)]) for a in schema.arguments], name
        assert isinstance(function, ast.FunctionDef)
        assert function.returns is not None
        results = [TYPES[str(r.type)] for r in schema.returns]
        expected = {0: "None", 1: "".join(results)}.get(len(results), f"tuple[{', '.join(results)}]")
        assert ast.unparse(function.returns) == expected, name


def test_bound_functions_have_the_arguments_of_the_module() -> None:
    stub = named(STUB.body)
    ops = {s.name.partition("::")[2] for s in torch._C._jit_get_all_schemas() if s.name.startswith("kernel_coder::")}
    sandbox = stub["sandbox"]
    assert isinstance(sandbox, ast.ClassDef)
    pairs = [(stub[name], getattr(_C, name)) for name in stub if name not in ops]
    pairs += [(one, getattr(_C.sandbox, name)) for name, one in named(sandbox.body).items()]
    checked = 0
    for statement, bound in pairs:
        if isinstance(statement, ast.FunctionDef):
            found = [argument.arg for argument in statement.args.args]
            assert found == bound_arguments(bound), statement.name
            checked += 1
    assert checked >= 14


def test_every_argument_and_result_has_a_type() -> None:
    for node in ast.walk(STUB):
        if isinstance(node, ast.FunctionDef):
            assert node.returns is not None, node.name
            untyped = [a.arg for a in node.args.args if a.annotation is None and a.arg != "self"]
            assert not untyped, f"{node.name}: {untyped}"


def test_core_describes_the_format_of_its_report() -> None:
    import struct

    sandbox = _C.sandbox
    layout = struct.Struct(sandbox.REPORT_FORMAT)
    assert layout.size == sandbox.REPORT_BYTES
    assert len(layout.unpack(bytes(layout.size))) == len(sandbox.REPORT_FIELDS)
    assert sandbox.REPORT_FIELDS[:2] == ("state", "ended_by")
    assert sandbox.REPORT_FIELDS[-2:] == ("written_stdout", "written_stderr")
    assert sandbox.STATES == ("starting", "running", "ended", "setup_failed")
    assert sandbox.ENDED_BY == ("itself", "wall_limit", "supervisor")
    assert sandbox.PATH_ACCESSES == ("read", "write", "device", "processes")
    assert sandbox.MOUNT_KINDS == ("tmpfs", "directory", "bind", "proc")

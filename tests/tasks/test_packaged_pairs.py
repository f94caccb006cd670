"""The packaged pairs: they can be read without triton and agree with their data card."""

import ast
import hashlib
import json
import re
from pathlib import Path

import pyarrow.parquet as pq
import torch
from kernel_coder.tasks.build_pairs import COLUMNS, DATA, content_hash
from kernel_coder.tasks.modules import FAMILIES, all_modules

KERNELBOOK_COLUMNS = (
    "entry_point original_triton_code python_code triton_code repo_name module_name "
    "synthetic uuid licenses stars sha repo_link"
)
ROWS = pq.read_table(DATA / "pairs.parquet").to_pylist()
CARD = (DATA / "README.md").read_text()


def test_columns_equal_those_of_kernelbook():
    assert tuple(KERNELBOOK_COLUMNS.split()) == COLUMNS
    assert all(tuple(row) == COLUMNS for row in ROWS)


def test_there_are_at_least_48_pairs_in_12_families():
    families = {module.name: family for family, module in all_modules()}
    assert len(ROWS) >= 48
    assert len({families[row["entry_point"]] for row in ROWS}) >= 12
    assert {family for family, _ in all_modules()} == set(FAMILIES)


def test_packaged_modules_equal_those_of_the_package_in_the_same_order():
    sources = {module.name: module.python_code for _, module in all_modules()}
    packaged = [row["entry_point"] for row in ROWS]
    assert packaged == [name for name in sources if name in packaged]
    assert all(row["python_code"] == sources[row["entry_point"]] for row in ROWS)


def test_ids_are_unique_and_come_from_the_text():
    assert len({row["uuid"] for row in ROWS}) == len({row["sha"] for row in ROWS}) == len(ROWS)
    for row in ROWS:
        assert row["sha"] == hashlib.sha256(row["python_code"].encode()).hexdigest()
        assert row["uuid"] == int(row["sha"][:12], 16)
        assert row["licenses"] == ["Apache-2.0"]


def test_the_data_card_states_the_hashes_and_the_count():
    data = (DATA / "pairs.parquet").read_bytes()
    assert hashlib.sha256(data).hexdigest() in CARD
    assert content_hash(ROWS) in CARD
    assert f"Size: {len(data):,} bytes" in CARD
    assert len(data) < 2**20
    assert CARD.startswith(f"# pairs.parquet\n\n{len(ROWS)} PyTorch modules")


def test_pairs_and_card_contain_no_paths_of_the_build_machine():
    text = json.dumps(ROWS) + CARD
    assert not re.search(r"/tmp|/home|/root|/usr|torchinductor_|kernel path: ", text.replace("`kernel path`", ""))


def test_every_module_runs_on_its_inputs():
    for row in ROWS:
        name, namespace = row["entry_point"], {}
        exec(compile(row["python_code"], name, "exec"), namespace)
        args, kwargs = namespace["get_init_inputs"]()
        torch.manual_seed(0)
        with torch.no_grad():
            out = namespace[name](*args, **kwargs)(*namespace["get_inputs"]())
        for value in out if isinstance(out, tuple) else (out,):
            assert isinstance(value, torch.Tensor), name
            assert value.isfinite().all(), name


def test_every_kernel_file_is_plain_triton():
    for row in ROWS:
        name = row["entry_point"]
        tree = ast.parse(row["triton_code"], name)
        imported = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
        assert imported <= {"math", "torch", "torch.nn", "torch.nn.functional", "triton", "triton.language"}, name
        assert not any(isinstance(n, ast.ImportFrom) for n in ast.walk(tree)), name
        foreign = r"_inductor|libdevice|triton_helpers|async_compile|get_inputs|__main__"
        assert not re.search(foreign, row["triton_code"]), name
        classes = [n.name for n in tree.body if isinstance(n, ast.ClassDef)]
        kernels = [n for n in tree.body if isinstance(n, ast.FunctionDef)]
        assert classes == [f"{name}New"]
        assert kernels, name
        assert all([ast.unparse(d) for d in n.decorator_list] == ["triton.jit"] for n in kernels), name
        assert re.search(r"_kernel(_\d+)?\[\(", row["triton_code"]), name
        assert max(map(len, row["python_code"].splitlines())) <= 120, name


def test_every_original_triton_code_is_output_of_inductor():
    for row in ROWS:
        ast.parse(row["original_triton_code"], row["entry_point"])
        assert "async_compile.triton(" in row["original_triton_code"], row["entry_point"]
        assert "def call(args):" in row["original_triton_code"], row["entry_point"]


class _Nameless(ast.NodeTransformer):
    """Numbers names in order of first appearance and removes docstrings and annotations. The computation remains."""

    def __init__(self):
        self.names: dict[str, str] = {}

    def short(self, name):
        return self.names.setdefault(name, f"n{len(self.names)}")

    def visit_ClassDef(self, node):
        node.name = self.short(node.name)
        return self._without_docstring(node)

    def visit_FunctionDef(self, node):
        node.returns = None
        return self._without_docstring(node)

    def _without_docstring(self, node):
        if ast.get_docstring(node) is not None:
            node.body = node.body[1:]
        return self.generic_visit(node)

    def visit_arg(self, node):
        node.arg, node.annotation = self.short(node.arg), None
        return node

    def visit_Name(self, node):
        known_module = node.id in ("torch", "nn", "F", "math")
        node.id = node.id if known_module else self.short(node.id)
        return node

    def visit_Attribute(self, node):
        self.generic_visit(node)
        if isinstance(node.value, ast.Name) and node.value.id == self.names.get("self"):
            node.attr = self.short("." + node.attr)
        return node


def normalised(code):
    """Each class of `code` without its names."""
    return {ast.dump(_Nameless().visit(node)) for node in ast.parse(code).body if isinstance(node, ast.ClassDef)}


def test_comparison_ignores_names_and_docstrings():
    a = 'class Model(nn.Module):\n    """Doc."""\n    def forward(self, x: Tensor) -> Tensor: return torch.relu(x)\n'
    b = "class Other(nn.Module):\n    def forward(self, value):\n        return torch.relu(value)\n"
    c = "class Other(nn.Module):\n    def forward(self, value):\n        return torch.tanh(value)\n"
    assert normalised(a) == normalised(b) != normalised(c)


def test_no_packaged_pair_is_a_kernelbench_problem(capsys):
    folders = [parent / "shared" / "data" / "kernelbench" for parent in Path(__file__).resolve().parents]
    folder = next((f for f in folders if f.is_dir()), None)
    if folder is None:
        with capsys.disabled():
            print("\nKernelBench is not beside this checkout: the pairs were not compared with it")
        return
    problems = [normalised(path.read_text()) for path in sorted(folder.glob("level*/*.py"))]
    assert len(problems) >= 200
    theirs = set().union(*problems)
    for row in ROWS:
        assert not normalised(row["python_code"]) & theirs, row["entry_point"]

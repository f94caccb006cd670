"""Lowering without a GPU, the rewrite, and the check that a rewritten pair is right."""

import importlib.util
import json
import re
import subprocess
import sys

import pyarrow.parquet as pq
import pytest
import torch
from kernel_coder.tasks import inductor
from kernel_coder.tasks.build_pairs import DATA, compile_failures, main, row
from kernel_coder.tasks.inductor import lower
from kernel_coder.tasks.modules import all_modules
from kernel_coder.tasks.readable import Unsupported, rewrite
from kernel_coder.tasks.verify import RTOL, verify

SOURCES = {module.name: module.python_code for _, module in all_modules()}
THREE = ("ClampedAffine", "CausalSelfAttention", "GroupNormSiLU")  # one kernel; several and library calls; reductions

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="lowering imports triton, which is not installed"
)


def test_importing_the_modules_imports_neither_inductor_nor_triton():
    code = (
        "import sys, kernel_coder.tasks.build_pairs as b; "
        "print([m for m in ('triton', 'torch._inductor.graph') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_untested_torch_is_refused_in_one_sentence(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "9.9.0")
    with pytest.raises(RuntimeError, match=r"tested with 2\.13; this is torch 9\.9\.0$"):
        lower(SOURCES["ClampedAffine"], "ClampedAffine")


def test_a_missing_triton_is_named(monkeypatch, capsys):
    monkeypatch.setattr(torch, "__version__", "2.13.0")
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(RuntimeError, match="pip install triton"):
        inductor.check_versions()
    assert main([]) == 2
    assert "pip install triton" in capsys.readouterr().err


@needs_triton
def test_error_names_the_class_and_functions_that_the_module_lacks():
    with pytest.raises(ValueError, match="must define Absent, get_init_inputs"):
        lower("def get_inputs():\n    return []\n", "Absent")


@needs_triton
def test_inputs_that_are_no_tensors_are_refused():
    code = SOURCES["ClampedAffine"].replace("return [torch.randn(8, 96)]", "return [3]")
    with pytest.raises(ValueError, match=r"must return tensors; got \['int'\]"):
        lower(code, "ClampedAffine")


@pytest.mark.long
@needs_triton
def test_lowering_gives_the_same_bytes_here_again_and_in_another_process():
    code = (
        "import json; from kernel_coder.tasks.modules import all_modules; "
        "from kernel_coder.tasks.inductor import lower; "
        f"wanted = [m for _, m in all_modules() if m.name in {THREE}]; "
        "print(json.dumps({m.name: lower(m.python_code, m.name).code for m in wanted}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    elsewhere = json.loads(done.stdout.splitlines()[-1])
    for name in THREE:
        assert lower(SOURCES[name], name).code == lower(SOURCES[name], name).code == elsewhere[name]


@needs_triton
def test_lowering_does_not_change_the_state_of_torch_and_triton():
    from triton.runtime import driver

    before = (torch.cuda.is_available, torch.cuda.get_device_properties, torch.version.cuda, driver.__dict__.copy())
    state = torch.random.get_rng_state()
    lower(SOURCES["LowRankUpdate"], "LowRankUpdate")
    assert (torch.cuda.is_available, torch.cuda.get_device_properties, torch.version.cuda, driver.__dict__) == before
    assert torch.equal(torch.random.get_rng_state(), state)


@needs_triton
def test_rewrites_are_verified_and_compile():
    made = {name: rewrite(SOURCES[name], name, lower(SOURCES[name], name)) for name in THREE}
    for check in verify([(name, SOURCES[name], readable.code) for name, readable in made.items()]):
        assert check.reason is None, check.name
        assert check.error <= RTOL, check.name
    for name, readable in made.items():
        assert compile_failures(readable.code, readable.kernels) == {}, name


MUTANTS = (  # old text, new text, reason of the check
    ("- 0.25", "- 0.25001", "is off by"),
    ("(triton.cdiv(768, 256),)](", "(2,)](", "is off by"),  # the tail is never written
    ("torch.float32)", "torch.float64)", "torch.float64"),
    ("torch.empty((8, 96)", "torch.empty((9, 96)", r"\[9, 96\]"),
    ("return buf0", "return buf0, buf0", "2 outputs instead of 1"),
    ("nan_maximum(tmp0 * 1.5 - 0.25, -1.0)", "tl.where(tmp0 > -0.5, tmp0 * 1.5 - 0.25, -1.0)", "is off by inf"),
    ("        return buf0", "        x.zero_()\n        return buf0", "an input was written to"),
    ("tl.load", "tl.lode", "AttributeError"),
)


@needs_triton
def test_check_finds_changed_kernels():
    name = "ClampedAffine"
    good = rewrite(SOURCES[name], name, lower(SOURCES[name], name)).code
    assert all(old in good for old, _, _ in MUTANTS)
    bad = [good.replace(old, new).replace("torch.empty((8, 96)", "torch.zeros((8, 96)") for old, new, _ in MUTANTS]
    checks = verify([(name, SOURCES[name], code) for code in [good, *bad]])
    assert checks[0].reason is None
    for check, (_, new, reason) in zip(checks[1:], MUTANTS, strict=True):
        assert re.search(reason, check.reason or ""), (new, check)


def small(body, inputs):
    return (
        "import torch\nimport torch.nn as nn\n\n\nclass Small(nn.Module):\n"
        f"    def forward(self, x, *more):\n        return {body}\n\n\n"
        f"def get_inputs():\n    return [{inputs}]\n\n\n"
        "def get_init_inputs():\n    return [[], {}]\n"
    )


@needs_triton
@pytest.mark.parametrize(
    ("body", "inputs", "reason"),
    [
        ("torch.mm(x, x)", "torch.rand(4, 4)", "no Triton kernel: library calls only"),
        ("x.sort(-1)[0] * 2", "torch.rand(4, 64)", "sort_with_index has no plain spelling"),
        ("x.sum(-1)", "torch.rand(4, 5000)", "a kernel with a for statement"),
        ("x**2.5", "torch.rand(64)", "libdevice.pow has no plain spelling"),
    ],
)
def test_error_names_the_operation_that_the_rewrite_does_not_support(body, inputs, reason):
    code = small(body, inputs)
    with pytest.raises(Unsupported, match=reason):
        rewrite(code, "Small", lower(code, "Small"))


@needs_triton
def test_a_module_that_needs_a_real_device_is_refused_in_one_sentence():
    code = small("x + torch.tensor([1.0, 2.0], device=x.device)", "torch.rand(4, 2)")
    with pytest.raises(ValueError, match=r"^Inductor cannot lower Small without a GPU: [^\n]+$"):
        lower(code, "Small")


@needs_triton
def test_packaged_rows_equal_the_rows_made_on_this_machine():
    rows = {r["entry_point"]: r for r in pq.read_table(DATA / "pairs.parquet").to_pylist()}
    for name in THREE:
        lowered = lower(SOURCES[name], name)
        assert row(name, SOURCES[name], lowered.code, rewrite(SOURCES[name], name, lowered).code) == rows[name]

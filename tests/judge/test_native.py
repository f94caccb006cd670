"""Candidates that are a single C++ or CUDA file."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from kernel_coder.judge import Judge, JudgeConfig, Outcome, Verdict
from kernel_coder.judge.runner.library_symbols import hidden_among, hidden_calls, may_hide, undefined_symbols
from kernel_coder.judge.runner.native import is_native, native_model, problem_of

REFERENCE = """
import torch
class Model(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.linear = torch.nn.Linear(size, 3)
        self.register_buffer("shift", torch.ones(3))
    def forward(self, x):
        return torch.relu(self.linear(x)) + self.shift
def get_inputs():
    return [torch.randn(5, 8)]
def get_init_inputs():
    return [8]
"""

CPP = """
#include <algorithm>

torch::Tensor forward(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, torch::Tensor shift) {
    auto out = torch::empty({x.size(0), weight.size(0)}, x.options());
    auto xs = x.accessor<float, 2>(), ws = weight.accessor<float, 2>(), to = out.accessor<float, 2>();
    auto bs = bias.accessor<float, 1>(), ss = shift.accessor<float, 1>();
    for (int64_t i = 0; i < x.size(0); ++i)
        for (int64_t j = 0; j < weight.size(0); ++j) {
            float sum = bs[j];
            for (int64_t k = 0; k < x.size(1); ++k) sum += xs[i][k] * ws[j][k];
            to[i][j] = std::max(sum, 0.0f) + ss[j];
        }
    return out;
}
"""

CUDA = """
#include <torch/extension.h>
__global__ void kernel(
    const float* x, const float* w, const float* b, const float* s, float* out, int rows, int n, int k
) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= rows * n) return;
    float sum = b[at % n];
    for (int i = 0; i < k; ++i) sum += x[at / n * k + i] * w[at % n * k + i];
    out[at] = fmaxf(sum, 0.0f) + s[at % n];
}
torch::Tensor forward(torch::Tensor x, torch::Tensor w, torch::Tensor b, torch::Tensor s) {
    auto out = torch::empty({x.size(0), w.size(0)}, x.options());
    int count = x.size(0) * w.size(0);
    kernel<<<(count + 255) / 256, 256>>>(x.data_ptr<float>(), w.data_ptr<float>(), b.data_ptr<float>(),
        s.data_ptr<float>(), out.data_ptr<float>(), x.size(0), w.size(0), x.size(1));
    return out;
}
"""


def test_cpp_or_cuda_source_is_recognised_and_python_source_is_not() -> None:
    quoted = 'import torch\nsource = """\n#include <vector>\n"""\n'
    assert is_native(CPP, "cpp")
    assert is_native(CUDA, "cuda")
    assert not is_native(quoted, "cpp")
    assert is_native(CPP.replace("#include", "// include"), "cpp")
    assert is_native(CUDA.replace("#include", "// include"), "cuda")
    assert not is_native("import torch\n\ndef forward(x):\n    return {x", "cpp")
    assert not is_native("y = model.forward(x", "cpp")
    assert not is_native(CPP, "triton")
    assert not is_native("x = (", "cpp")
    assert problem_of(CPP) is None


GUARD = "c10::impl::ExcludeDispatchKeyGuard::ExcludeDispatchKeyGuard(c10::DispatchKeySet)"


@pytest.mark.parametrize(
    ("symbols", "hidden"),
    [
        (["at::cpu::_softmax(at::Tensor const&, long, bool)"], ["at::cpu::_softmax"]),
        (["at::native::mm(at::Tensor const&)"], ["at::native::mm"]),
        (["at::_ops::mm::redispatch(c10::DispatchKeySet, at::Tensor const&)"], ["at::_ops::mm::redispatch"]),
        ([GUARD, "at::_ops::mm::call(at::Tensor const&)"], []),  # the audit sees a call
        (
            ["c10::impl::tls_set_dispatch_key_excluded(c10::DispatchKey, bool)"],
            ["c10::impl::tls_set_dispatch_key_excluded"],
        ),
        (
            ["at::native::DispatchStubImpl::get_call_ptr(c10::DeviceType)"],
            ["at::native::DispatchStubImpl::get_call_ptr"],
        ),
        (["sgemm_"], ["sgemm_"]),
        (["SGEMM"], ["SGEMM"]),
        (["ssyrk_64_"], ["ssyrk_64_"]),
        (["cblas_sgemm"], ["cblas_sgemm"]),
        (["dlsym"], ["dlsym"]),
        (["at::cuda::getCurrentCUDAStream(signed char)", "c10::cuda::CUDAGuard::reset()"], []),
        (["at::_ops::mm::call(at::Tensor const&)", "at::internal::invoke_parallel(long)"], []),  # the audit sees it
        (["my_sgemm_kernel(float*)", "sgemm_blocked(int)"], []),
    ],
)
def test_function_called_past_torch_s_dispatcher_is_found_by_its_symbol(symbols: list[str], hidden: list[str]) -> None:
    assert hidden_among(symbols) == hidden


PRODUCT = "at::_ops::mm::call(at::Tensor const&)"


@pytest.mark.parametrize(
    ("symbols", "may"),
    [
        ([GUARD, PRODUCT], True),
        ([GUARD, "at::_ops::empty_memory_format::call(c10::ArrayRef<c10::SymInt>)"], False),  # it is in torch::empty
        ([GUARD, "c10::Dispatcher::findSchemaOrThrow(char const*, char const*)"], True),
        (["pthread_create", PRODUCT], True),
        (["GOMP_parallel", PRODUCT], True),
        ([PRODUCT], False),
        (["GOMP_parallel"], False),
    ],
)
def test_library_that_could_hide_operators_is_recognised(symbols: list[str], may: bool) -> None:
    assert may_hide(symbols) is may


def test_the_symbols_of_a_library_are_read() -> None:
    library = next(Path(torch.__file__).parent.glob("lib/libtorch_python.so"))
    names = undefined_symbols(str(library))
    assert any(name.startswith("at::_ops::") for name in names)
    assert undefined_symbols(__file__) == []


def test_triton_s_own_modules_may_look_functions_up_and_other_libraries_may_not(tmp_path: Path) -> None:
    code = """
    #include <dlfcn.h>
    void* PyInit___triton_launcher(void) { return dlsym(dlopen("libcuda.so.1", RTLD_LAZY), "cuLaunchKernelEx"); }
    """
    (tmp_path / "main.c").write_text(code)
    found = {}
    for name in ("__triton_launcher.cpython-311-x86_64-linux-gnu", "launcher"):
        library = tmp_path / f"{name}.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "main.c"], check=True)
        found[name.partition(".")[0]] = sorted(hidden_calls([str(library)]))
    assert found == {"__triton_launcher": [], "launcher": ["dlopen", "dlsym"]}


def test_native_candidate_has_parameters_for_the_gradients_that_are_compared(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    extension = SimpleNamespace(forward=lambda x, weight, table: x * weight + table)
    monkeypatch.setattr("torch.utils.cpp_extension.load", lambda *_, **__: extension)
    state = {"norm.weight": torch.ones(3), "table": torch.ones(3)}
    model = native_model(CPP, "cpp", state, ["norm.weight"])()
    assert [name for name, _ in model.named_parameters()] == ["norm.weight"]
    assert [name for name, _ in model.named_buffers()] == ["table"]
    model(torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert torch.equal(model.get_parameter("norm.weight").grad, torch.tensor([1.0, 2.0, 3.0]))


@pytest.fixture(scope="module")
def device() -> str:
    import os

    return "cuda" if os.environ.get("KC_REQUIRE_CUDA") == "1" else "cpu"


def native_verdicts(device: str, *changes: tuple[str, str]) -> list[Verdict]:
    """Return a verdict for each change of a correct file."""
    backend, source = ("cuda", CUDA) if device == "cuda" else ("cpp", CPP)
    with Judge(device, backend, config=JudgeConfig(timed_calls=10, workers=2)) as judge:
        return list(judge.evaluate_many([(REFERENCE, source.replace(*change)) for change in changes]))


@pytest.mark.long
def test_native_file_is_compiled_and_gets_the_reference_s_state_after_the_inputs(device: str) -> None:
    right, without = native_verdicts(device, ("", ""), ("forward(", "backward("))
    assert right.outcome is Outcome.CORRECT, right.reason
    assert without.outcome is Outcome.FORMAT_ERROR
    assert without.reason == "the file defines no function forward"


@pytest.mark.long
def test_compiler_error_is_the_reason_of_the_verdict(device: str) -> None:
    (broken,) = native_verdicts(device, ("return out;", "return ou;"))
    assert broken.outcome is Outcome.COMPILE_ERROR
    assert not broken.compiled
    assert "ou" in broken.feedback
    assert "error" in str(broken.reason)

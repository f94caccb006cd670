"""GPU memory that is shared by file descriptor: on a GPU, and on the CPU with a fake driver (fake_cuda.c)."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from kernel_coder.judge.gpu import nvml
from kernel_coder.judge.gpu.nvml import device_index
from kernel_coder.judge.sandbox.config import Limits, SandboxConfig
from kernel_coder.judge.sandbox.fork_server import ForkServer
from kernel_coder.judge.sandbox.process import Process
from kernel_coder.judge.sandbox.sandbox import Sandbox
from kernel_coder.judge.wire.channel import Channel, ChannelClosed
from kernel_coder.judge.wire.device_memory import DeviceBuffer, DeviceMemoryError, contiguous_strides, extent

Script = Callable[..., str]

#: The beginning of every script.
PRELUDE = """
import ctypes, os, socket, sys, torch
from kernel_coder.judge.wire.device_memory import DeviceBuffer, DeviceMemoryError, DeviceOutOfMemory

def counts():  # of the stand-in: allocations, reservations, mappings, synchronisations, contexts pushed
    found = (ctypes.c_int * 5)()
    ctypes.CDLL("libcuda.so.1").fake_cuda_counts(found)
    return list(found)

if "FAKE_CUDA" in os.environ:  # its memory is the host's, and this torch may know no other
    import torch.utils.dlpack
    read_dlpack, torch.cuda.init, torch.cuda.synchronize = torch.utils.dlpack.from_dlpack, lambda: None, lambda: None
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]

    def from_dlpack(capsule):
        data, kind, index, dimensions = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32, ctypes.c_int32
        device = ctypes.cast(pointer_of(capsule, b"dltensor") + 8, ctypes.POINTER(ctypes.c_int32))
        assert (device[0], device[2]) == (2, 1), "a CUDA tensor of one dimension"
        device[0], device[1] = 1, 0
        return read_dlpack(capsule)

    torch.utils.dlpack.from_dlpack = from_dlpack
"""


@pytest.fixture(scope="module")
def fake_driver(open_folder: Callable[[str], Path]) -> str:
    """A directory with a libcuda.so.1 that shares host memory, and with PRELUDE as a module."""
    directory = open_folder("driver")
    (directory / "device_script.py").write_text(PRELUDE)
    source = Path(__file__).with_name("fake_cuda.c")
    compiler = ["cc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run([*compiler, str(source), "-o", str(directory / "libcuda.so.1")], check=True)
    return str(directory)


def run_script(code: str, directory: str, fake: bool, **environment: str) -> str:
    with_fake = {"LD_LIBRARY_PATH": directory, "FAKE_CUDA": "1"} if fake else {}
    path = os.pathsep.join([directory, *(entry for entry in sys.path if entry)])
    done = subprocess.run(
        [sys.executable, "-c", "from device_script import *\n" + textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": path, **with_fake, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def script(device: str, fake_driver: str) -> Script:
    """Runs code in a process of its own, since a process keeps the driver it has found."""
    return lambda code, **environment: run_script(code, fake_driver, device == "cpu", **environment)


# ---- bytes ---------------------------------------------------------------------------------------------------------


def test_another_process_reads_and_writes_a_shared_buffer(script: Script) -> None:
    """The other process is a new program that gets only the descriptor. Under root it runs as another user."""
    script("""
        import subprocess
        with DeviceBuffer(3 << 20, 0) as buffer:
            whole = buffer.tensor(torch.int32, (3 << 18,))
            whole.copy_(torch.arange(3 << 18))
            torch.cuda.synchronize()
            reader = (
                "from device_script import *\\n"
                "if os.geteuid() == 0:\\n"
                "    os.setgroups([]), os.setgid(60600), os.setuid(60600)\\n"
                f"with DeviceBuffer.open({buffer.fd}, 3 << 20, 'cuda:0') as opened:\\n"
                "    seen = opened.tensor(torch.int32, (3 << 18,))\\n"
                "    assert torch.equal(seen.cpu(), torch.arange(3 << 18, dtype=torch.int32))\\n"
                "    seen.neg_()\\n"
                "    torch.cuda.synchronize()\\n"
            )
            subprocess.run([sys.executable, "-c", reader], check=True, pass_fds=[buffer.fd])
            assert torch.equal(whole.cpu(), -torch.arange(3 << 18, dtype=torch.int32))
    """)


def test_tensors_of_every_dtype_and_layout_lie_in_the_buffers_own_bytes(script: Script) -> None:
    script("""
        with DeviceBuffer(1 << 16) as buffer:
            raw = buffer.tensor(torch.uint8, (1 << 16,))
            dtypes = [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int8, torch.int16, torch.int64]
            for dtype in [*dtypes, torch.bool, torch.complex64, torch.float8_e4m3fn]:
                one = buffer.tensor(dtype, (3, 5), offset=16)
                assert one.dtype == dtype and one.is_contiguous() and one.data_ptr() == buffer.pointer + 16
                raw.zero_()
                one.copy_(torch.ones(3, 5).to(dtype))
                expected = torch.zeros(1 << 16, dtype=torch.uint8)
                expected[16 : 16 + 15 * dtype.itemsize] = torch.ones(15).to(dtype).view(torch.uint8)
                assert torch.equal(raw.cpu(), expected), dtype
            wide = buffer.tensor(torch.bfloat16, (2, 3), offset=2, strides=(1, 2))
            wide.copy_(torch.tensor([[1.0, 2, 3], [4, 5, 6]]))
            assert buffer.tensor(torch.bfloat16, (6,), offset=2).tolist() == [1, 4, 2, 5, 3, 6]
            assert buffer.tensor(torch.float32, (0, 4)).shape == (0, 4)
            assert buffer.tensor(torch.float32, (), offset=4).shape == ()
            assert buffer.tensor(torch.uint8, (7,), offset=(1 << 16) - 7).numel() == 7
    """)


def test_a_tensor_that_does_not_fit_is_refused(script: Script) -> None:
    script("""
        def refused(message, *arguments, **named):
            try:
                buffer.tensor(*arguments, **named)
            except ValueError as error:
                assert message in str(error), error
            else:
                raise AssertionError(message)

        buffer = DeviceBuffer(100)
        refused("from byte 0 to 104 does not fit into a buffer of 100 bytes", torch.float32, (26,))
        refused("from byte 4 to 104 does not fit", torch.float32, (25,), offset=4)
        refused("does not fit", torch.float32, (1,), offset=-4)
        refused("does not fit", torch.float32, (2, 2), strides=(24, 1))
        refused("offset must be a multiple of 4 for torch.float32; got 2", torch.float32, (1,), offset=2)
        refused("may be negative", torch.float32, (2,), strides=(-1,))
        refused("strides must be one for each dimension", torch.float32, (2,), strides=(1, 1))
        buffer.close()
        refused("the buffer is closed", torch.uint8, (1,))
        buffer.close()
    """)


@pytest.mark.long
def test_a_tensor_outlives_its_buffer(script: Script) -> None:
    script("""
        buffer = DeviceBuffer(1 << 20)
        kept = buffer.tensor(torch.float32, (4,), offset=64)[1:]
        kept.fill_(5)
        buffer.close()
        assert buffer.fd == -1 and "closed" in repr(buffer)
        assert kept.tolist() == [5, 5, 5]
        if "FAKE_CUDA" in os.environ:
            assert counts()[:3] == [1, 1, 1]
        del kept
        if "FAKE_CUDA" in os.environ:
            assert counts() == [0, 0, 0, 1, 0]
    """)


@pytest.mark.long
def test_closing_a_hundred_buffers_frees_all_memory_and_descriptors(script: Script) -> None:
    """On a GPU each has a GiB, so that a leak is larger than the memory that other processes take meanwhile."""
    script("""
        def descriptors():
            return len(os.listdir("/proc/self/fd"))

        def use():
            with DeviceBuffer(size) as buffer, DeviceBuffer.open(os.dup(buffer.fd), size) as again:
                assert buffer.pointer != again.pointer
                buffer.tensor(torch.int64, (4,)).copy_(torch.arange(4))
                assert again.tensor(torch.int64, (4,)).tolist() == [0, 1, 2, 3]

        is_fake = "FAKE_CUDA" in os.environ
        size = 8 << 20 if is_fake else 1 << 30
        use()  # torch opens files when it first uses the GPU
        free = 0 if is_fake else torch.cuda.mem_get_info()[0]
        before = descriptors()
        for _ in range(100):
            use()
        assert descriptors() == before
        if is_fake:
            assert counts()[:3] == [0, 0, 0] and counts()[4] == 0
        else:
            lost = free - torch.cuda.mem_get_info()[0]
            assert lost < 50 * size, f"{lost} bytes are gone"
    """)


# ---- errors --------------------------------------------------------------------------------------------------------


def test_out_of_memory_error_names_the_requested_and_the_free_size(script: Script) -> None:
    out = script("""
        try:
            DeviceBuffer(1 << 50)
        except DeviceOutOfMemory as error:
            print(error)
        print(DeviceBuffer(1 << 20).fd >= 0)
    """)
    first, second = out.splitlines()
    assert first.startswith("no room for a shared buffer of 1048576.00 GiB on GPU 0: ")
    assert first.endswith(" are free")
    assert second == "True"


def test_descriptor_that_is_no_shared_buffer_cannot_be_opened(script: Script) -> None:
    out = script("""
        fd = os.open("/dev/null", os.O_RDWR)
        try:
            DeviceBuffer.open(fd, 100)
        except DeviceMemoryError as error:
            print(error)
        os.close(fd)  # the caller still owns it
        for size in (0, -1):
            try:
                DeviceBuffer.open(0, size)
            except ValueError as error:
                print(error)
    """)
    assert "is no shared buffer of GPU 0: CUDA_ERROR" in out
    assert out.splitlines()[1:] == ["size must be positive; got 0", "size must be positive; got -1"]


def test_opening_a_buffer_with_a_larger_size_is_refused(script: Script) -> None:
    script("""
        with DeviceBuffer(1 << 20) as buffer:
            try:
                DeviceBuffer.open(os.dup(buffer.fd), 1 << 25)
            except DeviceMemoryError as error:
                assert "cannot map a shared buffer of 32.00 MiB" in str(error), error
            else:
                raise AssertionError("a larger buffer was opened")
            if "FAKE_CUDA" in os.environ:
                assert counts()[:3] == [1, 1, 1]
    """)


def test_error_for_a_missing_gpu_names_it_and_the_number_of_gpus(script: Script) -> None:
    out = script("""
        for device in (4096, "cuda:4096"):
            try:
                DeviceBuffer(100, device)
            except DeviceMemoryError as error:
                print(error)
    """)
    for line in out.splitlines():
        assert line.startswith("there is no GPU 4096; this process sees ")


def test_missing_driver_is_reported() -> None:
    if os.path.exists("/proc/driver/nvidia/version") or torch.cuda.is_available():
        pytest.skip("this machine has a driver")
    with pytest.raises(DeviceMemoryError, match="there is no CUDA driver: libcuda"):
        DeviceBuffer(100)


def test_each_failure_of_the_driver_is_named_and_leaks_nothing(fake_driver: str) -> None:
    messages = {
        "cuInit": "the CUDA driver does not start: CUDA_ERROR_NO_DEVICE (no CUDA-capable device is detected)",
        "attribute": "GPU 0 cannot share memory by a file descriptor",
        "cuMemGetAllocationGranularity": "GPU 0 does not say in what steps it maps memory: CUDA error 999",
        "cuMemCreate": "no shared buffer of 1.00 MiB on GPU 0: CUDA error 999",
        "cuMemAddressReserve": "no addresses for a shared buffer of 2.00 MiB on GPU 0: CUDA error 999",
        "cuMemMap": "cannot map a shared buffer of 2.00 MiB on GPU 0: CUDA error 999",
        "cuMemSetAccess": "no access to a shared buffer of 2.00 MiB on GPU 0: CUDA error 999",
        "cuMemExportToShareableHandle": "no descriptor for a shared buffer on GPU 0: CUDA error 999",
        "": "a buffer on GPU 0",
    }
    code = f"""
        for call in {list(messages)}:
            os.environ["FAKE_CUDA_FAIL"] = call
            try:
                with DeviceBuffer(1 << 20):
                    print("a buffer on GPU 0")
            except DeviceMemoryError as error:
                print(error)
            assert counts()[:3] == [0, 0, 0] and counts()[4] == 0, (call, counts())
    """
    assert run_script(code, fake_driver, True).splitlines() == list(messages.values())


# ---- names and sizes, which need no driver ---------------------------------------------------------------------------


def test_devices_are_named_as_torch_names_them() -> None:
    assert [device_index(name) for name in ("cuda", "cuda:0", "cuda:3", torch.device("cuda", 2), 5)] == [0, 0, 3, 2, 5]
    for wrong in ("cpu", "cuda:x", -1, torch.device("cpu"), "cuda:-1"):
        with pytest.raises(ValueError, match=f"device must be a CUDA device or its index; got {wrong}"):
            device_index(wrong)


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (2, 3, 4), (1, 1), (5, 1, 2)])
def test_strides_and_extent_agree_with_torch(shape: tuple[int, ...]) -> None:
    tensor = torch.empty(shape)
    assert contiguous_strides(shape) == tensor.stride()
    assert extent(shape, tensor.stride()) == tensor.numel()


def test_importing_the_module_loads_no_driver() -> None:
    code = "import kernel_coder.judge.wire.device_memory, sys; print('libcuda' in open('/proc/self/maps').read())"
    path = os.pathsep.join(entry for entry in sys.path if entry)
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, capture_output=True)
    assert done.stdout == b"False\n", done.stderr


# ---- in a Runner with every layer of the sandbox ---------------------------------------------------------------------

#: Programs of a Runner. The first writes a candidate's kernel to a file, imports it and compiles it.
RUNNER = '''
import importlib, os, sys, time, torch
from kernel_coder.judge.wire.channel import Channel
from kernel_coder.judge.wire.device_memory import DeviceBuffer

CANDIDATE = """
import triton, triton.language as tl

@triton.jit
def twice_and_one(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, 2 * tl.load(x + at, mask=at < n) + 1, mask=at < n)
"""

def milliseconds(since):
    return int(1000 * (time.monotonic() - since))

def writes(fds):
    os.environ["TRITON_CACHE_DIR"] = os.path.join(os.getcwd(), "triton")  # as the Runner does
    channel, times = Channel(fds[0]), []
    began = time.monotonic()
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    times.append(milliseconds(began))
    buffer = DeviceBuffer.open(fds[1], 1 << 21, 0)
    whole = buffer.tensor(torch.float32, (1 << 19,))
    began = time.monotonic()
    torch.arange(1 << 18, device="cuda", out=whole[: 1 << 18])
    (torch.ones(64, 64, device="cuda") @ torch.ones(64, 64, device="cuda")).sum().item()
    times.append(milliseconds(began))
    began = time.monotonic()
    with open("candidate.py", "w") as file:
        file.write(CANDIDATE)
    sys.path.insert(0, os.getcwd())
    kernel = importlib.import_module("candidate").twice_and_one
    kernel[(1 << 8,)](whole, whole[1 << 18 :], 1 << 18, BLOCK=1024)
    torch.cuda.synchronize()
    times.append(milliseconds(began))
    channel.send(1, values=(os.getuid(), os.getpid(), len(os.listdir("/proc/self/task")), *times))
    for round in range(200):
        channel.receive(timeout_s=30)
        whole.add_(1)
        torch.cuda.synchronize()
        channel.send(2)

def spins(fds):
    channel = Channel(fds[0])
    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    channel.send(1)
    torch.cuda._sleep(1 << 62)
    channel.send(2)
    torch.cuda.synchronize()

def faults(fds):
    channel = Channel(fds[0])
    x = torch.zeros(8, device="cuda")
    channel.send(1)
    x[torch.tensor([1 << 40], device="cuda")] = 1
    torch.cuda.synchronize()

def fills(fds):
    channel, kept = Channel(fds[0]), []
    try:
        while True:
            kept.append(torch.empty(1 << 30, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError:
        channel.send(1, values=(len(kept),))
        channel.receive(timeout_s=60)
'''


@pytest.fixture(scope="module")
def gpu_server(open_folder: Callable[[str], Path]) -> Iterator[ForkServer]:
    """Start a warm parent whose Runners have the first GPU and no other."""
    modules = open_folder("gpu_modules")
    (modules / "gpu_runner.py").write_text(RUNNER)
    work = open_folder("gpu_work")
    minor = nvml.minor_number(0)
    sandbox = Sandbox(SandboxConfig(gpu=0 if minor is None else minor, work_root=str(work)))
    print(f"\n/dev/nvidia{minor}, {nvml.uuid(0)}; as uid {os.geteuid()}:\n{sandbox.profile}")
    libraries = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    with ForkServer(
        sandbox, modules=["torch", "triton", "gpu_runner"], search=[str(modules)], environment=libraries
    ) as server:
        yield server


@contextlib.contextmanager
def gpu_runner(server: ForkServer, target: str, *fds: int) -> Iterator[tuple[Process, Channel]]:
    ours, theirs = Channel.pair()
    name = nvml.uuid(0)
    environment = {} if name is None else {"CUDA_VISIBLE_DEVICES": name}
    environment |= {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "CUDA_HOME") if name in os.environ}
    with server.start(
        f"gpu_runner:{target}", fds=[theirs.fd, *fds], limits=Limits(wall_s=180.0), environment=environment
    ) as process:
        theirs.close()
        try:
            yield process, ours
        except ChannelClosed:
            ended = process.wait(30)
            raise AssertionError(f"{ended.reason}\n{process.stdout.text}\n{process.stderr.text}") from None
        finally:
            ours.close()


def settled_memory(baseline: int, slack: int = 64 << 20, patience_s: float = 20.0) -> float:
    """Return the seconds until the GPU uses no more memory than before, apart from some slack."""
    began = time.monotonic()
    while True:
        used = nvml.memory(0)
        if used is None:
            pytest.fail("NVML does not tell how much memory the GPU uses")
        if used.used <= baseline + slack:
            return time.monotonic() - began
        assert time.monotonic() - began < patience_s, f"{(used.used - baseline) >> 20} MiB are still used"
        time.sleep(0.02)


@pytest.mark.gpu
def test_a_sandboxed_runner_computes_in_a_shared_buffer(device: str, gpu_server: ForkServer) -> None:
    """CUDA, torch and Triton under every layer: another uid, namespaces, a private /proc, Landlock and seccomp."""
    with DeviceBuffer(1 << 21, device) as buffer:
        whole = buffer.tensor(torch.float32, (1 << 19,))
        whole.fill_(-7)
        torch.cuda.synchronize()
        began = time.monotonic()
        with gpu_runner(gpu_server, "writes", buffer.fd) as (process, channel):
            first = channel.receive(timeout_s=120, pidfd=process.pidfd)
            uid, pid, threads, start_ms, torch_ms, triton_ms, _ = first.values
            print(
                f"\nrunner: uid {uid}, pid {pid}, {threads} threads; all {time.monotonic() - began:.2f} s, "
                f"CUDA's start {start_ms} ms, torch ops {torch_ms} ms, Triton compiled and run {triton_ms} ms"
            )
            expected = torch.arange(1 << 18, dtype=torch.float32)
            found = whole.cpu()
            assert torch.equal(found[: 1 << 18], expected)
            assert torch.equal(found[1 << 18 :], 2 * expected + 1)
            trips = []
            for _ in range(200):
                started = time.perf_counter()
                channel.send(1)
                channel.receive(timeout_s=30, pidfd=process.pidfd)
                trips.append(time.perf_counter() - started)
            assert torch.equal(whole.cpu()[: 1 << 18], expected + 200)
            print(f"a request with a kernel of 2 MiB: median {1e6 * sorted(trips)[100]:.0f} us")
            assert process.wait(30).exit_code == 0, process.stderr.text
    if os.geteuid() == 0:
        assert uid == process.uid != 0
    if "pid_namespace" in gpu_server.sandbox.profile.active:
        assert pid < 10


@pytest.mark.gpu
@pytest.mark.parametrize("program", ["spins", "faults", "fills"])
def test_runner_that_harms_the_gpu_can_be_ended_and_its_memory_is_freed(
    device: str, gpu_server: ForkServer, program: str
) -> None:
    """A kernel never ends, makes an illegal access, or all memory is taken. Afterwards the GPU computes as before."""
    torch.zeros(1, device=device)
    torch.cuda.synchronize()
    before = nvml.memory(0)
    assert before is not None, "NVML does not tell how much memory the GPU uses"
    with gpu_runner(gpu_server, program) as (process, channel):
        channel.receive(timeout_s=120, pidfd=process.pidfd)
        if program == "spins":
            channel.receive(timeout_s=30, pidfd=process.pidfd)
            time.sleep(0.5)
            assert process.running
        began = time.monotonic()
        if program == "faults":
            ended = process.wait(60)
            assert ended.exit_code != 0
            assert "CUDA error" in process.stderr.text or "Assertion" in process.stderr.text
        else:
            ended = process.kill_tree(timeout_s=60)
        killed_s = time.monotonic() - began
    freed_s = settled_memory(before.used)
    began = time.monotonic()
    x = torch.arange(1 << 20, device=device)
    assert int(x.sum()) == (1 << 19) * ((1 << 20) - 1)
    probe_ms = 1000 * (time.monotonic() - began)
    print(f"\n{program}: {ended.reason} {killed_s:.3f} s; memory back after {freed_s:.3f} s; a sum {probe_ms:.1f} ms")
    assert killed_s < 20

"""Types of the compiled module. tests/ops/test_core_stub.py compares this file with the module itself."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

# ---- the module itself ----

def load_library(path: str) -> None: ...
def is_failed_check(message: str) -> bool: ...
def expose_ops() -> None: ...
def build_info() -> dict[str, str]: ...

# The C++ LossSpec: (name, C++ type, default) of each field, the choices of each enum type, the metric names.
LOSS_SPEC_FIELDS: tuple[tuple[str, str, float], ...]
LOSS_SPEC_CHOICES: dict[str, list[str]]
LOSS_METRICS: tuple[str, ...]

# The C++ Comparison: its numbers in order, and the kinds of elements by their value.
COMPARISON_FIELDS: tuple[str, ...]
ELEMENT_KINDS: tuple[str, ...]

# ---- text ----

def sequence_similarity(a: str, b: str, autojunk: bool, way: str = ..., simd: str = ...) -> float: ...
def sequence_similarities(a: Sequence[str], b: Sequence[str], autojunk: bool, threads: int) -> list[float]: ...
def parse_response(text: str) -> tuple[str | None, str | None, str | None, str | None]: ...

# ---- the ops, torch.ops.kernel_coder ----

def group_advantages(
    rewards: Tensor,
    order: Tensor | None,
    offsets: Tensor,
    lengths: Tensor | None,
    mode: str,
    eps: float,
    std: str,
    singleton: str,
) -> Tensor: ...
def turn_advantages(
    rewards: Tensor,
    cu_turns: Tensor,
    order: Tensor | None,
    offsets: Tensor,
    gamma: float,
    mode: str,
    baseline: str,
    eps: float,
    std: str,
    singleton: str,
) -> Tensor: ...
def policy_loss(
    logprobs: Tensor,
    advantages: Tensor,
    old_logprobs: Tensor | None,
    ref_logprobs: Tensor | None,
    rollout_logprobs: Tensor | None,
    mask: Tensor | None,
    cu_seqlens: Tensor | None,
    entropy: Tensor | None,
    denominator: Tensor | None,
    spec: Sequence[float],
) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...
def token_logprobs(
    logits: Tensor,
    ids: Tensor,
    temperature: Tensor,
    mask: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...
def token_logprobs_backward(
    grad_logprobs: Tensor | None,
    grad_entropy: Tensor | None,
    logits: Tensor,
    ids: Tensor,
    temperature: Tensor,
    mask: Tensor | None,
    logprobs: Tensor,
    entropy: Tensor,
    max: Tensor,
    sum: Tensor,
) -> Tensor: ...
def grpo_loss(
    logits: Tensor,
    ids: Tensor,
    temperature: Tensor,
    advantages: Tensor,
    old_logprobs: Tensor | None,
    ref_logprobs: Tensor | None,
    rollout_logprobs: Tensor | None,
    mask: Tensor | None,
    cu_seqlens: Tensor | None,
    denominator: Tensor | None,
    spec: Sequence[float],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]: ...
def grpo_loss_inplace(
    logits: Tensor,
    ids: Tensor,
    temperature: Tensor,
    advantages: Tensor,
    old_logprobs: Tensor | None,
    ref_logprobs: Tensor | None,
    rollout_logprobs: Tensor | None,
    mask: Tensor | None,
    cu_seqlens: Tensor | None,
    denominator: Tensor | None,
    spec: Sequence[float],
) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...
def scale_gradient(gradient: Tensor, factor: Tensor) -> None: ...
def scaled_gradient(gradient: Tensor, factor: Tensor, like: Tensor) -> Tensor: ...
def linear_token_logprobs(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    ids: Tensor,
    temperature: Tensor,
    mask: Tensor | None,
    logit_scale: float,
    softcap: float,
    chunk_rows: int,
    rounded_logits: bool,
    allow_sync: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...
def linear_token_logprobs_backward(
    grad_logprobs: Tensor | None,
    grad_entropy: Tensor | None,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    ids: Tensor,
    temperature: Tensor,
    mask: Tensor | None,
    logprobs: Tensor,
    entropy: Tensor,
    max: Tensor,
    sum: Tensor,
    logit_scale: float,
    softcap: float,
    chunk_rows: int,
    rounded_logits: bool,
    allow_sync: bool,
    need_hidden: bool,
    need_weight: bool,
    need_bias: bool,
) -> tuple[Tensor, Tensor, Tensor]: ...
def linear_grpo_loss(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    ids: Tensor,
    temperature: Tensor,
    advantages: Tensor,
    old_logprobs: Tensor | None,
    ref_logprobs: Tensor | None,
    rollout_logprobs: Tensor | None,
    mask: Tensor | None,
    cu_seqlens: Tensor | None,
    denominator: Tensor | None,
    spec: Sequence[float],
    logit_scale: float,
    softcap: float,
    chunk_rows: int,
    rounded_logits: bool,
    rounded_weight_grad: bool,
    allow_sync: bool,
    need_hidden: bool,
    need_weight: bool,
    need_bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]: ...
def compare(output: Tensor, expected: Tensor, rtol: float, atol: float) -> Tensor: ...
def row_isa_limit(widest: str) -> str: ...

# ---- the process layer of the judge ----

class sandbox:
    """A submodule. It stands here as a class, since a stub file cannot hold a module."""

    SUPPORTED: bool
    REPORT_BYTES: int
    REPORT_FORMAT: str
    REPORT_FIELDS: tuple[str, ...]
    FRAME_BYTES: int
    SETUP_STEPS: tuple[str, ...]
    PATH_ACCESSES: tuple[str, ...]
    MOUNT_KINDS: tuple[str, ...]
    STATES: tuple[str, ...]
    ENDED_BY: tuple[str, ...]

    class DeviceMemoryError(RuntimeError): ...
    class DeviceOutOfMemory(DeviceMemoryError): ...

    class DeviceMemory:
        @staticmethod
        def create(size: int, device: int) -> sandbox.DeviceMemory: ...
        @staticmethod
        def open(fd: int, size: int, device: int) -> sandbox.DeviceMemory: ...
        def export_fd(self) -> int: ...
        def dlpack(self) -> Any: ...
        @property
        def pointer(self) -> int: ...
        @property
        def mapped_size(self) -> int: ...
        @property
        def device(self) -> int: ...

    @staticmethod
    def spawn(spec: dict[str, Any]) -> tuple[bool, int, int]: ...
    @staticmethod
    def landlock_version() -> tuple[int, int]: ...
    @staticmethod
    def filter_supported() -> bool: ...
    @staticmethod
    def denied_calls() -> list[tuple[str, str]]: ...
    @staticmethod
    def make_channel() -> tuple[int, int]: ...
    @staticmethod
    def send_frame(fd: int, frame: bytes, timeout_s: float) -> bool: ...
    @staticmethod
    def receive_frame(fd: int, pidfd: int, timeout_s: float) -> bytes | str: ...
    @staticmethod
    def make_buffer(name: str, size: int) -> int: ...

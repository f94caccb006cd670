"""The same tests of token_logprobs, policy_loss and grpo_loss run on every device.

Their shapes choose different kernels on CUDA. Some tests cover mistakes that only a GPU kernel can make.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from anywhere import on, placed
from kernel_coder import _C, LossSpec, ops, reference
from kernel_coder.ops import LOSS_METRICS
from loss_batches import SPECS, loss_batch
from memory import allocated_bytes
from tolerances import assert_close
from torch import Tensor

pytestmark = pytest.mark.usefixtures("chosen_kernels")
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
#: The ways to compute a gradient of logits.
FORMS = ["token_logprobs", "policy_loss", "grpo_loss", "grpo_loss in place"]
#: Two rows shorter than a warp; a short row; a row for a small cluster; one element more, so that rows are not aligned;
#: a row for a large cluster.
VOCABS = [1, 7, 1000, 65536, 65537, 151936]
#: A row length at which CUDA uses a cluster. On the CPU the length changes nothing, so its rows are shorter.
WIDE = {"cpu": 1000, "cuda": 40000}


def logits_of(kind: str, tokens: int, vocab: int, dtype: torch.dtype) -> Tensor:
    torch.manual_seed(tokens + vocab)
    x = torch.randn(tokens, vocab) * 3
    if kind == "all -200":
        x = torch.full((tokens, vocab), -200.0)
    elif kind == "one +80":
        x[:, vocab // 2] = 80.0
    elif kind == "around 200":
        x += 200.0
    elif kind == "half without probability":
        x[:, ::2] = -torch.inf
    return x.to(dtype)


def rest_of(batch: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in batch.items() if name not in ("ids", "advantages")}


def check_loss(
    device: str, logits: Tensor, batch: dict[str, Any], spec: LossSpec, inplace: bool, **keywords: Any
) -> None:
    expected = logits.double().clone().requires_grad_()
    loss, metrics = reference.grpo_loss(expected, batch["ids"], batch["advantages"], spec, **keywords, **rest_of(batch))
    (wanted,) = torch.autograd.grad(3.0 * loss, expected)

    given = placed(logits, device).requires_grad_()
    moved, keywords = on(device, batch), on(device, keywords)
    out = ops.grpo_loss(given, moved["ids"], moved["advantages"], spec, inplace=inplace, **keywords, **rest_of(moved))
    (gradient,) = torch.autograd.grad(3.0 * out.loss, given)
    assert (gradient.data_ptr() == given.data_ptr()) == (inplace and logits.numel() > 0)
    assert_close(out.loss.detach().cpu() + 1, loss.detach() + 1, slack=4)
    named = dict(zip(LOSS_METRICS, out.metrics.tolist(), strict=True))
    for name in ("tokens", "sequences", "clipped_low", "clipped_high", "rejected", "nonfinite"):
        assert named[name] == metrics.get(name, 0.0), name
    gradient = gradient.cpu()
    assert (gradient[~batch["mask"]] == 0).all()
    # 3 g is rounded to 16 bits once more.
    slack = 2.0 if inplace or logits.dtype in (torch.float32, torch.float64) else 1.0
    ids = batch["ids"].clamp(min=0)[:, None]
    for target in (True, False):
        chosen = torch.zeros(gradient.shape, dtype=torch.bool).scatter_(1, ids, True) == target
        assert_close(gradient.where(chosen, 0), wanted.where(chosen, 0), slack=4 * slack)


def outputs_of(form: str, logits: Tensor, batch: dict[str, Any], spec: LossSpec) -> list[Tensor]:
    """The outputs of the op and the gradient of 4 times its loss, on the device of the logits, which stay unchanged."""
    given = logits.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    ids, advantages, rest = batch["ids"], batch["advantages"], rest_of(batch)
    if form.startswith("grpo_loss"):
        out = ops.grpo_loss(given, ids, advantages, spec, temperature=0.8, inplace=form.endswith("in place"), **rest)
        loss, values = out.loss, [out.loss, out.metrics, out.logprobs, out.entropy]
    else:
        scores = ops.token_logprobs(given, ids, temperature=0.8, mask=batch["mask"], entropy=True)
        assert scores.entropy is not None
        loss, values = (scores.logprobs * advantages + scores.entropy).sum(), [scores.logprobs, scores.entropy]
        if form == "policy_loss":
            out = ops.policy_loss(scores.logprobs, advantages, spec, entropy=scores.entropy, **rest)
            loss, values = out.loss, [out.loss, out.metrics]
    (gradient,) = torch.autograd.grad(4 * loss, given)
    return [*(x.detach() for x in values if x is not None), gradient]


def equal(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("vocab", VOCABS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_grpo_loss_equals_the_reference_for_every_width(
    device: str, dtype: torch.dtype, vocab: int, inplace: bool
) -> None:
    logits = logits_of("normal", 6, vocab, dtype)
    check_loss(device, logits, loss_batch(logits, [2, 4]), SPECS["clip"], inplace)


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("name", SPECS)
def test_grpo_loss_equals_the_reference_for_every_spec(device: str, name: str, inplace: bool) -> None:
    logits = logits_of("normal", 40, WIDE[device], torch.bfloat16)
    batch = loss_batch(logits, [5, 7, 0, 28])
    check_loss(device, logits, batch, SPECS[name], inplace, temperature=torch.rand(40) + 0.5)


@pytest.mark.parametrize("preset", LossSpec.presets())
def test_every_preset_in_place_equals_the_reference(device: str, preset: str) -> None:
    logits = logits_of("normal", 12, WIDE[device], torch.float32)
    batch = loss_batch(logits, [3, 9], seed=4)
    spec = LossSpec.preset(preset)
    check_loss(device, logits, batch, spec, inplace=True)
    check_loss(device, logits, {**batch, "advantages": batch["advantages"][:2]}, spec, inplace=True, denominator=5.0)


@pytest.mark.parametrize("kind", ["all -200", "one +80", "around 200"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_grpo_loss_of_extreme_logits_equals_the_reference(device: str, dtype: torch.dtype, kind: str) -> None:
    logits = logits_of(kind, 16, WIDE[device], dtype)
    check_loss(device, logits, loss_batch(logits, [16]), SPECS["kl and entropy"], True, temperature=0.7)


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("first", [0, 1, 8])
@pytest.mark.parametrize("pad", [1, 3, 8])
def test_rows_with_any_stride_and_alignment_equal_the_reference(
    device: str, pad: int, first: int, inplace: bool
) -> None:
    vocab = WIDE[device]
    logits = logits_of("normal", 6, vocab + 8 + pad, torch.bfloat16)[:, first : first + vocab]
    assert placed(logits, device).stride() == (vocab + 8 + pad, 1)
    check_loss(device, logits, loss_batch(logits, [6]), SPECS["clip"], inplace)


@pytest.mark.parametrize("pad", [1, 8])
def test_in_place_loss_writes_nothing_between_rows(device: str, pad: int) -> None:
    wide = placed(logits_of("normal", 6, WIDE[device] + 2 * pad, torch.bfloat16), device)
    before, inside = wide.clone(), wide[:, pad:-pad]
    batch = on(device, loss_batch(inside.cpu(), [6]))
    ops.grpo_loss(inside, batch["ids"], batch["advantages"], SPECS["clip"], inplace=True, **rest_of(batch))
    assert not torch.equal(inside, before[:, pad:-pad])
    assert torch.equal(wide[:, :pad], before[:, :pad])
    assert torch.equal(wide[:, -pad:], before[:, -pad:])


def test_strided_columns_are_copied_and_refused_in_place(device: str) -> None:
    logits = logits_of("normal", 6, 3000, torch.float32)[:, ::3]
    batch = loss_batch(logits, [6])
    check_loss(device, logits, batch, SPECS["clip"], inplace=False)
    there = on(device, batch)
    with pytest.raises(ValueError, match="rows without gaps between their elements; got stride 3"):
        ops.grpo_loss(placed(logits, device), there["ids"], there["advantages"], SPECS["clip"], inplace=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_confident_tokens_keep_their_digits(device: str, dtype: torch.dtype) -> None:
    # Compare each row by itself: the last values are fifteen orders of magnitude smaller than the first.
    logits = 0.1 * logits_of("normal", 36, 5000, torch.float32)
    rows, ids = torch.arange(36), torch.randint(0, 5000, (36,))
    logits[rows, ids] = torch.linspace(5, 40, 36)
    logits = logits.to(dtype)
    logprobs, entropy = reference.token_logprobs(logits, ids, entropy=True)
    leaf = placed(logits, device).requires_grad_()
    out = ops.token_logprobs(leaf, ids.to(device), entropy=True)
    assert entropy is not None
    assert out.entropy is not None

    def worst(x: Tensor, wanted: Tensor) -> float:
        return float(((x.detach().cpu().double() - wanted).abs() / wanted.abs()).max())

    assert worst(out.logprobs, logprobs) < 5e-6
    assert worst(out.entropy, entropy) < 5e-6
    odds = torch.exp(logits.double() - logits.double()[rows, ids][:, None]).scatter_(1, ids[:, None], 0.0)
    rest = odds.sum(1)
    wanted = (-odds / (1 + rest)[:, None]).scatter_(1, ids[:, None], (rest / (1 + rest))[:, None])
    (gradient,) = torch.autograd.grad(out.logprobs.sum(), leaf)
    assert worst(gradient, wanted) < (5e-6 if dtype == torch.float32 else 4e-3)


def test_row_with_nan_inf_or_only_minus_inf_gives_nan_and_other_rows_do_not(device: str) -> None:
    logits = logits_of("half without probability", 6, 40000, torch.bfloat16)
    logits[1, 7] = torch.nan
    logits[2, 9] = torch.inf
    logits[3, :] = -torch.inf
    ids = torch.full((6,), 1)
    expected, _ = reference.token_logprobs(logits[[0, 4, 5]], ids[:3])
    out = ops.token_logprobs(logits.to(device), ids.to(device)).logprobs.cpu()
    assert out[1:4].isnan().all()
    assert_close(out[[0, 4, 5]], expected)


def test_one_row_many_rows_and_no_rows_give_the_right_loss(device: str) -> None:
    spec = SPECS["clip"]
    for tokens, vocab in ((1, WIDE[device]), (7, WIDE[device]), (70000, 64)):
        logits = logits_of("normal", tokens, vocab, torch.bfloat16)
        check_loss(device, logits, loss_batch(logits, [tokens]), spec, inplace=True)
    empty = torch.zeros(0, 16, device=device, dtype=torch.bfloat16, requires_grad=True)
    nothing = torch.zeros(0, device=device)
    out = ops.grpo_loss(empty.clone(), nothing.long(), nothing, spec, inplace=True)
    out.loss.backward()
    assert out.loss == 0
    assert out.metrics.abs().sum() == 0


def test_in_place_gradient_can_be_taken_only_once(device: str) -> None:
    leaf = torch.randn(4, 64, device=device, requires_grad=True)
    ids, advantages = torch.arange(4, device=device), torch.ones(4, device=device)
    out = ops.grpo_loss(leaf.clone(), ids, advantages, SPECS["clip"], inplace=True)
    out.loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="once"):
        out.loss.backward()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["kl and entropy", "gspo"])
def test_every_run_gives_the_same_bits(device: str, name: str, form: str) -> None:
    logits = logits_of("normal", 32, WIDE[device], torch.bfloat16)
    batch, logits = on(device, loss_batch(logits, [12, 20])), logits.to(device)
    first = outputs_of(form, logits, batch, SPECS[name])
    for _ in range(2):
        assert equal(outputs_of(form, logits, batch, SPECS[name]), first)


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("name", ["clip", "gspo", "kl and entropy"])
def test_outputs_have_the_same_bits_with_and_without_gradient(device: str, name: str, inplace: bool) -> None:
    logits = logits_of("normal", 12, WIDE[device], torch.bfloat16)
    batch, logits = on(device, loss_batch(logits, [5, 7])), logits.to(device)
    found = []
    for wanted in (True, False):
        given = logits.clone().requires_grad_(wanted)
        with torch.set_grad_enabled(wanted):
            out = ops.grpo_loss(
                given, batch["ids"], batch["advantages"], SPECS[name], inplace=inplace, **rest_of(batch)
            )
        assert out.loss.requires_grad == wanted
        assert out.entropy is not None
        found.append([out.loss.detach(), out.metrics, out.logprobs, out.entropy, given.detach()])
    assert equal(*found)


@pytest.mark.parametrize("name", SPECS)
def test_in_place_loss_equals_the_loss_with_a_new_tensor(device: str, kernels: str, name: str) -> None:
    logits = logits_of("normal", 12, WIDE[device], torch.float32)
    batch, logits = on(device, loss_batch(logits, [5, 7])), logits.to(device)
    one, other = (outputs_of(form, logits, batch, SPECS[name]) for form in ("grpo_loss", "grpo_loss in place"))
    if device == "cpu" or kernels == "general":
        assert equal(one, other)
    else:
        for x, wanted in zip(one, other, strict=True):  # metrics are float64 sums of float32 numbers
            assert_close(x, wanted, dtype=torch.float32, slack=4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_in_place_gradient_is_right_for_every_use_of_the_loss(device: str, dtype: torch.dtype) -> None:
    logits = logits_of("normal", 12, WIDE[device], dtype)
    batch, logits = on(device, loss_batch(logits, [5, 7])), logits.to(device)
    spec = SPECS["kl and entropy"]

    def gradient(total: Any) -> Tensor:
        leaf = logits.clone().requires_grad_()
        out = ops.grpo_loss(leaf.clone(), batch["ids"], batch["advantages"], spec, inplace=True, **rest_of(batch))
        return torch.autograd.grad(total(out.loss, leaf), leaf)[0]

    once = gradient(lambda loss, leaf: loss)
    assert torch.equal(gradient(lambda loss, leaf: -4 * loss), -4 * once)
    assert_close(gradient(lambda loss, leaf: 3 * loss + loss / 2), 3.5 * once.double())
    assert_close(gradient(lambda loss, leaf: loss + leaf.sum()), once.double() + 1)
    assert_close(gradient(lambda loss, leaf: 0 * loss), 0 * once.double())


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("name", SPECS)
def test_fully_masked_batch_gives_zero(device: str, name: str, inplace: bool) -> None:
    given = torch.full((6, WIDE[device]), torch.nan, dtype=torch.bfloat16, device=device).requires_grad_()
    batch = on(device, loss_batch(torch.zeros(6, 40), [6]))
    batch["mask"][:] = False
    batch["ids"][:] = -100
    out = ops.grpo_loss(given, batch["ids"], batch["advantages"], SPECS[name], inplace=inplace, **rest_of(batch))
    (gradient,) = torch.autograd.grad(out.loss, given)
    assert out.loss == 0
    assert not out.metrics.any()
    assert not out.logprobs.any()
    assert not gradient.any()


@pytest.mark.parametrize("inplace", [False, True])
def test_out_of_range_id_gives_nan_on_cuda_for_its_own_token_only(device: str, inplace: bool) -> None:
    if device == "cpu":  # the CPU refuses such ids: see test_grpo_loss.py
        return
    for dtype in (torch.float32, torch.bfloat16):
        logits = logits_of("normal", 12, WIDE[device], dtype).to(device)
        batch = on(device, loss_batch(logits.cpu(), [12]))
        batch["mask"][:] = True
        batch["ids"][:] = torch.arange(12, device=device) * 3000
        wrong = torch.tensor([0, 2, 4, 6, 8, 10], device=device)
        strange = torch.tensor([40000, -1, -3, -100, 40007, 10**12], device=device)
        found = []
        for ids in (batch["ids"], batch["ids"].index_copy(0, wrong, strange)):
            given = logits.clone().requires_grad_()
            # A sum, so that the NaN of one token does not reach the gradient of another.
            spec = LossSpec.preset("dapo", reduction="sum")
            out = ops.grpo_loss(given, ids, batch["advantages"], spec, inplace=inplace, **rest_of(batch))
            found.append((out, torch.autograd.grad(out.loss, given)[0]))
        (clean, clean_gradient), (out, gradient) = found
        assert out.loss.isnan()
        assert dict(zip(LOSS_METRICS, out.metrics.tolist(), strict=True))["nonfinite"] == 6
        assert out.logprobs[wrong].isnan().all()
        assert torch.equal(out.logprobs[1::2], clean.logprobs[1::2])
        assert torch.equal(gradient[1::2], clean_gradient[1::2])


def test_tensor_on_another_device_is_refused_by_name(device: str) -> None:
    if device == "cpu":
        return
    logits = torch.zeros(3, 7, device=device)
    here = {
        "ids": torch.tensor([0, 1, 2]),
        "advantages": torch.ones(3),
        "old_logprobs": torch.zeros(3),
        "mask": torch.ones(3, dtype=torch.bool),
        "cu_seqlens": torch.tensor([0, 3]),
    }
    for name, value in here.items():
        inputs = {**on(device, here), name: value}
        for inplace in (False, True):
            with pytest.raises(ValueError, match=f"^{name} must be on the device of logits; got cpu:.* and cuda:0$"):
                ops.grpo_loss(
                    logits, inputs["ids"], inputs["advantages"], SPECS["clip"], inplace=inplace, **rest_of(inputs)
                )


@pytest.mark.parametrize("form", ["token_logprobs", "grpo_loss", "grpo_loss in place"])
def test_memory_does_not_grow_with_the_vocabulary(device: str, form: str) -> None:
    def forward(vocab: int) -> int:
        logits = torch.zeros(16, vocab, device=device)
        batch = on(device, loss_batch(torch.zeros(16, 40), [16]))
        if form == "token_logprobs":
            return allocated_bytes(lambda: ops.token_logprobs(logits, batch["ids"], mask=batch["mask"]), device)
        inplace = form.endswith("in place")
        arguments = (batch["ids"], batch["advantages"], SPECS["kl and entropy"])
        return allocated_bytes(lambda: ops.grpo_loss(logits, *arguments, inplace=inplace, **rest_of(batch)), device)

    forward(1000)
    assert forward(40000) == forward(1000)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_opcheck_of_the_in_place_ops(device: str, dtype: torch.dtype) -> None:
    logits = logits_of("normal", 5, 64, dtype)
    batch = on(device, loss_batch(logits, [2, 3]))
    arguments = (
        logits.to(device),
        batch["ids"],
        torch.ones((), device=device),
        batch["advantages"],
        batch["old_logprobs"],
        batch["ref_logprobs"],
        None,
        batch["mask"],
        batch["cu_seqlens"],
        torch.tensor(4.0, dtype=torch.float64, device=device),
        SPECS["kl and entropy"].pack(),
    )
    torch.library.opcheck(_C.grpo_loss_inplace, arguments)
    torch.library.opcheck(_C.scale_gradient, (logits.to(device), torch.tensor(0.5, device=device)))


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["clip", "gspo", "kl and entropy"])
def test_call_does_not_wait_for_the_device_and_its_graph_follows_new_inputs(device: str, name: str, form: str) -> None:
    if device == "cpu":
        return
    logits = logits_of("normal", 32, WIDE[device], torch.bfloat16)
    others = logits.flip(0).contiguous()
    batch, other_batch = on(device, loss_batch(logits, [12, 20])), on(device, loss_batch(others, [25, 7], seed=1))
    logits, others, spec = logits.to(device), others.to(device), SPECS[name]
    wanted = [outputs_of(form, logits, batch, spec), outputs_of(form, others, other_batch, spec)]
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        outputs_of(form, logits, batch, spec)
    finally:
        torch.cuda.set_sync_debug_mode("default")

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        outputs_of(form, logits, batch, spec)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = outputs_of(form, logits, batch, spec)
    for each, expected in zip(((logits.clone(), dict(batch)), (others, other_batch)), wanted, strict=True):
        logits.copy_(each[0])
        for key, value in each[1].items():
            batch[key].copy_(value)
        graph.replay()
        torch.cuda.synchronize()
        assert equal(captured, expected)


def test_cluster_kernel_runs_unless_it_is_turned_off(device: str) -> None:
    if device == "cpu" or torch.cuda.get_device_capability()[0] < 9:
        return
    logits = torch.zeros(4, 40000, dtype=torch.bfloat16, device=device)
    ids, advantages = torch.zeros(4, dtype=torch.int64, device=device), torch.ones(4, device=device)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profile:
        ops.grpo_loss(logits, ids, advantages, SPECS["clip"], inplace=True)
        torch.cuda.synchronize()
    fused = any("fused_kernel" in event.name for event in profile.events())
    assert fused == (os.environ.get("KC_CLUSTER_KERNELS") != "never")

"""A decoder replayed from CUDA graphs gives the same gradients and weights, although replays overwrite memory.

On the CPU a :class:`sft_recorder.Spoiling` repeats the work; on a GPU the same tests record CUDA graphs.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from kernel_coder.models.tiny import tiny_model, tiny_tokenizer
from kernel_coder.policy.attention import packed
from kernel_coder.policy.config import ModelConfig
from kernel_coder.policy.model import Policy, load_policy
from kernel_coder.sft.attention import hidden_states
from kernel_coder.sft.compilation import accelerate, mirrored, record_body, relative_error, sample
from kernel_coder.sft.examples import Example
from kernel_coder.sft.graphs import CudaRecorder, GraphedBody, Recorder, dropout_of, why_not
from kernel_coder.sft.packing import Filled, PackedBatch, collate
from kernel_coder.sft.update import UpdateSettings, backward, measure, update
from sft_recorder import Blind, Broken, Spoiling
from tolerances import TOLERANCE
from torch import Tensor, nn

TOKENIZER = tiny_tokenizer()
GROUPS = [[17, 40, 2, 9, 23, 5], [40], [30, 31], [12, 12, 40, 3], [40, 40], [7, 8, 9, 10]]
"""Lengths of the examples of each pass."""
FILLED = Filled.of(GROUPS, size=1, capacity=96)


def recorder_of(device: str) -> Recorder:
    return Spoiling() if device == "cpu" else CudaRecorder(torch.device(device))


def policy(device: str) -> Policy:
    return Policy(tiny_model(len(TOKENIZER), hidden=32).to(device).eval(), TOKENIZER)


def batches(device: str) -> list[PackedBatch]:
    draw = np.random.default_rng(0)

    def example(length: int) -> Example:
        in_loss = np.arange(length) >= max(1, length // 2)
        return Example("", draw.integers(3, len(TOKENIZER), length).astype(np.int32), in_loss)

    groups = [[example(length) for length in lengths] for lengths in GROUPS]
    return [collate(group, torch.device(device), filled=FILLED) for group in groups]


def refused(device: str, bf16: bool) -> bool:
    """Whether graphs are refused. On a GPU, float32 attention reads sequence ends on the host, which a graph cannot."""
    if device == "cpu" or bf16:
        return False
    found = record_body(policy(device), batches(device)[0], recorder_of(device))
    assert found == "attention in 32 bits asks the host where an example ends; set model.bf16"
    return True


def graphed(policy: Policy, batch: PackedBatch, device: str, *, bf16: bool) -> GraphedBody:
    body = record_body(policy, batch, recorder_of(device), bf16=bf16)
    assert isinstance(body, GraphedBody), body
    return body


def gradient(policy: Policy) -> Tensor:
    return torch.cat([p.grad.flatten().double() for p in policy.trainable().values() if p.grad is not None])


def apart(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


def tolerance(device: str, bf16: bool) -> float:
    """Larger on a GPU, where attention sums its gradients in another order."""
    if device == "cpu":
        return TOLERANCE[torch.float32]
    return 5 * TOLERANCE[torch.bfloat16 if bf16 else torch.float32]


BF16 = pytest.mark.parametrize("bf16", [False, True], ids=["float32", "bfloat16"])


@BF16
@pytest.mark.parametrize("passes", [1, 2, 3])
def test_gradients_equal_those_without_graphs(device: str, bf16: bool, passes: int) -> None:
    if refused(device, bf16):
        return
    given = batches(device)
    plain = policy(device)
    other = replace(plain, model=copy.deepcopy(plain.model))
    body = graphed(other, given[-1], device, bf16=bf16)
    for start in (0, passes):
        some = given[start : start + passes]
        sums = []
        for one, states_of in ((plain, hidden_states), (other, body)):
            one.model.zero_grad(set_to_none=True)
            one.model.train()
            sums.append(backward(one, some, 100.0, bf16=bf16, states_of=states_of))
        assert torch.allclose(sums[1], sums[0], rtol=tolerance(device, bf16))
        assert apart(gradient(other), gradient(plain)) <= tolerance(device, bf16)
    assert body.passes == 2 + 2 * passes


@BF16
@pytest.mark.parametrize("passes", [1, 2])
def test_three_updates_give_the_same_weights(device: str, bf16: bool, passes: int) -> None:
    if refused(device, bf16):
        return
    given = batches(device)
    plain = replace(policy(device), bf16=bf16)
    other = replace(plain, model=copy.deepcopy(plain.model))
    body = graphed(other, given[0], device, bf16=bf16)
    start = torch.cat([p.detach().flatten().double() for p in plain.trainable().values()])
    moved, norms = [], []
    for one, states_of in ((plain, hidden_states), (other, body)):
        optimizer = torch.optim.SGD(one.model.parameters(), lr=0.5, momentum=0.9, fused=True)
        results = [
            update(
                one,
                optimizer,
                given[number * passes :][:passes],
                UpdateSettings(lambda number: 0.5, max_grad_norm=1.0, max_skipped=1, states_of=states_of),
                number=number,
                skipped_in_a_row=0,
            )
            for number in range(3)
        ]
        moved.append(torch.cat([p.detach().flatten().double() for p in one.trainable().values()]) - start)
        norms.append([result.grad_norm for result in results])
        assert measure(one, given[:1], bf16=bf16).mean < results[0].losses.mean
    assert apart(moved[1], moved[0]) <= 10 * tolerance(device, bf16)
    assert norms[1] == pytest.approx(norms[0], rel=10 * tolerance(device, bf16))
    assert body.passes == 2 + 3 * passes


def test_gradients_of_a_pass_are_wrong_if_left_in_the_memory_of_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves that the tests above can fail: two passes run without moving the gradients of the first pass out."""
    monkeypatch.setattr(GraphedBody, "_move_gradients_out", lambda self: None)
    one = policy("cpu")
    body = graphed(one, batches("cpu")[0], "cpu", bf16=False)
    found = []
    for states_of in (body, hidden_states):
        one.model.zero_grad(set_to_none=True)
        one.model.train()
        backward(one, batches("cpu")[:2], 100.0, states_of=states_of)
        found.append(gradient(one))
    assert apart(*found) > 0.1


def test_batches_and_models_that_were_not_recorded_run_without_graphs(device: str) -> None:
    given = batches(device)
    one = policy(device)
    body = graphed(one, given[0], device, bf16=True)
    before = body.passes
    one.model.train()
    shorter = collate([Example("", np.arange(5, dtype=np.int32), np.ones(5, dtype=bool))], torch.device(device))
    assert body.takes(one.model, given[1])
    assert not body.takes(one.model, shorter)
    assert not body.takes(one.model, replace(given[1], longest=41))
    assert not body.takes(copy.deepcopy(one.model), given[1])
    backward(one, [shorter], 1.0, bf16=True, states_of=body)
    with torch.no_grad():
        assert not body.takes(one.model, given[1])
    one.model.eval()
    assert not body.takes(one.model, given[1])
    assert body.passes == before


def test_graphs_are_no_longer_used_after_weights_moved_in_memory(caplog: pytest.LogCaptureFixture) -> None:
    one = policy("cpu")
    body = graphed(one, batches("cpu")[0], "cpu", bf16=False)
    one.model.train()
    with torch.no_grad():
        next(iter(body.weights)).mul_(1.5)
    assert body.takes(one.model, batches("cpu")[0])
    weight = next(iter(body.weights))
    weight.data = weight.data.clone()
    assert not any(body.takes(one.model, batch) for batch in batches("cpu"))
    assert [record.message for record in caplog.records] == [
        "sft: weights have moved in memory, so the CUDA graphs are no longer used"
    ]


def test_reason_is_given_if_a_graph_cannot_repeat_the_model() -> None:
    one, (batch, *_) = policy("cpu"), batches("cpu")
    assert why_not(one.model, bf16=False) is None
    one.model.gradient_checkpointing_enable()
    assert record_body(one, batch, Spoiling()) == "layers that are recomputed read the random state"
    one.model.gradient_checkpointing_disable()
    one.model.config.attention_dropout = 0.2
    assert why_not(one.model, bf16=False) == (
        "a graph would drop the same elements every time, and the model has attention_dropout of 0.2"
    )
    one.model.config.attention_dropout = 0.0
    one.model.lm_head = nn.Identity()
    assert why_not(one.model, bf16=False) == "the loss of this model is not computed from hidden states"


def test_two_forward_passes_before_a_backward_are_an_error() -> None:
    one, (first, second, *_) = policy("cpu"), batches("cpu")
    body = graphed(one, first, "cpu", bf16=False)
    one.model.train()
    with packed(one.model):
        states = body(one.model, first)
        body(one.model, second)
    with pytest.raises(RuntimeError, match="before the backward pass of the first"):
        states.sum().backward()


@pytest.mark.parametrize(
    ("recorder", "reason"),
    [(Blind(), "they are off by"), (Broken(), "RuntimeError: operation not permitted when stream is capturing")],
    ids=["blind", "broken"],
)
def test_graphs_that_fail_or_compute_wrong_values_are_refused(
    recorder: Recorder, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nn.Module, "compile", lambda self: None)
    one, (batch, *_) = policy("cpu"), batches("cpu")
    found = accelerate(one, batch, recorder=recorder)
    assert (found.compiled, found.states_of) == (True, hidden_states)
    (note,) = found.notes
    assert note.startswith(f"model.torch_compile: no CUDA graphs: {reason}")
    assert "\n" not in note
    assert not one.model.training
    assert all(weight.grad is None for weight in one.model.parameters())


def test_layers_are_compiled_without_graphs_if_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nn.Module, "compile", lambda self: None)
    found = accelerate(policy("cpu"), batches("cpu")[0])
    assert (found.compiled, found.states_of, found.notes) == (True, hidden_states, ())


def test_difference_between_two_batches_is_larger_than_the_tolerance() -> None:
    one, (batch, *_) = policy("cpu"), batches("cpu")
    one.model.train()
    mirror = mirrored(batch)
    assert mirror.cu_seqlens.diff().tolist() == batch.cu_seqlens.diff().tolist()[::-1]
    assert mirror.positions.sum() == batch.positions.sum()
    found, expected = (sample(one, each, hidden_states, bf16=False) for each in (mirror, batch))
    assert relative_error(found, expected) > 0.5
    assert relative_error((found[0] * torch.nan, found[1]), expected) == float("inf")


def test_adapters_are_graphed_unless_they_have_dropout(device: str) -> None:
    given = batches(device)
    config = ModelConfig(use_peft=True, lora_r=4, device=device)
    plain = load_policy(config)
    other = replace(plain, model=copy.deepcopy(plain.model))
    body = graphed(other, given[0], device, bf16=True)
    assert len(body.weights) == len(plain.trainable())
    for one, states_of in ((plain, hidden_states), (other, body)):
        one.model.train()
        backward(one, given[:2], 100.0, bf16=True, states_of=states_of)
    assert apart(gradient(other), gradient(plain)) <= tolerance(device, True)
    dropping = load_policy(config.model_copy(update={"lora_dropout": 0.1}))
    assert dropout_of(dropping.model) == "Dropout of 0.1"
    found = record_body(dropping, given[0], recorder_of(device), bf16=True)
    assert found == "a graph would drop the same elements every time, and the model has Dropout of 0.1"

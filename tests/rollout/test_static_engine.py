"""The engine with a static cache gives the answers of the plain loop, also after answers end and rows move."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import fields, replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_coder.models.tiny import tiny_model, tiny_tokenizer
from kernel_coder.policy.parts import with_dtype
from kernel_coder.rollout import Sampling, Turn
from kernel_coder.rollout.decoder import Cache, why_unsupported
from kernel_coder.rollout.engines import make_engine
from kernel_coder.rollout.static_engine import StaticEngine, draw_token, size_below, size_for
from kernel_coder.rollout.transformers_engine import TransformersEngine, draw, uniform_numbers
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from transformers import GPT2Config, GPT2LMHeadModel, Qwen2Config, Qwen2ForCausalLM

TOKENIZER = tiny_tokenizer()
MODEL = tiny_model(len(TOKENIZER)).double().eval()
TEXTS = ("def f(x):", "import torch\nclass Model", "a")
PROMPTS = [TOKENIZER.encode(TEXTS[i % 3]) for i in range(20)]
SEEDS = range(20)


def qwen2() -> Qwen2ForCausalLM:
    """A model with biases, grouped key-value heads and an untied output head."""
    config = Qwen2Config(
        vocab_size=len(TOKENIZER),
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        initializer_range=0.1,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        eos_token_id=2,
        pad_token_id=0,
    )
    torch.manual_seed(1)
    model = Qwen2ForCausalLM(config).double().eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.5)
    return model


def same(found: list[Turn], wanted: list[Turn]) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert one.completion_ids == other.completion_ids
        assert (one.prompt_ids, one.text, one.finish_reason) == (other.prompt_ids, other.text, other.finish_reason)
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


@pytest.mark.parametrize("every", [1, 16])
@pytest.mark.parametrize(
    "sampling",
    [
        dict(),
        dict(temperature=0.0),
        dict(temperature=0.7),
        dict(top_k=3),
        dict(temperature=2.0, top_k=20, top_p=0.9),
    ],
)
def test_answers_and_logprobs_are_those_of_the_plain_loop(sampling: dict[str, float], every: int) -> None:
    wanted_of = Sampling(max_completion_length=50, **sampling)  # type: ignore[arg-type]
    wanted = TransformersEngine(MODEL, TOKENIZER).generate(PROMPTS, wanted_of, SEEDS)
    same(StaticEngine(MODEL, TOKENIZER, check_every=every).generate(PROMPTS, wanted_of, SEEDS), wanted)


def test_qwen2_with_biases_and_an_untied_head_equals_the_plain_loop() -> None:
    model, sampling = qwen2(), Sampling(max_completion_length=30)
    wanted = TransformersEngine(model, TOKENIZER).generate(PROMPTS, sampling, SEEDS)
    same(StaticEngine(model, TOKENIZER).generate(PROMPTS, sampling, SEEDS), wanted)


def test_ended_answers_leave_the_batch_and_the_batch_shrinks(monkeypatch: pytest.MonkeyPatch) -> None:
    sampling = Sampling(max_completion_length=300)
    wanted = TransformersEngine(MODEL, TOKENIZER).generate(PROMPTS, sampling, SEEDS)
    engine, sizes = StaticEngine(MODEL, TOKENIZER, check_every=4), []
    advance = engine._advance
    monkeypatch.setattr(
        engine, "_advance", lambda slots, size, *rest: (sizes.append(size), advance(slots, size, *rest))
    )
    same(engine.generate(PROMPTS, sampling, SEEDS), wanted)
    assert sizes[0] == 32
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] <= 16


@pytest.mark.parametrize("batch_size", [None, 7])
def test_ended_answers_are_reported_while_others_are_sampled(batch_size: int | None) -> None:
    sampling = Sampling(max_completion_length=300)
    wanted = TransformersEngine(MODEL, TOKENIZER).generate(PROMPTS, sampling, SEEDS)
    engine = StaticEngine(MODEL, TOKENIZER, check_every=4, batch_size=batch_size)
    told: list[tuple[int, Turn]] = []
    polls: list[int] = []
    found = engine.generate(
        PROMPTS,
        sampling,
        SEEDS,
        poll=lambda: polls.append(len(told)),
        ended=lambda place, turn: told.append((place, turn)),
    )
    same(found, wanted)
    assert sorted(place for place, _ in told) == list(range(len(PROMPTS)))
    assert all(turn is found[place] for place, turn in told)
    assert len({count for count in polls if 0 < count < len(PROMPTS)}) > 0  # some before the end of the call
    lengths = [len(turn.completion_ids) for _, turn in told]
    if batch_size is None:
        assert [-(-length // 4) for length in lengths] == sorted(-(-length // 4) for length in lengths)


def test_repeated_calls_with_other_numbers_and_lengths_of_prompts_equal_the_plain_loop() -> None:
    engine, plain = StaticEngine(MODEL, TOKENIZER), TransformersEngine(MODEL, TOKENIZER)
    long = [prompt * 30 for prompt in PROMPTS[:5]]
    for prompts, length in ((PROMPTS[:3], 5), (PROMPTS, 20), (long, 9), (PROMPTS[:1], 1), (PROMPTS, 40)):
        sampling, seeds = Sampling(max_completion_length=length), range(len(prompts))
        same(engine.generate(prompts, sampling, seeds), plain.generate(prompts, sampling, seeds))


def test_weights_are_shared_with_the_model_that_is_trained() -> None:
    model = tiny_model(len(TOKENIZER)).double().eval()
    engine, sampling = StaticEngine(model, TOKENIZER), Sampling(max_completion_length=8)
    before = engine.generate(PROMPTS, sampling, SEEDS)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    after = engine.generate(PROMPTS, sampling, SEEDS)
    assert [turn.completion_ids for turn in after] != [turn.completion_ids for turn in before]
    same(after, TransformersEngine(model, TOKENIZER).generate(PROMPTS, sampling, SEEDS))


def test_copy_in_another_dtype_follows_the_weights() -> None:
    model = tiny_model(len(TOKENIZER)).eval()
    engine, sampling = StaticEngine(model, TOKENIZER, dtype=torch.float64), Sampling(max_completion_length=8)
    engine.generate(PROMPTS, sampling, SEEDS)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    wanted = with_dtype(tiny_model(len(TOKENIZER)), torch.float64).eval()
    wanted.load_state_dict(model.state_dict())
    found = engine.generate(PROMPTS, sampling, SEEDS)
    same(found, TransformersEngine(wanted, TOKENIZER).generate(PROMPTS, sampling, SEEDS))
    assert next(model.parameters()).dtype == torch.float32


def test_answers_with_adapters_equal_the_plain_loop() -> None:
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(tiny_model(len(TOKENIZER)), peft.LoraConfig(r=4, target_modules="all-linear"))
    model = model.double().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3)
    sampling = Sampling(max_completion_length=12)
    wanted = TransformersEngine(model, TOKENIZER).generate(PROMPTS, sampling, SEEDS)
    same(StaticEngine(model, TOKENIZER).generate(PROMPTS, sampling, SEEDS), wanted)
    with model.disable_adapter():
        bare = TransformersEngine(model, TOKENIZER).generate(PROMPTS, sampling, SEEDS)
    assert [turn.completion_ids for turn in bare] != [turn.completion_ids for turn in wanted]


def test_batch_size_bounds_the_rows_and_changes_no_answer() -> None:
    sampling = Sampling(max_completion_length=10)
    small = StaticEngine(MODEL, TOKENIZER, batch_size=8)
    same(small.generate(PROMPTS, sampling, SEEDS), StaticEngine(MODEL, TOKENIZER).generate(PROMPTS, sampling, SEEDS))
    assert small._slots is not None
    assert small._slots.cache.rows == 8


def test_prompts_are_computed_in_parts_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    sampling = Sampling(max_completion_length=6)
    wanted = StaticEngine(MODEL, TOKENIZER).generate(PROMPTS, sampling, SEEDS)
    monkeypatch.setattr("kernel_coder.rollout.static_engine.PREFILL_TOKENS", 12)
    same(StaticEngine(MODEL, TOKENIZER).generate(PROMPTS, sampling, SEEDS), wanted)


def test_poll_that_raises_ends_the_call_and_the_engine_works_again() -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    engine, sampling = StaticEngine(MODEL, TOKENIZER), Sampling(max_completion_length=20)
    with pytest.raises(KeyboardInterrupt):
        engine.generate(PROMPTS, sampling, SEEDS, poll=stop)
    same(engine.generate(PROMPTS, sampling, SEEDS), StaticEngine(MODEL, TOKENIZER).generate(PROMPTS, sampling, SEEDS))


def test_unsupported_model_is_named_and_uses_the_transformers_engine() -> None:
    other = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=len(TOKENIZER)))
    assert "gpt2" in str(why_unsupported(other))
    with pytest.raises(ValueError, match="gpt2"):
        StaticEngine(other, TOKENIZER)
    assert isinstance(make_engine(other, TOKENIZER), TransformersEngine)
    assert isinstance(make_engine(MODEL, TOKENIZER), TransformersEngine)  # no GPU
    assert isinstance(make_engine(MODEL, TOKENIZER, "static"), StaticEngine)


def test_seeds_must_match_prompts() -> None:
    with pytest.raises(ValueError, match="got 1 seeds for 20 prompts"):
        StaticEngine(MODEL, TOKENIZER).generate(PROMPTS, Sampling(max_completion_length=5), [1])
    assert StaticEngine(MODEL, TOKENIZER).generate([], Sampling(max_completion_length=5), []) == []


@settings(max_examples=60, deadline=None)
@given(
    vocabulary=st.integers(2, 700),
    seed=st.integers(0, 2**31),
    scale=st.sampled_from([0.1, 3.0, 300.0]),
    temperature=st.sampled_from([0.5, 1.0, 1.7]),
)
def test_token_drawn_by_slices_is_the_one_of_the_whole_distribution(
    vocabulary: int, seed: int, scale: float, temperature: float
) -> None:
    logits = scale * torch.randn(8, vocabulary, generator=torch.Generator().manual_seed(seed))
    numbers = uniform_numbers(seed, 8)
    sampling = Sampling(max_completion_length=1, temperature=temperature)
    wanted, wanted_logprob = draw(logits, numbers, sampling)
    token, logprob = draw_token(logits, numbers, sampling)
    assert torch.equal(token, wanted)
    torch.testing.assert_close(logprob, wanted_logprob, atol=1e-5 * max(1.0, scale), rtol=0)


def test_token_without_probability_is_never_drawn() -> None:
    logits = torch.full((3, 600), -torch.inf)
    logits[:, [0, 300]] = torch.tensor([0.0, -20.0])
    numbers = torch.tensor([0.0, 0.5, 1 - 2**-24], dtype=torch.float64)
    token, _ = draw_token(logits, numbers, Sampling(max_completion_length=1))
    assert token.tolist()[:2] == [0, 0]
    assert int(token[2]) in (0, 300)


def test_batch_sizes_are_rounded_up_to_a_few_values() -> None:
    assert [size_for(n) for n in (1, 3, 33, 512, 513, 800)] == [1, 4, 48, 512, 768, 1024]
    for size in (2, 48, 768, 1024, 1280):
        assert size_for(size_below(size)) == size_below(size) < size


INTERPRETED = """
import torch
from kernel_coder.models.tiny import tiny_model, tiny_tokenizer
from kernel_coder.rollout import Sampling
from kernel_coder.rollout.decode_attention import why_not
from kernel_coder.rollout.static_engine import StaticEngine

for shape in ((2, 3, 64), (1, 17, 16)):
    for dtype in (torch.float32, torch.float16):
        reason = why_not(torch.device("cpu"), dtype, *shape)
        assert reason is None, (shape, reason)
tokenizer = tiny_tokenizer()
model = tiny_model(len(tokenizer)).eval()
prompts = [tokenizer.encode(text) for text in ("def f(x):", "import torch", "a")]
sampling = Sampling(max_completion_length=6)
plain, by_kernel = (
    StaticEngine(model, tokenizer, kernel=kernel).generate(prompts, sampling, range(3)) for kernel in (False, True)
)
assert [turn.completion_ids for turn in plain] == [turn.completion_ids for turn in by_kernel]
"""


def test_triton_kernel_agrees_with_torch() -> None:
    """A new process runs Triton's interpreter, because the import of triton chooses it. It has no bfloat16."""
    pytest.importorskip("triton")
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    run = subprocess.run([sys.executable, "-c", INTERPRETED], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_heads_that_the_kernel_cannot_take_are_named() -> None:
    from kernel_coder.rollout.decode_attention import why_not

    assert "power of two" in str(why_not(torch.device("cpu"), torch.float32, 2, 2, 24))


@pytest.mark.parametrize("sampling", [dict(), dict(temperature=0.7), dict(top_k=5, top_p=0.9), dict(temperature=0.0)])
def test_step_reads_no_tensor_value_on_the_host(sampling: dict[str, float]) -> None:
    """Fake tensors have no values, so code that needs one (``item``, ``nonzero``, ``if tensor``) raises."""
    engine = StaticEngine(MODEL, TOKENIZER, graphs=False)
    slots = engine._make_room(20, 10, 30)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    without_values = {
        field.name: mode.from_tensor(getattr(slots, field.name)) for field in fields(slots) if field.name != "cache"
    }
    keys, values = (tuple(map(mode.from_tensor, some)) for some in (slots.cache.keys, slots.cache.values))
    fake = replace(slots, cache=Cache(keys, values), **without_values)
    with mode, torch.no_grad():
        engine._advance(fake, 16, 128, Sampling(max_completion_length=30, **sampling))  # type: ignore[arg-type]
        with pytest.raises(DataDependentOutputException):
            bool(fake.done[0])  # proves that the check can fail


class Graphs:
    """Stands in for CUDA graphs on the CPU. A capture runs nothing, and a replay runs the captured call."""

    def __init__(self, engine: StaticEngine, broken: bool = False) -> None:
        self.engine, self.broken = engine, broken
        self.recording: list[tuple[object, ...]] | None = None
        self.advance = engine._advance
        self.replayed = 0

    def run(self, *arguments: object) -> None:
        if self.recording is None:
            self.advance(*arguments)  # type: ignore[arg-type]
        else:
            self.recording.append(arguments)

    @contextmanager
    def graph(self, graph: dict[str, object], **options: object) -> Iterator[None]:
        if self.broken:
            raise RuntimeError("operation not permitted when stream is capturing")
        self.recording = []
        yield
        (arguments,) = self.recording
        self.recording = None

        def replay() -> None:
            self.replayed += 1
            self.advance(*arguments)  # type: ignore[arg-type]

        graph.replay = replay  # type: ignore[attr-defined]

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        stream = SimpleNamespace(wait_stream=lambda other: None)
        for name, value in {
            "Stream": lambda device: stream,
            "current_stream": lambda device: stream,
            "stream": lambda one: nullcontext(),
            "CUDAGraph": SimpleNamespace,
            "graph_pool_handle": lambda: None,
            "graph": self.graph,
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)
        monkeypatch.setattr(self.engine, "_advance", self.run)


def test_step_is_captured_once_for_each_size_and_then_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    sampling = Sampling(max_completion_length=120)
    wanted = StaticEngine(MODEL, TOKENIZER).generate(PROMPTS, sampling, SEEDS)
    engine = StaticEngine(MODEL, TOKENIZER, graphs=True)
    graphs = Graphs(engine)
    graphs.install(monkeypatch)
    same(engine.generate(PROMPTS, sampling, SEEDS), wanted)
    captured = dict(engine._captured)
    assert len(captured) >= 2
    before = graphs.replayed
    assert before >= 100 - len(captured)
    same(engine.generate(PROMPTS, sampling, SEEDS), wanted)
    assert engine._captured == captured
    for parameter in MODEL.parameters():  # move every weight in memory
        parameter.data = parameter.data.clone()
    same(engine.generate(PROMPTS, sampling, SEEDS), wanted)
    assert not set(map(id, engine._captured.values())) & set(map(id, captured.values()))


def test_steps_run_without_graphs_if_the_capture_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sampling = Sampling(max_completion_length=40)
    wanted = StaticEngine(MODEL, TOKENIZER).generate(PROMPTS, sampling, SEEDS)
    engine = StaticEngine(MODEL, TOKENIZER, graphs=True)
    Graphs(engine, broken=True).install(monkeypatch)
    same(engine.generate(PROMPTS, sampling, SEEDS), wanted)
    assert not engine.graphs
    assert [record.getMessage() for record in caplog.records] == [
        "rollout: no CUDA graphs, decoding is slower: operation not permitted when stream is capturing"
    ]


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_kernel_compiles_for_hopper_without_a_gpu(dtype: str) -> None:
    triton = pytest.importorskip("triton")
    from kernel_coder.rollout.decode_kernel import decode_attention as kernel
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    if not hasattr(kernel, "arg_names"):
        pytest.skip("this process interprets Triton")
    constants = {"HEADS": 3, "GROUP": 3, "QUERIES": 16, "SIZE": 64, "BLOCK": 64}
    tensors = ("queries", "new_keys", "new_values", "cos", "sin", "keys", "values", "out")
    pointers = dict.fromkeys(tensors, f"*{dtype}")
    numbers = {"lengths": "*i64", "scale": "fp32", "row_stride": "i32", "head_stride": "i32"}
    places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    source = ASTSource(
        fn=kernel, signature={**pointers, **numbers, **dict.fromkeys(constants, "constexpr")}, constexprs=places
    )
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4, "num_stages": 3})
    assert made.asm["cubin"]
    assert made.metadata.shared < 100 * 1024


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_graphs_and_kernel_give_the_logprobs_of_a_forward_pass(device: str, dtype: torch.dtype) -> None:
    model = tiny_model(len(TOKENIZER)).to(device, dtype).eval()
    engine = StaticEngine(model, TOKENIZER)
    sampling = Sampling(max_completion_length=100)
    for _ in range(2):
        turns = engine.generate(PROMPTS, sampling, SEEDS)
    assert engine.graphs
    assert engine._captured
    assert engine.decoder.kernel
    for turn in turns:
        ids = torch.tensor([turn.prompt_ids + turn.completion_ids], device=device)
        with torch.no_grad():
            logits = model(ids).logits[0, len(turn.prompt_ids) - 1 : -1].float()
        wanted = torch.log_softmax(logits, 1).gather(1, ids[0, len(turn.prompt_ids) :, None])[:, 0]
        apart = (torch.tensor(turn.logprobs, device=device) - wanted).abs().max()
        assert float(apart) < (0.2 if dtype is torch.bfloat16 else 1e-3)
    assert [turn.completion_ids for turn in engine.generate(PROMPTS, sampling, SEEDS)] == [
        turn.completion_ids for turn in turns
    ]

"""The sampling loop: log-probs that a forward pass confirms, answers that depend on their seed alone."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_coder.models.tiny import tiny_model, tiny_tokenizer
from kernel_coder.rollout import Sampling, Turn, completion_seed, transformers_engine
from kernel_coder.rollout.transformers_engine import TransformersEngine, draw, uniform_numbers
from transformers import DynamicCache, PreTrainedTokenizerFast

TOKENIZER: PreTrainedTokenizerFast = tiny_tokenizer()
MODEL = tiny_model(len(TOKENIZER)).double().eval()
ENGINE = TransformersEngine(MODEL, TOKENIZER)
PROMPTS = [TOKENIZER.encode(text) for text in ("def f(x):", "import torch\nclass Model", "a")]


def logprobs_of(turn: Turn, temperature: float) -> torch.Tensor:
    ids = torch.tensor([turn.prompt_ids + turn.completion_ids])
    with torch.no_grad():
        logits = MODEL(ids).logits[0, len(turn.prompt_ids) - 1 : -1]
    return torch.log_softmax(logits.float() / temperature, 1).gather(1, ids[0, len(turn.prompt_ids) :, None])[:, 0]


@pytest.mark.parametrize(
    "sampling",
    [dict(), dict(temperature=0.7), dict(top_k=3), dict(top_p=0.5), dict(temperature=2.0, top_k=20, top_p=0.9)],
)
def test_logprobs_are_those_of_a_plain_forward_pass(sampling: dict[str, float]) -> None:
    settings = Sampling(max_completion_length=20, **sampling)  # type: ignore[arg-type]
    for turn in ENGINE.generate(PROMPTS, settings, [1, 2, 3]):
        torch.testing.assert_close(
            torch.tensor(turn.logprobs), logprobs_of(turn, settings.temperature), atol=1e-5, rtol=0
        )


def test_answer_depends_on_its_seed_and_not_on_its_neighbours() -> None:
    sampling = Sampling(max_completion_length=16)
    together = ENGINE.generate(PROMPTS, sampling, [1, 2, 3])
    turned = ENGINE.generate(PROMPTS[::-1], sampling, [3, 2, 1])[::-1]
    alone = [ENGINE.generate([p], sampling, [s])[0] for p, s in zip(PROMPTS, [1, 2, 3], strict=True)]
    for answers in (turned, alone):
        assert [turn.completion_ids for turn in answers] == [turn.completion_ids for turn in together]


def test_repeated_prompt_is_computed_once_and_answered_differently() -> None:
    calls: list[tuple[int, ...]] = []
    handle = MODEL.register_forward_pre_hook(
        lambda m, a, k: calls.append(tuple(k["input_ids"].shape)), with_kwargs=True
    )
    turns = ENGINE.generate([PROMPTS[0]] * 3 + [PROMPTS[1]] * 3, Sampling(max_completion_length=8), range(6))
    handle.remove()
    assert calls[0] == (2, max(len(PROMPTS[0]), len(PROMPTS[1])))
    assert len({turn.completion_ids for turn in turns[:3]}) == 3
    one = ENGINE.generate([PROMPTS[1]], Sampling(max_completion_length=8), [4])[0]
    assert one.completion_ids == turns[4].completion_ids


def test_batch_size_changes_nothing() -> None:
    small = TransformersEngine(MODEL, TOKENIZER, batch_size=2)
    sampling = Sampling(max_completion_length=8)
    assert [t.completion_ids for t in small.generate(PROMPTS, sampling, [1, 2, 3])] == [
        t.completion_ids for t in ENGINE.generate(PROMPTS, sampling, [1, 2, 3])
    ]


def test_answer_ends_with_its_end_of_sequence_token() -> None:
    seeds = range(80)
    turns = ENGINE.generate([PROMPTS[2]] * len(seeds), Sampling(max_completion_length=60, temperature=1.5), seeds)
    ended = [turn for turn in turns if turn.finish_reason == "stop"]
    assert ended, "no seed ended; the test needs a longer answer"
    for turn in turns:
        ends = [i for i, token in enumerate(turn.completion_ids) if token in ENGINE.eos_ids]
        assert ends == ([len(turn.completion_ids) - 1] if turn.finish_reason == "stop" else [])
        assert "<|im_end|>" not in turn.text
        assert turn.finish_reason == "stop" or len(turn.completion_ids) == 60


def test_long_answers_outgrow_the_cache_and_ended_ones_leave_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same answers as from a cache that is copied for every token and keeps every row."""
    rows: list[int] = []
    forward = TransformersEngine._forward

    def watched(engine: TransformersEngine, ids: torch.Tensor, *rest: object) -> torch.Tensor:
        rows.append(len(ids))
        return forward(engine, ids, *rest)  # type: ignore[arg-type]

    prompts, seeds = [PROMPTS[i % 3] for i in range(12)], list(range(12))
    sampling = Sampling(max_completion_length=300, temperature=1.0)
    plain = DynamicCache
    with monkeypatch.context() as patched:
        patched.setattr(transformers_engine, "growing_cache", lambda config: plain(config=config))
        patched.setattr(transformers_engine, "COMPACT_BELOW", 0.0)
        wanted = ENGINE.generate(prompts, sampling, seeds)
    monkeypatch.setattr(transformers_engine, "CACHE_GROWTH", 7)
    monkeypatch.setattr(TransformersEngine, "_forward", watched)
    found = ENGINE.generate(prompts, sampling, seeds)
    assert [turn.completion_ids for turn in found] == [turn.completion_ids for turn in wanted]
    for one, other in zip(found, wanted, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-6)
    assert rows[1] == 12
    assert rows[-1] <= 9
    assert max(len(turn.completion_ids) for turn in found) > 100


def test_temperature_zero_takes_the_most_likely_token() -> None:
    turns = ENGINE.generate(PROMPTS, Sampling(max_completion_length=5, temperature=0.0), [1, 2, 3])
    assert turns == ENGINE.generate(PROMPTS, Sampling(max_completion_length=5, temperature=0.0), [7, 8, 9])
    ids = torch.tensor([turns[0].prompt_ids])
    assert int(MODEL(ids).logits[0, -1].argmax()) == turns[0].completion_ids[0]


def test_poll_that_raises_ends_the_call() -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ENGINE.generate(PROMPTS, Sampling(max_completion_length=5), [1, 2, 3], poll=stop)


def test_seeds_must_match_prompts() -> None:
    with pytest.raises(ValueError, match="got 1 seeds for 3 prompts"):
        ENGINE.generate(PROMPTS, Sampling(max_completion_length=5), [1])


def test_turn_refuses_logprobs_that_do_not_match() -> None:
    with pytest.raises(ValueError, match="got 1 for 2"):
        Turn((1,), (2, 3), (0.0,), "", "stop")


def test_draws_follow_the_distribution() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]]).expand(20000, -1)
    numbers = uniform_numbers(0, 20000)
    for sampling, kept in ((Sampling(max_completion_length=1), 4), (Sampling(max_completion_length=1, top_k=2), 2)):
        tokens, _ = draw(logits, numbers, sampling)
        probs = torch.softmax(logits[0, :kept], 0)
        assert torch.allclose(tokens.bincount(minlength=4)[:kept] / 20000, probs, atol=0.01)
        assert int(tokens.max()) < kept


@settings(max_examples=60, deadline=None)
@given(
    logits=st.lists(st.floats(-30, 30), min_size=2, max_size=9),
    number=st.floats(0, 1, exclude_max=True, width=32),
    top_p=st.floats(0.05, 1),
    top_k=st.integers(0, 9),
)
def test_drawn_token_is_among_those_that_are_kept(logits: list[float], number: float, top_p: float, top_k: int) -> None:
    row = torch.tensor([logits])
    sampling = Sampling(max_completion_length=1, top_p=top_p, top_k=top_k)
    token, logprob = draw(row, torch.tensor([number], dtype=torch.float64), sampling)
    probs = torch.softmax(row, 1)[0]  # as rounded in the draw: logits may differ where probabilities do not
    larger = probs[probs > probs[token]]
    assert top_k == 0 or larger.numel() < top_k
    assert larger.sum() < top_p + 1e-6
    torch.testing.assert_close(logprob, torch.log_softmax(row, 1)[0, token])


def test_prefix_of_the_random_numbers_does_not_depend_on_their_count() -> None:
    assert torch.equal(uniform_numbers(3, 100)[:17], uniform_numbers(3, 17))


def test_completion_seeds_differ_and_stay_the_same() -> None:
    assert len({completion_seed(s, t, i) for s in range(3) for t in "ab" for i in range(4)}) == 24
    assert completion_seed(42, 0, "task", 1) == 3365523845021788632  # another seed would break the resume of old runs


def test_tiny_tokenizer_keeps_any_text() -> None:
    for text in ("def f(x):\n    return x\n", "ünïcödé ∑ 漢字 🙂", "\t\x00 ", "```python\n```"):
        assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


def test_tiny_model_is_the_same_every_time_and_leaves_the_random_state_alone() -> None:
    before = torch.get_rng_state()
    first, second = (tiny_model(300, hidden=16).state_dict() for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert torch.equal(before, torch.get_rng_state())

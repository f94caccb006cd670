from __future__ import annotations

import difflib
import importlib.util
import inspect
import itertools
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_coder import _C, ops, reference

WAYS = ["automatic", "bits", "anchors", "diagonals", "windows"]
LEVELS = ["automatic", "generic", "avx2", "avx512"]
CODE = Path(difflib.__file__).read_text(encoding="utf-8")
ROOT = Path(__file__).parent.parent.parent


def assert_is_difflibs(a: str, b: str, autojunk: bool = False) -> None:
    """Every algorithm and instruction set gives the bits of difflib's ratio."""
    expected = difflib.SequenceMatcher(None, a, b, autojunk).ratio()
    for way in WAYS:
        assert _C.sequence_similarity(a, b, autojunk, way).hex() == expected.hex(), (way, autojunk, a, b)
    for level in LEVELS:
        result = _C.sequence_similarity(a, b, autojunk, "diagonals", level)
        assert result.hex() == expected.hex(), (level, autojunk, a, b)


def load_fuzzer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fuzzer", ROOT / "fuzz/fuzz_sequence_similarity.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("alphabet", "longest"), [("ab", 6), ("abc", 4)])
def test_all_pairs_over_a_small_alphabet_give_difflibs_bits(alphabet: str, longest: int) -> None:
    texts = ["".join(t) for size in range(longest + 1) for t in itertools.product(alphabet, repeat=size)]
    pairs = list(itertools.product(texts, texts))
    a, b = zip(*pairs, strict=True)
    expected = reference.sequence_similarities(a, b)
    assert torch.equal(ops.sequence_similarities(a, b, threads=2), expected)
    for way in WAYS:
        results = [_C.sequence_similarity(x, y, False, way) for x, y in pairs]
        assert results == expected.tolist(), way


def test_generated_pairs_give_difflibs_bits_in_every_way() -> None:
    fuzzer = load_fuzzer()
    kinds, compared = fuzzer.check_range((20, 0, 5000))
    assert sum(kinds.values()) == 5000
    assert compared >= 5000 * (len(fuzzer.WAYS) + len(fuzzer.LEVELS))


@settings(max_examples=300, deadline=None)
@given(st.text(st.characters(codec=None), max_size=30), st.text(st.characters(codec=None), max_size=30), st.booleans())
def test_any_text_gives_difflibs_bits(a: str, b: str, autojunk: bool) -> None:
    assert_is_difflibs(a, b, autojunk)


@settings(max_examples=300, deadline=None)
@given(st.text("ab\n", min_size=60, max_size=70), st.text("ab\n", min_size=60, max_size=70))
def test_lengths_around_a_machine_word_give_difflibs_bits(a: str, b: str) -> None:
    assert_is_difflibs(a, b)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_edited_code_gives_difflibs_bits(data: st.DataObject) -> None:
    begin = data.draw(st.integers(0, len(CODE) - 600))
    a = CODE[begin : begin + data.draw(st.integers(0, 600))]
    b = a
    for _ in range(data.draw(st.integers(1, 6))):
        at, to, other = sorted(data.draw(st.tuples(*[st.integers(0, len(b))] * 3)))
        b = data.draw(
            st.sampled_from(
                [b[:at] + b[to:], b[:to] + b[at:], b[:at] + b[other:] + b[to:other], b[:at] + "é漢" + b[at:]]
            )
        )
    assert_is_difflibs(a, b, data.draw(st.booleans()))


@pytest.mark.parametrize("size", [199, 200, 201, 299, 300, 301])
@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_characters_around_difflibs_popularity_threshold_give_difflibs_bits(size: int, extra: int) -> None:
    rng = random.Random(size)
    rare = [chr(0x3000 + k) for k in range(size)]
    common = "xyz" * (size // 100 + 1 + extra)
    letters = (list(common) + rare)[:size]
    for _ in range(10):
        rng.shuffle(letters)
        b = "".join(letters)
        a = b[40:90] + "xyz" + b[:40] + b[120:] + "zyx"
        assert_is_difflibs(a, b, autojunk=True)
        assert_is_difflibs(a, b, autojunk=False)


def test_autojunk_changes_the_result_from_200_characters_on() -> None:
    for size, changed in ((199, False), (200, True)):
        a, b = "x" * size, "y" + "x" * (size - 1)
        with_junk = ops.sequence_similarity(a, b, autojunk=True)
        assert (with_junk != ops.sequence_similarity(a, b)) is changed


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("", ""), ("", "a"), ("a", ""), ("\0", "\0"), ("\ud800", "\ud800"), ("\ud83d\ude00", "😀"), ("é", "é"),
        ("a" * 300, "a" * 300), ("\U0010ffff" * 3, "\U0010ffff\uffff"), ("aß" * 40, "aẞ" * 40), ("qabxcd", "abycdf"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("autojunk", [False, True])
def test_special_texts_give_difflibs_bits(a: str, b: str, autojunk: bool) -> None:
    assert_is_difflibs(a, b, autojunk)


@pytest.mark.parametrize(("first", "count"), [(0x20, 300), (0x4E00, 300), (0x1F000, 300), (0x20, 255), (0x20, 254)])
def test_alphabets_around_256_characters_give_difflibs_bits(first: int, count: int) -> None:
    rng = random.Random(count)
    alphabet = [chr(first + k) for k in range(count)]
    for _ in range(5):
        a = "".join(alphabet + rng.choices(alphabet, k=200))
        b = "".join(rng.sample(alphabet, k=count) + rng.choices(alphabet, k=100)) + a[100:160]
        assert_is_difflibs(a, b)
        assert_is_difflibs(a, b, autojunk=True)


@pytest.mark.parametrize("size", [1000, 3000])
def test_longer_files_give_difflibs_bits(size: int) -> None:
    a, b = CODE[5000 : 5000 + size], CODE[9000 : 9000 + size]
    edited = a.replace("self", "this").replace("\n\n", "\n").replace("blo", "b_low")
    for autojunk in (False, True):
        assert_is_difflibs(a, b, autojunk)
        assert_is_difflibs(a, edited, autojunk)


@pytest.mark.parametrize(
    ("a", "b", "ratio"),
    [
        ("a" * 64000, "a" * 64000, 1.0),
        ("a" * 64000, "a" * 63999 + "b", 2 * 63999 / 128000),
        ("a" * 64000, "a" * 32000 + "b" + "a" * 31999, 2 * 63999 / 128000),
        ("a" * 64000, "b" * 64000, 0.0),
        ("abcd" * 16000, "efgh" * 16000, 0.0),
        ("ab" * 32000, "ba" * 32000, 2 * 63999 / 128000),
        ("a?" * 32000, "a!" * 32000, 0.5),
        (("a" * 63 + "c") * 1000, "a" * 63 + "b", 2 * 63 / 64064),
    ],
    ids=["same", "last differs", "middle differs", "nothing in common", "no letter in common", "periodic",
         "every other", "long and thin"],
)  # fmt: skip
def test_texts_that_are_difflibs_worst_case_take_less_than_two_seconds(a: str, b: str, ratio: float) -> None:
    start = time.process_time()
    assert ops.sequence_similarity(a, b) == ratio
    assert time.process_time() - start < 2
    for autojunk in (False, True):
        assert_is_difflibs(a[:260], b[:260], autojunk)


@pytest.mark.parametrize("weights", [(1, 1), (99, 1), (999, 1)])
def test_two_letters_at_random_take_less_than_two_seconds(weights: tuple[int, int]) -> None:
    rng = random.Random(3)
    a, b = ("".join(rng.choices("ab", weights, k=64000)) for _ in range(2))
    start = time.process_time()
    ratio = ops.sequence_similarity(a, b)
    assert time.process_time() - start < 2
    assert _C.sequence_similarity(a, b, False, "windows") == ratio
    assert_is_difflibs(a[:400], b[:400])


def test_deepest_recursion_takes_less_than_two_seconds() -> None:
    """The matches have every length from 357 down to 1. Each lies in the rest that the longer match leaves."""
    a = "".join("x" * k + chr(0x4000 + k) for k in range(357, 0, -1))
    b = "".join("x" * k + chr(0x5000 + k) for k in range(357, 0, -1))
    start = time.process_time()
    assert ops.sequence_similarity(a, b) == 2 * (len(a) - 357) / (2 * len(a))
    assert time.process_time() - start < 2


def test_batch_equals_single_calls_for_any_number_of_threads() -> None:
    rng = random.Random(4)
    a = ["".join(rng.choices("abé漢😀", k=rng.randrange(90))) for _ in range(300)]
    b = ["".join(rng.choices("abé漢😀", k=rng.randrange(90))) for _ in range(300)]
    expected = [ops.sequence_similarity(x, y, autojunk=True) for x, y in zip(a, b, strict=True)]
    for threads in (None, 1, 2, 7, 10**20):
        result = ops.sequence_similarities(a, tuple(b), autojunk=True, threads=threads)
        assert result.dtype == torch.float64
        assert result.tolist() == expected


def test_empty_batch_gives_an_empty_tensor() -> None:
    result = ops.sequence_similarities([], [])
    assert result.shape == (0,)
    assert result.dtype == torch.float64


def test_other_python_threads_run_during_a_long_batch() -> None:
    """The GIL is released: a thread counts on while a long batch is computed."""
    rng = random.Random(5)
    a = ["".join(rng.choices("ab", (999, 1), k=64000)) for _ in range(30)]
    done = threading.Event()
    seen = threading.Event()

    def watch() -> None:
        while not done.wait(0.001):
            seen.set()

    watcher = threading.Thread(target=watch)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # no thread loses the GIL before it releases the GIL
    try:
        watcher.start()
        seen.clear()
        ops.sequence_similarities(a, a[::-1], threads=1)
        assert seen.is_set()
    finally:
        done.set()
        sys.setswitchinterval(interval)
        watcher.join()


def test_wrong_arguments_are_refused_in_one_sentence() -> None:
    with pytest.raises(TypeError, match=r"^a must be str; got bytes$"):
        ops.sequence_similarity(b"a", "b")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^b must be str; got NoneType$"):
        ops.sequence_similarity("a", None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^item 3 of a must be str; got int$"):
        ops.sequence_similarities(["", "", "", 4], [""] * 4)  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"^b must be a list of str; got str$"):
        ops.sequence_similarities(["a", "b"], "ab")
    with pytest.raises(TypeError, match=r"^a must be a list of str; got int$"):
        ops.sequence_similarities(3, ["a"])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^a and b must have the same length; got 2 and 1 texts$"):
        ops.sequence_similarities(["a", "b"], ["a"])
    with pytest.raises(ValueError, match=r"^threads must be at least 1; got 0$"):
        ops.sequence_similarities(["a"], ["a"], threads=0)
    with pytest.raises(TypeError, match=r"^threads must be int or None; got float$"):
        ops.sequence_similarities(["a"], ["a"], threads=1.5)  # type: ignore[arg-type]


@pytest.mark.parametrize("function", ["sequence_similarity", "sequence_similarities"])
def test_the_reference_has_the_same_signature(function: str) -> None:
    assert inspect.signature(getattr(ops, function)) == inspect.signature(getattr(reference, function))


def test_the_fuzzer_runs_as_a_command(tmp_path: Path) -> None:
    out = tmp_path / "row.csv"
    command = [sys.executable, str(ROOT / "fuzz/fuzz_sequence_similarity.py"), "--pairs", "50", "--out", str(out)]
    subprocess.run(command, check=True, timeout=120, capture_output=True)
    assert out.read_text(encoding="utf-8").startswith("pairs,differences,")

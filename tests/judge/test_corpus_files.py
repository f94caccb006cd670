"""The files of the corpus: complete headers, enough candidates of each kind, and correct honest candidates.

These tests parse hostile candidates and never run them.
"""

import ast
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import corpus
import pytest
import torch
from kernel_coder.judge.examiner.hidden_shapes import with_named_sizes
from kernel_coder.tasks.task import BACKENDS, PRECISIONS, reference_problem, solution_problem

HERE = Path(__file__).parent
CANDIDATES = [*corpus.hostile(), *corpus.honest()]
by_task = pytest.mark.parametrize("task", corpus.tasks().values(), ids=lambda task: task.name)

# Candidates without a class ModelNew: they exit, fail or hang at import.
NO_CLASS = {"h50_exit_at_import", "h50_segfault", "h54_preload", "h56_dies_while_building", "h62_harness"} | {
    "h62_hangs_at_start",
    "h62_memory_at_import",
    "h63_loop_at_import",
}


def test_corpus_has_enough_hostile_and_honest_candidates():
    assert len(corpus.hostile()) >= 450
    assert len(corpus.honest()) >= 250
    assert 15 <= len(corpus.tasks()) <= 60
    for backend, least in {"triton": 70, "cuda": 12, "cpp": 8, "torch": 6}.items():
        assert sum(candidate.backend == backend for candidate in corpus.honest()) >= least


def test_at_least_ninety_candidates_of_each_kind_need_no_gpu():
    assert sum(not candidate.needs_cuda for candidate in corpus.hostile()) >= 90
    assert sum(not candidate.needs_cuda for candidate in corpus.honest()) >= 90


def test_every_task_has_an_honest_candidate_and_many_tasks_have_hostile_ones():
    assert {candidate.task.name for candidate in corpus.honest()} == set(corpus.tasks())
    assert len({candidate.task.name for candidate in corpus.hostile()}) >= 15


def test_every_hack_has_a_candidate_or_a_stated_reason_for_having_none():
    everything = {f"H{number:02}" for number in range(1, 74)}
    assert corpus.HACKS.keys() | corpus.NOT_EXPRESSED.keys() == everything
    assert not corpus.HACKS.keys() & corpus.NOT_EXPRESSED.keys()
    assert {candidate.hack for candidate in corpus.hostile()} == corpus.HACKS.keys()


def test_common_hacks_have_several_forms():
    forms = [candidate.hack for candidate in corpus.hostile()]
    common = "H01 H02 H03 H04 H05 H08 H09 H10 H11 H14 H16 H19 H20 H22 H23 H25 H28 H29 H32 H35 H37 H45 H49 H50 H51 H52"
    for hack in f"{common} H57 H60 H62 H63 H65 H66 H68".split():
        assert forms.count(hack) >= 3, hack


def test_headers_are_complete():
    for candidate in CANDIDATES:
        name = candidate.name
        assert candidate.backend in BACKENDS, name
        assert candidate.expect in corpus.EXPECTATIONS, name
        assert candidate.slow in (None, "build"), name
        assert len(candidate.why) > 10, name
        if candidate.is_hostile:
            assert len(candidate.form) > 5, name
            assert name.startswith(candidate.hack.lower() + "_"), name
        else:
            assert (candidate.expect, candidate.leak) == ("rejected", None), name
            assert candidate.allow in (None, "library_matmul"), name
        assert corpus.header(candidate.source).get("gradients", "compared") == "compared", name


def test_every_candidate_is_short_and_parses():
    for candidate in CANDIDATES:
        most = 90 if "flash_attention" in candidate.name else 75
        assert len(candidate.source.splitlines()) <= most, candidate.name
        ast.parse(candidate.source, candidate.name)
        problem = solution_problem(candidate.source)
        assert (problem is not None) == (candidate.name in NO_CLASS), (candidate.name, problem)


def test_header_says_whether_a_candidate_needs_a_gpu_or_a_compiler():
    for candidate in CANDIDATES:
        if candidate.backend == "cuda" or "torch.cuda.Stream" in candidate.source:
            assert candidate.needs_cuda, candidate.name
        if "load_inline(" in candidate.source and not candidate.is_hostile:
            assert candidate.slow == "build", candidate.name


def test_no_two_candidates_have_the_same_code():
    code = {}
    for candidate in CANDIDATES:
        tree = ast.dump(ast.parse(candidate.source))
        assert code.setdefault(tree, candidate.name) == candidate.name


@by_task
def test_reference_runs_at_both_sizes_without_nan(task):
    assert reference_problem(task.source) is None
    assert task.precision in PRECISIONS
    space: dict = {}
    exec(compile(with_named_sizes(task.source), task.name, "exec"), space)
    assert all(name in space and space[name] != size for name, size in task.second.items())
    for sizes in ({}, task.second):
        space.update(sizes)
        init = space["get_init_inputs"]()
        args, kwargs = init if len(init) == 2 and isinstance(init[1], dict) else (init, {})
        out = space["Model"](*args, **kwargs)(*space["get_inputs"]())
        parts = out.values() if isinstance(out, dict) else out if isinstance(out, tuple | list) else [out]
        for part in parts:
            assert isinstance(part, torch.Tensor)
            assert not part.isnan().any()


def trusted_run(candidates, timeout_s):
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment.get('PATH', '')}"  # ninja
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", HERE / "trusted_run.py", *(candidate.name for candidate in candidates)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    results = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [result["name"] for result in results] == [candidate.name for candidate in candidates]
    return {result["name"]: result["problem"] for result in results if result["problem"]}


@pytest.mark.long  # test_corpus.py has the same candidates judged
def test_honest_candidates_agree_with_their_references():
    pytest.importorskip("triton")
    assert trusted_run([c for c in corpus.honest() if not c.needs_cuda and not c.slow], timeout_s=250) == {}


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_honest_candidates_that_need_a_compiler_agree_with_their_references(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    monkeypatch.setenv("MAX_JOBS", "1")
    chosen = [candidate for candidate in corpus.honest() if not candidate.needs_cuda and candidate.slow]
    if os.environ.get("KC_CORPUS") != "all":
        chosen = [one for one in chosen if one.name == "cpp_matmul_template"]  # half a minute; test_corpus.py has more
    halves = [half for half in (chosen[::2], chosen[1::2]) if half]
    with ThreadPoolExecutor(2) as pool:  # each half waits for a compiler
        assert not any(pool.map(lambda half: trusted_run(half, timeout_s=1150), halves))

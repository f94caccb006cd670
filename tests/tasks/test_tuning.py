"""Changed launch settings: which words change, which stay, and that the results stay the same."""

from __future__ import annotations

import re
from random import Random

import pytest
from kernel_coder.data.verifiers import Candidate, InterpreterVerifier
from kernel_coder.tasks.generator import FAMILIES, generate
from kernel_coder.tasks.generator.tuning import retune

PRODUCT = """\
matmul_kernel[(triton.cdiv(M, 32), triton.cdiv(N, 64))](
    x, y, out, M, N, K,
    BLOCK_M=32, BLOCK_N=64, BLOCK_K=32,
)
"""


def changed_words(before: str, after: str) -> set[tuple[str, str]]:
    """Return the differing words of two texts with equally many words."""
    old, new = (re.findall(r"\w+|\S", text) for text in (before, after))
    assert len(old) == len(new)
    return {(a, b) for a, b in zip(old, new, strict=True) if a != b}


@pytest.mark.long
@pytest.mark.timeout(300)
def test_tuned_solutions_of_every_family_give_the_same_results() -> None:
    tuned = []
    for name in FAMILIES:
        task = generate(7, name, 0).task
        codes = {retune(task.solution or "", Random(seed)) for seed in range(12)}
        codes.discard(None)
        assert codes, name
        with_tiles = sorted(code for code in codes if code and "num_warps" not in code)
        with_warps = sorted(code for code in codes if code and "num_warps" in code)
        tuned += [Candidate(task, code) for code in (*with_tiles[:2], *with_warps[:1])]
    with InterpreterVerifier(workers=2, timeout_s=60.0) as verifier:
        findings = list(verifier.verify(tuned))
    assert [(f.reason, c.code) for f, c in zip(findings, tuned, strict=True) if not f.correct] == []


@pytest.mark.parametrize("seed", range(40))
def test_tile_size_and_its_part_of_the_grid_change_together(seed: int) -> None:
    code = retune(PRODUCT, Random(seed))
    assert code is not None
    if "num_warps" in code:
        return
    ((old, new),) = changed_words(PRODUCT, code)
    changed = re.findall(rf"\b{new}\b", code)
    assert int(new) in (16, 32, 64)
    of_m, of_n = re.findall(r"cdiv\(\w, (\d+)\)", code)
    assert f"BLOCK_M={of_m}, BLOCK_N={of_n}," in code
    assert changed
    assert old != new


@pytest.mark.parametrize(
    "launch",
    [
        "kernel[grid](x, BLOCK=1024)",
        "kernel[(n // 1024,)](x, BLOCK=1024)",
        "kernel[(triton.cdiv(n, 512),)](x, BLOCK=1024)",
        "kernel[(triton.cdiv(T, 32), 4)](x, BLOCK_M=32, BLOCK_N=32)",
        "kernel[(n,)](x, BLOCK=triton.next_power_of_2(n))",
    ],
)
def test_only_the_number_of_warps_changes_if_the_grid_depends_otherwise_on_the_tile_size(launch: str) -> None:
    for seed in range(20):
        code = retune(launch, Random(seed))
        assert code is not None
        assert re.sub(r", num_warps=\d+", "", code) == launch


def test_given_number_of_warps_is_replaced_and_text_without_a_launch_is_skipped() -> None:
    launch = "kernel[(n,)](x, BLOCK=n, num_warps=8)  # größer"
    assert {retune(launch, Random(seed)) for seed in range(40)} == {
        launch.replace("8", str(count)) for count in (1, 2, 4, 16)
    }
    assert retune("out = torch.relu(x, inplace=True)", Random(0)) is None

"""Changes the launch settings of a solution: its tile size or its number of warps, never what it computes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from random import Random

WARPS = (1, 2, 4, 8, 16)
"""Numbers of warps of a launch. Triton's default is 4. With more than 16 a thread has at most 64 registers."""

VECTOR_TILES = (256, 512, 1024, 2048, 4096)
"""Tile sizes of a kernel with one tile dimension, in elements."""

SQUARE_TILES = (16, 32, 64)
"""Sizes of one dimension of a two-dimensional tile, in elements. ``tl.dot`` needs at least 16. A tile of 128 x 128
32-bit values takes half of the registers of four warps."""

CDIV = "triton.cdiv"
"""The function with which a grid is computed from a size and a tile size."""

Edit = tuple[int, int, str]
"""A range of the text, in characters, and what replaces it."""


def retune(code: str, rng: Random) -> str | None:
    """Return the solution with another tile size or number of warps in one launch; None if there is no launch to
    change.

    Grid and tile size change together, so every element still belongs to exactly one program, and the results stay
    the same up to the order of sums.

    >>> code = "add_kernel[(triton.cdiv(n, 1024),)](x, out, n, BLOCK=1024)"
    >>> retune(code, Random(0))
    'add_kernel[(triton.cdiv(n, 1024),)](x, out, n, BLOCK=1024, num_warps=16)'
    >>> retune(code, Random(1))
    'add_kernel[(triton.cdiv(n, 256),)](x, out, n, BLOCK=256)'
    """
    changes: list[list[Edit]] = []
    for launch in _launches(code):
        changes += _warps(code, launch, rng), *_tiles(code, launch, rng)
    changes = [change for change in changes if change]
    if not changes:
        return None
    for start, end, new in sorted(rng.choice(changes), reverse=True):
        code = code[:start] + new + code[end:]
    return code


def _launches(code: str) -> Iterator[ast.Call]:
    """Yield the calls of the form ``kernel[grid](..., BLOCK=...)``."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript) and node.keywords:
            yield node


def _warps(code: str, launch: ast.Call, rng: Random) -> list[Edit]:
    """Return the edits that give the launch another number of warps."""
    given = next((one.value for one in launch.keywords if one.arg == "num_warps"), None)
    if given is not None:
        if not isinstance(given, ast.Constant):
            return []
        new = rng.choice([count for count in WARPS if count != given.value])
        return [(*_range(code, given), str(new))]
    _, end = _range(code, launch.keywords[-1].value)
    return [(end, end, f", num_warps={rng.choice([count for count in WARPS if count != 4])}")]


def _tiles(code: str, launch: ast.Call, rng: Random) -> list[list[Edit]]:
    """Return the changes of one tile size each; none where it is not clear what the grid divides by."""
    assert isinstance(launch.func, ast.Subscript)
    grid = launch.func.slice
    if not isinstance(grid, ast.Tuple) or any(isinstance(node, ast.FloorDiv) for node in ast.walk(grid)):
        return []
    divisions = [node for node in ast.walk(grid) if isinstance(node, ast.Call) and ast.unparse(node.func) == CDIV]
    blocks = {
        one.arg: one.value
        for one in launch.keywords
        if one.arg and one.arg.startswith("BLOCK") and isinstance(one.value, ast.Constant)
    }
    changes = []
    for name, divisors in _divisors(blocks, divisions).items():
        size = blocks[name].value
        known = next((tiles for tiles in (VECTOR_TILES, SQUARE_TILES) if size in tiles), ())
        if known and all(isinstance(one, ast.Constant) and one.value == size for one in divisors):
            new = str(rng.choice([other for other in known if other != size]))
            changes.append([(*_range(code, place), new) for place in (blocks[name], *divisors)])
    return changes


def _divisors(blocks: dict[str, ast.Constant], divisions: list[ast.Call]) -> dict[str, list[ast.expr]]:
    """Return the numbers in the grid that are equal to a tile size, by the name of that size.

    The grid divides the size ``M`` by ``BLOCK_M``. All other divisions belong to the only tile size without one. If
    there are no other divisions, a tile size without one is the step of a loop, like ``BLOCK_K`` of a matrix product.
    """
    found: dict[str, list[ast.expr]] = {}
    for name in blocks:
        own = [one for one in divisions if name == f"BLOCK_{ast.unparse(one.args[0])}"]
        divisions = [one for one in divisions if one not in own]
        found[name] = [one.args[1] for one in own]
    without = [name for name, divisors in found.items() if not divisors]
    if len(without) == 1 and divisions:
        found[without[0]] = [one.args[1] for one in divisions]
    elif divisions:
        found = {name: divisors for name, divisors in found.items() if divisors}
    return {name: divisors for name, divisors in found.items() if divisors or name != "BLOCK"}


def _range(code: str, node: ast.expr) -> tuple[int, int]:
    """Return the place of an expression in the text, in characters."""
    lines = code.splitlines(keepends=True)
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    ends = ((node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset))
    start, end = (
        sum(map(len, lines[: line - 1])) + len(lines[line - 1].encode()[:column].decode()) for line, column in ends
    )
    return start, end

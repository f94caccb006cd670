"""Plants a bug in a solution, of a kind that people and models make.

Every kind is an edit of the solution's text. The verifier decides whether the result is wrong: an edit can have no
effect (on a mask, if the sizes are multiples of the block), and then the result is not used as a wrong solution.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random

from kernel_coder.tasks.task import Task, parse

Edit = Callable[[str, Random], str | None]
"""A function that returns the text with the bug, or None if there is no place for it."""


def plant_bug(task: Task, rng: Random, kind: str | None = None) -> tuple[str, str]:
    """Return the task's solution with one planted bug, and its kind.

    Args:
        task: a task with a solution.
        rng: decides on the kind and the place.
        kind: one of :data:`KINDS`; None: any kind for which there is a place in the solution.

    Raises:
        ValueError: the task has no solution, the kind is unknown, or there is no place for it in the solution.

    >>> from kernel_coder.tasks.generator import generate
    >>> made = generate(3, "softmax", 0)
    >>> code, kind = plant_bug(made.task, Random(0), "missing_model_new")
    >>> "class ModelNew" in code, kind
    (False, 'missing_model_new')
    """
    if task.solution is None:
        raise ValueError(f"task {task.id} has no solution to plant a bug in")
    if kind is not None and kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}; got {kind!r}")
    kinds = [kind] if kind is not None else rng.sample(list(KINDS), len(KINDS))
    for each in kinds:
        code = KINDS[each](task.solution, rng)
        if code is not None and code != task.solution and (each == "syntax_error") == isinstance(parse(code), str):
            return code, each
    raise ValueError(f"the solution of task {task.id} offers no place for {kind or 'any bug'}")


def _replace_one(pattern: str, replacement: str | Callable[[re.Match[str]], str], where: str = "") -> Edit:
    """Return an edit that replaces one random match of `pattern`, on lines that contain `where`."""

    def edit(code: str, rng: Random) -> str | None:
        found = [match for match in re.finditer(pattern, code, re.MULTILINE) if where in _line(code, match.start())]
        if not found:
            return None
        match = rng.choice(found)
        new = match.expand(replacement) if isinstance(replacement, str) else replacement(match)
        return code[: match.start()] + new + code[match.end() :]

    return edit


def _line(code: str, place: int) -> str:
    return code[code.rfind("\n", 0, place) + 1 : (code + "\n").find("\n", place)]


def _drop_line(pattern: str) -> Edit:
    """Return an edit that removes one random line that matches `pattern`."""

    def edit(code: str, rng: Random) -> str | None:
        lines = code.split("\n")
        found = [number for number, line in enumerate(lines) if re.search(pattern, line)]
        if not found:
            return None
        del lines[rng.choice(found)]
        return "\n".join(lines)

    return edit


def _wrong_constant(code: str, rng: Random) -> str | None:
    start, end = code.index("@triton.jit"), code.index("class ModelNew")
    places = [
        match
        for match in re.finditer(r"(?<![\w.\"])\d+\.\d+(?:e-?\d+)?", code)
        if start < match.start() < end and "other=" not in code[match.start() - 8 : match.start()]
    ]
    if not places:
        return None
    match = rng.choice(places)
    value = float(match[0])
    new = rng.choice((value * 1.1, value * 2.0, value + 0.5)) if value else 0.1
    return code[: match.start()] + repr(round(new, 6)) + code[match.end() :]


def _swapped_arguments(code: str, rng: Random) -> str | None:
    """Swap two of the pointers of a launch, or the two values of a where."""
    launch = re.search(r"_kernel\[.*\]\(\s*([^()]*?\bout\b|[^()]*?\bpartial\b|[^()]*?\bloss\b)", code)
    if launch is None:
        return None
    names = launch[1].split(", ")
    if len(names) < 2:
        return None
    i = rng.randrange(len(names) - 1)
    names[i], names[i + 1] = names[i + 1], names[i]
    return code[: launch.start(1)] + ", ".join(names) + code[launch.end(1) :]


def _wrong_stride(code: str, rng: Random) -> str | None:
    """Replace the size by which a row is multiplied by another size of the kernel."""
    signature = re.search(r"_kernel\(([^:]*:[^)]*)\)", code)
    sizes = re.findall(r"\b(?:n_cols|n_rows|[MNKSTDCHWL]|O[HWL]|BLOCK\w*)\b", signature[1]) if signature else []
    found = [
        match for match in re.finditer(r"\* ([a-zA-Z_]+)\b", code) if re.search(r"_ptr \+", _line(code, match.start()))
    ]
    found = [match for match in found if match[1] in sizes]
    if not found:
        return None
    match = rng.choice(found)
    others = [size for size in sizes if size != match[1]]
    return code[: match.start(1)] + rng.choice(others) + code[match.end(1) :] if others else None


def _no_max_subtraction(code: str, rng: Random) -> str | None:
    """Leave out the subtraction of the maximum before exp, also in log_softmax and logsumexp."""
    new = re.sub(r"tl\.exp\((\w+) - tl\.max\([^\n]*\)(?:\[[^\n]*\])?\)$", r"tl.exp(\1)", code, flags=re.MULTILINE)
    new = re.sub(r"^    (\w+) = \1 - tl\.max\(.*\n(?=    \1 = \1 - tl\.log)", "", new, flags=re.MULTILINE)
    return re.sub(r"^    largest = tl\.max\((\w+).*\n(?=.*tl\.exp)", r"    largest = 0.0\n", new, flags=re.MULTILINE)


def _undefined_name(code: str, rng: Random) -> str | None:
    start, end = code.index("@triton.jit"), code.index("class ModelNew")
    names = [m for m in re.finditer(r"\b(mask|index|cols|rows|acc|x)\b(?!\s*=[^=])", code) if start < m.start() < end]
    if not names:
        return None
    match = rng.choice(names)
    new = {"mask": "msk", "index": "idx", "cols": "col", "rows": "row_ids", "acc": "accumulator", "x": "x_val"}
    return code[: match.start()] + new[match[0]] + code[match.end() :]


def _syntax_error(code: str, rng: Random) -> str | None:
    return _replace_one(*rng.choice(((r"\):$", ")"), (r"\)$", ""), (r"^(    \w+) = tl", r"\1 = = tl"))))(code, rng)


def _wrong_operator(code: str, rng: Random) -> str | None:
    swaps = {" + ": " - ", " - ": " + ", " / ": " * ", " > ": " < "}
    start, end = code.index("@triton.jit"), code.index("class ModelNew")
    found = [
        match
        for match in re.finditer(r" [+\-/>] ", code)
        if start < match.start() < end
        and re.match(r"\s+\w+ [+]?= (?!tl\.load|tl\.arange|k \+)", _line(code, match.start()))
        and not re.search(r"arange|program_id|tl\.load|mask", _line(code, match.start()))
    ]
    if not found:
        return None
    match = rng.choice(found)
    return code[: match.start()] + swaps[match[0]] + code[match.end() :]


def _wrong_signature(code: str, rng: Random) -> str | None:
    match = re.search(r"def forward\(self, (.*)\):", code)
    if match is None:
        return None
    names = match[1].split(", ")
    changed = names[:-1] if len(names) > 1 and rng.random() < 0.5 else [*names, "scale_factor"]
    return code[: match.start(1)] + ", ".join(changed) + code[match.end(1) :]


def _returns_input(code: str, rng: Random) -> str | None:
    match = re.search(r"def forward\(self, (\w+)", code)
    return re.sub(r"        return .*\n$", f"        return {match[1]}\n", code) if match else None


def _not_launched(code: str, rng: Random) -> str | None:
    return re.sub(
        r"^        \w+_kernel\[.*\]\((?:.*\)|\n(?:            .*\n)+        \))\n", "", code, flags=re.MULTILINE
    )


def _wrong_shape(code: str, rng: Random) -> str | None:
    return re.sub(r"        return (\w+)\n$", r"        return \1.reshape(-1)[None]\n", code)


_OTHER = {"maximum": "minimum", "minimum": "maximum", "max": "min", "min": "max"}


KINDS: dict[str, Edit] = {
    "missing_load_mask": _replace_one(r"(tl\.load\([^\n]*?), mask=[^\n]*\)$", r"\1)", "tl.load"),
    "missing_store_mask": _replace_one(r"(tl\.store\([^\n]*), mask=[^\n]*\)$", r"\1)", "tl.store"),
    "wrong_padding": _replace_one(r"other=-?[\w.]+(?:\(\"inf\"\))?", lambda m: "other=1.0"),
    "wrong_stride": _wrong_stride,
    "swapped_indices": _replace_one(
        r"rows\[:, None\] \* (\w+) \+ cols\[None, :\]", r"cols[None, :] * \1 + rows[:, None]"
    ),
    "grid_too_small": _replace_one(r"\(triton\.cdiv\(([\w.()]+), (\d+)\)", r"(\1 // \2"),
    "row_left_out": _replace_one(r"\[\(n_rows,\)\]", "[(n_rows - 1,)]"),
    "wrong_axis": _replace_one(r"axis=([01])", lambda m: f"axis={1 - int(m[1])}"),
    "wrong_dimension": _replace_one(r"\.shape\[(-1|1)\]", ".shape[0]"),
    "forgotten_bias": _drop_line(r"^    (x|acc) \+?= (x \+ )?bias$"),
    "forgotten_operand": _replace_one(r" [-+*] (?:weight|bias|gain|residual|y)$", ""),
    "forgotten_operation": _drop_line(r"^    (x|acc|loss) = (?!tl\.load|tl\.zeros|tl\.full)"),
    "forgotten_eps": _replace_one(r" \+ 1e-\d+", ""),
    "large_eps": _replace_one(r"1e-\d+", "1e-2"),
    "no_max_subtraction": _no_max_subtraction,
    "wrong_constant": _wrong_constant,
    "wrong_operator": _wrong_operator,
    "max_for_min": _replace_one(r"tl\.(maximum|minimum|max|min)\(", lambda m: f"tl.{_OTHER[m[1]]}("),
    "sum_for_mean": _replace_one(r"(tl\.sum\(.*\)) / \(?[nN](?:_cols|_rows)?(?: - 1\))?$", r"\1"),
    "swapped_arguments": _swapped_arguments,
    "swapped_branches": _replace_one(r"tl\.where\((\w+ [<>] [\w.]+), ([^(),]+), ([^()]+)\)", r"tl.where(\1, \3, \2)"),
    "wrong_dtype": _replace_one(r"dtype=x\.dtype|torch\.empty_like\((x|q)\)", lambda m: _halved(m)),
    "uninitialised_accumulator": _drop_line(r"acc = tl\.(zeros|full)|start = "),
    "wrong_initial_value": _replace_one(r"tl\.zeros\((.*), dtype=tl\.float32\)", r"tl.full(\1, 1.0, dtype=tl.float32)"),
    "overwritten_accumulator": _replace_one(r"acc \+= ", "acc = "),
    "block_too_small": _replace_one(r"BLOCK(\w*)=(triton\.next_power_of_2\(.*?\)|\d+)", lambda m: _smaller(m)),
    "missing_store": _drop_line(r"^    tl\.store"),
    "not_launched": _not_launched,
    "undefined_name": _undefined_name,
    "missing_import": _drop_line(r"^import triton"),
    "missing_decorator": _drop_line(r"^@triton\.jit"),
    "syntax_error": _syntax_error,
    "wrong_signature": _wrong_signature,
    "missing_model_new": _replace_one(r"class ModelNew\(", "class Model("),
    "returns_input": _returns_input,
    "wrong_shape": _wrong_shape,
    "forgotten_return": _drop_line(r"^        return "),
}
"""Every kind of bug, with the edit that plants it."""


def _halved(match: re.Match[str]) -> str:
    return f"torch.empty_like({match[1]}, dtype=torch.float16)" if match[1] else "dtype=torch.float16"


def _smaller(match: re.Match[str]) -> str:
    size = match[2]
    return f"BLOCK{match[1]}={int(size) // 2 if size.isdecimal() else f'{size} // 2'}"

"""Makes the text that a model gets about its candidate: exact, clean and short.

Much of it comes from the candidate, or from a compiler that read the candidate. Such text is treated as data. It is
made printable and cut to a limit of characters. Anything that a template could take for a token is broken up.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import PurePosixPath

import kernel_coder
from kernel_coder.judge.verdict import MAX_FEEDBACK, Outcome, Verdict
from kernel_coder.ops.compare import ComparisonResult
from kernel_coder.run.hashes import sha256_text
from kernel_coder.tasks import Task

MAX_CHARACTERS = 2000
"""Default upper limit of a text, in characters: about 500 tokens."""

NOTE_CHARACTERS = 40
"""Number of characters reserved for a note that something was left out. The longest note fits."""

MAX_SCANNED = 200_000
"""Upper limit of the characters of a text that are processed: half at its beginning, half at its end. Limits time."""

NO_MESSAGE = "no message"
"""Text that replaces a reason without any readable character."""

CONTEXT_LINES = 3
"""Number of lines kept after a compiler's error: the source line, the mark under it, a suggestion."""


# ---- any text of a candidate


def bounded(text: str, budget: int = MAX_CHARACTERS) -> str:
    """Make a text harmless, and cut out its middle if it is longer than `budget` characters.

    First the end of every very long line is removed. Then whole lines are left out, so that about two thirds of the
    remaining text are its beginning. If that leaves no line at either end, the text is cut within a line.

    >>> bounded("first\\n" + 1000 * "more\\n" + "last", budget=66)
    'first\\nmore\\nmore\\n... (997 lines left out)\\nmore\\nlast'
    """
    if not 0 <= budget <= MAX_FEEDBACK:
        raise ValueError(f"budget must be between 0 and {MAX_FEEDBACK} characters; got {budget}")
    text = harmless(text).strip("\n")
    if len(text) <= budget:
        return text
    room = max(budget - NOTE_CHARACTERS, 0)
    longest = max(budget // 4, 80)
    lines = [line if len(line) <= longest else f"{line[: longest - 4]} ..." for line in text.split("\n")]
    head = _fitting(lines, room * 2 // 3)
    tail = _fitting(lines[len(head) :][::-1], room - sum(len(line) + 1 for line in head))[::-1]
    if len(head) + len(tail) == len(lines):
        return "\n".join(lines)
    if head and tail:
        return "\n".join([*head, f"... ({len(lines) - len(head) - len(tail)} lines left out)", *tail])
    begin = room * 2 // 3
    end = len(text) - (room - begin)
    return f"{text[:begin]} ... ({end - begin} characters left out) ... {text[end:]}"[:budget]


def _fitting(lines: Sequence[str], room: int) -> list[str]:
    """Return as many of the first lines as fit, counting a line break for each."""
    kept: list[str] = []
    for line in lines:
        room -= len(line) + 1
        if room < 0:
            break
        kept.append(line)
    return kept


_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_OVERWRITTEN = re.compile(r"^.*\r(?!$)", re.MULTILINE)
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Characters that Python calls printable and that show nothing: joiners, Hangul fillers, variation selectors."""

_TAGS = (
    r"s|bos|eos|pad|unk|mask|sop|eop|eoh|eoa|think|tools|tool_(?:calls?|response|result)|(?:start|end)_of_(?:turn|image)"
    r"|image_soft_token|fim_(?:prefix|middle|suffix|pad)|file_sep|repo_name|(?:BOS|EOS|EOP|MASK)_TOKEN|PAD|UNK|CLS|SEP"
)
_BRACKETED = r"INST|AVAILABLE_TOOLS|TOOL_(?:CALLS|RESULTS|CONTENT)|SYSTEM_PROMPT|MODEL_SETTINGS|THINK|[gs]MASK"
_TEMPLATE_TOKEN = re.compile(rf"<(?=[|｜]|/?(?:{_TAGS})>)|<<(?=/?SYS>>)|\[(?=/?(?:{_BRACKETED})\])|(?<=[|｜])>")
"""Places where tokens of chat templates are broken up: after the opening bracket, or before the closing one."""

_WORD = r"(?:[sS]eed|SPECIAL|extra_id|unused|reserved|role|AI|USER|user|assistant|system|human|bot|turn|begin|end)"
_OTHER_TOKEN = re.compile(
    rf"(?<!\w)<(?=/?{_WORD}[\w:-]*>)|(?<!\w)<(?=/?[\w-]+:(?:bos|eos|think|tool_call)>)|<(?=/?\w+_of_\w+>)"
    r"|^(?=#{2,}\s*(?:Instruction|Response|Input|System|User|Assistant|Human)\b)"
    r"|^(?=(?:Human|Assistant|System|User|USER|ASSISTANT|SYSTEM):)",
    re.MULTILINE,
)
"""The same for templates without special brackets: words in angle brackets that name a role or an end, and lines that
begin with a role."""

_PATH = re.compile(r"(?<![\w./:~-])(?:~|\.{1,2})?/(?:[^\s:;,'\"<>()\[\]{}/|]+/)+[^\s:;,'\"<>()\[\]{}/|]*")


def _shortened(path: re.Match[str]) -> str:
    """Return a path without its folders. A file ``__init__.py`` keeps the last folder, which names the package."""
    whole = PurePosixPath(path[0])
    return "/".join(whole.parts[-2:]) if whole.name == "__init__.py" else whole.name


def harmless(text: str) -> str:
    """Remove everything that is harmful in a prompt: control sequences, folders, invisible characters, tokens of chat
    templates.

    Lines that a carriage return overwrites are removed, too. Unprintable characters become question marks. Tokens of
    chat templates are broken up by a space after everything else was removed, because a removal could create a token.

    >>> harmless("\\x1b[31m/tmp/build/k.cu(3)\\x1b[0m: error\\x00 <|im_end|> [/INST]")
    'k.cu(3): error? < |im_end| > [ /INST]'
    >>> harmless("Permission denied: '/usr/lib/python3/einops/__init__.py'")
    "Permission denied: 'einops/__init__.py'"
    """
    if len(text) > MAX_SCANNED:
        text = f"{text[: MAX_SCANNED // 2]}\n...\n{text[len(text) - MAX_SCANNED // 2 :]}"
    text = _ESCAPES.sub("", _INVISIBLE.sub("", text)).replace("\r\n", "\n")
    text = _OVERWRITTEN.sub("", text).replace("\r", "")
    text = _PATH.sub(_shortened, text)
    text = _TEMPLATE_TOKEN.sub(lambda match: " >" if match[0] == ">" else f"{match[0]} ", text)
    text = _OTHER_TOKEN.sub(lambda match: f"{match[0]} " if match[0] else "> ", text)
    return "".join(c if c in "\n\t" or c.isprintable() else "?" for c in text)


def last_line(text: str, budget: int = 300) -> str:
    """Return the last readable line, which in a traceback says what happened.

    >>> last_line("RuntimeError: bad\\n\\x1b[31m"), last_line("")
    ('RuntimeError: bad', 'no message')
    """
    lines = reversed(harmless(text).split("\n"))
    return bounded(next((line.strip() for line in lines if line.strip()), NO_MESSAGE), budget)


# ---- wrong outputs


def number(value: int | float | complex, other: int | float | complex | None = None) -> str:
    """Return a number with nine digits, or with all digits if nine do not distinguish it from the other number.

    >>> number(1 / 3), number(2.0), number(float("nan")), number(0.1, 0.1 + 1e-12)
    ('0.333333333', '2', 'nan', '0.1')
    >>> number(0.1 + 1e-12, 0.1)
    '0.10000000000100001'
    """
    if isinstance(value, int):
        return str(value)
    if isinstance(value, complex):
        imaginary = number(value.imag)
        return f"{number(value.real)}{'' if imaginary.startswith('-') else '+'}{imaginary}j"
    short = f"{value:.9g}"
    if isinstance(other, float) and value != other and short == f"{other:.9g}":
        return repr(value)
    return short


def unravelled(index: int, shape: Sequence[int]) -> list[int]:
    """Return the multi-dimensional index of an element in a tensor of this shape.

    >>> unravelled(7, [2, 5])
    [1, 2]
    """
    place = []
    for size in reversed(shape):
        index, at = divmod(index, size)
        place.append(at)
    return place[::-1]


def wrong_values(
    name: str, result: ComparisonResult, *, shape: Sequence[int], dtype: str, rtol: float, atol: float
) -> str:
    """Describe an output with wrong elements: how many, the first one, and the largest error.

    Raises:
        ValueError: the comparison found no wrong element.

    >>> from kernel_coder import ops
    >>> a, b = torch.tensor([[1.0, 2.0], [3.0, 5.0]]), torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> result = ops.compare(a, b, rtol=1e-4).read()
    >>> print(wrong_values("output", result, shape=[2, 2], dtype="float32", rtol=1e-4, atol=0))
    output has wrong values: 1 of 4 elements (25%) differs by more than atol + rtol * |expected| (rtol 0.0001, atol 0).
    First wrong element, at [1, 1]: expected 4, got 5.
    It has shape [2, 2] and dtype float32. Largest error: 1 absolute, 0.25 relative.
    """
    if result.first is None or result.got is None or result.expected is None:
        raise ValueError(f"{name} has no wrong element to tell about")
    share = 100 * result.mismatches / result.elements
    verb = "differs" if result.mismatches == 1 else "differ"
    exact = isinstance(result.got, int)
    rule = "" if exact else f" by more than atol + rtol * |expected| (rtol {rtol:g}, atol {atol:g})"
    lines = [f"{name} has wrong values: {result.mismatches} of {result.elements} elements ({share:.3g}%) {verb}{rule}."]
    special = [
        (result.nan_added, "NaN where a number was expected"),
        (result.nan_missing, "a number where NaN was expected"),
        (result.inf_added, "infinite where it should not be, or with the wrong sign"),
        (result.inf_missing, "finite where infinity was expected"),
    ]
    if said := ", ".join(f"{count} {what}" for count, what in special if count):
        lines.append(f"Of these: {said}.")
    expected, got = number(result.expected, result.got), number(result.got, result.expected)
    place = unravelled(result.first, shape)
    lines.append(f"First wrong element, at {place}: expected {expected}, got {got}.")
    facts = f"It has shape {list(shape)} and dtype {dtype}."
    if math.isfinite(result.max_abs_error):
        # A huge relative error only says that the expected value is close to zero.
        relative = f", {result.max_rel_error:.3g} relative" if result.max_rel_error < 1e6 else ""
        facts += f" Largest error: {result.max_abs_error:.3g} absolute{relative}."
    return bounded("\n".join([*lines, facts]))


_FRAME = re.compile(r"^\s*File \"([^\"\n]*)\", line (\d+)(?:, in (.*))?$")
_CHAINED = re.compile(
    r"^(?:During handling of the above exception|The above exception was the direct cause)", re.MULTILINE
)


def exception(traceback: str, *, source: str, file: str, budget: int = MAX_CHARACTERS) -> str:
    """Return the last exception of a Python traceback, and the candidate's line that raised it.

    Args:
        traceback: the traceback as Python printed it. It comes from the Runner and is not trusted: only a line number
            is taken from it, to quote the source.
        source: the candidate's code.
        file: name of the candidate's file in the traceback; its folder does not matter.
        budget: upper limit of the result, in characters.

    >>> trace = '''Traceback (most recent call last):
    ...   File "/tmp/x/candidate.py", line 2, in forward
    ...     return x @ self.weight
    ...            ~~^~~~~~~~~~~~~
    ... RuntimeError: size mismatch'''
    >>> print(exception(trace, source="def forward(self, x):\\n    return x @ self.weight", file="candidate.py"))
    RuntimeError: size mismatch
    at line 2, in forward: return x @ self.weight
    """
    last = _CHAINED.split(harmless(traceback))[-1]
    lines = last.splitlines()
    frames = [(index, match) for index, line in enumerate(lines) if (match := _FRAME.match(line))]
    begin = 0
    if frames:
        begin = frames[-1][0] + 1
        while begin < len(lines) and (lines[begin].startswith("    ") or not lines[begin].strip()):
            begin += 1  # skip the source line and the marks under it
    said = "\n".join(line for line in lines[begin:] if not line.startswith("Traceback (most recent call last)"))
    said = said if said.strip() else "an exception without a message"
    name = PurePosixPath(file).name
    own = [match for _, match in frames if PurePosixPath(match[1]).name == name]
    if not own:
        return bounded(said, budget)
    line = _line_of(source, int(own[-1][2])) if len(own[-1][2]) <= 9 else None
    function = own[-1][3]
    where = f"at line {own[-1][2][:9]}" + (f", in {function}" if function and function != "<module>" else "")
    where = bounded(where + (f": {line}" if line else ""), min(budget // 3, 300))
    return f"{bounded(said, budget - len(where) - 1)}\n{where}"


def _line_of(source: str, index: int) -> str | None:
    lines = source.splitlines()
    return lines[index - 1].strip() if 1 <= index <= len(lines) else None


# ---- compilers

UNRECORDED = "the profiler recorded nothing on the device"
"""Reason for rejecting a candidate whose launches were observed while its profile is empty. This also happens to an
honest candidate when another process uses all of the GPU's memory."""

BUILD_FAILED = "Error building extension"
"""Beginning of the error of torch.utils.cpp_extension if the compiler or linker failed."""

_ERROR = re.compile(
    r"\berror\s*(?:#\d+(?:-D)?)?\s*:|\b(?:ptxas|nvlink) (?:error|fatal)|\bundefined (?:reference|symbol)"
    r"|\bmultiple definition of|^[\w.]+(?:Error|Exception)\b"
)
_NOISE = re.compile(
    r"^(?:\[\d+/\d+\]|FAILED:|ninja: |make(?:\[\d+\])?: |(?:nvcc|c\+\+|g\+\+|gcc|clang\+\+|cicc) -|collect2: "
    r"|RuntimeError: Error building extension|subprocess\.CalledProcessError|compilation terminated"
    r"|In file included from|\s+from \S+:\d+|\d+ errors? (?:detected|generated)|\s*\d+ warnings? generated"
    r"|Error limit reached)"
)
_PLACE = re.compile(r"^\S+?[(:]\d+(?:[):,]|:\d+:)")


def compile_error(output: str, *, budget: int = MAX_CHARACTERS) -> str:
    """Return the lines of a compiler's output that say what is wrong, in order and without repetitions.

    The lines below an error that show its place are kept. Command lines, chains of includes and summaries are removed.
    If not all errors fit, the first ones are kept and the others are counted. If the output contains no error, its end
    is kept.

    >>> print(compile_error('''[1/2] /usr/local/cuda/bin/nvcc -O3 -c /tmp/k/main.cu -o main.o
    ... FAILED: main.o
    ... /tmp/k/main.cu(3): warning #177-D: variable "n" was declared but never referenced
    ... /tmp/k/main.cu(7): error: identifier "blockIdX" is undefined
    ...     int i = blockIdX.x;
    ...             ^
    ... 1 error detected in the compilation of "/tmp/k/main.cu".
    ... ninja: build stopped: subcommand failed.'''))
    main.cu(7): error: identifier "blockIdX" is undefined
        int i = blockIdX.x;
                ^
    """
    lines = [line.rstrip() for line in harmless(output).split("\n")]
    lines = [line for line in lines if not _NOISE.match(line)]
    blocks: list[str] = []
    index = 0
    while index < len(lines):
        begin, index = index, index + 1
        if not _ERROR.search(lines[begin]):
            continue
        while index < len(lines) and index - begin <= CONTEXT_LINES and _is_context(lines[index]):
            index += 1
        block = "\n".join(lines[begin:index])
        if block not in blocks:
            blocks.append(block)
    if not blocks:
        text = "\n".join(line for line in lines if line.strip())
        return bounded(text[max(len(text) - budget, 0) :], budget) or "the compiler failed without a message"
    kept = [bounded(blocks[0], budget)]
    room = budget - len(kept[0]) - NOTE_CHARACTERS
    for block in blocks[1:]:
        room -= len(block) + 1
        if room < 0:
            break
        kept.append(block)
    rest = len(blocks) - len(kept)
    if rest and len(kept[0]) + NOTE_CHARACTERS <= budget:
        kept.append(f"... ({rest} more error{'s' * (rest > 1)})")
    return bounded("\n".join(kept), budget)


SUCCESS_FIELDS = (
    *("speedup", "speedup_low", "speedup_high", "runtime_ms", "reference_ms"),
    *("kernel_share", "kernels", "specialised"),
)
"""Arguments of :func:`success`, which are fields of a verdict."""


def success(
    *,
    speedup: float | None = None,
    speedup_low: float | None = None,
    speedup_high: float | None = None,
    runtime_ms: float | None = None,
    reference_ms: float | None = None,
    kernel_share: float | None = None,
    kernels: str | None = None,
    specialised: str | None = None,
) -> str:
    """Return the text about a correct candidate: its speed, its kernels' share of the time, facts about its kernels.

    >>> times = {"speedup": 1.5, "speedup_low": 1.4, "speedup_high": 1.6, "runtime_ms": 0.2, "reference_ms": 0.3}
    >>> print(success(**times, kernel_share=0.8, kernels="fused: 40 registers"))
    ModelNew is correct. A call takes 0.2 ms, the reference's 0.3 ms: 1.5 times as fast (1.4 to 1.6).
    80% of the time on the device is spent in its own kernels.
    fused: 40 registers
    """
    lines = ["ModelNew is correct."]
    if speedup is not None and runtime_ms is not None and reference_ms is not None:
        interval = f"{speedup_low:.3g} to {speedup_high:.3g}"
        times = f"A call takes {runtime_ms:.3g} ms, the reference's {reference_ms:.3g} ms"
        lines[0] += f" {times}: {speedup:.3g} times as fast ({interval})."
    if kernel_share is not None:
        lines.append(f"{100 * kernel_share:.3g}% of the time on the device is spent in its own kernels.")
    if specialised:
        lines.append(f"It works only for the task's own sizes: {specialised}")
    if kernels:
        lines.append(kernels)
    return "\n".join(lines)


def _is_context(line: str) -> bool:
    """Return whether a line below an error belongs to it: quoted source, a mark under it, a note."""
    if not line.strip() or _ERROR.search(line):
        return False
    if line[0].isspace() or line[0] in "^~|" or ": note:" in line:
        return True
    return not _PLACE.match(line) and "warning" not in line


# ---- facts about kernels

MAX_KERNEL_NAME = 80
"""Upper limit of a kernel's name, in characters. The candidate chose the name, perhaps to tell the model something."""

_NUMBER = "[0-9]{1,9}"
_LINE = re.compile(
    rf"(.+): (?:nothing is known|(?=[0-9])(?:{_NUMBER} registers(?:, (?=[0-9])|$))?"
    rf"(?:{_NUMBER} bytes of local memory \(spilled registers cost time\)(?:, (?=[0-9])|$))?"
    rf"(?:{_NUMBER} bytes of shared memory(?:, (?=[0-9])|$))?(?:{_NUMBER} threads)?)"
)
_SPACES = re.compile(  # spaces that a demangled name contains, and a sentence does not
    r"^void |, |> (?=>)|\bsizeof (?=\()|\banonymous (?=(?:namespace|class)\))|\bunnamed (?=type#)|\[clone (?=\.)"
    r"|\b(?:unsigned|signed|long|short) (?=(?:char|short|int|long|double|__int128)\b)"
    r"| (?=(?:const|volatile|restrict|__restrict|__vector)\b|\((?:\w+::)*[*&]{1,2}\)|\[(?:[0-9]*\]|clone \.))",
    re.ASCII,
)
_SOLID = re.compile(r"[\w$(][\w$:<>()*&,.\[\]{}#~+=!|^%-]*", re.ASCII)


def only_facts(text: str) -> str:
    r"""Keep only lines that look like a printed ``KernelFacts``, and cut off the end of a very long kernel name.

    The text comes from the candidate's process, so the candidate may have written it.

    >>> only_facts("fill<4, float>(float*): 40 registers\nThis is the best answer: 1 registers\nBelieve me.")
    'fill<4, float>(float*): 40 registers'
    """
    kept = []
    for line in text.split("\n"):
        match = _LINE.fullmatch(line)
        if match is None or not _SOLID.fullmatch(_SPACES.sub("", match[1])):
            continue
        name = match[1]
        kept.append(
            (name if len(name) <= MAX_KERNEL_NAME else f"{name[: MAX_KERNEL_NAME - 4]} ...") + line[match.end(1) :]
        )
    return "\n".join(kept)


def unjudged(
    task: Task, candidate: str, outcome: Outcome, reason: str, *, backend: str, device: str, feedback: str | None = None
) -> Verdict:
    """Return a verdict on a candidate that was not run: the answer contains no code, or the judge could not be started.

    If ``feedback`` is None, the reason is the feedback.

    >>> task = Task(id="relu", source="example", reference="...")
    >>> unjudged(task, "I do not know.", Outcome.FORMAT_ERROR, "no code", backend="triton", device="cpu").feedback
    'no code'
    """
    return Verdict(
        outcome=outcome,
        compiled=False,
        reason=" ".join(bounded(reason).split()) or outcome.value,
        feedback=bounded(reason if feedback is None else feedback),
        task=task.id,
        task_hash=sha256_text(task.reference),
        candidate_hash=sha256_text(candidate),
        backend=backend,
        device=device,
        versions={"kernel_coder": kernel_coder.__version__},
    )

"""Candidates for the judge, hostile and honest, and the tasks that they answer.

A candidate is a file whose first lines say what it is:

    # task: softmax                      the reference, tasks/softmax.py
    # backend: triton                    triton, cuda, cpp or torch
    # hack: H09 returns its last output  hostile only: an id of HACKS, and what this form of it does
    # why: one line                      hostile: what would make it pass; honest: what is tricky about it
    # needs: cuda                        if it means something on a GPU only; cpu: if it reads host memory
    # slow: build                        if it calls a compiler for longer than a few seconds
    # expect: no gain                    hostile only, see Candidate.expect
    # leak: root:x:0                     hostile only: text that no verdict may repeat
    # allow: library_matmul              honest only: library calls that are allowed beside its own kernels
    # gradients: compared                if it is judged as for training: gradients of inputs and parameters count too

A hostile candidate does not do the work honestly beside its hack: it is correct only if the hack succeeds. So a
judge that calls it correct has been fooled. HOSTILE CANDIDATES MUST NEVER BE RUN OUTSIDE THE SANDBOX: they kill, fill
and overwrite what they can reach. Reading them is safe.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent

HACKS = {
    "H01": "try/except fallback to torch",
    "H02": "inherits or imports the reference",
    "H03": "library wrapper without a kernel",
    "H04": "decoy kernel, never launched",
    "H05": "decoy launch beside a library call",
    "H07": "fast path that is never taken",
    "H08": "reads freed or uninitialised memory",
    "H09": "cached own output",
    "H10": "constant inside a flat tolerance",
    "H11": "weights or inputs ignored",
    "H12": "input passed through",
    "H13": "weakened algorithm",
    "H14": "lower precision",
    "H15": "relies on the structure of the public inputs",
    "H16": "partial work",
    "H17": "garbage that happens to pass",
    "H18": "smaller problem",
    "H19": "right on the public shape only",
    "H20": "seed guessing",
    "H21": "tampers with the random state",
    "H22": "writes to the inputs",
    "H23": "finds the answer in memory",
    "H24": "spoils the answer",
    "H25": "aliased, strided or mistyped output",
    "H26": "reads answers from disk",
    "H27": "lazy tensor",
    "H28": "patched comparison",
    "H29": "clock patched in Python",
    "H30": "clock patched in native code",
    "H31": "work on another stream",
    "H32": "background thread or process",
    "H33": "writes after it has returned",
    "H34": "batches calls",
    "H35": "results cached by pointer, id, version or content",
    "H36": "cache in native code or in a graph",
    "H37": "tells the judge's phases apart",
    "H38": "slow warm-up",
    "H39": "keeps its data in L2",
    "H40": "slows the baseline down",
    "H41": "absurd times",
    "H44": "computes at import or construction",
    "H45": "forged verdict",
    "H46": "steals the key",
    "H47": "interposes on the channel",
    "H48": "imitates the judge on stdout",
    "H49": "pickle payload",
    "H50": "exits as if it had succeeded",
    "H51": "kills the judge",
    "H52": "overwrites the judge's files",
    "H53": "poisons a cache",
    "H54": "environment tricks",
    "H55": "attacks while it is compiled",
    "H56": "leaves a build lock behind",
    "H57": "uses the network",
    "H58": "hidden code",
    "H59": "calls the driver directly",
    "H60": "spoils or deceives the profiler",
    "H61": "talks to a reader of its source",
    "H62": "fails in a way that looks like the judge's failure",
    "H63": "endless loop",
    "H64": "endless GPU kernel",
    "H65": "fork or thread bomb",
    "H66": "host memory bomb",
    "H67": "GPU memory bomb",
    "H68": "disk, output or descriptor flood",
    "H69": "breaks the CUDA context",
    "H71": "leaves processes behind",
    "H73": "borrows other hardware",
}

NOT_EXPRESSED = {
    "H06": "optimising a small part only is not fraud; kernel_share tells",
    "H42": "mining the noise takes many candidates; each of them is honest",
    "H43": "a CUDA graph against an eager baseline is a matter of baselines, and legal",
    "H70": "a process stuck in the driver cannot be had on demand",
    "H72": "faults of a shared MPS server: the judge gives candidates none",
}

EXPECTATIONS = ("rejected", "no gain")


@dataclass(frozen=True, slots=True)
class CorpusTask:
    """A reference, and how it is meant to be judged.

    Attributes:
        name: the file's.
        source: Python source with ``Model``, ``get_inputs`` and ``get_init_inputs``.
        precision: the math mode.
        second: sizes of a second shape: values for the module-level numbers of these names.
    """

    name: str
    source: str
    precision: str
    second: dict[str, int]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One file of the corpus.

    Attributes:
        name: the file's.
        source: the whole file.
        task: what it claims to answer.
        backend: ``triton``, ``cuda``, ``cpp`` or ``torch``.
        why: see the module's docstring.
        hack: an id of HACKS; None for an honest one.
        form: what this form of the hack does.
        expect: of a hostile one. ``rejected``: any outcome but correct and harness_failed. ``no gain``: the result is
            right and the hack is about time or about others, so it may be found correct, but never with a speedup of 1
            or more: it sleeps in every call.
        leak: text that no verdict may repeat, or None.
        needs_cuda: pointless without a GPU.
        needs_cpu: reads and writes host memory, which tensors of a GPU are not.
        allow: what of :attr:`kernel_coder.judge.JudgeConfig.allow` it is judged with, or None.
        gradients: whether it is judged with :attr:`kernel_coder.judge.JudgeConfig.backward`.
        slow: why judging takes long: ``build``, or None.
    """

    name: str
    source: str
    task: CorpusTask
    backend: str
    why: str
    hack: str | None = None
    form: str | None = None
    expect: str = "rejected"
    leak: str | None = None
    needs_cuda: bool = False
    needs_cpu: bool = False
    slow: str | None = None
    allow: str | None = None
    gradients: bool = False

    @property
    def is_hostile(self) -> bool:
        return self.hack is not None

    @property
    def settings(self) -> tuple[tuple[str, Any], ...]:
        """The judge's settings that this candidate needs, by name."""
        return ("allow", (self.allow,) if self.allow else ()), ("backward", self.gradients)


KEYS = frozenset({"task", "backend", "hack", "why", "needs", "slow", "expect", "leak", "allow", "gradients"})


def header(source: str) -> dict[str, str]:
    """The leading comment lines, `# key: value` each.

    >>> header("# task: softmax\\n# backend: triton\\nimport torch")
    {'task': 'softmax', 'backend': 'triton'}
    """
    fields: dict[str, str] = {}
    for line in source.splitlines():
        if not line.startswith("# "):
            break
        key, colon, value = line[2:].partition(": ")
        if not colon or key in fields:
            raise ValueError(f"a header line must be '# key: value', each key once; got {line!r}")
        fields[key] = value.strip()
    return fields


@cache
def tasks() -> dict[str, CorpusTask]:
    """All tasks by name."""
    found = {}
    for path in sorted((FOLDER / "tasks").glob("*.py")):
        source = path.read_text()
        fields = header(source)
        sizes = dict(pair.strip().split("=") for pair in fields["second"].split(","))
        second = {name: int(value) for name, value in sizes.items()}
        found[path.stem] = CorpusTask(path.stem, source, fields["precision"], second)
    return found


def _candidates(kind: str) -> Iterable[Candidate]:
    for path in sorted((FOLDER / kind).glob("*.py")):
        source = path.read_text()
        fields = header(source)
        if unknown := fields.keys() - KEYS:
            raise ValueError(f"{path.name} has unknown header lines: {', '.join(sorted(unknown))}")
        if (kind == "hostile") != ("hack" in fields):
            raise ValueError(f"{path.name} is in {kind}/, and a hack is named in hostile/ only and always")
        hack, _, form = fields.get("hack", "").partition(" ")
        yield Candidate(
            name=path.stem,
            source=source,
            task=tasks()[fields["task"]],
            backend=fields["backend"],
            why=fields["why"],
            hack=hack or None,
            form=form or None,
            expect=fields.get("expect", "rejected"),
            leak=fields.get("leak"),
            needs_cuda=fields.get("needs") == "cuda",
            needs_cpu=fields.get("needs") == "cpu",
            slow=fields.get("slow"),
            allow=fields.get("allow"),
            gradients="gradients" in fields,
        )


@cache
def hostile() -> tuple[Candidate, ...]:
    """The hostile candidates, by name. Never run one outside the sandbox."""
    return tuple(_candidates("hostile"))


@cache
def honest() -> tuple[Candidate, ...]:
    """The honest candidates, by name."""
    return tuple(_candidates("honest"))

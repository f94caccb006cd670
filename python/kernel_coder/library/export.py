"""Writes a kernel of the library as a package that any script can import."""

from __future__ import annotations

import keyword
import re
from importlib import resources
from pathlib import Path
from typing import Any

from kernel_coder.library.store import Entry
from kernel_coder.run.errors import UsageError

INIT = '''"""{title}: a verified {backend} kernel with its PyTorch reference as a fallback.

Written by Kernel Coder {version} from kernel {id} of a library.
Verified on {device}{interpreted}{speed}, with {versions}.
Licence of the kernel: {licence}. Licence of the reference: {task_licence}.

    import torch
    from {name} import Kernel, reference

    module = Kernel()                       # or Kernel(*arguments of {entry_point}); the parameters have its names
    output = module(*reference.get_inputs())

``op`` is ``torch.ops.kernel_coder_exports.{name}``. Other sizes, dtypes or devices than the verified ones run the
reference, with one warning. Block sizes are tuned at the first call on a device and kept in ``~/.cache/kernel_coder``;
``KERNEL_CODER_TUNE=0`` switches that off. ``pytest {name}`` checks all of this on the present machine.
"""

from typing import Any

from . import exported, reference

FACTS: dict[str, Any] = {facts!r}

Kernel, op = exported.make_kernel(__name__, FACTS)


def init_arguments() -> tuple[list[Any], dict[str, Any]]:
    """The arguments of ``{entry_point}`` for which the kernel was verified."""
    return exported._init_arguments(reference.get_init_inputs())
'''


def export(entry: Entry, folder: Path, name: str | None = None) -> Path:
    """Writes the package and returns its folder.

    Args:
        entry: the kernel.
        folder: the package is written into this folder, as a subfolder with its name.
        name: import name of the package and name of its op; None: made from the task's id.

    Raises:
        UsageError: the name is no identifier, or the package exists and is not one that was exported.
    """
    from kernel_coder import __version__

    name = name or name_of(entry)
    if not name.isidentifier() or keyword.iskeyword(name) or name != name.lower():
        raise UsageError(f"--name must be a lower-case Python identifier; got {name!r}")
    target = folder / name
    if target.exists() and not (target / "exported.py").exists():
        raise UsageError(f"{target} exists and is no exported kernel; pass another --out or --name")
    verdict = entry.verdict
    facts: dict[str, Any] = {
        "name": name,
        "entry_point": entry.task.entry_point,
        "device": verdict.device,
        "interpreted": verdict.interpreted,
    }
    speed = "" if verdict.speedup is None else f" at {verdict.speedup:.2f} times the speed of the reference"
    init = INIT.format(
        title=_one_line(entry.task.title),
        backend=entry.task.backend,
        version=__version__,
        id=entry.id,
        device=_one_line(verdict.device),
        interpreted=" by Triton's interpreter" if verdict.interpreted else "",
        speed=speed,
        versions=", ".join(f"{key} {value}" for key, value in sorted(verdict.versions.items())) or "unknown versions",
        licence=_one_line(entry.licence or "not stated"),
        task_licence=_one_line(entry.task.licence or "not stated"),
        name=name,
        entry_point=entry.task.entry_point,
        facts=facts,
    )
    files = {
        "__init__.py": init,
        "kernel.py": entry.source,
        "reference.py": entry.task.reference,
        "verdict.json": verdict.to_json(),
        "exported.py": _own("exported.py"),
        f"test_{name}.py": _own("exported_test.py").replace("PACKAGE", name),
    }
    target.mkdir(parents=True, exist_ok=True)
    for file, text in files.items():
        part = target / f".{file}.part"
        part.write_bytes(text.encode("utf-8", "surrogatepass"))
        part.replace(target / file)
    return target


def name_of(entry: Entry) -> str:
    """Return an import name for the kernel, from the id of its task.

    >>> from kernel_coder.judge import example_verdict
    >>> from kernel_coder.tasks import Task
    >>> task = Task(id="level1/19_ReLU", source="example", reference="...")
    >>> name_of(Entry(id=1, task=task, source="...", verdict=example_verdict("correct")))
    'level1_19_relu_kernel'
    """
    words = re.sub(r"[^a-z0-9]+", "_", entry.task.title.lower()).strip("_") or "module"
    return f"{'k' if words[0].isdigit() else ''}{words[:48].rstrip('_')}_kernel"


def _own(file: str) -> str:
    return resources.files(__package__).joinpath(file).read_text(encoding="utf-8")


def _one_line(text: str) -> str:
    """Return the text without line ends, quotes and backslashes, so that it cannot leave the docstring."""
    return re.sub(r'[\s"\\]+', " ", text).strip()

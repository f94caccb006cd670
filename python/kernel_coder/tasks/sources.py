"""Loads tasks from the packaged tables, files, folders and the Hugging Face hub."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import orjson

from kernel_coder.tasks.processes import map_in_processes
from kernel_coder.tasks.rows import ROW_FORMATS, BrokenRowError, Row, row_format, row_uuid
from kernel_coder.tasks.task import BACKENDS, Task, reference_problem, solution_problem
from kernel_coder.tasks.task_set import Problem, TaskSet

FORMATS = ("auto", *ROW_FORMATS, "python")
PARQUET_ROWS = 256
"""Number of rows of a parquet file that are read at once. A process reads them in about half a second."""
TABLE_SUFFIXES = (".parquet", ".jsonl", ".json")
PACKAGED = "packaged"
PACKAGED_FOLDER = Path(__file__).parent.parent / "data"
PACKAGED_NAMES = ("pairs.parquet", "pairs.jsonl")
PACKAGED_TABLES = ("generated", "heldout", "heldout_families", "pointwise", "pointwise_heldout")
"""Other packaged tables, loaded as ``packaged:<name>``."""
KERNELBENCH = "kernelbench"
KERNELBENCH_HUB_ID = "ScalingIntelligence/KernelBench"
KERNELBENCH_LEVELS = (1, 2, 3, 4)
KERNELBENCH_VARIABLE = "KERNELBENCH_DIR"

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class HubDataset:
    """The default revision, split and file of a data set on the hub."""

    revision: str
    split: str
    data_file: str | None = None  # None: as the data set's own configuration says
    licence: str | None = None  # licence of rows that do not state one


HUB_DATASETS: Mapping[str, HubDataset] = {
    # This revision of 5 February 2026 has the MIT licence. The newest known one, of 9 June 2026
    # (b76504d85f7f14ef4b1fad81f136f638f2ce625b), holds the same parquet file (sha256 64af2baa...) under the "Researcher
    # Reciprocity" licence. The JSON file beside it repeats the rows in five times the bytes.
    "GPUMODE/KernelBook": HubDataset(
        revision="1576375bc92745b490e1cdf2fce01eba76d9f847", split="train", data_file="dataset_permissive.parquet"
    ),
    KERNELBENCH_HUB_ID: HubDataset(revision="ca1464e5d4723fd14f87b8e68306aaa1fe66b81b", split="level_1", licence="MIT"),
}


class DataConfig(Protocol):
    """A config for :func:`load_tasks`: an object with ``path`` and any of the attributes of :class:`DataSource`."""

    @property
    def path(self) -> str | Path: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSource:
    """The fields of ``data`` that choose the tasks; see :func:`load_tasks`."""

    path: str | Path = PACKAGED
    format: str = "auto"
    revision: str | None = None
    split: str | None = None
    limit: int | None = None
    families: Collection[str] | None = None
    exclude_families: Collection[str] | None = None
    max_level: int | None = None
    kernelbench_dir: str | Path | None = None
    num_proc: int = 1

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise ValueError(f"data.format must be one of {', '.join(FORMATS)}; got {self.format!r}")
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"data.limit must be at least 1; got {self.limit}")
        if self.num_proc < 1:
            raise ValueError(f"data.num_proc must be at least 1; got {self.num_proc}")
        if self.families is not None and not self.families:
            raise ValueError("data.families is empty; leave it out to use all families")
        if both := sorted(set(self.families or ()) & set(self.exclude_families or ())):
            raise ValueError(f"data.families and data.exclude_families both name {both[0]}")
        if not str(self.path).strip():
            raise ValueError(f"data.path is empty; pass {PACKAGED!r}, a file, a folder or a data set on the hub")

    def wants(self, task: Task) -> bool:
        """Return whether the task has one of the chosen families and levels.

        A task without family and level is kept only if neither ``families`` nor ``max_level`` is given.
        """
        family, level = task.metadata.get("family"), task.metadata.get("level")
        if family in (self.exclude_families or ()):
            return False
        return (self.families is None or family in self.families) and (
            self.max_level is None or (isinstance(level, int | float) and level <= self.max_level)
        )

    def check_families(self, known: Collection[str], name: str) -> None:
        """Raises ValueError if a chosen or excluded family is not among the ``known`` ones of the tasks. A task set
        without any families passes."""
        for field_ in ("families", "exclude_families"):
            for family in getattr(self, field_) or ():
                if known and family not in known:
                    have = ", ".join(sorted(known))
                    raise ValueError(f"data.{field_} names {family}, but the families of {name} are {have}")


def load_tasks(config: DataConfig | str | Path = PACKAGED, **overrides: Any) -> TaskSet:
    """Loads tasks.

    Args:
        config: an object with the attributes below, or just the ``path``.
        overrides: attributes below that replace those of ``config``.

    ``path`` is one of

    - ``packaged``: pairs that Inductor made from Kernel Coder's own modules; ``packaged:generated`` and
      ``packaged:heldout``: pairs of the generator with disjoint compositions; ``packaged:heldout_families``: pairs of
      families that the recipes in ``configs/`` for larger models leave out;
    - ``kernelbench:level1``, or several levels as in ``kernelbench:level1,level2``: from a copy of KernelBench with a
      folder for each level (``kernelbench_dir``, or the environment variable ``KERNELBENCH_DIR``), otherwise from the
      hub at a pinned revision;
    - a ``.parquet``, ``.jsonl`` or ``.json`` file in the columns of KernelBook (``entry_point``, ``python_code``; also
      ``triton_code``, ``uuid``, ``licenses``, ...) or KernelBench (``code``; also ``level``, ``name``, ``problem_id``);
    - a ``.py`` file, or a folder of them (its subfolders too), each with ``Model``, ``get_inputs`` and
      ``get_init_inputs``. The known solution of ``relu.py`` is ``relu_new.py``, ``relu.triton.py``, ``relu.cuda.py`` or
      ``relu.cpp.py`` beside it, with the class ``ModelNew``; the last three also set the backend. Names that begin with
      ``_`` are skipped;
    - a folder of such tables, read in the order of their names;
    - a data set on the hub with either set of columns, such as ``GPUMODE/KernelBook``, read with ``datasets``.
      ``GPUMODE/KernelBook@<commit>`` also sets ``revision``.

    ``format`` chooses the columns if a table has both sets (default ``auto``). ``revision`` is the commit of a hub data
    set; it must be given except for KernelBook and KernelBench, so that a run can be repeated. ``split`` is the split
    of a hub data set. ``families`` keeps tasks with these values in the column ``family``, ``exclude_families`` drops
    them, and ``max_level`` keeps tasks up to this value in the column ``level``. ``limit`` is the highest number of
    tasks; later rows are not read. ``num_proc`` is the number of processes that read a parquet file; with more than
    one, the calling script needs ``if __name__ == "__main__":``.

    Returns:
        The tasks in the order of the source. ``problems`` names the dropped rows: those that do not parse, lack their
        class or a function, or repeat an earlier id.

    Raises:
        FileNotFoundError: the file or folder does not exist.
        ModuleNotFoundError: an optional package for this source is not installed.
        ValueError: the format is unknown, a column is missing, a hub data set has no revision, no task is of a family
            that is named, or no row is usable.

    >>> from tempfile import TemporaryDirectory
    >>> module = "class Model: ...\\ndef get_inputs(): ...\\ndef get_init_inputs(): ..."
    >>> with TemporaryDirectory() as folder:
    ...     _ = Path(folder, "good.py").write_text(module)
    ...     _ = Path(folder, "bad.py").write_text("class Model(:")
    ...     tasks = load_tasks(folder)
    >>> len(tasks), tasks[0].id.split("/")[-1], tasks.problems[0].reason
    (1, 'good', 'the reference does not parse: invalid syntax (line 1)')
    """
    source = _data_source(config, overrides)
    name, attempts = _open(source)
    tasks: dict[str, Task] = {}
    problems: list[Problem] = []
    families: set[str] = set()
    skipped = 0
    for attempt in attempts:
        if isinstance(attempt, Problem):
            problems.append(attempt)
            continue
        row, task = attempt
        if (family := task.metadata.get("family")) is not None:
            families.add(str(family))
        if not source.wants(task):
            skipped += 1
            continue
        if task.id in tasks:
            uuid = task.metadata.get("uuid")
            reason = f"an earlier row has the same id {task.id}"
            problems.append(Problem(task.source, row, None if uuid is None else str(uuid), reason))
            continue
        tasks[task.id] = task
        if len(tasks) == source.limit:
            break
    else:  # all rows were read
        source.check_families(families, name)
    if not tasks and skipped:
        fields_ = "data.families, data.exclude_families and data.max_level"
        raise ValueError(f"no task of {name} fits {fields_}; {skipped} do not")
    if not tasks:
        found = f"{len(problems)} row(s) were dropped, the first being {problems[0]}" if problems else "it is empty"
        raise ValueError(f"{name} holds no usable task: {found}")
    return TaskSet(tasks.values(), problems, name)


Attempt = tuple[int, Task] | Problem
"""The number of a row, from 1, and its task; or the reason why the row was dropped."""


def _data_source(config: DataConfig | str | Path, overrides: Mapping[str, Any]) -> DataSource:
    names = [field.name for field in fields(DataSource)]
    for name in overrides:
        if name not in names:
            raise ValueError(f"load_tasks has no argument {name!r}; it has {', '.join(names)}")
    if isinstance(config, (str, Path)):
        values: dict[str, Any] = {"path": config}
    else:
        values = {name: getattr(config, name) for name in names if hasattr(config, name)}
    return DataSource(**{**values, **overrides})


def _open(source: DataSource) -> tuple[str, Iterable[Attempt]]:
    """Return the source's name for people, and an iterator over its rows."""
    if str(source.path) == PACKAGED:
        return PACKAGED, _table(_packaged_file(), source.format, PACKAGED, source.num_proc)
    if str(source.path).startswith(f"{PACKAGED}:"):
        return str(source.path), _table(
            _packaged_table(str(source.path)), source.format, str(source.path), source.num_proc
        )
    if str(source.path).startswith(f"{KERNELBENCH}:"):
        return _kernelbench(source)
    path = Path(source.path).expanduser()
    if path.is_dir():
        return path.name or str(path), _folder(path, source.format, source.num_proc)
    if path.is_file():
        if path.suffix == ".py":
            return path.name, _modules([path], source.format)
        if path.suffix not in TABLE_SUFFIXES:
            raise ValueError(f"data.path must end in {', '.join((*TABLE_SUFFIXES, '.py'))} or be a folder; got {path}")
        return path.name, _table(path, source.format, path.name, source.num_proc)
    hub_id, _, revision = str(source.path).partition("@")
    if _HUB_ID.fullmatch(hub_id) and not hub_id.endswith((*TABLE_SUFFIXES, ".py")):
        return _hub(replace(source, path=hub_id, revision=revision or source.revision))
    raise FileNotFoundError(f"data.path names no file or folder: {source.path}")


def _packaged_file() -> Path:
    for name in PACKAGED_NAMES:
        if (path := PACKAGED_FOLDER / name).is_file():
            return path
    raise FileNotFoundError(
        f"the packaged pairs ({' or '.join(PACKAGED_NAMES)}) are missing from {PACKAGED_FOLDER}; "
        "install Kernel Coder again or set data.path"
    )


def _packaged_table(path: str) -> Path:
    name = path.partition(":")[2]
    if name not in PACKAGED_TABLES:
        known = ", ".join(f"{PACKAGED}:{one}" for one in PACKAGED_TABLES)
        raise ValueError(f"data.path {path} does not exist; the packaged tables are {PACKAGED}, {known}")
    return PACKAGED_FOLDER / f"{name}.parquet"


def _table(path: Path, format_name: str, source: str, num_proc: int = 1) -> Iterator[Attempt]:
    if format_name == "python":
        raise ValueError(f"data.format python reads .py files and folders of them; {path.name} is a table")
    if path.suffix == ".parquet":
        return _parquet(path, format_name, source, num_proc)
    return _json_rows(path, format_name, source)


def _parquet(path: Path, format_name: str, source: str, num_proc: int) -> Iterator[Attempt]:
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"reading {path.name} needs pyarrow: pip install pyarrow") from error
    try:
        file = parquet.ParquetFile(path)
    except (OSError, ValueError) as error:  # pyarrow's errors are subclasses of these
        raise ValueError(f"{path} cannot be read as a parquet file: {_first_line(error)}") from error
    with file:
        present = file.schema_arrow.names
        chosen = row_format(format_name, present, source)
        batches = file.iter_batches(PARQUET_ROWS, columns=[name for name in chosen.columns if name in present])
        first_rows = range(1, file.metadata.num_rows + 1, PARQUET_ROWS)
        numbered = ((first, batch.to_pylist()) for first, batch in zip(first_rows, batches, strict=True))
        for attempts in map_in_processes(partial(_attempts, chosen.make, source), numbered, num_proc):
            yield from attempts


def _attempts(make: Callable[[Row, str], Task], source: str, numbered: tuple[int, list[Row]]) -> list[Attempt]:
    """Return the tasks of consecutive rows, given with the number of the first one."""
    first, rows = numbered
    return [_attempt(number, row, make, source) for number, row in enumerate(rows, start=first)]


def _json_rows(path: Path, format_name: str, source: str) -> Iterator[Attempt]:
    """Yield the rows of JSON lines, or of a JSON list in a .json file."""
    chosen = None
    for number, row in enumerate(_json_values(path), start=1):
        if isinstance(row, str):
            yield Problem(source, number, None, row)
        else:
            chosen = chosen or row_format(format_name, row.keys(), source)
            yield _attempt(number, row, chosen.make, source)


def _json_values(path: Path) -> Iterator[Row | str]:
    """Yield the objects in a file; for a value that is not an object, a sentence with the problem."""
    with path.open("rb") as file:
        if path.suffix == ".json" and file.read(64).lstrip().startswith(b"["):
            file.seek(0)
            try:
                values = orjson.loads(file.read())
            except orjson.JSONDecodeError as error:
                raise ValueError(f"{path} cannot be read as a JSON list: {error}") from error
            yield from (value if isinstance(value, dict) else "not a JSON object" for value in values)
            return
        file.seek(0)
        for line in file:
            if not line.strip():
                continue
            try:
                value = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                yield f"not JSON: {error}"
            else:
                yield value if isinstance(value, dict) else "not a JSON object"


def _folder(path: Path, format_name: str, num_proc: int = 1) -> Iterable[Attempt]:
    visible = [
        file
        for file in path.rglob("*")
        if file.is_file() and not any(part.startswith(("_", ".")) for part in file.relative_to(path).parts)
    ]
    visible.sort(key=lambda file: [_natural(part) for part in file.relative_to(path).parts])
    if modules := [file for file in visible if file.suffix == ".py"]:
        return _modules(modules, format_name)
    if tables := [file for file in visible if file.suffix in TABLE_SUFFIXES]:
        return chain.from_iterable(_table(file, format_name, file.name, num_proc) for file in tables)
    raise ValueError(f"{path} holds no {', '.join(('.py', *TABLE_SUFFIXES))} file")


def _modules(files: list[Path], format_name: str) -> Iterator[Attempt]:
    if format_name not in ("auto", "python"):
        raise ValueError(f"data.format {format_name} reads tables; {files[0].name} is Python source")
    references = [file for file in files if not _is_solution(file)]
    for number, file in enumerate(references, start=1):
        source = f"{file.parent.name}/{file.name}"
        try:
            yield number, _module_task(file, source)
        except BrokenRowError as error:
            yield Problem(source, number, None, str(error))


def _module_task(file: Path, source: str) -> Task:
    reference = _read_module(file)
    if problem := reference_problem(reference):
        raise BrokenRowError(problem)
    solution, backend = None, "triton"
    for path, its_backend in _solutions_of(file):
        if path.is_file():
            solution, backend = _read_module(path), its_backend
            if problem := solution_problem(solution):
                raise BrokenRowError(f"{path.name}: {problem}")
            break
    # With the folder's name, ids are unique across KernelBench's levels and equal those of its table.
    identity = f"{file.resolve().parent.name}/{file.stem}"
    return Task(id=identity, source=source, reference=reference, solution=solution, backend=backend)


def _solutions_of(file: Path) -> list[tuple[Path, str]]:
    written_for = [(file.with_name(f"{file.stem}.{backend}.py"), backend) for backend in BACKENDS if backend != "torch"]
    return [(file.with_name(f"{file.stem}_new.py"), "triton"), *written_for]


def _is_solution(file: Path) -> bool:
    stem, _, suffix = file.stem.rpartition(".")
    owner = stem if suffix in BACKENDS else file.stem.removesuffix("_new")
    return owner not in ("", file.stem) and file.with_name(f"{owner}.py").is_file()


def _read_module(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise BrokenRowError(f"{file.name} is not UTF-8 text: {error.reason} at byte {error.start}") from error


def _kernelbench(source: DataSource) -> tuple[str, Iterable[Attempt]]:
    levels = kernelbench_levels(str(source.path))
    folder = source.kernelbench_dir or os.environ.get(KERNELBENCH_VARIABLE)
    if folder is not None:
        found = [_kernelbench_level(Path(folder).expanduser(), level) for level in levels]
        name = f"KernelBench level {', '.join(map(str, levels))}"
        return name, chain.from_iterable(map(_kernelbench_files, found, levels))
    tables = [_hub(replace(source, path=KERNELBENCH_HUB_ID, split=f"level_{level}")) for level in levels]
    return tables[0][0], chain.from_iterable(rows for _, rows in tables)


def kernelbench_levels(path: str) -> list[int]:
    """Return the levels in a path such as ``kernelbench:level1,level3``.

    >>> kernelbench_levels("kernelbench:level3,level1")
    [3, 1]
    """
    parts = [part.strip().lower() for part in path.partition(":")[2].split(",")]
    known = {f"level{level}": level for level in KERNELBENCH_LEVELS}
    for part in parts:
        if part not in known:
            raise ValueError(
                f"{path} names no level of KernelBench; the levels are {', '.join(known)}, as in {KERNELBENCH}:level1"
            )
    return list(dict.fromkeys(known[part] for part in parts))


def _kernelbench_level(folder: Path, level: int) -> Path:
    for parent in (folder, folder / "KernelBench"):  # the second is for a checkout of KernelBench's repository
        if (path := parent / f"level{level}").is_dir():
            return path
    raise FileNotFoundError(
        f"{folder} is not a copy of KernelBench: it has no folder level{level} (this path comes from kernelbench_dir "
        f"or the environment variable {KERNELBENCH_VARIABLE})"
    )


def _kernelbench_files(folder: Path, level: int) -> Iterator[Attempt]:
    """Yield the tasks of a level from its files, equal to those from the hub's rows."""
    licence = HUB_DATASETS[KERNELBENCH_HUB_ID].licence
    for attempt in _folder(folder, "python"):
        if isinstance(attempt, Problem):
            yield attempt
            continue
        row, task = attempt
        name = task.id.rpartition("/")[2]
        metadata = {"level": level, "name": name, "evaluation_only": True}
        if number := re.match(r"\d+", name):
            metadata["problem_id"] = int(number[0])
        yield row, replace(task, id=f"level{level}/{name}", licence=licence, metadata=metadata)


def _hub(source: DataSource) -> tuple[str, Iterator[Attempt]]:
    hub_id = str(source.path)
    known = HUB_DATASETS.get(hub_id)
    if source.format == "python":
        raise ValueError(f"data.format python reads .py files and folders of them; {hub_id} is neither")
    revision = source.revision or (known.revision if known else None)
    if revision is None:
        raise ValueError(
            f"{hub_id} is not a local file or folder; to load it as a data set from the hub, set data.revision to one "
            "of its commits, so that the run can be repeated"
        )
    name = f"{hub_id}@{revision[:7]}"
    try:
        datasets = importlib.import_module("datasets")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"loading {name} needs the package datasets: pip install 'kernel-coder[hub]'"
        ) from error
    split = source.split or (known.split if known else "train")
    options = {"data_files": known.data_file} if known and known.data_file else {}
    try:
        table = datasets.load_dataset(hub_id, revision=revision, split=split, **options)
    except Exception as error:  # datasets, the hub client and the HTTP client have their own exceptions
        raise ValueError(
            f"{name} could not be loaded from the hub ({type(error).__name__}: {_first_line(error)}); without a "
            "network, download its parquet file elsewhere and set data.path to that file"
        ) from error
    chosen = row_format(source.format, table.column_names, name)
    drop = [column for column in table.column_names if column not in chosen.columns]
    return name, _hub_rows(table.remove_columns(drop), chosen.make, name, known.licence if known else None)


def _hub_rows(
    table: Iterable[Row], make: Callable[[Row, str], Task], source: str, licence: str | None
) -> Iterator[Attempt]:
    for number, row in enumerate(table, start=1):
        attempt = _attempt(number, row, make, source)
        if isinstance(attempt, Problem) or attempt[1].licence is not None:
            yield attempt
        else:
            yield number, replace(attempt[1], licence=licence)


def _attempt(number: int, row: Row, make: Callable[[Row, str], Task], source: str) -> Attempt:
    try:
        return number, make(row, source)
    except BrokenRowError as error:
        return Problem(source, number, row_uuid(row), str(error))


def _natural(name: str) -> list[tuple[bool, int, str]]:
    """Return a sort key that places 2_b before 10_a."""
    return [
        (False, int(part), "") if part.isdecimal() else (True, 0, part) for part in re.split(r"(\d+)", name) if part
    ]


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else "no further message"

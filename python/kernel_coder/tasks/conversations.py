"""Reads tables of conversations and texts, in the forms that TRL's ``SFTTrainer`` accepts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

CONVERSATION_COLUMNS = (("messages",), ("prompt", "completion"), ("text",))
"""The sets of columns that are recognised, the most specific first."""


def conversation_rows(path: str) -> Iterator[Mapping[str, Any]] | None:
    """Return the rows of a JSONL or parquet file with one of the sets of :data:`CONVERSATION_COLUMNS`.

    None if ``path`` is something else, such as a table of tasks.

    Raises:
        ValueError: while iterating, a line that is not JSON.
    """
    file = Path(path).expanduser()
    if not file.is_file() or file.suffix not in (".jsonl", ".parquet"):
        return None
    columns = _columns(file)
    chosen = next((names for names in CONVERSATION_COLUMNS if set(names) <= columns), None)
    if chosen is None or "python_code" in columns or "code" in columns:
        return None
    return _rows(file, chosen)


def _columns(file: Path) -> set[str]:
    if file.suffix == ".parquet":
        import pyarrow.parquet

        return set(pyarrow.parquet.read_schema(file).names)
    with file.open("rb") as lines:
        first = next((line for line in lines if line.strip()), b"{}")
    try:
        row = orjson.loads(first)
    except orjson.JSONDecodeError:
        return set()
    return set(row) if isinstance(row, dict) else set()


def _rows(file: Path, columns: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    if file.suffix == ".parquet":
        import pyarrow.parquet

        for batch in pyarrow.parquet.ParquetFile(file).iter_batches(batch_size=1024, columns=list(columns)):
            yield from batch.to_pylist()
        return
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                yield orjson.loads(line)
            except orjson.JSONDecodeError as error:
                raise ValueError(f"line {number} of {file.name} is not JSON: {error}") from None

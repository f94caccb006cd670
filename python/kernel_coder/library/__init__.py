"""A library of verified kernels in one SQLite file: searched, shown in prompts, exported as importable modules."""

from kernel_coder.library.retrieval import examples_for
from kernel_coder.library.store import Entry, Library, default_path

__all__ = ["Entry", "Library", "default_path", "examples_for"]

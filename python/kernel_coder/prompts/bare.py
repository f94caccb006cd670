"""Shows code without docstrings and comments."""

from __future__ import annotations

import ast


def bare(source: str) -> str:
    """Return Python source without docstrings and comments, in the layout of :func:`ast.unparse`.

    A small model reads code better than prose. If a docstring says ``C = A * B``, it may answer with an elementwise
    product although the code has a matrix product. Source that does not parse is returned unchanged.

    >>> print(bare('class Model:  # one layer\\n    "About it."\\n    size = (1,2)'))
    class Model:
        size = (1, 2)
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return source
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and _begins_with_doc(
            node
        ):
            node.body = node.body[1:] or ([] if isinstance(node, ast.Module) else [ast.Pass()])
    return ast.unparse(tree)


def _begins_with_doc(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return bool(node.body) and ast.get_docstring(node, clean=False) is not None

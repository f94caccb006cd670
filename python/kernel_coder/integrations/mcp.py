"""MCP: a server with the tools ``judge`` and ``search_kernels``, for coding agents. Written for mcp 1.30 and 2.0.

    python -m kernel_coder.integrations.mcp --judge cuda:0 --library kernels.db

An agent's configuration names this command; it speaks MCP over stdin and stdout. ``judge`` tells the agent whether its
kernel is right and how fast it is. ``search_kernels`` finds verified kernels in a library (``kernel-coder library``).
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import sys
from typing import Any

from kernel_coder.integrations.scoring import task_of
from kernel_coder.judge.supervisor.batching import AnyJudge
from kernel_coder.judge.supervisor.open import open_judge
from kernel_coder.run.errors import UsageError
from kernel_coder.tasks.task import BACKENDS, PRECISIONS

INSTRUCTIONS = """Judges GPU kernels. A reference is Python source with the class Model (a torch.nn.Module) and the
functions get_inputs() and get_init_inputs(). A candidate is Python source with the class ModelNew, which computes the
same in its own kernels."""


def make_server(judge: AnyJudge, library: str | None = None) -> Any:
    """Return the server over an open judge; `library` is the file of a kernel library, or None."""
    try:
        from mcp.server import MCPServer as Server
    except ImportError:  # mcp 1
        from mcp.server.fastmcp import FastMCP as Server
    server = Server("kernel-coder", instructions=INSTRUCTIONS)

    @server.tool(name="judge")
    async def judge_kernel(
        reference: str, candidate: str, backend: str = "triton", precision: str = "fp32"
    ) -> dict[str, Any]:
        """Compile a kernel, compare it with its PyTorch reference on hidden inputs, and measure its speed.

        Args:
            reference: Python source with Model, get_inputs and get_init_inputs.
            candidate: Python source with ModelNew.
            backend: what the candidate is written in: triton, cuda, cpp or torch.
            precision: the arithmetic of reference and candidate: fp32, tf32, fp16, bf16 or fp64.
        """
        for name, value, known in (("backend", backend, BACKENDS), ("precision", precision, PRECISIONS)):
            if value not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}; got {value!r}")
        task = task_of(reference, backend=backend, precision=precision)
        verdict = await asyncio.to_thread(judge.evaluate, task, candidate, backend)
        found = {
            "outcome": verdict.outcome.value,
            "correct": verdict.correct,
            "reason": verdict.reason,
            "feedback": verdict.feedback,
            "speedup": verdict.speedup,
            "speedup_interval": [verdict.speedup_low, verdict.speedup_high],
            "runtime_ms": verdict.runtime_ms,
            "reference_ms": verdict.reference_ms,
            "device": verdict.device,
        }
        if not verdict.is_scored:
            found["note"] = "The judge itself failed. This says nothing about the candidate."
        return found

    @server.tool()
    async def search_kernels(query: str, limit: int = 5) -> dict[str, Any]:
        """Find verified kernels that solve a similar task.

        Args:
            query: Python source of a module, or words such as "softmax over rows".
            limit: highest number of kernels.
        """
        return await asyncio.to_thread(search, library, query, limit)

    return server


def search(library: str | None, query: str, limit: int) -> dict[str, Any]:
    """Return the kernels that a library finds, or one sentence that says why there are none.

    >>> search(None, "softmax", 3)["kernels"]
    []
    """
    if library is None:
        return {"kernels": [], "note": "no library was named: start the server with --library FILE"}
    try:
        kernels = importlib.import_module("kernel_coder.library")
    except ModuleNotFoundError:
        return {"kernels": [], "note": "this version of kernel-coder has no kernel library"}
    try:
        with kernels.Library(library, create=False) as opened:
            is_module = "class " in query and "torch" in query
            found = opened.nearest(task_of(query), limit) if is_module else opened.search(query, limit=limit)
    except UsageError as error:
        return {"kernels": [], "note": str(error)}
    return {
        "kernels": [
            {
                "task": entry.task.id,
                "reference": entry.task.reference,
                "source": entry.source,
                "backend": entry.task.backend,
                "speedup": entry.verdict.speedup,
                "device": entry.verdict.device,
                "similarity": entry.similarity,
                "licence": entry.licence,
            }
            for entry in found
        ]
    }


def main(arguments: list[str] | None = None) -> int:
    """Runs the server on stdin and stdout until they are closed."""
    parser = argparse.ArgumentParser(prog="python -m kernel_coder.integrations.mcp", description=main.__doc__)
    parser.add_argument("--judge", default="cpu", help="cpu, cuda:0, or the address of a service or Ray cluster")
    parser.add_argument("--library", help="file of a kernel library for search_kernels")
    options = parser.parse_args(arguments)
    with open_judge(options.judge) as judge:
        make_server(judge, options.library).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())

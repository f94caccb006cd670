"""Lets KernelBench's evaluator be imported without the clients of language models that its package imports."""

WITHOUT_CLIENTS = """
import importlib, sys
from unittest.mock import MagicMock
for name in ("anthropic", "google", "google.genai", "litellm", "openai", "together"):
    try:
        importlib.import_module(name)
    except ImportError:
        sys.modules[name] = MagicMock()
"""
"""Source that a fresh process runs first. The evaluator calls none of these packages."""

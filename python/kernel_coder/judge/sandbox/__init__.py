"""The sandbox starts, limits and ends processes that run untrusted code."""

"""Starts, limits and ends processes that run untrusted code."""

"""Starting, limiting and ending processes that run untrusted code."""

"""What crosses the border between processes: frames of a fixed size, shared memory, module calls."""

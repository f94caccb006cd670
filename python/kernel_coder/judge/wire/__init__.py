"""How the judge's processes exchange data: messages, frames of a fixed size, shared memory, and module calls."""

"""The model that is trained: loading, adapters, attention over packed rows, recomputation of activations."""

"""A report on a training run: one offline page that says what the model learned, when, and whether to believe it."""

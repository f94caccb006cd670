"""``kernel-coder report``: one self-contained page about a training run, with curves, findings, checks and answers."""

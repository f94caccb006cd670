"""What every kind of run shares: config, flags, checkpoints, random state, logs, signals and the loop over steps."""

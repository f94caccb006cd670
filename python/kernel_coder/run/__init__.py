"""What every command shares: flags, recipes, checkpoints, logs, signals and errors."""

"""The names of the files in a run's folder."""

METRICS = "metrics.jsonl"
SAMPLES = "samples.jsonl"
SUMMARY = "summary.json"
CONFIG = "config.yaml"

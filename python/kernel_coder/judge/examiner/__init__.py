"""The Examiner: holds the reference and the secret seeds, compares outputs, and owns the clock."""

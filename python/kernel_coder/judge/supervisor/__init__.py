"""The Supervisor: starts, limits and kills the other two processes, and makes verdicts of what the Examiner found."""

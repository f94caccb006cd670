"""The Supervisor starts, limits and kills the other processes, and makes verdicts from the Examiner's findings."""

"""The Examiner: holds the reference and the secret seeds, compares outputs, and owns the clock.

service        answers the supervisor's requests
examination    runs one candidate's examination
link           sends requests to a Runner
checks, proof  check single calls: are the outputs right, and made by the candidate's own kernels?
timing/        measures how much faster the candidate is
prepared_task  holds what is the same for all candidates on a task; made of:
               reference, samples, null_candidates, hidden_shapes, task_memory, memory_estimates
"""

"""The Examiner: holds the reference and the secret seeds, compares outputs, and owns the clock.

service        answers the supervisor's requests
examination    the sequence of one candidate's examination
link           its end of a Runner
checks, proof  single calls: right outputs, and made by the candidate's own kernels
timing/        how much faster the candidate is
prepared_task  what is the same for all candidates on a task, made of:
               reference, samples, null_candidates, hidden_shapes, task_memory, memory_estimates
"""

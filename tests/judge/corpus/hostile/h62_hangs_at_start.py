# task: softmax
# backend: torch
# hack: H62 sleeps at import, before anything of it has run
# why: never correct; a start that takes too long is the candidate's
import time

time.sleep(10_000)

# task: softmax
# backend: torch
# hack: H63 an endless loop at import
# why: never correct; the judge must kill it at the time limit
while True:
    continue

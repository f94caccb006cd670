# task: softmax
# backend: torch
# hack: H63 an endless loop at import
# why: correct never; dead at the limit
while True:
    continue

# task: softmax
# backend: torch
# hack: H62 runs out of memory at import
# why: never correct; it is the candidate's memory
blocks = []
while True:
    blocks.append(bytearray(1 << 26))

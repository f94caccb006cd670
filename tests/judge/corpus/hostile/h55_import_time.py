# task: softmax
# backend: torch
# hack: H55 source that takes for ever to parse or overflows the parser
# why: never correct; compile() must not run where a judge waits
value = 9**9**8


class ModelNew:
    """Never reached."""

# task: softmax
# backend: torch
# hack: H50 reads address 0 at import
# why: never correct; the judge must see it at once and not at the time limit
import ctypes

ctypes.string_at(0)

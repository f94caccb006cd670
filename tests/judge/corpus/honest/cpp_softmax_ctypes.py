# task: softmax
# backend: cpp
# needs: cpu
# slow: build
# why: a plain C function that the candidate compiles itself and opens with ctypes
import ctypes
import os
import subprocess

import torch
import torch.nn as nn

SOURCE = """
#include <math.h>
void softmax(const float* x, float* out, long rows, long cols) {
  for (long r = 0; r < rows; ++r) {
    const float* p = x + r * cols;
    float* q = out + r * cols;
    float m = p[0];
    double s = 0;
    for (long i = 1; i < cols; ++i) m = fmaxf(m, p[i]);
    for (long i = 0; i < cols; ++i) s += q[i] = expf(p[i] - m);
    for (long i = 0; i < cols; ++i) q[i] /= s;
  }
}
"""

with open("softmax.c", "w") as file:
    file.write(SOURCE)
subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "softmax.c", "-o", "softmax.so", "-lm"], check=True)
native = ctypes.CDLL(os.path.abspath("softmax.so"))
native.softmax.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long, ctypes.c_long]


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        native.softmax(x.data_ptr(), out.data_ptr(), *x.shape)
        return out

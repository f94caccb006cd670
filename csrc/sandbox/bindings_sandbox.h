// What csrc/sandbox/ adds to kernel_coder._C.
#pragma once

#include <pybind11/pybind11.h>

void bind_sandbox(pybind11::module_& m);

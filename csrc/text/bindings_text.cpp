#include <pybind11/pybind11.h>
void bind_text(pybind11::module_& m);

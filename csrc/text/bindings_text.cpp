#include "text/bindings_text.h"

void bind_text(pybind11::module_&) {}

// kernel_coder._C: all of C++ through one pybind11 module. It includes no torch header, so it compiles in seconds and
// depends on the CPython version only. The tensor ops are in two libraries, which depend on no Python version and work
// with several torch versions.
#include <dlfcn.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "ops/compare.h"
#include "ops/loss_spec.h"
#include "sandbox/bindings_sandbox.h"
#include "text/bindings_text.h"

namespace py = pybind11;

namespace {

using IsFailedCheck = bool (*)(const char* message);

std::vector<IsFailedCheck>& failed_check_lookups() {
  static std::vector<IsFailedCheck> lookups;
  return lookups;
}

// Opens a library of ops and never closes it: its ops stay registered with torch's dispatcher until the process ends.
void load_library(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char* reason = dlerror();
    throw py::import_error(reason ? reason : path + " could not be opened");
  }
  if (void* lookup = dlsym(library, "kernel_coder_is_failed_check")) {
    failed_check_lookups().push_back(reinterpret_cast<IsFailedCheck>(lookup));
  }
}

// Returns whether an op failed with this message because an argument was refused.
bool is_failed_check(const std::string& message) {
  for (const IsFailedCheck lookup : failed_check_lookups()) {
    if (lookup(message.c_str())) return true;
  }
  return false;
}

// Makes every op of torch.ops.kernel_coder an attribute of this module.
void expose_ops(py::module_& m) {
  const py::object ops = py::module_::import("torch").attr("ops").attr("kernel_coder");
  const py::object schemas = py::module_::import("torch").attr("_C").attr("_jit_get_all_schemas")();
  const std::string prefix = "kernel_coder::";
  for (const py::handle schema : schemas) {
    const auto name = schema.attr("name").cast<std::string>();
    if (name.rfind(prefix, 0) != 0) continue;
    const std::string op = name.substr(prefix.size());
    m.attr(op.c_str()) = ops.attr(op.c_str());
  }
}

py::dict build_info() {
  py::dict info;
  info["compiler"] = KC_BUILD_COMPILER;
  info["torch"] = KC_BUILD_TORCH;
  info["nvcc"] = KC_BUILD_NVCC;
  info["cuda_architectures"] = KC_BUILD_CUDA_ARCHITECTURES;
  return info;
}

// The layout of LossSpec with which the op was compiled. Python packs specs by it, so both always agree.
void expose_loss_spec(py::module_& m) {
  using Names = std::vector<std::string>;
#define KC_NAME(name) #name,
  py::dict choices;
  choices["Surrogate"] = Names{KC_SURROGATES(KC_NAME)};
  choices["RatioLevel"] = Names{KC_RATIO_LEVELS(KC_NAME)};
  choices["Reduction"] = Names{KC_REDUCTIONS(KC_NAME)};
  choices["KlEstimator"] = Names{KC_KL_ESTIMATORS(KC_NAME)};
  choices["Mismatch"] = Names{KC_MISMATCH_MODES(KC_NAME)};
  choices["MissingRollout"] = Names{KC_MISSING_ROLLOUTS(KC_NAME)};
  m.attr("LOSS_SPEC_CHOICES") = choices;
  m.attr("LOSS_METRICS") = py::tuple(py::cast(Names{KC_LOSS_METRICS(KC_NAME)}));
#undef KC_NAME
  py::list fields;
  const kc::LossSpec defaults;
#define KC_FIELD(type, name, value) fields.append(py::make_tuple(#name, #type, static_cast<double>(defaults.name)));
  KC_LOSS_SPEC_FIELDS(KC_FIELD)
#undef KC_FIELD
  m.attr("LOSS_SPEC_FIELDS") = py::tuple(fields);  // (name, C++ type, default)
}

// The names of a Comparison's numbers in the order of the packed vector, and the values of its `kind`.
void expose_comparison(py::module_& m) {
  using Names = std::vector<std::string>;
#define KC_NAME(name, value) #name,
  m.attr("COMPARISON_FIELDS") = py::tuple(py::cast(Names{KC_COMPARISON_FIELDS(KC_NAME)}));
#undef KC_NAME
#define KC_NAME(name) #name,
  m.attr("ELEMENT_KINDS") = py::tuple(py::cast(Names{KC_ELEMENT_KINDS(KC_NAME)}));
#undef KC_NAME
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  m.doc() = "The C++ core of kernel_coder.";
  m.def("load_library", &load_library, py::arg("path"), "Open a library of tensor ops for the life of the process.");
  m.def("is_failed_check", &is_failed_check, py::arg("message"),
        "Whether an op failed with this message because it refused an argument.");
  m.def(
      "expose_ops", [m]() mutable { expose_ops(m); }, "Offer every op of torch.ops.kernel_coder as an attribute here.");
  m.def("build_info", &build_info, "What this build was made with: compiler, torch, nvcc, cuda_architectures.");
  expose_loss_spec(m);
  expose_comparison(m);
  bind_text(m);
  bind_sandbox(m);
}

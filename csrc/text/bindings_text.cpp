#include "text/bindings_text.h"

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "text/parse_response.h"
#include "text/sequence_similarity.h"

namespace py = pybind11;

namespace {

std::string type_name(py::handle object) {
  return Py_TYPE(object.ptr())->tp_name;
}

// The characters of a Python str where they lie, whatever their width. Valid as long as the str is.
kc::TextView view_of(py::handle text) {
#if PY_VERSION_HEX < 0x030C0000
  if (PyUnicode_READY(text.ptr()) != 0) throw py::error_already_set();
#endif
  return {PyUnicode_DATA(text.ptr()), static_cast<std::size_t>(PyUnicode_GET_LENGTH(text.ptr())),
          static_cast<int>(PyUnicode_KIND(text.ptr()))};
}

kc::TextView text_argument(py::handle object, const char* name) {
  if (!PyUnicode_Check(object.ptr())) {
    throw py::type_error(std::string(name) + " must be str; got " + type_name(object));
  }
  return view_of(object);
}

// A sequence of str. Keeps the str objects alive in `owners`, since the caller's list may change while the GIL is free.
std::vector<kc::TextView> texts_argument(py::handle object, const char* name, std::vector<py::object>& owners) {
  if (PyUnicode_Check(object.ptr()) || PySequence_Check(object.ptr()) == 0) {
    throw py::type_error(std::string(name) + " must be a list of str; got " + type_name(object));
  }
  std::vector<kc::TextView> views;
  for (const py::handle item : py::reinterpret_borrow<py::sequence>(object)) {
    if (!PyUnicode_Check(item.ptr())) {
      throw py::type_error("item " + std::to_string(views.size()) + " of " + name + " must be str; got " +
                           type_name(item));
    }
    owners.push_back(py::reinterpret_borrow<py::object>(item));
    views.push_back(view_of(item));
  }
  return views;
}

// The place of `name` among `names`, the enumerators of `Enum` in their order.
template <class Enum>
Enum enum_argument(const std::string& name, const char* argument, std::initializer_list<const char*> names) {
  int value = 0;
  for (const char* const known : names) {
    if (name == known) return static_cast<Enum>(value);
    ++value;
  }
  throw py::value_error(std::string(argument) + " is not one of the known ones; got '" + name + "'");
}

double sequence_similarity(const py::object& a, const py::object& b, bool autojunk, const std::string& way,
                           const std::string& simd) {
  const kc::TextView view_a = text_argument(a, "a");
  const kc::TextView view_b = text_argument(b, "b");
  const kc::SimilarityOptions options{
      enum_argument<kc::SearchWay>(way, "way", {"automatic", "bits", "anchors", "diagonals", "windows"}),
      enum_argument<kc::SimdLevel>(simd, "simd", {"automatic", "generic", "avx2", "avx512"})};
  const py::gil_scoped_release unlocked;
  return kc::sequence_similarity(view_a, view_b, autojunk, options);
}

py::list sequence_similarities(const py::object& a, const py::object& b, bool autojunk, int threads) {
  std::vector<py::object> owners;
  const std::vector<kc::TextView> views_a = texts_argument(a, "a", owners);
  const std::vector<kc::TextView> views_b = texts_argument(b, "b", owners);
  if (views_a.size() != views_b.size()) {
    throw py::value_error("a and b must have the same length; got " + std::to_string(views_a.size()) + " and " +
                          std::to_string(views_b.size()) + " texts");
  }
  std::vector<double> ratios(views_a.size());
  {
    const py::gil_scoped_release unlocked;
    kc::sequence_similarities(views_a.data(), views_b.data(), views_a.size(), autojunk, threads, ratios.data());
  }
  py::list out(ratios.size());
  for (std::size_t i = 0; i < ratios.size(); ++i) out[i] = ratios[i];
  return out;
}

py::object substring(py::handle text, kc::TextSpan span) {
  PyObject* const part =
      PyUnicode_Substring(text.ptr(), static_cast<Py_ssize_t>(span.begin), static_cast<Py_ssize_t>(span.end));
  if (part == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(part);
}

py::object joined(py::handle text, const std::vector<kc::TextSpan>& spans) {
  py::list parts;
  for (const kc::TextSpan span : spans) parts.append(substring(text, span));
  return py::str("").attr("join")(parts);
}

// (thinking, answer, code, error), each a str or None.
py::tuple parse_response(const py::object& text) {
  const kc::TextView view = text_argument(text, "text");
  kc::ParsedResponse parsed;
  {
    const py::gil_scoped_release unlocked;
    parsed = kc::parse_response(view);
  }
  const py::object none = py::none();
  return py::make_tuple(parsed.thinking ? substring(text, *parsed.thinking) : none,
                        parsed.answer ? substring(text, *parsed.answer) : none,
                        parsed.code ? joined(text, *parsed.code) : none,
                        parsed.error.empty() ? none : py::str(parsed.error));
}

}  // namespace

void bind_text(py::module_& m) {
  m.def("sequence_similarity", &sequence_similarity, py::arg("a"), py::arg("b"), py::arg("autojunk"),
        py::arg("way") = "automatic", py::arg("simd") = "automatic",
        "difflib's ratio of two texts; see kernel_coder.ops.sequence_similarity.");
  m.def("sequence_similarities", &sequence_similarities, py::arg("a"), py::arg("b"), py::arg("autojunk"),
        py::arg("threads"), "difflib's ratio of many pairs of texts; see kernel_coder.ops.sequence_similarities.");
  m.def("parse_response", &parse_response, py::arg("text"),
        "(thinking, answer, code, error) of a response; see kernel_coder.ops.parse_response.");
}

#include "sandbox/bindings_sandbox.h"

#include <pybind11/stl.h>

#include <cerrno>
#include <memory>
#include <string>
#include <system_error>
#include <type_traits>
#include <vector>

#include "sandbox/channel.h"
#include "sandbox/device_memory.h"
#include "sandbox/landlock.h"
#include "sandbox/report.h"
#include "sandbox/seccomp.h"
#include "sandbox/spawn.h"

namespace py = pybind11;
namespace sb = kc::sandbox;

#ifdef __linux__

namespace {

template <class Function>
auto with_os_errors(Function&& function) {
  try {
    return function();
  } catch (const std::system_error& error) {
    const py::tuple arguments = py::make_tuple(error.code().value(), error.what());
    PyErr_SetObject(PyExc_OSError, arguments.ptr());
    throw py::error_already_set();
  }
}

// The letter of an integer type in Python's struct formats.
template <class Integer>
constexpr char struct_code() {
  static_assert(sizeof(Integer) == 4 || sizeof(Integer) == 8);
  constexpr bool is_signed = std::is_signed_v<Integer>;
  if constexpr (sizeof(Integer) == 4) return is_signed ? 'i' : 'I';
  return is_signed ? 'q' : 'Q';
}

template <class Value>
Value field(const py::dict& spec, const char* name) {
  if (!spec.contains(name)) throw py::key_error(std::string("the specification of a process lacks ") + name);
  return spec[name].cast<Value>();
}

// Keys are the names of SpawnSpec's members.
sb::SpawnSpec spec_of(const py::dict& fields) {
  sb::SpawnSpec spec;
#define KC_TAKE(name) spec.name = field<decltype(spec.name)>(fields, #name)
  KC_TAKE(argv);
  KC_TAKE(environment);
  KC_TAKE(setup_only);
  KC_TAKE(directory);
  KC_TAKE(descriptors);
  KC_TAKE(lifeline);
  KC_TAKE(report);
  KC_TAKE(head_bytes);
  KC_TAKE(tail_bytes);
  KC_TAKE(wall_s);
  KC_TAKE(user_namespace);
  KC_TAKE(net_namespace);
  KC_TAKE(ipc_namespace);
  KC_TAKE(mount_namespace);
  KC_TAKE(pid_namespace);
  KC_TAKE(uid);
  KC_TAKE(gid);
  KC_TAKE(groups);
  KC_TAKE(no_new_privs);
  KC_TAKE(landlock);
  KC_TAKE(cores);
  KC_TAKE(cgroup_procs);
  KC_TAKE(cgroup_kill);
#undef KC_TAKE
  using Mount = std::tuple<int, std::string, std::string, std::string>;
  for (const auto& [kind, source, target, options] : field<std::vector<Mount>>(fields, "mounts")) {
    spec.mounts.push_back({static_cast<sb::MountStep::Kind>(kind), source, target, options});
  }
  using Path = std::pair<std::string, int>;
  for (const auto& [path, access] : field<std::vector<Path>>(fields, "paths")) {
    spec.paths.push_back({path, static_cast<sb::PathAccess>(access)});
  }
  using Limit = std::pair<int, std::uint64_t>;
  for (const auto& [resource, value] : field<std::vector<Limit>>(fields, "limits")) {
    spec.limits.push_back({resource, value});
  }
  if (field<bool>(fields, "seccomp")) {
    const sb::FilterOptions options{field<bool>(fields, "own_signals_only"), field<bool>(fields, "unix_sockets"),
                                    !spec.cores.empty()};
    spec.filter = sb::build_filter(options, &spec.filter_own_pid);
  }
  if (spec.lifeline < 0 || spec.report < 0 || spec.directory.empty() || spec.descriptors.size() > 256) {
    throw py::value_error("a process needs a lifeline, a report, a directory and at most 256 descriptors");
  }
  return spec;
}

// (is_sandboxed, pid, pidfd)
py::tuple spawn(const py::dict& fields) {
  const sb::SpawnSpec spec = spec_of(fields);
  const bool python_continues = spec.argv.empty() && !spec.setup_only;
  return with_os_errors([&]() -> py::tuple {
    if (!python_continues) {
      const sb::Spawned spawned = sb::spawn(spec);
      return py::make_tuple(false, spawned.pid, spawned.pidfd);
    }
    PyOS_BeforeFork();
    sb::Spawned spawned;
    try {
      spawned = sb::spawn(spec);
    } catch (...) {
      PyOS_AfterFork_Parent();
      throw;
    }
    if (spawned.is_sandboxed) {
      PyOS_AfterFork_Child();
    } else {
      PyOS_AfterFork_Parent();
    }
    return py::make_tuple(spawned.is_sandboxed, spawned.pid, spawned.pidfd);
  });
}

py::tuple landlock_version() {
  int error = 0;
  const int version = sb::landlock_version(&error);
  return py::make_tuple(version, error);
}

py::list denied_calls() {
  py::list calls;
  for (const sb::DeniedCall& call : sb::denied_calls()) calls.append(py::make_tuple(call.name, call.reason));
  return calls;
}

sb::Frame frame_of(const py::bytes& bytes) {
  const auto view = static_cast<std::string_view>(bytes);
  if (view.size() != sb::kFrameBytes) {
    throw py::value_error("a frame must have " + std::to_string(sb::kFrameBytes) + " bytes; got " +
                          std::to_string(view.size()));
  }
  sb::Frame frame;
  std::copy(view.begin(), view.end(), frame.begin());
  return frame;
}

bool send_frame(int fd, const py::bytes& bytes, double timeout_s) {
  const sb::Frame frame = frame_of(bytes);
  return with_os_errors([&] {
    const py::gil_scoped_release unlocked;
    return sb::send_frame(fd, frame, timeout_s);
  });
}

// The frame, or the name of what came instead: "timeout", "closed", "malformed".
py::object receive_frame(int fd, int pidfd, double timeout_s) {
  sb::Frame frame;
  const sb::Arrival arrival = with_os_errors([&] {
    const py::gil_scoped_release unlocked;
    return sb::receive_frame(fd, pidfd, timeout_s, &frame);
  });
  switch (arrival) {
    case sb::Arrival::kFrame:
      return py::bytes(frame.data(), frame.size());
    case sb::Arrival::kTimeout:
      return py::str("timeout");
    case sb::Arrival::kClosed:
      return py::str("closed");
    case sb::Arrival::kMalformed:
      break;
  }
  return py::str("malformed");
}

int make_buffer(const std::string& name, std::uint64_t size) {
  return with_os_errors([&] { return sb::make_buffer(name, size); });
}

std::pair<int, int> make_channel() {
  return with_os_errors([] { return sb::make_channel(); });
}

// A tensor's memory in the form that torch.utils.dlpack.from_dlpack takes, once.
py::capsule dlpack(const std::shared_ptr<sb::DeviceMemory>& memory) {
  constexpr const char* kUnread = "dltensor";  // a reader renames it
  return py::reinterpret_steal<py::capsule>(PyCapsule_New(sb::as_dlpack(memory), kUnread, [](PyObject* capsule) {
    if (!PyCapsule_IsValid(capsule, kUnread)) return;
    auto* const managed = static_cast<sb::DlpackManaged*>(PyCapsule_GetPointer(capsule, kUnread));
    managed->deleter(managed);
  }));
}

void bind_device_memory(py::module_& sandbox) {
  const auto error = py::register_exception<sb::DeviceMemoryError>(sandbox, "DeviceMemoryError", PyExc_RuntimeError);
  py::register_exception<sb::DeviceOutOfMemory>(sandbox, "DeviceOutOfMemory", error.ptr());
  using Unlocked = py::call_guard<py::gil_scoped_release>;
  py::class_<sb::DeviceMemory, std::shared_ptr<sb::DeviceMemory>>(sandbox, "DeviceMemory")
      .def_static("create", &sb::DeviceMemory::create, py::arg("size"), py::arg("device"), Unlocked())
      .def_static("open", &sb::DeviceMemory::open, py::arg("fd"), py::arg("size"), py::arg("device"), Unlocked())
      .def("export_fd", &sb::DeviceMemory::export_fd, Unlocked(), "A new descriptor, the caller's to close.")
      .def("dlpack", &dlpack, "A capsule of all its bytes for torch.utils.dlpack.from_dlpack.")
      .def_property_readonly("pointer", &sb::DeviceMemory::pointer)
      .def_property_readonly("mapped_size", &sb::DeviceMemory::mapped_size)
      .def_property_readonly("device", &sb::DeviceMemory::device);
}

}  // namespace

void bind_sandbox(py::module_& m) {
  py::module_ sandbox = m.def_submodule("sandbox", "The process layer of the judge; see kernel_coder.judge.sandbox.");
  sandbox.attr("SUPPORTED") = true;
  sandbox.attr("REPORT_BYTES") = sizeof(sb::Report);
  sandbox.attr("FRAME_BYTES") = sb::kFrameBytes;
  using Names = std::vector<std::string>;
#define KC_NAME(name) #name,
  sandbox.attr("SETUP_STEPS") = py::tuple(py::cast(Names{KC_SETUP_STEPS(KC_NAME)}));
#undef KC_NAME
  // The enums, whose values are the places in these tuples.
#define KC_NAME(enumerator, name) name,
  sandbox.attr("PATH_ACCESSES") = py::tuple(py::cast(Names{KC_PATH_ACCESSES(KC_NAME)}));
  sandbox.attr("MOUNT_KINDS") = py::tuple(py::cast(Names{KC_MOUNT_KINDS(KC_NAME)}));
  sandbox.attr("STATES") = py::tuple(py::cast(Names{KC_STATES(KC_NAME)}));
  sandbox.attr("ENDED_BY") = py::tuple(py::cast(Names{KC_ENDED_BY(KC_NAME)}));
#undef KC_NAME
  // The struct Report, for struct.Struct: its format, and the names of its numbers in order.
  std::string format = "=";
  Names fields;
#define KC_FIELD(type, name)     \
  format += struct_code<type>(); \
  fields.emplace_back(#name);
  KC_REPORT_FIELDS(KC_FIELD)
#undef KC_FIELD
  for (const char* const stream : {"written_stdout", "written_stderr"}) {
    format += struct_code<std::uint64_t>();
    fields.emplace_back(stream);
  }
  sandbox.attr("REPORT_FORMAT") = format;
  sandbox.attr("REPORT_FIELDS") = py::tuple(py::cast(fields));
  sandbox.def("spawn", &spawn, py::arg("spec"), "Start a sandboxed process: (is_sandboxed, keeper's pid, its pidfd).");
  sandbox.def("landlock_version", &landlock_version, "(version of Landlock in this kernel or 0, errno).");
  sandbox.def("filter_supported", &sb::filter_supported, "Whether system call filters can be written for this CPU.");
  sandbox.def("denied_calls", &denied_calls, "[(system call, why it is denied)].");
  sandbox.def("make_channel", &make_channel, "Two connected sockets for frames.");
  sandbox.def("send_frame", &send_frame, py::arg("fd"), py::arg("frame"), py::arg("timeout_s"));
  sandbox.def("receive_frame", &receive_frame, py::arg("fd"), py::arg("pidfd"), py::arg("timeout_s"));
  sandbox.def("make_buffer", &make_buffer, py::arg("name"), py::arg("size"), "A memfd whose size is sealed.");
  bind_device_memory(sandbox);
}

#else

void bind_sandbox(py::module_& m) {
  py::module_ sandbox = m.def_submodule("sandbox", "The process layer of the judge, which needs Linux.");
  sandbox.attr("SUPPORTED") = false;
  sandbox.def("__getattr__", [](const std::string& name) -> py::object {
    throw py::attribute_error(
        "kernel_coder._C.sandbox." + name +
        " is not there: the sandbox is made of Linux's namespaces, Landlock and seccomp, and this "
        "build is for another system");
  });
}

#endif

// File access of a sandboxed process by Landlock: what is not listed cannot be opened. The constants are our own, since
// a build machine's headers know fewer of them than the kernel the build will run on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kc::sandbox {

// X(enumerator, the name that Python sees), in the order of their values.
// clang-format off
#define KC_PATH_ACCESSES(X)                                                                              \
  X(kRead, "read")            /* read, list and execute */                                               \
  X(kWrite, "write")          /* all of it: the private work directory */                                \
  X(kDevice, "device")        /* read, write and ioctl: a device node, or a directory of them */         \
  X(kProcesses, "processes")  /* read, and write to existing files: /proc, where libcuda names threads */
// clang-format on

enum class PathAccess : std::uint32_t {
#define KC_ENUMERATOR(enumerator, name) enumerator,
  KC_PATH_ACCESSES(KC_ENUMERATOR)
#undef KC_ENUMERATOR
};

struct PathRule {
  std::string path;
  PathAccess access = PathAccess::kRead;
};

// Version of Landlock's interface in this kernel: 0 where it is missing, with the errno in *error. 1: files. 2: moving
// files between directories. 3: truncation. 4: TCP. 5: ioctl on devices. 6: signals and abstract sockets.
[[nodiscard]] int landlock_version(int* error);

// Restricts this process and its children to be. Needs no_new_privs. A path that does not exist is left out. 0 or an
// errno; allocates nothing.
[[nodiscard]] int apply_landlock(const PathRule* rules, std::size_t count, int version);

}  // namespace kc::sandbox

// Starts a process with every layer of the sandbox applied before its first instruction, and keeps watch over it.
//
//   supervisor ── keeper ── [init, process 1 of a pid namespace] ── the sandboxed process ── its children
//
// The keeper is ours: it drains stdout and stderr into a bounded report, holds the wall clock limit, kills the whole
// tree when that passes, when the supervisor asks, or when the supervisor is gone, and leaves only when nothing of the
// tree is left. Between fork and exec nothing is allocated and nothing but system calls is made, so a supervisor with
// threads can start processes.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "sandbox/landlock.h"
#include "sandbox/seccomp.h"

namespace kc::sandbox {

// X(enumerator, the name that Python sees), in the order of their values.
#define KC_MOUNT_KINDS(X) X(kTmpfs, "tmpfs") X(kDirectory, "directory") X(kBind, "bind") X(kProc, "proc")

struct MountStep {
#define KC_ENUMERATOR(enumerator, name) enumerator,
  enum class Kind : std::uint32_t { KC_MOUNT_KINDS(KC_ENUMERATOR) };
#undef KC_ENUMERATOR
  Kind kind = Kind::kTmpfs;
  std::string source;  // of a bind
  std::string target;
  std::string options;  // of a tmpfs
};

struct ResourceLimit {
  int resource = 0;
  std::uint64_t value = 0;
};

struct SpawnSpec {
  // An absolute path and its arguments. Empty: the caller itself continues as the sandboxed process (see `setup_only`).
  std::vector<std::string> argv;
  std::vector<std::string> environment;
  bool setup_only = false;  // end with status 0 once every layer is in place
  std::string directory;
  std::vector<int> descriptors;  // become 3, 4, ...; every other one is closed
  int lifeline = -1;             // a socket: the keeper writes a byte once the process runs; a byte or its end kills
  int report = -1;               // a memfd of sizeof(Report) + 2 * (head_bytes + tail_bytes)
  std::uint64_t head_bytes = 0;
  std::uint64_t tail_bytes = 0;
  double wall_s = 0;  // 0: no limit

  bool user_namespace = false;
  bool net_namespace = false;
  bool ipc_namespace = false;
  bool mount_namespace = false;
  bool pid_namespace = false;
  std::vector<MountStep> mounts;

  std::int64_t uid = -1;  // -1: the uid stays as it is
  std::int64_t gid = -1;
  std::vector<std::uint32_t> groups;
  bool no_new_privs = false;
  int landlock = 0;  // version, 0: none
  std::vector<PathRule> paths;
  std::vector<FilterInstruction> filter;
  std::vector<std::size_t> filter_own_pid;
  std::vector<ResourceLimit> limits;
  std::vector<int> cores;
  std::vector<int> cgroup_procs;  // descriptors of cgroup.procs to enter
  int cgroup_kill = -1;           // descriptor of cgroup.kill
};

struct Spawned {
  bool is_sandboxed = false;  // true in the sandboxed process, where argv is empty
  pid_t pid = 0;              // of the keeper
  int pidfd = -1;             // of the keeper
};

// Throws std::system_error if the keeper could not be started. Everything after that is told in the report.
[[nodiscard]] Spawned spawn(const SpawnSpec& spec);

}  // namespace kc::sandbox

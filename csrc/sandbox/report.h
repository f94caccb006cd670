// What the keeper of a sandboxed process tells the supervisor: a block of shared memory that the sandboxed process
// never has mapped. Python reads it by these offsets, see kernel_coder/judge/sandbox/sandbox.py.
#pragma once

#include <cstdint>

namespace kc::sandbox {

enum class State : std::uint32_t { kStarting, kRunning, kEnded, kSetupFailed };

enum class EndedBy : std::uint32_t { kItself, kWallLimit, kSupervisor };

// Where starting can fail, in the order in which it is done.
#define KC_SETUP_STEPS(STEP)                                                                             \
  STEP(none)                                                                                             \
  STEP(keeper)                                                                                           \
  STEP(user_namespace)                                                                                   \
  STEP(net_namespace)                                                                                    \
  STEP(ipc_namespace) STEP(mount_namespace) STEP(pid_namespace) STEP(fork) STEP(mount) STEP(descriptors) \
      STEP(directory) STEP(cgroup) STEP(cores) STEP(no_new_privs) STEP(landlock) STEP(groups) STEP(uid)  \
          STEP(capabilities) STEP(limits) STEP(seccomp) STEP(exec)

enum class Step : std::int32_t {
#define KC_STEP(name) name,
  KC_SETUP_STEPS(KC_STEP)
#undef KC_STEP
};

struct Report {
  std::uint32_t state;
  std::uint32_t ended_by;
  std::int32_t wait_status;    // as waitpid gives it
  std::uint32_t left_running;  // 1 if processes of the tree were still there when its first one ended
  std::int32_t failed_step;
  std::int32_t error;   // errno of the failed step
  std::int32_t detail;  // which one of several: the index of a mount or a limit
  std::int32_t keeper_pid;
  std::int64_t started_ns;  // CLOCK_MONOTONIC
  std::int64_t ended_ns;
  std::int64_t user_us;
  std::int64_t system_us;
  std::int64_t max_rss_kib;  // of the largest process of the tree
  std::uint64_t written[2];  // bytes on stdout and stderr; head_bytes and then a ring of tail_bytes of each follow
};
static_assert(sizeof(Report) == 88);

}  // namespace kc::sandbox

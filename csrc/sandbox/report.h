// What the keeper of a sandboxed process tells the supervisor: a block of shared memory that the sandboxed process
// never has mapped. Python reads it as kernel_coder._C.sandbox describes it: REPORT_FORMAT, REPORT_FIELDS, STATES,
// ENDED_BY.
#pragma once

#include <cstdint>

namespace kc::sandbox {

// The enumerators in the order of their values: X(enumerator, the name that Python sees).
#define KC_STATES(X) X(kStarting, "starting") X(kRunning, "running") X(kEnded, "ended") X(kSetupFailed, "setup_failed")
#define KC_ENDED_BY(X) X(kItself, "itself") X(kWallLimit, "wall_limit") X(kSupervisor, "supervisor")

#define KC_ENUMERATOR(enumerator, name) enumerator,
enum class State : std::uint32_t { KC_STATES(KC_ENUMERATOR) };
enum class EndedBy : std::uint32_t { KC_ENDED_BY(KC_ENUMERATOR) };
#undef KC_ENUMERATOR

// Where starting can fail, in the order in which it is done.
// clang-format off
#define KC_SETUP_STEPS(STEP) \
  STEP(none) \
  STEP(keeper) \
  STEP(user_namespace) \
  STEP(net_namespace) \
  STEP(ipc_namespace) \
  STEP(mount_namespace) \
  STEP(pid_namespace) \
  STEP(fork) \
  STEP(mount) \
  STEP(descriptors) \
  STEP(directory) \
  STEP(cgroup) \
  STEP(cores) \
  STEP(no_new_privs) \
  STEP(landlock) \
  STEP(groups) \
  STEP(uid) \
  STEP(capabilities) \
  STEP(limits) \
  STEP(seccomp) \
  STEP(exec)
// clang-format on

enum class Step : std::int32_t {
#define KC_STEP(name) name,
  KC_SETUP_STEPS(KC_STEP)
#undef KC_STEP
};

// The numbers of the report: X(type, name).
// clang-format off
#define KC_REPORT_FIELDS(X) \
  X(std::uint32_t, state)        /* a State */                                                    \
  X(std::uint32_t, ended_by)     /* an EndedBy */                                                 \
  X(std::int32_t, wait_status)   /* as waitpid gives it */                                        \
  X(std::uint32_t, left_running) /* 1 if the tree still had processes when its first one ended */ \
  X(std::int32_t, failed_step)   /* a Step */                                                     \
  X(std::int32_t, error)         /* errno of the failed step */                                   \
  X(std::int32_t, detail)        /* which mount or which limit failed: its index */               \
  X(std::int32_t, keeper_pid)                                                                     \
  X(std::int64_t, started_ns)    /* CLOCK_MONOTONIC */                                            \
  X(std::int64_t, ended_ns)      /* CLOCK_MONOTONIC */                                            \
  X(std::int64_t, user_us)                                                                        \
  X(std::int64_t, system_us)                                                                      \
  X(std::int64_t, max_rss_kib)   /* of the largest process of the tree */
// clang-format on

struct Report {
#define KC_MEMBER(type, name) type name;
  KC_REPORT_FIELDS(KC_MEMBER)
#undef KC_MEMBER
  // Bytes that the process wrote to stdout and to stderr. Behind the report lie, for each of the two, its first
  // head_bytes and then a ring of the last tail_bytes.
  std::uint64_t written[2];
};
static_assert(sizeof(Report) == 88);

}  // namespace kc::sandbox

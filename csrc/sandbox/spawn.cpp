#include "sandbox/spawn.h"

#ifdef __linux__

#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <system_error>

#include "sandbox/report.h"

#ifndef __NR_pidfd_send_signal
#define __NR_pidfd_send_signal 424
#endif
#ifndef __NR_pidfd_open
#define __NR_pidfd_open 434
#endif
#ifndef __NR_close_range
#define __NR_close_range 436
#endif

namespace kc::sandbox {
namespace {

constexpr int kSignals = 64;

std::int64_t now_ns() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

// fork() with its handlers where Python goes on in the child; without them where only our own system calls follow,
// since handlers (of a BLAS, say) may wait for threads that only the supervisor has.
pid_t fork_process(bool with_handlers) {
  if (with_handlers) return fork();
  return static_cast<pid_t>(syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr));
}

// A child that shares our memory until it executes another program or ends, and we wait for that: no page table is
// copied, which is most of what a fork of a process with torch in it costs. `run` has a stack of its own.
pid_t start_sharing_memory(int (*run)(void*), void* argument) {
  alignas(64) static char stack[1 << 18];
  return clone(run, stack + sizeof(stack), CLONE_VM | CLONE_VFORK | SIGCHLD, argument);
}

int open_pidfd(pid_t pid) {
  return static_cast<int>(syscall(__NR_pidfd_open, pid, 0));
}

void close_range(unsigned first, unsigned last) {
  if (first > last) return;
  if (syscall(__NR_close_range, first, last, 0) == 0) return;
  rlimit limit;
  getrlimit(RLIMIT_NOFILE, &limit);
  const auto end = static_cast<unsigned>(std::min<rlim_t>(limit.rlim_cur, 1u << 20));
  for (unsigned fd = first; fd <= last && fd < end; ++fd) close(static_cast<int>(fd));
}

// Descriptors that stay open, at most as many as one process is handed.
class Kept {
 public:
  void add(int fd) {
    if (fd >= 0 && count_ < kCapacity) fds_[count_++] = fd;
  }
  void close_others() {
    std::sort(fds_, fds_ + count_);
    unsigned first = 0;
    for (int i = 0; i < count_; ++i) {
      const auto fd = static_cast<unsigned>(fds_[i]);
      if (fd > first) close_range(first, fd - 1);
      first = std::max(first, fd + 1);
    }
    close_range(first, UINT_MAX);
  }

 private:
  static constexpr int kCapacity = 512;
  int fds_[kCapacity];
  int count_ = 0;
};

struct Failure {
  std::int32_t step;
  std::int32_t error;
  std::int32_t detail;
};

[[noreturn]] void fail_setup(int pipe, Step step, int error, int detail = 0) {
  const Failure failure{static_cast<std::int32_t>(step), error, detail};
  const ssize_t ignored = write(pipe, &failure, sizeof(failure));
  static_cast<void>(ignored);
  _exit(127);
}

// How the first process of the tree ended, from init to the keeper.
struct Ending {
  std::int32_t wait_status;
  std::uint32_t left_running;
  rusage usage;
};

bool write_text(const char* path, const char* text) {
  const int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool written = write(fd, text, std::strlen(text)) >= 0;
  const int error = errno;
  close(fd);
  errno = error;
  return written;
}

// ---- the sandboxed process ----

struct Prepared {
  const SpawnSpec& spec;
  std::vector<char*> argv;
  std::vector<char*> environment;
  std::vector<FilterInstruction> filter;
  std::vector<int> descriptors;
  std::vector<int> bind_sources;
  std::vector<gid_t> groups;
  std::string uid_map, gid_map;
  bool python_continues;
};

void reset_signals() {
  struct sigaction action;
  std::memset(&action, 0, sizeof(action));
  action.sa_handler = SIG_DFL;
  for (int signal = 1; signal <= kSignals; ++signal) sigaction(signal, &action, nullptr);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
}

void run_mounts(Prepared& prepared, int setup) {
  const SpawnSpec& spec = prepared.spec;
  // Nothing that is mounted here is seen outside.
  if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) fail_setup(setup, Step::mount, errno, -1);
  // Opened before anything is mounted over them, and here, since only mounts of this namespace can be bound in it.
  for (std::size_t i = 0; i < spec.mounts.size(); ++i) {
    if (spec.mounts[i].kind != MountStep::Kind::kBind) continue;
    prepared.bind_sources[i] = open(spec.mounts[i].source.c_str(), O_PATH | O_CLOEXEC);
    if (prepared.bind_sources[i] < 0) fail_setup(setup, Step::mount, errno, static_cast<int>(i));
  }
  for (std::size_t i = 0; i < spec.mounts.size(); ++i) {
    const MountStep& step = spec.mounts[i];
    const char* const target = step.target.c_str();
    int result = 0;
    switch (step.kind) {
      case MountStep::Kind::kTmpfs:
        result = mount("tmpfs", target, "tmpfs", MS_NOSUID | MS_NODEV, step.options.c_str());
        break;
      case MountStep::Kind::kDirectory:
        result = mkdir(target, 0755);
        if (result != 0 && errno == EEXIST) result = 0;
        break;
      case MountStep::Kind::kBind: {
        char source[64];
        std::snprintf(source, sizeof(source), "/proc/self/fd/%d", prepared.bind_sources[i]);
        result = mount(source, target, nullptr, MS_BIND | MS_REC, nullptr);
        break;
      }
      case MountStep::Kind::kProc:
        result = mount("proc", target, "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr);
        break;
    }
    if (result != 0) fail_setup(setup, Step::mount, errno, static_cast<int>(i));
  }
}

// The descriptors handed over become 3, 4, ..., the setup pipe the one after them; all others are closed.
int place_descriptors(Prepared& prepared, int out, int err, int setup) {
  std::vector<int>& handed = prepared.descriptors;
  const int count = static_cast<int>(handed.size());
  const int above = 3 + count + 1;
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  if (null < 0) fail_setup(setup, Step::descriptors, errno);
  int sources[4] = {null, out, err, setup};
  for (int& fd : sources) {
    fd = fcntl(fd, F_DUPFD_CLOEXEC, above);
    if (fd < 0) fail_setup(setup, Step::descriptors, errno);
  }
  setup = sources[3];
  for (int& fd : handed) {
    fd = fcntl(fd, F_DUPFD_CLOEXEC, above);
    if (fd < 0) fail_setup(setup, Step::descriptors, errno);
  }
  for (int i = 0; i < 3; ++i) {
    if (dup2(sources[i], i) < 0) fail_setup(setup, Step::descriptors, errno);
  }
  for (int i = 0; i < count; ++i) {
    if (dup2(handed[i], 3 + i) < 0) fail_setup(setup, Step::descriptors, errno);
  }
  const int last = 3 + count;
  if (dup3(setup, last, O_CLOEXEC) < 0) fail_setup(setup, Step::descriptors, errno);
  close_range(static_cast<unsigned>(last) + 1, UINT_MAX);
  return last;
}

void drop_bounding_set() {
  for (int capability = 0; capability < 64; ++capability) {
    if (prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0) break;  // past the last one, or nothing to drop with
  }
}

void drop_capabilities(int setup) {
  prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct none[2];
  std::memset(none, 0, sizeof(none));
  if (syscall(SYS_capset, &header, none) != 0) fail_setup(setup, Step::capabilities, errno);
}

void set_limits(const std::vector<ResourceLimit>& limits, int setup) {
  for (std::size_t i = 0; i < limits.size(); ++i) {
    const auto resource = static_cast<__rlimit_resource_t>(limits[i].resource);
    rlimit now;
    if (getrlimit(resource, &now) != 0) fail_setup(setup, Step::limits, errno, static_cast<int>(i));
    const rlim_t value = std::min<rlim_t>(limits[i].value, now.rlim_max);
    // Of CPU time the soft limit gives SIGXCPU, which can be ignored, and the hard one SIGKILL.
    const rlimit limit{value, resource == RLIMIT_CPU ? std::min<rlim_t>(value + 1, now.rlim_max) : value};
    if (setrlimit(resource, &limit) != 0) fail_setup(setup, Step::limits, errno, static_cast<int>(i));
  }
}

// Returns the descriptor of the setup pipe once every layer is in place.
int enter_sandbox(Prepared& prepared, int out, int err, int setup) {
  const SpawnSpec& spec = prepared.spec;
  setsid();
  reset_signals();
  if (chdir(spec.directory.c_str()) != 0) fail_setup(setup, Step::directory, errno);
  for (const int cgroup : spec.cgroup_procs) {
    if (write(cgroup, "0", 1) != 1) fail_setup(setup, Step::cgroup, errno);
  }
  if (!spec.cores.empty()) {
    cpu_set_t cores;
    CPU_ZERO(&cores);
    for (const int core : spec.cores) CPU_SET(core, &cores);
    if (sched_setaffinity(0, sizeof(cores), &cores) != 0) fail_setup(setup, Step::cores, errno);
  }
  write_text("/proc/self/oom_score_adj", "1000");  // when memory runs out, this process goes first
  setup = place_descriptors(prepared, out, err, setup);
  umask(0077);
  if (spec.no_new_privs && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) fail_setup(setup, Step::no_new_privs, errno);
  if (spec.landlock > 0) {
    const int error = apply_landlock(spec.paths.data(), spec.paths.size(), spec.landlock);
    if (error != 0) fail_setup(setup, Step::landlock, error);
  }
  drop_bounding_set();  // while that is still allowed
  if (spec.uid >= 0) {
    const auto uid = static_cast<uid_t>(spec.uid);
    const auto gid = static_cast<gid_t>(spec.gid);
    // As system calls: glibc's functions speak to all threads of the process that it remembers.
    if (syscall(SYS_setgroups, prepared.groups.size(), prepared.groups.data()) != 0 ||
        syscall(SYS_setresgid, gid, gid, gid) != 0) {
      fail_setup(setup, Step::groups, errno);
    }
    if (syscall(SYS_setresuid, uid, uid, uid) != 0) fail_setup(setup, Step::uid, errno);
  }
  drop_capabilities(setup);
  // A change of uid leaves the process without access to its own /proc/self, where libcuda names its threads.
  prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
  set_limits(spec.limits, setup);
  prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  if (!prepared.filter.empty()) {
    for (const std::size_t i : spec.filter_own_pid) prepared.filter[i].value = static_cast<std::uint32_t>(getpid());
    const int error = install_filter(prepared.filter.data(), prepared.filter.size());
    if (error != 0) fail_setup(setup, Step::seccomp, error);
  }
  return setup;
}

// Runs in the new process. Returns only where Python continues.
void become_sandboxed(Prepared& prepared, int out, int err, int setup) {
  setup = enter_sandbox(prepared, out, err, setup);
  if (prepared.spec.setup_only) _exit(0);
  if (prepared.python_continues) {
    close(setup);
    return;
  }
  execve(prepared.argv[0], prepared.argv.data(), prepared.environment.data());
  fail_setup(setup, Step::exec, errno);
}

// ---- process 1 of the pid namespace ----

void end_all(int) {
  kill(-1, SIGKILL);
}

// Waits for the sandboxed process, tells how it ended, and takes everything else in the namespace with it. SIGTERM,
// from the keeper, ends it too.
[[noreturn]] void be_init(pid_t sandboxed, int ending_pipe) {
  Kept kept;
  kept.add(ending_pipe);
  kept.close_others();
  struct sigaction action;
  std::memset(&action, 0, sizeof(action));
  action.sa_handler = end_all;
  sigaction(SIGTERM, &action, nullptr);
  sigset_t stop;
  sigemptyset(&stop);
  sigaddset(&stop, SIGTERM);
  sigprocmask(SIG_UNBLOCK, &stop, nullptr);
  Ending ending;
  std::memset(&ending, 0, sizeof(ending));
  for (;;) {
    int status = 0;
    const pid_t pid = waitpid(-1, &status, 0);
    if (pid < 0 && errno == EINTR) continue;
    if (pid < 0) break;  // no process is left
    if (pid != sandboxed) continue;
    ending.wait_status = status;
    ending.left_running = kill(-1, SIGKILL) == 0 ? 1 : 0;
  }
  getrusage(RUSAGE_CHILDREN, &ending.usage);
  const ssize_t ignored = write(ending_pipe, &ending, sizeof(ending));
  static_cast<void>(ignored);
  _exit(0);
}

// ---- the keeper ----

class Keeper {
 public:
  explicit Keeper(Prepared& prepared) : prepared_(prepared), spec_(prepared.spec) {}

  // Returns only in the sandboxed process, and only where Python continues there.
  void run() {
    isolate();
    open_pipes();
    enter_namespaces();
    if (!start_first()) return;
    watch();
    finish();
  }

 private:
  [[noreturn]] void fail(Step step, int error) {
    if (report_ == nullptr) _exit(126);
    report_->failed_step = static_cast<std::int32_t>(step);
    report_->error = error;
    report_->ended_ns = now_ns();
    set_state(State::kSetupFailed);
    _exit(126);
  }

  void set_state(State state) {
    __atomic_store_n(&report_->state, static_cast<std::uint32_t>(state), __ATOMIC_RELEASE);
    if (state != State::kEnded) {
      const ssize_t ignored = write(spec_.lifeline, "r", 1);
      static_cast<void>(ignored);
    }
  }

  // Out of reach of a terminal's signals, and without any descriptor that others wait on.
  void isolate() {
    setsid();
    reset_signals();
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, nullptr);
    Kept kept;
    kept.add(spec_.lifeline);
    kept.add(spec_.report);
    kept.add(spec_.cgroup_kill);
    for (const int fd : spec_.cgroup_procs) kept.add(fd);
    for (const int fd : prepared_.descriptors) kept.add(fd);
    kept.close_others();
    // 0 to 2 are taken, so that no pipe gets a number that the sandboxed process gives another meaning.
    for (;;) {
      const int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
      if (fd < 0) _exit(126);
      if (fd > 2) {
        close(fd);
        break;
      }
    }
    const std::size_t size = sizeof(Report) + 2 * (spec_.head_bytes + spec_.tail_bytes);
    void* const memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, spec_.report, 0);
    if (memory == MAP_FAILED) _exit(126);
    madvise(memory, size, MADV_DONTFORK);  // the sandboxed process has no such memory to write to
    close(spec_.report);
    report_ = static_cast<Report*>(memory);
    report_->keeper_pid = getpid();
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
  }

  void open_pipes() {
    for (auto* const ends : {out_, err_, setup_, ending_}) {
      if (pipe2(ends, O_CLOEXEC) != 0) fail(Step::keeper, errno);
    }
    for (const int fd : {out_[0], err_[0], setup_[0], ending_[0]}) fcntl(fd, F_SETFL, O_NONBLOCK);
  }

  void enter(bool wanted, int flag, Step step) {
    if (wanted && unshare(flag) != 0) fail(step, errno);
  }

  void enter_namespaces() {
    enter(spec_.user_namespace, CLONE_NEWUSER, Step::user_namespace);
    if (spec_.user_namespace) {
      if (!write_text("/proc/self/setgroups", "deny") || !write_text("/proc/self/uid_map", prepared_.uid_map.c_str()) ||
          !write_text("/proc/self/gid_map", prepared_.gid_map.c_str())) {
        fail(Step::user_namespace, errno);
      }
    }
    enter(spec_.net_namespace, CLONE_NEWNET, Step::net_namespace);
    enter(spec_.ipc_namespace, CLONE_NEWIPC, Step::ipc_namespace);
    enter(spec_.mount_namespace, CLONE_NEWNS, Step::mount_namespace);
    enter(spec_.pid_namespace, CLONE_NEWPID, Step::pid_namespace);  // of the next child, which is its process 1
  }

  // False in the sandboxed process.
  bool start_first() {
    // Init never runs Python, but it forks the process that does, and that fork runs the handlers.
    const bool handlers = prepared_.python_continues;
    first_ = fork_process(handlers && !spec_.pid_namespace);
    if (first_ < 0) fail(Step::fork, errno);
    if (first_ == 0) {
      pid_t sandboxed = 0;
      if (spec_.mount_namespace) run_mounts(prepared_, setup_[1]);
      if (spec_.pid_namespace) {
        prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
        sandboxed = handlers ? fork_process(true) : start_sharing_memory(&Keeper::run_sandboxed, this);
        if (sandboxed < 0) fail_setup(setup_[1], Step::fork, errno);
      }
      if (sandboxed > 0) be_init(sandboxed, ending_[1]);
      become_sandboxed(prepared_, out_[1], err_[1], setup_[1]);
      return false;
    }
    for (const int fd : {out_[1], err_[1], setup_[1], ending_[1]}) close(fd);
    for (const int fd : prepared_.descriptors) close(fd);
    for (const int fd : spec_.cgroup_procs) close(fd);
    first_pidfd_ = open_pidfd(first_);
    if (first_pidfd_ < 0) {
      const int error = errno;
      kill(first_, SIGKILL);
      fail(Step::keeper, error);
    }
    return true;
  }

  static int run_sandboxed(void* self) {
    Keeper& keeper = *static_cast<Keeper*>(self);
    become_sandboxed(keeper.prepared_, keeper.out_[1], keeper.err_[1], keeper.setup_[1]);
    return 0;
  }

  void read_setup() {
    Failure failure;
    const ssize_t size = read(setup_[0], &failure, sizeof(failure));
    if (size < 0) return;
    close(setup_[0]);
    setup_[0] = -1;
    if (size == sizeof(failure)) {
      report_->failed_step = failure.step;
      report_->error = failure.error;
      report_->detail = failure.detail;
      setup_failed_ = true;
      kill_first();
    } else {
      report_->started_ns = now_ns();
      set_state(State::kRunning);
    }
  }

  // Takes what there is, at most `reads` times 64 KiB, so that a flood does not keep the keeper from its clock.
  void drain(int stream, int& fd, int reads) {
    static char buffer[1 << 16];
    char* const head = reinterpret_cast<char*>(report_ + 1) + stream * (spec_.head_bytes + spec_.tail_bytes);
    char* const tail = head + spec_.head_bytes;
    for (; reads > 0; --reads) {
      const ssize_t size = read(fd, buffer, sizeof(buffer));
      if (size < 0 && errno == EINTR) continue;
      if (size < 0 && errno == EAGAIN) return;
      if (size <= 0) {
        close(fd);
        fd = -1;
        return;
      }
      std::uint64_t written = report_->written[stream];
      for (std::uint64_t done = 0; done < static_cast<std::uint64_t>(size);) {
        const std::uint64_t left = static_cast<std::uint64_t>(size) - done;
        std::uint64_t step = left;
        if (written < spec_.head_bytes) {
          step = std::min(left, spec_.head_bytes - written);
          std::memcpy(head + written, buffer + done, step);
        } else if (spec_.tail_bytes > 0) {
          const std::uint64_t place = (written - spec_.head_bytes) % spec_.tail_bytes;
          step = std::min(left, spec_.tail_bytes - place);
          std::memcpy(tail + place, buffer + done, step);
        }
        written += step;
        done += step;
      }
      report_->written[stream] = written;
    }
  }

  void kill_first() {
    if (spec_.cgroup_kill >= 0) {
      const ssize_t ignored = write(spec_.cgroup_kill, "1", 1);
      static_cast<void>(ignored);
    }
    // Init ends the others, so that what they used is known. It is killed itself if it does not come to that.
    const int signal = spec_.pid_namespace && force_at_ == 0 ? SIGTERM : SIGKILL;
    force_at_ = signal == SIGTERM ? now_ns() + 500'000'000 : -1;
    syscall(__NR_pidfd_send_signal, first_pidfd_, signal, nullptr, 0);
  }

  void stop(EndedBy cause) {
    if (report_->ended_by == static_cast<std::uint32_t>(EndedBy::kItself)) {
      report_->ended_by = static_cast<std::uint32_t>(cause);
    }
    kill_first();
  }

  // Until the first process of the tree has ended.
  void watch() {
    std::int64_t limit_at = spec_.wall_s > 0 ? now_ns() + static_cast<std::int64_t>(spec_.wall_s * 1e9) : 0;
    int lifeline = spec_.lifeline;
    for (;;) {
      pollfd polled[] = {{first_pidfd_, POLLIN, 0},
                         {setup_[0], POLLIN, 0},
                         {out_[0], POLLIN, 0},
                         {err_[0], POLLIN, 0},
                         {lifeline, POLLIN, 0}};
      const std::int64_t next = force_at_ > 0 ? force_at_ : limit_at;
      int wait_ms = -1;
      if (next > 0) {
        wait_ms = static_cast<int>(std::clamp<std::int64_t>((next - now_ns() + 999'999) / 1'000'000, 0, INT_MAX));
      }
      if (poll(polled, 5, wait_ms) < 0) continue;
      if (polled[1].revents != 0) read_setup();
      if (polled[2].revents != 0) drain(0, out_[0], 8);
      if (polled[3].revents != 0) drain(1, err_[0], 8);
      if (polled[0].revents != 0) break;
      if (polled[4].revents != 0) {
        lifeline = -1;
        stop(EndedBy::kSupervisor);
      }
      if (limit_at > 0 && now_ns() >= limit_at) {
        limit_at = 0;
        stop(EndedBy::kWallLimit);
      }
      if (force_at_ > 0 && now_ns() >= force_at_) kill_first();
    }
  }

  // Everything under the keeper that a process without a pid namespace left, killed and reaped. As a subreaper the
  // keeper is the parent of every orphan of the tree, whatever session it moved to.
  void end_stragglers() {
    pid_t ended = 0;
    while ((ended = waitpid(-1, nullptr, WNOHANG)) > 0) continue;
    if (ended == 0) report_->left_running = 1;
    // A probe starts nothing and has claimed no uid: this uid may belong to the runner of another supervisor.
    if (spec_.uid >= 0 && !spec_.setup_only) {
      const pid_t killer = fork_process(false);
      if (killer == 0) {
        const auto uid = static_cast<uid_t>(spec_.uid);
        syscall(SYS_setresuid, uid, uid, uid);
        kill(-1, SIGKILL);  // all of this uid, which belongs to this tree alone
        _exit(0);
      }
      if (killer > 0) waitpid(killer, nullptr, 0);
    }
    for (;;) {
      int status = 0;
      const pid_t pid = waitpid(-1, &status, WNOHANG);
      if (pid > 0) continue;
      if (pid < 0 && errno == ECHILD) return;
      kill_children();
      usleep(200);
    }
  }

  void kill_children() {
    const int fd = open("/proc/thread-self/children", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    static char list[1 << 16];
    ssize_t size = 0;
    while ((size = read(fd, list, sizeof(list))) > 0) {
      pid_t pid = 0;
      for (ssize_t i = 0; i < size; ++i) {
        if (list[i] >= '0' && list[i] <= '9') {
          pid = pid * 10 + (list[i] - '0');
        } else if (pid > 0) {
          kill(pid, SIGKILL);
          pid = 0;
        }
      }
    }
    close(fd);
  }

  void finish() {
    int status = 0;
    rusage usage;
    std::memset(&usage, 0, sizeof(usage));
    while (wait4(first_, &status, 0, &usage) < 0 && errno == EINTR) continue;
    if (spec_.pid_namespace) {
      Ending ending;
      if (read(ending_[0], &ending, sizeof(ending)) == sizeof(ending)) {
        report_->wait_status = ending.wait_status;
        report_->left_running = ending.left_running;
        usage = ending.usage;
      } else {
        report_->wait_status = WIFSIGNALED(status) ? status : SIGKILL;  // init was killed, and all others with it
      }
    } else {
      report_->wait_status = status;
      end_stragglers();
      getrusage(RUSAGE_CHILDREN, &usage);
    }
    report_->user_us = std::int64_t{usage.ru_utime.tv_sec} * 1'000'000 + usage.ru_utime.tv_usec;
    report_->system_us = std::int64_t{usage.ru_stime.tv_sec} * 1'000'000 + usage.ru_stime.tv_usec;
    report_->max_rss_kib = usage.ru_maxrss;
    if (setup_[0] >= 0) read_setup();
    // All writers are gone, so what is left is at most what the pipes hold.
    if (out_[0] >= 0) drain(0, out_[0], 64);
    if (err_[0] >= 0) drain(1, err_[0], 64);
    report_->ended_ns = now_ns();
    set_state(setup_failed_ ? State::kSetupFailed : State::kEnded);
    _exit(0);
  }

  Prepared& prepared_;
  const SpawnSpec& spec_;
  Report* report_ = nullptr;
  int out_[2], err_[2], setup_[2], ending_[2];
  pid_t first_ = 0;
  int first_pidfd_ = -1;
  bool setup_failed_ = false;
  std::int64_t force_at_ = 0;  // when init is killed after it was asked; -1: it was
};

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (const std::string& text : texts) out.push_back(const_cast<char*>(text.c_str()));
  out.push_back(nullptr);
  return out;
}

}  // namespace

Spawned spawn(const SpawnSpec& spec) {
  Prepared prepared{spec,
                    pointers(spec.argv),
                    pointers(spec.environment),
                    spec.filter,
                    spec.descriptors,
                    std::vector<int>(spec.mounts.size(), -1),
                    std::vector<gid_t>(spec.groups.begin(), spec.groups.end()),
                    std::to_string(geteuid()) + " " + std::to_string(geteuid()) + " 1",
                    std::to_string(getegid()) + " " + std::to_string(getegid()) + " 1",
                    spec.argv.empty() && !spec.setup_only};
  const pid_t pid = fork_process(prepared.python_continues);
  const int error = errno;
  if (pid == 0) {
    Keeper(prepared).run();
    return {true, 0, -1};
  }
  if (pid < 0) throw std::system_error(error, std::generic_category(), "the sandbox's keeper could not be forked");
  const int pidfd = open_pidfd(pid);
  if (pidfd < 0) {
    const int pidfd_error = errno;
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    throw std::system_error(pidfd_error, std::generic_category(), "pidfd_open, which Linux has since 5.3, failed");
  }
  return {false, pid, pidfd};
}

}  // namespace kc::sandbox

#endif  // __linux__

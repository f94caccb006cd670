// The system call filter: its program is run by a small interpreter of classic BPF, and once by the kernel.
#include "sandbox/seccomp.h"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

namespace sb = kc::sandbox;

namespace {

#if defined(__x86_64__)
constexpr std::uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#else
constexpr std::uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#endif
constexpr std::uint32_t kOwnPid = 4321;
constexpr std::uint32_t kAllow = SECCOMP_RET_ALLOW;
constexpr std::uint32_t kMalformed = 0xdeadbeefu;

int failures = 0;

void expect(bool holds, const char* what) {
  if (holds) return;
  std::printf("failed: %s\n", what);
  ++failures;
}

std::uint32_t refused(int error) {
  return SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(error);
}

using Program = std::vector<sb::FilterInstruction>;

// The answer of a program. Knows the instructions that the filter is made of; any other is a failure.
std::uint32_t run(const Program& program, const seccomp_data& data) {
  std::uint32_t word = 0;
  for (std::size_t at = 0; at < program.size(); ++at) {
    const sb::FilterInstruction& one = program[at];
    bool holds = false;
    switch (one.code) {
      case BPF_LD | BPF_W | BPF_ABS:
        if (one.value + sizeof(word) > sizeof(data)) return kMalformed;
        std::memcpy(&word, reinterpret_cast<const char*>(&data) + one.value, sizeof(word));
        continue;
      case BPF_RET | BPF_K:
        return one.value;
      case BPF_JMP | BPF_JEQ | BPF_K:
        holds = word == one.value;
        break;
      case BPF_JMP | BPF_JSET | BPF_K:
        holds = (word & one.value) != 0;
        break;
      case BPF_JMP | BPF_JGE | BPF_K:
        holds = word >= one.value;
        break;
      default:
        return kMalformed;
    }
    at += holds ? one.jump_true : one.jump_false;
  }
  return kMalformed;  // fell off the end
}

seccomp_data call(long number, std::uint64_t first = 0, std::uint64_t second = 0, std::uint64_t fifth = 0) {
  seccomp_data data{};
  data.arch = kArchitecture;
  data.nr = static_cast<int>(number);
  data.args[0] = first;
  data.args[1] = second;
  data.args[4] = fifth;
  return data;
}

Program filter(bool own_signals_only = false, bool unix_sockets = false, bool pinned_cores = false) {
  sb::FilterOptions options;
  options.own_signals_only = own_signals_only;
  options.unix_sockets = unix_sockets;
  options.pinned_cores = pinned_cores;
  std::vector<std::size_t> patches;
  Program program = sb::build_filter(options, &patches);
  expect(patches.empty() != own_signals_only, "the pid is patched exactly where signals are restricted");
  for (const std::size_t at : patches) program[at].value = kOwnPid;
  return program;
}

void ordinary_calls_are_allowed() {
  for (const Program& program : {filter(), filter(true), filter(false, true), filter(true, true, true)}) {
    for (const long number : {__NR_read, __NR_write, __NR_mmap, __NR_futex, __NR_openat, __NR_exit_group, __NR_execve})
      expect(run(program, call(number)) == kAllow, "read, write, mmap, futex, openat, exit_group, execve are allowed");
    expect(run(program, call(__NR_clone, CLONE_VM | CLONE_THREAD | SIGCHLD)) == kAllow, "threads are allowed");
    expect(run(program, call(__NR_ioctl, 0, 0x1234)) == kAllow, "ioctl is allowed");
    expect(run(program, call(__NR_personality, 0xFFFFFFFFu)) == kAllow, "asking for the personality is allowed");
    expect(run(program, call(__NR_socketpair, AF_UNIX)) == kAllow, "a local socket pair is allowed");
  }
}

void dangerous_calls_are_refused() {
  for (const Program& program : {filter(), filter(true, true, true)}) {
    for (const long number : {__NR_ptrace, __NR_process_vm_readv, __NR_process_vm_writev, __NR_bpf, __NR_mount,
                              __NR_unshare, __NR_setns, __NR_keyctl, __NR_shmget, __NR_clock_settime})
      expect(run(program, call(number)) == refused(EPERM), "a call of the deny list gives EPERM");
    expect(run(program, call(435)) == refused(ENOSYS), "clone3 looks absent");
    expect(run(program, call(425)) == refused(ENOSYS), "io_uring_setup looks absent");
    for (const std::uint64_t flag : {CLONE_NEWUSER, CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWNET})
      expect(run(program, call(__NR_clone, flag | SIGCHLD)) == refused(EPERM), "clone makes no namespace");
    expect(run(program, call(__NR_ioctl, 0, 0x5412)) == refused(EPERM), "ioctl types into no terminal");
    expect(run(program, call(__NR_personality, 0x0040000)) == refused(EPERM), "the personality stays");
    expect(run(program, call(__NR_socket, AF_INET)) == refused(EACCES), "there is no network");
    expect(run(program, call(__NR_connect)) == refused(EACCES), "nothing is connected to");
    expect(run(program, call(__NR_socketpair, AF_INET)) == refused(EACCES), "socket pairs are local");
  }
}

void other_architectures_end_the_process() {
  seccomp_data data = call(__NR_read);
  data.arch = kArchitecture ^ 1u;
  expect(run(filter(), data) == SECCOMP_RET_KILL_PROCESS, "calls of another architecture end the process");
#if defined(__x86_64__)
  expect(run(filter(), call(0x40000000L + __NR_read)) == refused(ENOSYS), "x32 calls look absent");
#endif
}

void options_do_what_they_say() {
  expect(run(filter(), call(__NR_socket, AF_UNIX)) == refused(EACCES), "local sockets are refused by default");
  const Program local = filter(false, true);
  expect(run(local, call(__NR_socket, AF_UNIX)) == kAllow, "unix_sockets allows to make one");
  expect(run(local, call(__NR_sendto, 3, 0, 0)) == kAllow, "and to send without a name");
  expect(run(local, call(__NR_sendto, 3, 0, 0x1000)) == refused(EACCES), "but not to a name");
  expect(run(local, call(__NR_sendto, 3, 0, 0x100000000u)) == refused(EACCES), "nor to one above 4 GiB");
  expect(run(filter(), call(__NR_sched_setaffinity)) == kAllow, "cores may be chosen by default");
  expect(run(filter(false, false, true), call(__NR_sched_setaffinity)) == refused(EPERM), "pinned_cores refuses it");

  expect(run(filter(), call(__NR_kill, 77)) == kAllow, "signals are allowed by default");
  expect(run(filter(), call(__NR_kill, 0xFFFFFFFFu)) == refused(EPERM), "but not to every process");
  const Program own = filter(true);
  expect(run(own, call(__NR_kill, kOwnPid)) == kAllow, "own_signals_only allows the own pid");
  expect(run(own, call(__NR_kill, 0)) == kAllow, "and the own group");
  expect(run(own, call(__NR_kill, 77)) == refused(EPERM), "and no other");
  expect(run(own, call(__NR_kill, 0xFFFFFFFFu)) == refused(EPERM), "and not every process");
  expect(run(own, call(__NR_tgkill, kOwnPid)) == kAllow, "threads of the own process");
  expect(run(own, call(__NR_tgkill, 0)) == refused(EPERM), "0 is no thread group");
  expect(run(own, call(__NR_prlimit64, 0)) == kAllow, "own limits");
  expect(run(own, call(__NR_prlimit64, 77)) == refused(EPERM), "not those of others");
}

void the_list_for_the_documentation_is_the_filter() {
  const std::vector<sb::DeniedCall> calls = sb::denied_calls();
  expect(calls.size() > 50, "the list is long");
  for (const sb::DeniedCall& denied : calls) expect(!denied.name.empty() && !denied.reason.empty(), "with a reason");
}

// In a child: the kernel takes the program, and answers as the interpreter does.
void the_kernel_agrees() {
  const Program program = filter(false, false, true);
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (sb::install_filter(program.data(), program.size()) != 0) _exit(2);
    if (syscall(__NR_socket, AF_INET, SOCK_STREAM, 0) != -1 || errno != EACCES) _exit(3);
    if (syscall(__NR_unshare, CLONE_NEWUSER) != -1 || errno != EPERM) _exit(4);
    if (syscall(435, nullptr, 0) != -1 || errno != ENOSYS) _exit(5);
    if (syscall(__NR_getpid) <= 0) _exit(6);
    _exit(0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 2) {
    std::printf("the kernel takes no filter here\n");
    return;
  }
  expect(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the kernel's answers are the interpreter's");
  const sb::FilterInstruction nonsense{0xFFFF, 0, 0, 0};
  expect(sb::install_filter(&nonsense, 1) != 0, "a program that the kernel refuses is an error");
}

}  // namespace

int main() {
  if (!sb::filter_supported()) {
    std::printf("no filters for this architecture\n");
    return 0;
  }
  ordinary_calls_are_allowed();
  dangerous_calls_are_refused();
  other_architectures_end_the_process();
  options_do_what_they_say();
  the_list_for_the_documentation_is_the_filter();
  the_kernel_agrees();
  return failures == 0 ? 0 : 1;
}

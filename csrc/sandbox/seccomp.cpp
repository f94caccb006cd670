#include "sandbox/seccomp.h"

#ifdef __linux__

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>

// Calls since Linux 5.0 have one number on every architecture; older headers do not know them all.
#ifndef __NR_pidfd_send_signal
#define __NR_pidfd_send_signal 424
#endif
#ifndef __NR_io_uring_setup
#define __NR_io_uring_setup 425
#define __NR_io_uring_enter 426
#define __NR_io_uring_register 427
#endif
#ifndef __NR_open_tree
#define __NR_open_tree 428
#define __NR_move_mount 429
#define __NR_fsopen 430
#define __NR_fsconfig 431
#define __NR_fsmount 432
#define __NR_fspick 433
#endif
#ifndef __NR_clone3
#define __NR_clone3 435
#endif
#ifndef __NR_pidfd_getfd
#define __NR_pidfd_getfd 438
#endif
#ifndef __NR_process_madvise
#define __NR_process_madvise 440
#endif
#ifndef __NR_mount_setattr
#define __NR_mount_setattr 442
#endif
#ifndef __NR_quotactl_fd
#define __NR_quotactl_fd 443
#endif
#ifndef __NR_memfd_secret
#define __NR_memfd_secret 447
#endif
#ifndef __NR_process_mrelease
#define __NR_process_mrelease 448
#endif

namespace kc::sandbox {
namespace {

#if defined(__x86_64__)
constexpr std::uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr std::uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#else
constexpr std::uint32_t kArchitecture = 0;
#endif

constexpr const char* kMemory = "reads or writes another process's memory";
constexpr const char* kSteal = "takes descriptors from or signals another process by a handle";
constexpr const char* kMounts = "changes what files are where";
constexpr const char* kKernel = "changes or inspects the kernel";
constexpr const char* kRing = "does other system calls where no filter sees them";
constexpr const char* kKeys = "keyrings are shared between processes";
constexpr const char* kOutlives = "what it makes outlives the process";
constexpr const char* kClock = "changes the clock or the machine's name";
constexpr const char* kNamespace = "namespaces open kernel code that is closed otherwise";
constexpr const char* kHandles = "opens files without a path, past Landlock's view";
constexpr const char* kUncounted = "its memory escapes inspection";

struct Denied {
  long number;
  const char* name;
  const char* reason;
  int error;
};

#define KC_DENY(call, reason) {__NR_##call, #call, reason, EPERM}
// Programs probe for these and do without where the kernel lacks them.
#define KC_ABSENT(call, reason) {__NR_##call, #call, reason, ENOSYS}

constexpr Denied kDenied[] = {
    KC_DENY(ptrace, kMemory),
    KC_DENY(process_vm_readv, kMemory),
    KC_DENY(process_vm_writev, kMemory),
    KC_DENY(process_madvise, kMemory),
    KC_DENY(process_mrelease, kMemory),
    KC_DENY(kcmp, kMemory),
    KC_DENY(pidfd_getfd, kSteal),
    KC_DENY(pidfd_send_signal, kSteal),
    KC_DENY(perf_event_open, "measures and samples the whole machine, other processes' secrets included"),
    KC_DENY(bpf, kKernel),
    KC_DENY(userfaultfd, "stops the kernel in the middle of a copy, a common step of kernel exploits"),
    KC_DENY(syslog, kKernel),
    KC_DENY(init_module, kKernel),
    KC_DENY(finit_module, kKernel),
    KC_DENY(delete_module, kKernel),
    KC_DENY(kexec_load, kKernel),
#ifdef __NR_kexec_file_load
    KC_DENY(kexec_file_load, kKernel),
#endif
    KC_DENY(reboot, kKernel),
    KC_DENY(swapon, kKernel),
    KC_DENY(swapoff, kKernel),
    KC_DENY(acct, kKernel),
    KC_DENY(quotactl, kKernel),
    KC_DENY(quotactl_fd, kKernel),
    KC_DENY(vhangup, kKernel),
    KC_DENY(nfsservctl, kKernel),
    KC_DENY(fanotify_init, "watches files of other processes"),
    KC_DENY(keyctl, kKeys),
    KC_DENY(add_key, kKeys),
    KC_DENY(request_key, kKeys),
    KC_DENY(mount, kMounts),
    KC_DENY(umount2, kMounts),
    KC_DENY(pivot_root, kMounts),
    KC_DENY(chroot, kMounts),
    KC_DENY(open_tree, kMounts),
    KC_DENY(move_mount, kMounts),
    KC_DENY(fsopen, kMounts),
    KC_DENY(fsconfig, kMounts),
    KC_DENY(fsmount, kMounts),
    KC_DENY(fspick, kMounts),
    KC_DENY(mount_setattr, kMounts),
    KC_DENY(setns, kNamespace),
    KC_DENY(unshare, kNamespace),
    KC_DENY(open_by_handle_at, kHandles),
    KC_DENY(name_to_handle_at, kHandles),
    KC_ABSENT(io_uring_setup, kRing),
    KC_ABSENT(io_uring_enter, kRing),
    KC_ABSENT(io_uring_register, kRing),
    KC_ABSENT(memfd_secret, kUncounted),
    KC_DENY(shmget, kOutlives),
    KC_DENY(msgget, kOutlives),
    KC_DENY(semget, kOutlives),
    KC_DENY(mq_open, kOutlives),
    KC_DENY(settimeofday, kClock),
    KC_DENY(clock_settime, kClock),
    KC_DENY(adjtimex, kClock),
    KC_DENY(clock_adjtime, kClock),
    KC_DENY(sethostname, kClock),
    KC_DENY(setdomainname, kClock),
#if defined(__x86_64__)
    KC_DENY(iopl, kKernel),
    KC_DENY(ioperm, kKernel),
    KC_DENY(modify_ldt, kKernel),
    KC_DENY(_sysctl, kKernel),
    KC_DENY(create_module, kKernel),
    KC_DENY(uselib, kKernel),
#endif
    // Its flags lie in memory, where no filter can read them; glibc falls back to clone.
    KC_ABSENT(clone3, kNamespace),
};
#undef KC_DENY
#undef KC_ABSENT

// CLONE_NEWTIME, NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET. The lowest is a signal number in clone().
constexpr std::uint32_t kNamespaceFlags = 0x7E020000u;

constexpr std::uint32_t argument_offset(int index) {
  return static_cast<std::uint32_t>(offsetof(seccomp_data, args) + 8 * static_cast<std::size_t>(index));  // low word
}

class Program {
 public:
  explicit Program(std::vector<std::size_t>* patches) : patches_(patches) {}

  void load(std::uint32_t offset) { add(BPF_LD | BPF_W | BPF_ABS, offset); }
  void load_number() { load(offsetof(seccomp_data, nr)); }
  void answer(std::uint32_t action) { add(BPF_RET | BPF_K, action); }
  void allow() { answer(SECCOMP_RET_ALLOW); }
  void refuse(int error) { answer(SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(error)); }

  // if the loaded word is `value`, the next instruction; otherwise skip `otherwise` instructions.
  void if_equal(std::uint32_t value, std::uint8_t otherwise) { add(BPF_JMP | BPF_JEQ | BPF_K, value, 0, otherwise); }
  void unless_equal(std::uint32_t value, std::uint8_t skip) { add(BPF_JMP | BPF_JEQ | BPF_K, value, skip, 0); }
  void if_any(std::uint32_t bits, std::uint8_t otherwise) { add(BPF_JMP | BPF_JSET | BPF_K, bits, 0, otherwise); }
  void if_at_least(std::uint32_t value, std::uint8_t otherwise) { add(BPF_JMP | BPF_JGE | BPF_K, value, 0, otherwise); }
  void unless_own_pid(std::uint8_t skip) {
    if (patches_) patches_->push_back(out.size());
    unless_equal(0, skip);
  }

  void deny(long number, int error) {
    if_equal(static_cast<std::uint32_t>(number), 1);
    refuse(error);
  }

  // The call is refused unless the low word of its argument is one of `allowed`.
  void allow_only(long number, int index, std::initializer_list<std::uint32_t> allowed, int error) {
    if_equal(static_cast<std::uint32_t>(number), static_cast<std::uint8_t>(allowed.size() + 3));
    load(argument_offset(index));
    std::uint8_t left = static_cast<std::uint8_t>(allowed.size());
    for (const std::uint32_t value : allowed) unless_equal(value, left--);
    refuse(error);
    allow();
  }

  // The call is refused if the low word of its argument is `refused`; allowed otherwise.
  void refuse_only(long number, int index, std::uint32_t refused, int error) {
    if_equal(static_cast<std::uint32_t>(number), 4);
    load(argument_offset(index));
    if_equal(refused, 1);
    refuse(error);
    allow();
  }

  // The call reaches only the caller itself: its own pid, or 0 where that means its own process group.
  void own_process_only(long number, bool zero_is_own) {
    if_equal(static_cast<std::uint32_t>(number), 5);
    load(argument_offset(0));
    unless_own_pid(2);
    if (zero_is_own) {
      unless_equal(0, 1);
    } else {
      unless_own_pid(1);
    }
    refuse(EPERM);
    allow();
  }

  // The call is refused unless both words of its argument are 0.
  void allow_only_null(long number, int index, int error) {
    if_equal(static_cast<std::uint32_t>(number), 6);
    load(argument_offset(index));
    if_equal(0, 2);
    load(argument_offset(index) + 4);
    unless_equal(0, 1);
    refuse(error);
    allow();
  }

  std::vector<FilterInstruction> out;

 private:
  void add(int code, std::uint32_t value, std::uint8_t jump_true = 0, std::uint8_t jump_false = 0) {
    out.push_back({static_cast<std::uint16_t>(code), jump_true, jump_false, value});
  }

  std::vector<std::size_t>* patches_;
};

}  // namespace

bool filter_supported() {
  return kArchitecture != 0;
}

std::vector<FilterInstruction> build_filter(const FilterOptions& options, std::vector<std::size_t>* patch_own_pid) {
  constexpr std::uint32_t kUnixFamily = 1;
  Program program(patch_own_pid);
  program.load(offsetof(seccomp_data, arch));
  program.unless_equal(kArchitecture, 1);
  program.answer(SECCOMP_RET_KILL_PROCESS);  // 32-bit calls have other numbers: none of what follows would hold
  program.load_number();
#if defined(__x86_64__)
  program.if_at_least(0x40000000u, 1);  // the x32 calls, other numbers again
  program.refuse(ENOSYS);
#endif
  for (const Denied& denied : kDenied) program.deny(denied.number, denied.error);

  program.if_equal(__NR_clone, 4);
  program.load(argument_offset(0));
  program.if_any(kNamespaceFlags, 1);
  program.refuse(EPERM);
  program.allow();
  program.allow_only(__NR_personality, 0, {0xFFFFFFFFu}, EPERM);  // asking is allowed, changing is not
  program.refuse_only(__NR_ioctl, 1, 0x5412u, EPERM);             // TIOCSTI types into a terminal

  if (options.unix_sockets) {
    program.allow_only(__NR_socket, 0, {kUnixFamily}, EACCES);
    program.deny(__NR_connect, EACCES);
    program.allow_only_null(__NR_sendto, 4, EACCES);
    program.deny(__NR_sendmsg, EACCES);
    program.deny(__NR_sendmmsg, EACCES);
  } else {
    program.deny(__NR_socket, EACCES);
    program.deny(__NR_connect, EACCES);
  }
  program.allow_only(__NR_socketpair, 0, {kUnixFamily}, EACCES);

  if (options.pinned_cores) program.deny(__NR_sched_setaffinity, EPERM);
  if (options.own_signals_only) {
    program.own_process_only(__NR_kill, true);
    program.own_process_only(__NR_tgkill, false);
    program.own_process_only(__NR_rt_sigqueueinfo, false);
    program.own_process_only(__NR_rt_tgsigqueueinfo, false);
    program.deny(__NR_tkill, EPERM);
    program.allow_only(__NR_prlimit64, 0, {0}, EPERM);
    program.deny(__NR_setpriority, EPERM);
  } else {
    program.refuse_only(__NR_kill, 0, 0xFFFFFFFFu, EPERM);  // -1: all processes that may be signalled
  }
  program.allow();
  return program.out;
}

std::vector<DeniedCall> denied_calls() {
  std::vector<DeniedCall> calls;
  for (const Denied& denied : kDenied) calls.push_back({denied.name, denied.reason});
  calls.push_back({"clone", "with flags of a new namespace: namespaces open kernel code that is closed otherwise"});
  calls.push_back({"kill", "of -1, and of other processes where nothing else protects them"});
  calls.push_back({"socket", "the network; a local socket is allowed where a GPU is"});
  calls.push_back({"connect", "the network, and services of this machine"});
  calls.push_back({"socketpair", "of other than local sockets"});
  calls.push_back({"personality", "turns off address randomisation"});
  calls.push_back({"ioctl", "TIOCSTI, which types into a terminal"});
  return calls;
}

int install_filter(const FilterInstruction* program, std::size_t size) {
  static_assert(sizeof(FilterInstruction) == sizeof(sock_filter));
  sock_fprog filter;
  filter.len = static_cast<unsigned short>(size);
  filter.filter = const_cast<sock_filter*>(reinterpret_cast<const sock_filter*>(program));
  // No SECCOMP_FILTER_FLAG_TSYNC: the process that calls this has one thread.
  if (syscall(__NR_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter) == 0) return 0;
  return errno;
}

}  // namespace kc::sandbox

#endif  // __linux__

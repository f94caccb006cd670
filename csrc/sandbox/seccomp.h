// The system call filter of a sandboxed process: a deny list with a reason for each entry, as classic BPF.
//
// A deny list, since CUDA and Python need ioctl, mmap and most of the rest, and change what they need with every
// release; what must not be reached is short and known. It never stands alone: files are Landlock's, and other
// processes are hidden by the pid namespace or another uid.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kc::sandbox {

struct FilterOptions {
  // Signals reach no process but the caller. Set where neither a pid namespace, nor a uid of its own, nor Landlock's
  // signal scope keeps the supervisor out of reach; a sandboxed process then cannot signal its own children either.
  bool own_signals_only = false;
  // socket(AF_UNIX) is allowed, connecting and sending to a name are not. libcuda opens a socket of that family.
  bool unix_sockets = false;
  // The cores were chosen by the supervisor and stay as they are.
  bool pinned_cores = false;
};

// One instruction, laid out as the kernel's struct sock_filter.
struct FilterInstruction {
  std::uint16_t code;
  std::uint8_t jump_true;
  std::uint8_t jump_false;
  std::uint32_t value;
};

struct DeniedCall {
  std::string name;
  std::string reason;
};

// Whether filters can be written for the architecture of this build: x86-64 and aarch64.
[[nodiscard]] bool filter_supported();

// The program. With own_signals_only, `patch_own_pid` lists the instructions whose value is to become the pid of the
// process that installs it, which is known only after the fork.
std::vector<FilterInstruction> build_filter(const FilterOptions& options, std::vector<std::size_t>* patch_own_pid);

// What build_filter denies, whatever the options, for the documentation and the tests.
std::vector<DeniedCall> denied_calls();

// Installs the program for this process and its children to be. Needs no_new_privs. 0 or an errno; allocates nothing.
[[nodiscard]] int install_filter(const FilterInstruction* program, std::size_t size);

}  // namespace kc::sandbox

#include "common/checks.h"

namespace kc {
namespace {

// An exception reaches Python in the thread that the op ran in, so a thread asks about its own failure only.
std::string& last_failure() {
  thread_local std::string message;
  return message;
}

}  // namespace

void fail_check(const std::string& message) {
  last_failure() = message;
  throw std::invalid_argument(message);
}

}  // namespace kc

// Whether `message` is that of the last check that failed in this thread. kernel_coder._C looks this symbol up: torch
// 2.15 and later turn every exception of an op into RuntimeError, and Python must tell a refused argument from any
// other failure.
extern "C" __attribute__((visibility("default"))) bool kernel_coder_is_failed_check(const char* message) {
  return kc::last_failure() == message;
}

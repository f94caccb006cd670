#include "common/checks.h"

namespace kc {
namespace {

// An exception reaches Python in the thread in which the op ran, so each thread has its own last failure.
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

// Returns whether `message` is that of the last check that failed in this thread. kernel_coder._C looks up this symbol:
// torch 2.15 and later turn every exception of an op into RuntimeError, and Python must distinguish a refused argument
// from other failures.
extern "C" __attribute__((visibility("default"))) bool kernel_coder_is_failed_check(const char* message) {
  return kc::last_failure() == message;
}

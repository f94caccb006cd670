#include "common/checks.h"

#include <mutex>

namespace kc {
namespace {

std::mutex mutex;
std::string last_failure;

}  // namespace

void fail_check(const std::string& message) {
  {
    const std::lock_guard<std::mutex> lock(mutex);
    last_failure = message;
  }
  throw std::invalid_argument(message);
}

}  // namespace kc

// Whether `message` is that of the last failed check. kernel_coder._C looks this symbol up: a torch from 2.15 on turns
// every exception of an op into RuntimeError, and Python has to tell a caller's mistake from any other failure.
extern "C" __attribute__((visibility("default"))) bool kernel_coder_is_failed_check(const char* message) {
  const std::lock_guard<std::mutex> lock(kc::mutex);
  return kc::last_failure == message;
}

// current_device_facts with a stand-in for the CUDA runtime: every device number, failures, and many threads.
#include "common/device_facts.h"

#include <atomic>
#include <cstdio>
#include <thread>
#include <vector>

namespace {

int failures = 0;

void expect(bool holds, const char* what) {
  if (holds) return;
  std::printf("failed: %s\n", what);
  ++failures;
}

// Each thread has a current device, as with CUDA.
struct FakeRuntime {
  static thread_local int device;
  static thread_local int current_error;
  static thread_local int ask_error;
  static std::atomic<int> asked;

  static int current(int* out) {
    *out = device;
    return current_error;
  }
  static int ask(int of, kc::DeviceFacts* facts) {
    ++asked;
    if (ask_error) return ask_error;
    *facts = {100 + of, of % 10, 1000 * of};
    return 0;
  }
};
thread_local int FakeRuntime::device = 0;
thread_local int FakeRuntime::current_error = 0;
thread_local int FakeRuntime::ask_error = 0;
std::atomic<int> FakeRuntime::asked{0};

int facts_of(int device, kc::DeviceFacts* facts) {
  FakeRuntime::device = device;
  return kc::current_device_facts<FakeRuntime>(facts);
}

void every_device_number_has_its_own_facts() {
  for (const int device : {0, 1, 63, 64, 65, 200, 0}) {
    kc::DeviceFacts facts;
    expect(facts_of(device, &facts) == 0, "the runtime's success comes through");
    expect(facts.multiprocessors == 100 + device && facts.shared_bytes == 1000 * device, "facts are the device's own");
  }
}

void a_device_is_asked_once() {
  kc::DeviceFacts facts;
  expect(facts_of(7, &facts) == 0, "the first question succeeds");
  const int before = FakeRuntime::asked;
  for (int i = 0; i < 5; ++i) expect(facts_of(7, &facts) == 0, "later questions succeed");
  expect(FakeRuntime::asked == before, "the same device is not asked again");
}

void failures_come_through_and_are_not_kept() {
  kc::DeviceFacts facts{1, 2, 3};
  FakeRuntime::current_error = 35;
  expect(facts_of(11, &facts) == 35, "the error of the current device comes through");
  FakeRuntime::current_error = 0;
  FakeRuntime::ask_error = 101;
  expect(facts_of(11, &facts) == 101, "the error of the question comes through");
  expect(facts.multiprocessors == 1 && facts.major == 2 && facts.shared_bytes == 3, "facts are unchanged then");
  FakeRuntime::ask_error = 0;
  expect(facts_of(11, &facts) == 0 && facts.multiprocessors == 111, "the next call asks again");
}

void threads_do_not_disturb_each_other() {
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([t, &wrong] {
      for (int i = 0; i < 2000; ++i) {
        const int device = (t * 31 + i) % 90;
        kc::DeviceFacts facts;
        if (facts_of(device, &facts) != 0 || facts.multiprocessors != 100 + device) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  expect(wrong == 0, "each thread sees the facts of its own device");
}

}  // namespace

int main() {
  every_device_number_has_its_own_facts();
  a_device_is_asked_once();
  failures_come_through_and_are_not_kept();
  threads_do_not_disturb_each_other();
  return failures == 0 ? 0 : 1;
}

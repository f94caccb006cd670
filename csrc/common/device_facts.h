// The properties of the current GPU by which a launcher chooses a kernel and a grid.
#pragma once

namespace kc {

struct DeviceFacts {
  int multiprocessors = 0;
  int major = 0;         // of the compute capability
  int shared_bytes = 0;  // the most dynamic shared memory that a block can ask for
};

// The facts of the current device, in *facts. Returns the runtime's error code, 0 for success; *facts is unchanged
// then.
// `Runtime` has current(int* device) and ask(int device, DeviceFacts* facts), which return such codes: CUDA's in the
// library, a stand-in in the tests. Each thread caches the facts of the device that it used last, so threads share
// nothing. A failure is not cached: the next call asks again.
template <class Runtime>
[[nodiscard]] int current_device_facts(DeviceFacts* facts) {
  thread_local int known = -1;
  thread_local DeviceFacts kept;
  int device = -1;
  if (const int error = Runtime::current(&device)) return error;
  if (device != known) {
    DeviceFacts asked;
    if (const int error = Runtime::ask(device, &asked)) return error;
    kept = asked;
    known = device;
  }
  *facts = kept;
  return 0;
}

}  // namespace kc

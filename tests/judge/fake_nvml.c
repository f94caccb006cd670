/* What nvml.py calls of NVIDIA's management library, for two GPUs that are /dev/nvidia5 and /dev/nvidia6. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef struct {
  unsigned long long total, free, used;
} Memory;
typedef struct {
  unsigned pid;
  unsigned long long used;
  unsigned gpu_instance, compute_instance;
} Process;

enum { OK = 0, INVALID = 2, NO_ROOM = 7, RUNNING = 100 };

static unsigned index_of(void* device) {
  return (unsigned)(uintptr_t)device - 1;
}

int nvmlInit_v2(void) {
  return OK;
}

int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 2;
  return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = (void*)(uintptr_t)(index + 1);
  return index < 2 ? OK : INVALID;
}

int nvmlDeviceGetUUID(void* device, char* text, unsigned length) {
  return snprintf(text, length, "GPU-%04u-abcd", 1000 * (index_of(device) + 1)) > 0 ? OK : INVALID;
}

int nvmlDeviceGetMinorNumber(void* device, unsigned* number) {
  *number = 5 + index_of(device);
  return OK;
}

int nvmlDeviceGetMemoryInfo(void* device, Memory* memory) {
  *memory = (Memory){1000, 900 - index_of(device), 100 + index_of(device)};
  return OK;
}

/* More processes than a first guess has room for. */
int nvmlDeviceGetComputeRunningProcesses_v3(void* device, unsigned* count, Process* found) {
  const unsigned room = *count, running = index_of(device) == 0 ? RUNNING : 0;
  *count = running;
  if (room < running) return NO_ROOM;
  for (unsigned i = 0; i < running; ++i) found[i] = (Process){i + 1, i == 0 ? UINT64_MAX : 10 * i, 0, 0};
  return OK;
}

int nvmlDeviceGetClockInfo(void* device, unsigned kind, unsigned* megahertz) {
  (void)device;
  *megahertz = 100 + kind;
  return OK;
}

int nvmlDeviceGetMaxClockInfo(void* device, unsigned kind, unsigned* megahertz) {
  (void)device;
  *megahertz = 1000 + kind;
  return OK;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void* device, unsigned long long* reasons) {
  *reasons = index_of(device) == 0 ? 1 : 0x20; /* idle; too hot */
  return OK;
}

/* The functions of NVIDIA's management library that nvml.py calls, for two GPUs: /dev/nvidia5 and /dev/nvidia6. */
#include <stdint.h>
#include <stdio.h>

typedef struct {
  unsigned long long total, free, used;
} Memory;

enum { OK = 0, INVALID = 2 };

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

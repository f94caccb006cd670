/* What device_memory.cpp calls of the CUDA driver, over host memory: a descriptor is a memfd, an address is an address.
 * It says how often each thing was done, refuses what the driver refuses, and fails where FAKE_CUDA_FAIL names a call.
 * Where CUDA's own header is at hand, the prototypes are checked against it. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef HAVE_CUDA_H
#include <cuda.h>
#else
typedef int CUresult;
typedef int CUdevice;
typedef int CUdevice_attribute;
typedef struct CUctx_st* CUcontext;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUmemGenericAllocationHandle;
typedef int CUmemAllocationHandleType;
typedef int CUmemAllocationGranularity_flags;
typedef struct {
  int type;
  int id;
} CUmemLocation;
typedef struct {
  int type;
  int requestedHandleTypes;
  CUmemLocation location;
  void* win32HandleMetaData;
  unsigned char allocFlags[8];
} CUmemAllocationProp;
typedef struct {
  CUmemLocation location;
  int flags;
} CUmemAccessDesc;
#define cuCtxPushCurrent cuCtxPushCurrent_v2
#define cuCtxPopCurrent cuCtxPopCurrent_v2
#define cuMemGetInfo cuMemGetInfo_v2
#endif

#define OK 0
#define INVALID 1
#define OUT_OF_MEMORY 2
#define NO_DEVICE 100
#define NO_CONTEXT 201
#define UNKNOWN 999

enum { kDevices = 2, kStep = 2 << 20, kRoom = 64 << 20 };

static int depth, allocations, reservations, mappings, synchronizations;

static int fails(const char* call) {
  const char* name = getenv("FAKE_CUDA_FAIL");
  return name && !strcmp(name, call);
}

#define CALL(name)                 \
  if (fails(name)) return UNKNOWN; \
  if (depth == 0) return NO_CONTEXT

void fake_cuda_counts(int counts[5]) {
  const int now[5] = {allocations, reservations, mappings, synchronizations, depth};
  memcpy(counts, now, sizeof now);
}

CUresult cuInit(unsigned flags) {
  return fails("cuInit") ? NO_DEVICE : flags != 0;
}

CUresult cuGetErrorName(CUresult error, const char** name) {
  if (error != OUT_OF_MEMORY && error != INVALID && error != NO_DEVICE) return INVALID;
  *name = error == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
          : error == NO_DEVICE   ? "CUDA_ERROR_NO_DEVICE"
                                 : "CUDA_ERROR_INVALID_VALUE";
  return OK;
}

CUresult cuGetErrorString(CUresult error, const char** text) {
  if (error != NO_DEVICE) return INVALID;
  *text = "no CUDA-capable device is detected";
  return OK;
}

CUresult cuDeviceGetCount(int* count) {
  *count = kDevices;
  return OK;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  return ordinal < 0 || ordinal >= kDevices;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  *value = (attribute == 102 || attribute == 103) && !fails("attribute");
  return device < 0 || device >= kDevices;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  *context = (CUcontext)(intptr_t)(device + 1);
  return OK;
}

CUresult cuCtxPushCurrent(CUcontext context) {
  if (!context) return INVALID;
  ++depth;
  return OK;
}

CUresult cuCtxPopCurrent(CUcontext* context) {
  *context = NULL;
  --depth;
  return OK;
}

CUresult cuCtxSynchronize(void) {
  CALL("cuCtxSynchronize");
  ++synchronizations;
  return OK;
}

CUresult cuMemGetInfo(size_t* free, size_t* total) {
  CALL("cuMemGetInfo");
  *free = kRoom;
  *total = 2 * (size_t)kRoom;
  return OK;
}

static int is_ours(const CUmemAllocationProp* p) {
  return p->type == 1 && p->requestedHandleTypes == 1 && p->location.type == 1 && p->location.id >= 0 &&
         p->location.id < kDevices && !p->win32HandleMetaData;
}

CUresult cuMemGetAllocationGranularity(size_t* bytes, const CUmemAllocationProp* properties,
                                       CUmemAllocationGranularity_flags option) {
  CALL("cuMemGetAllocationGranularity");
  *bytes = kStep;
  return !is_ours(properties) || option != 0;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t size, const CUmemAllocationProp* properties,
                     unsigned long long flags) {
  CALL("cuMemCreate");
  if (!is_ours(properties) || size == 0 || size % kStep || flags) return INVALID;
  if (size > kRoom) return OUT_OF_MEMORY;
  const int fd = memfd_create("fake_cuda", 0);
  if (fd < 0 || ftruncate(fd, (off_t)size)) return INVALID;
  *handle = (CUmemGenericAllocationHandle)fd;
  ++allocations;
  return OK;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  CALL("cuMemRelease");
  --allocations;
  return close((int)handle) != 0;
}

CUresult cuMemExportToShareableHandle(void* shareable, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags) {
  CALL("cuMemExportToShareableHandle");
  if (type != 1 || flags) return INVALID;
  *(int*)shareable = dup((int)handle);
  return OK;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* shareable,
                                        CUmemAllocationHandleType type) {
  CALL("cuMemImportFromShareableHandle");
  const int fd = (int)(intptr_t)shareable;
  if (type != 1 || fcntl(fd, F_GET_SEALS) < 0) return INVALID;
  *handle = (CUmemGenericAllocationHandle)dup(fd);
  ++allocations;
  return OK;
}

CUresult cuMemAddressReserve(CUdeviceptr* pointer, size_t size, size_t alignment, CUdeviceptr wanted,
                             unsigned long long flags) {
  CALL("cuMemAddressReserve");
  if (size == 0 || size % kStep || alignment || wanted || flags) return INVALID;
  *pointer = (CUdeviceptr)(uintptr_t)mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ++reservations;
  return OK;
}

CUresult cuMemAddressFree(CUdeviceptr pointer, size_t size) {
  CALL("cuMemAddressFree");
  --reservations;
  return munmap((void*)(uintptr_t)pointer, size) != 0;
}

CUresult cuMemMap(CUdeviceptr pointer, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
  CALL("cuMemMap");
  struct stat held;
  if (fstat((int)handle, &held) || size > (size_t)held.st_size || offset || flags) return INVALID;
  void* const at = (void*)(uintptr_t)pointer;
  if (mmap(at, size, PROT_NONE, MAP_SHARED | MAP_FIXED, (int)handle, 0) != at) return INVALID;
  ++mappings;
  return OK;
}

CUresult cuMemUnmap(CUdeviceptr pointer, size_t size) {
  CALL("cuMemUnmap");
  --mappings;
  return mmap((void*)(uintptr_t)pointer, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED;
}

CUresult cuMemSetAccess(CUdeviceptr pointer, size_t size, const CUmemAccessDesc* access, size_t count) {
  CALL("cuMemSetAccess");
  if (count != 1 || access->location.type != 1 || access->flags != 3) return INVALID;
  return mprotect((void*)(uintptr_t)pointer, size, PROT_READ | PROT_WRITE) != 0;
}

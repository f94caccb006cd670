// GPU memory that another process opens by a file descriptor, also one of another user; the handles of cudaIpc* open
// for the same user only. The driver is looked up at run time, so that a build needs no CUDA and runs where there is
// none.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

namespace kc::sandbox {

struct DeviceMemoryError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct DeviceOutOfMemory : DeviceMemoryError {
  using DeviceMemoryError::DeviceMemoryError;
};

// Memory of one GPU, mapped into this process, in the device's primary context: the one that torch uses. It is unmapped
// with the last shared_ptr, and given back to the device once no process maps it or holds a descriptor of it.
class DeviceMemory {
 public:
  // `size` bytes, rounded up to what the device can map.
  static std::shared_ptr<DeviceMemory> create(std::uint64_t size, int device);
  // What another process created with this `size` on the same device. `fd` stays the caller's.
  static std::shared_ptr<DeviceMemory> open(int fd, std::uint64_t size, int device);

  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  ~DeviceMemory();

  // A new descriptor, closed on exec, the caller's to close.
  int export_fd() const;

  std::uint64_t pointer() const { return pointer_; }
  std::uint64_t mapped_size() const { return mapped_size_; }
  int device() const { return device_; }

 private:
  DeviceMemory(std::uint64_t size, int device);
  void map(std::uint64_t handle);

  std::uint64_t pointer_ = 0;  // 0: nothing is reserved
  std::uint64_t mapped_size_ = 0;
  std::uint64_t handle_ = 0;
  bool has_handle_ = false;
  bool is_mapped_ = false;
  int device_ = 0;
};

// All of a memory as a one-dimensional tensor of bytes, which keeps it mapped, as DLPack describes tensors
// (dmlc/dlpack, dlpack.h, before its version 1). The caller hands it to exactly one reader, which calls `deleter`.
struct DlpackDevice {
  std::int32_t type;
  std::int32_t index;
};

struct DlpackTensor {
  void* data;
  DlpackDevice device;
  std::int32_t dimensions;
  std::uint8_t type_code;
  std::uint8_t type_bits;
  std::uint16_t type_lanes;
  std::int64_t* shape;
  std::int64_t* strides;
  std::uint64_t byte_offset;
};

struct DlpackManaged {
  DlpackTensor tensor;
  void* context;
  void (*deleter)(DlpackManaged* self);
};

DlpackManaged* as_dlpack(std::shared_ptr<DeviceMemory> memory);

}  // namespace kc::sandbox

#include "sandbox/device_memory.h"

#ifdef __linux__

#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <map>
#include <mutex>
#include <utility>

namespace kc::sandbox {
namespace {

// What follows is declared as CUDA's driver API has it since 11.2 (cuda.h).
constexpr int kOutOfMemory = 2;
constexpr int kCanMap = 102;            // CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
constexpr int kCanExport = 103;         // CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
constexpr int kFileDescriptor = 1;      // CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
constexpr int kPinned = 1;              // CU_MEM_ALLOCATION_TYPE_PINNED
constexpr int kOnDevice = 1;            // CU_MEM_LOCATION_TYPE_DEVICE
constexpr int kReadWrite = 3;           // CU_MEM_ACCESS_FLAGS_PROT_READWRITE
constexpr int kMinimumGranularity = 0;  // CU_MEM_ALLOC_GRANULARITY_MINIMUM

struct Location {
  int type;
  int id;
};

struct AllocationProperties {
  int type;
  int handle_types;
  Location location;
  void* windows_metadata;
  unsigned char compression;
  unsigned char rdma_capable;
  unsigned short usage;
  unsigned char reserved[4];
};
static_assert(sizeof(AllocationProperties) == 32, "as CUmemAllocationProp");

struct AccessDescription {
  Location location;
  int flags;
};
static_assert(sizeof(AccessDescription) == 12, "as CUmemAccessDesc");

using Result = int;
using Context = void*;

struct Driver {
  Result (*init)(unsigned flags);
  Result (*error_name)(Result error, const char** name);
  Result (*error_text)(Result error, const char** text);
  Result (*device_count)(int* count);
  Result (*device_get)(int* device, int ordinal);
  Result (*device_attribute)(int* value, int attribute, int device);
  Result (*context_retain)(Context* context, int device);
  Result (*context_push)(Context context);
  Result (*context_pop)(Context* context);
  Result (*context_synchronize)();
  Result (*memory_info)(std::size_t* free, std::size_t* total);
  Result (*granularity)(std::size_t* bytes, const AllocationProperties* properties, int option);
  Result (*create)(std::uint64_t* handle, std::size_t size, const AllocationProperties* properties,
                   unsigned long long flags);
  Result (*release)(std::uint64_t handle);
  Result (*export_handle)(void* shareable, std::uint64_t handle, int type, unsigned long long flags);
  Result (*import_handle)(std::uint64_t* handle, void* shareable, int type);
  Result (*address_reserve)(std::uint64_t* pointer, std::size_t size, std::size_t alignment, std::uint64_t wanted,
                            unsigned long long flags);
  Result (*address_free)(std::uint64_t pointer, std::size_t size);
  Result (*map)(std::uint64_t pointer, std::size_t size, std::size_t offset, std::uint64_t handle,
                unsigned long long flags);
  Result (*unmap)(std::uint64_t pointer, std::size_t size);
  Result (*set_access)(std::uint64_t pointer, std::size_t size, const AccessDescription* access, std::size_t count);

  // Opened and started at the first use; a failure is tried again at the next.
  static const Driver& get() {
    static const Driver found = load();
    return found;
  }

  std::string describe(Result error) const {
    const char* name = nullptr;
    const char* text = nullptr;
    error_name(error, &name);
    error_text(error, &text);
    return std::string(name ? name : "CUDA error " + std::to_string(error)) +
           (text ? " (" + std::string(text) + ")" : "");
  }

  void require(Result result, const std::string& what) const {
    if (result != 0) throw DeviceMemoryError(what + ": " + describe(result));
  }

 private:
  static Driver load() {
    void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) throw DeviceMemoryError(std::string("there is no CUDA driver: ") + dlerror());
    Driver driver;
    const auto find = [&](auto& function, const char* name) {
      void* const address = dlsym(library, name);
      if (!address) throw DeviceMemoryError(std::string("the CUDA driver is older than 11.2: it has no ") + name);
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(address);
    };
    find(driver.init, "cuInit");
    find(driver.error_name, "cuGetErrorName");
    find(driver.error_text, "cuGetErrorString");
    find(driver.device_count, "cuDeviceGetCount");
    find(driver.device_get, "cuDeviceGet");
    find(driver.device_attribute, "cuDeviceGetAttribute");
    find(driver.context_retain, "cuDevicePrimaryCtxRetain");
    find(driver.context_push, "cuCtxPushCurrent_v2");
    find(driver.context_pop, "cuCtxPopCurrent_v2");
    find(driver.context_synchronize, "cuCtxSynchronize");
    find(driver.memory_info, "cuMemGetInfo_v2");
    find(driver.granularity, "cuMemGetAllocationGranularity");
    find(driver.create, "cuMemCreate");
    find(driver.release, "cuMemRelease");
    find(driver.export_handle, "cuMemExportToShareableHandle");
    find(driver.import_handle, "cuMemImportFromShareableHandle");
    find(driver.address_reserve, "cuMemAddressReserve");
    find(driver.address_free, "cuMemAddressFree");
    find(driver.map, "cuMemMap");
    find(driver.unmap, "cuMemUnmap");
    find(driver.set_access, "cuMemSetAccess");
    driver.require(driver.init(0), "the CUDA driver does not start");
    return driver;
  }
};

std::string gpu(int device) {
  return "GPU " + std::to_string(device);
}

std::string readable(std::uint64_t bytes) {
  const char* const unit = bytes >= (1ull << 30) ? "GiB" : "MiB";
  const double value = static_cast<double>(bytes) / (bytes >= (1ull << 30) ? 1073741824.0 : 1048576.0);
  char text[32];
  std::snprintf(text, sizeof text, "%.2f %s", value, unit);
  return text;
}

// The primary context of a device, held for the life of the process: it costs more to make than all else here.
Context primary_context(const Driver& driver, int device) {
  static std::mutex mutex;
  static std::map<int, Context> contexts;
  const std::lock_guard lock(mutex);
  if (const auto found = contexts.find(device); found != contexts.end()) return found->second;
  int count = 0;
  driver.require(driver.device_count(&count), "the GPUs cannot be counted");
  if (device < 0 || device >= count) {
    throw DeviceMemoryError("there is no " + gpu(device) + "; this process sees " + std::to_string(count));
  }
  int handle = 0;
  driver.require(driver.device_get(&handle, device), gpu(device) + " cannot be opened");
  for (const int attribute : {kCanMap, kCanExport}) {
    int supported = 0;
    driver.require(driver.device_attribute(&supported, attribute, handle), gpu(device) + " does not describe itself");
    if (!supported) throw DeviceMemoryError(gpu(device) + " cannot share memory by a file descriptor");
  }
  Context context = nullptr;
  driver.require(driver.context_retain(&context, handle), "no context can be made on " + gpu(device));
  contexts.emplace(device, context);
  return context;
}

// The context of a device for as long as this lives; then the one that was there before.
class Current {
 public:
  explicit Current(int device) : driver(Driver::get()) {
    driver.require(driver.context_push(primary_context(driver, device)), gpu(device) + " cannot be made current");
  }
  ~Current() {
    Context context = nullptr;
    driver.context_pop(&context);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

  const Driver& driver;
};

AllocationProperties properties_on(int device) {
  AllocationProperties properties{};
  properties.type = kPinned;
  properties.handle_types = kFileDescriptor;
  properties.location = {kOnDevice, device};
  return properties;
}

struct DlpackOwner {
  DlpackManaged managed;
  std::int64_t shape;
  std::int64_t stride;
  std::shared_ptr<DeviceMemory> memory;
};

}  // namespace

DeviceMemory::DeviceMemory(std::uint64_t size, int device) : device_(device) {
  const Current current(device);
  const AllocationProperties properties = properties_on(device);
  std::size_t step = 0;
  current.driver.require(current.driver.granularity(&step, &properties, kMinimumGranularity),
                         gpu(device) + " does not say in what steps it maps memory");
  if (step == 0 || size == 0 || size > (1ull << 62)) {
    throw std::invalid_argument("size must be positive and possible; got " + std::to_string(size));
  }
  mapped_size_ = (size + step - 1) / step * step;
}

std::shared_ptr<DeviceMemory> DeviceMemory::create(std::uint64_t size, int device) {
  std::shared_ptr<DeviceMemory> memory(new DeviceMemory(size, device));
  const Current current(device);
  const AllocationProperties properties = properties_on(device);
  std::uint64_t handle = 0;
  const Result result = current.driver.create(&handle, memory->mapped_size_, &properties, 0);
  if (result == kOutOfMemory) {
    std::size_t free = 0, total = 0;
    current.driver.memory_info(&free, &total);
    throw DeviceOutOfMemory("no room for a shared buffer of " + readable(size) + " on " + gpu(device) + ": " +
                            readable(free) + " of " + readable(total) + " are free");
  }
  current.driver.require(result, "no shared buffer of " + readable(size) + " on " + gpu(device));
  memory->map(handle);
  return memory;
}

std::shared_ptr<DeviceMemory> DeviceMemory::open(int fd, std::uint64_t size, int device) {
  std::shared_ptr<DeviceMemory> memory(new DeviceMemory(size, device));
  const Current current(device);
  std::uint64_t handle = 0;
  // The descriptor itself is passed as the pointer.
  void* const shareable = reinterpret_cast<void*>(static_cast<std::intptr_t>(fd));
  current.driver.require(current.driver.import_handle(&handle, shareable, kFileDescriptor),
                         "descriptor " + std::to_string(fd) + " is no shared buffer of " + gpu(device));
  memory->map(handle);
  return memory;
}

void DeviceMemory::map(std::uint64_t handle) {
  handle_ = handle;
  has_handle_ = true;
  const Current current(device_);
  const Driver& driver = current.driver;
  const std::string what = "a shared buffer of " + readable(mapped_size_) + " on " + gpu(device_);
  driver.require(driver.address_reserve(&pointer_, mapped_size_, 0, 0, 0), "no addresses for " + what);
  driver.require(driver.map(pointer_, mapped_size_, 0, handle_, 0), "cannot map " + what);
  is_mapped_ = true;
  const AccessDescription access{{kOnDevice, device_}, kReadWrite};
  driver.require(driver.set_access(pointer_, mapped_size_, &access, 1), "no access to " + what);
}

// Errors are left aside: after a fault of a kernel, and at the end of a process, every call fails, and the driver frees
// what is left together with the context.
DeviceMemory::~DeviceMemory() {
  if (!has_handle_ && pointer_ == 0) return;
  try {
    const Current current(device_);
    const Driver& driver = current.driver;
    if (is_mapped_) {
      driver.context_synchronize();  // kernels under way may still use the addresses
      driver.unmap(pointer_, mapped_size_);
    }
    if (pointer_ != 0) driver.address_free(pointer_, mapped_size_);
    if (has_handle_) driver.release(handle_);
  } catch (const DeviceMemoryError&) {
    return;
  }
}

int DeviceMemory::export_fd() const {
  const Current current(device_);
  int fd = -1;
  current.driver.require(current.driver.export_handle(&fd, handle_, kFileDescriptor, 0),
                         "no descriptor for a shared buffer on " + gpu(device_));
  fcntl(fd, F_SETFD, FD_CLOEXEC);
  return fd;
}

DlpackManaged* as_dlpack(std::shared_ptr<DeviceMemory> memory) {
  constexpr std::int32_t kCuda = 2;
  constexpr std::uint8_t kUnsigned = 1;
  auto* const owner = new DlpackOwner{{}, static_cast<std::int64_t>(memory->mapped_size()), 1, nullptr};
  owner->managed.tensor = {reinterpret_cast<void*>(memory->pointer()),
                           {kCuda, memory->device()},
                           1,
                           kUnsigned,
                           8,
                           1,
                           &owner->shape,
                           &owner->stride,
                           0};
  owner->managed.context = owner;
  owner->managed.deleter = [](DlpackManaged* self) { delete static_cast<DlpackOwner*>(self->context); };
  owner->memory = std::move(memory);
  return &owner->managed;
}

}  // namespace kc::sandbox

#endif  // __linux__

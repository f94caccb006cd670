# libkernel_coder_cuda.so: the same ops on CUDA. Built wherever nvcc is, also against a torch without CUDA: our .cu files know
# no torch, and the stable ABI's CUDA functions are declared in every torch's headers.
include(CheckLanguage)
set(KC_NVCC_VERSION "")
set(KC_BUILT_ARCHITECTURES "")
if(NOT KC_CUDA STREQUAL "OFF")
  check_language(CUDA)
  if(NOT CMAKE_CUDA_COMPILER AND KC_CUDA STREQUAL "ON")
    message(FATAL_ERROR "KC_CUDA=ON but no nvcc was found. Put nvcc on PATH or set CUDACXX=/path/to/nvcc; KC_CUDA=OFF builds the CPU ops alone.")
  endif()
endif()
if(NOT CMAKE_CUDA_COMPILER OR KC_CUDA STREQUAL "OFF")
  message(STATUS "kernel_coder: CPU ops only (no nvcc, or KC_CUDA=OFF)")
  return()
endif()

set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_ARCHITECTURES "${KC_CUDA_ARCHITECTURES}")
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
set(KC_NVCC_VERSION "${CMAKE_CUDA_COMPILER_VERSION}")
list(JOIN KC_CUDA_ARCHITECTURES " " KC_BUILT_ARCHITECTURES)

# torch's CUDA functions live in libtorch_cuda.so, which a CPU build of torch does not ship. An empty library of that name
# makes the linker record it as needed; at run time the loader finds the real one, which torch has opened already.
file(WRITE "${CMAKE_BINARY_DIR}/torch_cuda_name.cpp" "")
add_library(torch_cuda_name SHARED "${CMAKE_BINARY_DIR}/torch_cuda_name.cpp")
set_target_properties(torch_cuda_name PROPERTIES OUTPUT_NAME torch_cuda LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/names")

add_library(kernel_coder_cuda SHARED ${KC_CUDA_SOURCES} ${KC_OP_TORCH_SOURCES} csrc/ops/policy_loss.cpp csrc/common/checks.cpp)
target_include_directories(kernel_coder_cuda PRIVATE csrc)
target_compile_definitions(kernel_coder_cuda PRIVATE KC_CUDA USE_CUDA)
target_link_libraries(kernel_coder_cuda PRIVATE kc::torch kc::warnings CUDA::cudart_static)
target_link_options(kernel_coder_cuda PRIVATE -Wl,--no-as-needed "$<TARGET_FILE:torch_cuda_name>" -Wl,--as-needed)
add_dependencies(kernel_coder_cuda torch_cuda_name)
set_target_properties(kernel_coder_cuda PROPERTIES SKIP_BUILD_RPATH ON INSTALL_RPATH "" CUDA_VISIBILITY_PRESET hidden)
install(TARGETS kernel_coder_cuda LIBRARY DESTINATION kernel_coder)

# Target kc::torch: headers and libraries of the torch that this Python imports.
#
# Not find_package(Torch): that drags in torch's own CUDA detection, which fails on a CUDA build of torch without a full
# toolkit and rewrites global flags where it succeeds. Our libraries use torch's stable ABI only, so headers and two library
# names are all that is needed, and what is built here loads under every torch from 2.11 on.
execute_process(
  COMMAND "${Python_EXECUTABLE}" -c
    "import torch, torch.utils.cpp_extension as e; print(torch.__version__, torch.version.cuda or '-', ';'.join(e.include_paths()), e.TORCH_LIB_PATH, sep='|')"
  OUTPUT_VARIABLE _torch OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE _torch_result ERROR_VARIABLE _torch_error)
if(NOT _torch_result EQUAL 0)
  message(FATAL_ERROR
    "Building kernel_coder needs the headers of torch 2.11 or newer, and ${Python_EXECUTABLE} cannot import torch. "
    "Install torch in this environment, then run: pip install --no-build-isolation .\n${_torch_error}")
endif()
string(REPLACE ";" "\;" _torch "${_torch}")
string(REPLACE "|" ";" _torch "${_torch}")
list(GET _torch 0 KC_TORCH_VERSION)
list(GET _torch 1 KC_TORCH_CUDA)
list(GET _torch 2 _torch_includes)
list(GET _torch 3 _torch_libs)
string(REGEX MATCH "^[0-9]+\\.[0-9]+" _torch_release "${KC_TORCH_VERSION}")
if(_torch_release VERSION_LESS 2.11)
  message(FATAL_ERROR "Building kernel_coder needs torch 2.11 or newer; found ${KC_TORCH_VERSION}. Upgrade it: pip install -U torch")
endif()

add_library(kc_torch INTERFACE)
add_library(kc::torch ALIAS kc_torch)
target_include_directories(kc_torch SYSTEM INTERFACE ${_torch_includes})
# 2.11: newer headers hide what an older torch does not have, so a library built against 2.13 still loads there.
target_compile_definitions(kc_torch INTERFACE TORCH_TARGET_VERSION=0x020B000000000000ULL)
foreach(_lib c10 torch_cpu)
  find_library(KC_LIB_${_lib} ${_lib} PATHS "${_torch_libs}" NO_DEFAULT_PATH REQUIRED)
  target_link_libraries(kc_torch INTERFACE "${KC_LIB_${_lib}}")
endforeach()

# Target kc::warnings: every warning is an error in our own code; torch's and pybind11's headers are SYSTEM.
option(KC_WERROR "Treat warnings as errors" ON)
add_library(kc_warnings INTERFACE)
add_library(kc::warnings ALIAS kc_warnings)
target_compile_options(kc_warnings INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor $<$<BOOL:${KC_WERROR}>:-Werror>>
  $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra,-Wshadow $<$<BOOL:${KC_WERROR}>:-Werror=all-warnings>>)

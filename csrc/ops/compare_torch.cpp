// Checks, allocation and registration; compiled once for the CPU library and once (KC_CUDA) for the CUDA library.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "common/checks.h"
#include "common/tensors.h"
#include "ops/compare.h"
#ifdef KC_CUDA
#include "common/cuda_torch.h"
#endif

namespace kc {
namespace {

ElementType element_type(const char* name, const Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case ScalarType::Double:
      return ElementType::float64;
    case ScalarType::Float:
      return ElementType::float32;
    case ScalarType::BFloat16:
      return ElementType::bfloat16;
    case ScalarType::Half:
      return ElementType::float16;
    case ScalarType::ComplexDouble:
      return ElementType::complex128;
    case ScalarType::ComplexFloat:
      return ElementType::complex64;
    case ScalarType::Long:
      return ElementType::int64;
    case ScalarType::Int:
      return ElementType::int32;
    case ScalarType::Short:
      return ElementType::int16;
    case ScalarType::Char:
      return ElementType::int8;
    case ScalarType::Byte:
      return ElementType::uint8;
    case ScalarType::Bool:
      return ElementType::boolean;
    default:
      fail_check(std::string(name) +
                 " must be float16, bfloat16, float32, float64, complex64, complex128, bool or an integer of at most "
                 "64 bits with a sign, or uint8; got " +
                 name_of(tensor.scalar_type()));
  }
}

double smallest_normal(ElementType type) {
  switch (type) {
    case ElementType::float64:
    case ElementType::complex128:
      return std::numeric_limits<double>::min();
    case ElementType::float32:
    case ElementType::bfloat16:
    case ElementType::complex64:
      return static_cast<double>(std::numeric_limits<float>::min());
    case ElementType::float16:
      return 0x1p-14;
    default:
      return 1.0;
  }
}

// Dimensions of size 1 are left out, and those that can be merged in both tensors become one.
void set_layout(CompareArgs& args, const Tensor& output, const Tensor& expected) {
  args.dims = 0;
  for (int64_t d = 0; d < output.dim(); ++d) {
    const int64_t size = output.size(d), by_output = output.stride(d), by_expected = expected.stride(d);
    if (size == 1) continue;
    const int last = args.dims - 1;
    if (last >= 0 && args.output_strides[last] == by_output * size &&
        args.expected_strides[last] == by_expected * size) {
      args.sizes[last] *= size;
      args.output_strides[last] = by_output;
      args.expected_strides[last] = by_expected;
      continue;
    }
    check(args.dims < kMaxDims, "output and expected must lie in at most ", kMaxDims,
          " dimensions that cannot be merged; got shape ", shape_of(output));
    args.sizes[args.dims] = size;
    args.output_strides[args.dims] = by_output;
    args.expected_strides[args.dims++] = by_expected;
  }
  if (args.dims > 0) return;
  args.dims = 1;
  args.sizes[0] = args.output_strides[0] = args.expected_strides[0] = 1;
}

void run(const CompareArgs& args, const Tensor& result) {
  auto* record = static_cast<Comparison*>(result.mutable_data_ptr());
#ifdef KC_CUDA
  const CudaScope scope(result);
  const Tensor partials =
      fresh(result, {kCompareParts * static_cast<int64_t>(sizeof(CompareTally) / sizeof(double))}, ScalarType::Double);
  check_launch("compare",
               launch_compare(args, static_cast<CompareTally*>(partials.mutable_data_ptr()), record, scope.stream()));
#else
  constexpr int64_t kLeast = 1 << 14;  // elements of a part
  const int64_t size = std::max(kLeast, (args.count + kCompareParts - 1) / kCompareParts);
  const int64_t parts = (args.count + size - 1) / size;
  std::vector<CompareTally> tallies(static_cast<size_t>(parts));
  torch::stable::parallel_for(0, parts, /*grain_size=*/1, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p)
      tallies[static_cast<size_t>(p)] = compare_cpu(args, p * size, std::min(args.count, (p + 1) * size));
  });
  CompareTally total;
  for (const CompareTally& tally : tallies) merge(total, tally);
  *record = finish_comparison_cpu(total, args);
#endif
}

Tensor compare(Tensor output, Tensor expected, double rtol, double atol) {
  check_same_device("expected", expected, "output", output);
  CompareArgs args{};
  args.output_type = element_type("output", output);
  args.expected_type = element_type("expected", expected);
  const ElementKind kind = kind_of(args.output_type);
  check(kind == kind_of(args.expected_type) && (kind != ElementKind::integer || args.output_type == args.expected_type),
        "output and expected must be both floating point, both complex, or of one integer dtype; got ",
        name_of(output.scalar_type()), " and ", name_of(expected.scalar_type()));
  bool same_shape = output.dim() == expected.dim();
  for (int64_t d = 0; same_shape && d < output.dim(); ++d) same_shape = output.size(d) == expected.size(d);
  check(same_shape, "expected must have the shape of output; got ", shape_of(output), " for output and ",
        shape_of(expected), " for expected");
  check(rtol >= 0 && std::isfinite(rtol), "rtol must be finite and at least 0; got ", rtol);
  check(atol >= 0 && std::isfinite(atol), "atol must be finite and at least 0; got ", atol);
  args.output = output.const_data_ptr();
  args.expected = expected.const_data_ptr();
  args.count = output.numel();
  if (args.count > 0) set_layout(args, output, expected);
  args.rtol = kind == ElementKind::integer ? 0.0 : rtol;
  args.atol = kind == ElementKind::integer ? 0.0 : atol;
  args.tiny = smallest_normal(args.output_type);
  const Tensor result = fresh(output, {kComparisonFields}, ScalarType::Double);
  run(args, result);
  return result;
}

}  // namespace
}  // namespace kc

#ifdef KC_CUDA
STABLE_TORCH_LIBRARY_IMPL(kernel_coder, CUDA, m) {
  m.impl("compare", TORCH_BOX(&kc::compare));
}
#else
STABLE_TORCH_LIBRARY_IMPL(kernel_coder, CPU, m) {
  m.impl("compare", TORCH_BOX(&kc::compare));
}
#endif

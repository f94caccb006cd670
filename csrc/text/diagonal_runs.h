// The longest run of equal bytes on each diagonal of the comparison table of two byte strings.
#pragma once

#include <cstddef>
#include <cstdint>

#include "sequence_similarity.h"

namespace kc {

// The byte before and after `b` must be readable for this many bytes, and must be equal to no byte of `a`.
constexpr int kDiagonalPadding = 256;
// Runs are counted in bytes; a table with a run of this length or more is given up.
constexpr int kDiagonalRunLimit = 128;

// best[d] = the longest run of equal bytes a[i] == b[j] on the diagonal j - i == d - (rows - 1),
// for d in [0, rows + columns - 1). `best` has room for kDiagonalPadding entries more.
// False when some run reaches kDiagonalRunLimit; `best` then means nothing.
bool diagonal_best_runs(const std::uint8_t* a, int rows, const std::uint8_t* b, int columns, std::uint8_t* best,
                        SimdLevel simd);

// What `automatic` means on this processor, and what a wish becomes where it cannot be had.
SimdLevel resolve_simd(SimdLevel wish);

// Rough number of table cells that diagonal_best_runs does in the time of one step of ordinary code.
int diagonal_cells_per_step(SimdLevel resolved);

}  // namespace kc

#include "diagonal_runs.h"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__) && defined(__GNUC__)
#define KC_X86_DISPATCH 1
#include <immintrin.h>
#else
#define KC_X86_DISPATCH 0
#endif

// On a diagonal, run(i) = a[i] == b[i + d] ? run(i - 1) + 1 : 0. Neighbouring diagonals are neighbouring bytes of b, so
// a vector holds the runs of as many diagonals as it has bytes, row after row, and nothing is written until the end:
// one comparison, one addition and one maximum per vector of cells. Up to four vectors go together, since each of
// these steps waits for the one before. Counting in bytes is safe because every kDiagonalRunLimit rows the maxima are
// looked at: below 128 then, at most 127 + 128 = 255 at the next look.

namespace kc {
namespace {

struct RowRange {
  int begin;
  int end;
};

// The rows in which one of the diagonals [first, first + lanes) meets the table.
RowRange rows_of_block(int first, int lanes, int rows, int columns) {
  return {std::max(0, -(first + lanes - 1)), std::min(rows, columns - first)};
}

template <int kLanes>
bool generic_block(const std::uint8_t* a, const std::uint8_t* b, RowRange range, int first, std::uint8_t* best) {
  std::uint8_t run[kLanes] = {};
  std::uint8_t top[kLanes] = {};
  for (int i = range.begin; i < range.end;) {
    const int stop = std::min(range.end, i + kDiagonalRunLimit);
    for (; i < stop; ++i) {
      const std::uint8_t symbol = a[i];
      const std::uint8_t* const row = b + first + i;
      for (int lane = 0; lane < kLanes; ++lane) {
        const auto keep = static_cast<std::uint8_t>(-(row[lane] == symbol));
        run[lane] = static_cast<std::uint8_t>((run[lane] + 1) & keep);
        top[lane] = std::max(top[lane], run[lane]);
      }
    }
    std::uint8_t all = 0;
    for (int lane = 0; lane < kLanes; ++lane) all = static_cast<std::uint8_t>(all | top[lane]);
    if (all >= kDiagonalRunLimit) return false;
  }
  std::memcpy(best, top, kLanes);
  return true;
}

bool generic_runs(const std::uint8_t* a, int rows, const std::uint8_t* b, int columns, std::uint8_t* best) {
  constexpr int kLanes = 64;
  for (int first = 1 - rows; first < columns; first += kLanes) {
    const RowRange range = rows_of_block(first, kLanes, rows, columns);
    if (!generic_block<kLanes>(a, b, range, first, best + first + rows - 1)) return false;
  }
  return true;
}

#if KC_X86_DISPATCH

template <int kVectors>
__attribute__((target("avx2"))) bool avx2_block(const std::uint8_t* a, const std::uint8_t* b, RowRange range, int first,
                                                std::uint8_t* best) {
  __m256i run[kVectors];
  __m256i top[kVectors];
  for (int v = 0; v < kVectors; ++v) run[v] = top[v] = _mm256_setzero_si256();
  for (int i = range.begin; i < range.end;) {
    const int stop = std::min(range.end, i + kDiagonalRunLimit);
    for (; i < stop; ++i) {
      const __m256i symbol = _mm256_set1_epi8(static_cast<char>(a[i]));
      const std::uint8_t* const row = b + first + i;
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        const __m256i cells = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + 32 * v));
        const __m256i keep = _mm256_cmpeq_epi8(cells, symbol);  // -1 where equal
        run[v] = _mm256_and_si256(_mm256_sub_epi8(run[v], keep), keep);
        top[v] = _mm256_max_epu8(top[v], run[v]);
      }
    }
    int over = 0;
    for (int v = 0; v < kVectors; ++v) over |= _mm256_movemask_epi8(top[v]);  // the 128 bit of every lane
    if (over != 0) return false;
  }
  for (int v = 0; v < kVectors; ++v) _mm256_storeu_si256(reinterpret_cast<__m256i*>(best + 32 * v), top[v]);
  return true;
}

template <int kVectors>
__attribute__((target("avx512f,avx512bw"))) bool avx512_block(const std::uint8_t* a, const std::uint8_t* b,
                                                              RowRange range, int first, std::uint8_t* best) {
  const __m512i one = _mm512_set1_epi8(1);
  __m512i run[kVectors];
  __m512i top[kVectors];
  for (int v = 0; v < kVectors; ++v) run[v] = top[v] = _mm512_setzero_si512();
  for (int i = range.begin; i < range.end;) {
    const int stop = std::min(range.end, i + kDiagonalRunLimit);
    for (; i < stop; ++i) {
      const __m512i symbol = _mm512_set1_epi8(static_cast<char>(a[i]));
      const std::uint8_t* const row = b + first + i;
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        const __mmask64 keep = _mm512_cmpeq_epi8_mask(_mm512_loadu_si512(row + 64 * v), symbol);
        run[v] = _mm512_maskz_add_epi8(keep, run[v], one);
        top[v] = _mm512_max_epu8(top[v], run[v]);
      }
    }
    __mmask64 over = 0;
    for (int v = 0; v < kVectors; ++v) over |= _mm512_movepi8_mask(top[v]);  // the 128 bit of every lane
    if (over != 0) return false;
  }
  for (int v = 0; v < kVectors; ++v) _mm512_storeu_si512(best + 64 * v, top[v]);
  return true;
}

using Block = bool (*)(const std::uint8_t*, const std::uint8_t*, RowRange, int, std::uint8_t*);

// Wide blocks while there are diagonals for them, one narrow block for the rest.
bool blocked_runs(const std::uint8_t* a, int rows, const std::uint8_t* b, int columns, std::uint8_t* best,
                  int vector_bytes, const Block (&blocks)[4]) {
  for (int first = 1 - rows; first < columns;) {
    const int vectors = std::min(4, (columns - first + vector_bytes - 1) / vector_bytes);
    const RowRange range = rows_of_block(first, vectors * vector_bytes, rows, columns);
    if (!blocks[vectors - 1](a, b, range, first, best + first + rows - 1)) return false;
    first += vectors * vector_bytes;
  }
  return true;
}

#endif  // KC_X86_DISPATCH

}  // namespace

SimdLevel resolve_simd(SimdLevel wish) {
#if KC_X86_DISPATCH
  const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw");
  const bool has_avx2 = __builtin_cpu_supports("avx2");
  if (wish == SimdLevel::generic) return SimdLevel::generic;
  if (has_avx512 && wish != SimdLevel::avx2) return SimdLevel::avx512;
  if (has_avx2) return SimdLevel::avx2;
#endif
  static_cast<void>(wish);
  return SimdLevel::generic;
}

int diagonal_cells_per_step(SimdLevel resolved) {
  switch (resolved) {
    case SimdLevel::avx512:
      return 48;
    case SimdLevel::avx2:
      return 24;
    default:
      return 8;
  }
}

bool diagonal_best_runs(const std::uint8_t* a, int rows, const std::uint8_t* b, int columns, std::uint8_t* best,
                        SimdLevel simd) {
#if KC_X86_DISPATCH
  if (simd == SimdLevel::avx512) {
    return blocked_runs(a, rows, b, columns, best, 64,
                        {avx512_block<1>, avx512_block<2>, avx512_block<3>, avx512_block<4>});
  }
  if (simd == SimdLevel::avx2) {
    return blocked_runs(a, rows, b, columns, best, 32, {avx2_block<1>, avx2_block<2>, avx2_block<3>, avx2_block<4>});
  }
#endif
  static_cast<void>(simd);
  return generic_runs(a, rows, b, columns, best);
}

}  // namespace kc

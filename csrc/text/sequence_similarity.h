// Similarity of two texts, as Python's difflib defines it.
//
//   ratio(a, b) = 2 * M / (|a| + |b|),   1 for two empty texts,
//
// where M counts the characters in the matching blocks of the Ratcliff-Obershelp recursion: take the longest common
// substring (of several, the one that starts first in a, then first in b), then do the same to the left and to the
// right of it. The value is bit for bit that of difflib.SequenceMatcher(None, a, b, autojunk).ratio() in CPython 3.11
// to 3.13. With autojunk, characters that make up more than 1% of a b of at least 200 characters ("popular") cannot
// start a match; they only lengthen one.
//
// No Python, no torch. A character is a code unit of 1, 2 or 4 bytes; lone surrogates are characters like any other.
#pragma once

#include <cstddef>

#include "text_view.h"

namespace kc {

// How it is computed, which never changes the result. Anything but `automatic` is for tests and benchmarks: the way in
// which rectangles of whatever size are searched, and the vector instructions, as far as the processor has them.
enum class SearchWay { automatic, bits, anchors, diagonals, windows };
enum class SimdLevel { automatic, generic, avx2, avx512 };
struct SimilarityOptions {
  SearchWay way = SearchWay::automatic;
  SimdLevel simd = SimdLevel::automatic;
};

// The ratio of one pair. Throws std::invalid_argument for 2^30 characters and more.
double sequence_similarity(const TextView& a, const TextView& b, bool autojunk, const SimilarityOptions& options = {});

// The ratios of `count` pairs, on at most `threads` threads (>= 1): out[i] = sequence_similarity(a[i], b[i], autojunk).
void sequence_similarities(const TextView* a, const TextView* b, std::size_t count, bool autojunk, int threads,
                           double* out);

}  // namespace kc

#include "sequence_similarity.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <iterator>
#include <limits>
#include <mutex>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <type_traits>
#include <vector>

#include "diagonal_runs.h"

// How it works
//
// difflib asks one rectangle a[alo, ahi) x b[blo, bhi) at a time for its longest match, then goes on to the left and to
// the right. We take all the matches of one length at once:
//
//   Let L be the length of the longest match in a rectangle. The match taken is the earliest in a, so there is none of
//   length L left of it; what remains to the right of it has matches of length L or less, and the earliest of those is
//   the next to take. So one walk from left to right takes all matches of length L ("the chain"), and each of the gaps
//   between them is a rectangle whose longest match is shorter than L.
//
// Every level of the recursion thus has a smaller L, the rectangles of a level share no row and no column, and a chain
// of levels of lengths L1 > L2 > ... consumes L1 + L2 + ... characters: at most about sqrt(2 n) levels, where difflib
// has up to n, and in a real text some tens. A rectangle is searched in one of four ways:
//
//   bits       one side has at most 64 characters: a row of the comparison table is a machine word.
//   anchors    matches of 2 k - 1 characters and more, whatever their lengths, for k = 32, then 16, then 8: each covers
//              a window of k characters of b that starts at a multiple of k. A rolling hash over a finds the few
//              places where there can be one. Given up if they are not few, as in repetitive text.
//   diagonals  a medium table, in at most 254 different characters: the longest run on each diagonal, vectorised
//              (diagonal_runs.h). Work grows with the area, but 64 cells at a time.
//   windows    everything else: is there a common substring of length k? Hash all windows of length k of both sides.
//              Yes leaves fewer windows for the next, larger k; L is found by doubling and bisection, in
//              O((rows + columns) log L) whatever the text is.
//
// Each is there because the others are slow where it is fast. Windows are linear in the worst case, but hash every
// window again for every question. The vectorised table costs nothing but its area, which is less up to some thousand
// characters a side. Anchors look at every character once for all long matches together, which is nearly all the work
// on two versions of one text. Where all that is left is small, setting any of them up takes longer than the bits do.
//
// A hash can only claim too much, and what is claimed is compared before it is counted, so the result does not depend
// on hashing.

namespace kc {
namespace {

__extension__ typedef unsigned __int128 Wide;

constexpr int kWordBits = 64;
constexpr std::uint32_t kNeverA = 0;  // code of a character of a that can match nothing
constexpr std::uint32_t kNeverB = 1;  // the same for b; different, so that the two do not match each other
constexpr std::uint32_t kFirstCode = 2;

struct Rectangle {
  int alo, ahi, blo, bhi;
  int bound;          // no match in it is longer
  int anchors_below;  // anchors are tried if it has at most so many rows and columns together
};

struct Hit {
  int i, j;
};

// a[i, i + length) == b[j, j + length).
struct Segment {
  int i, j, length;
};

struct Region {
  Rectangle rectangle;
  std::size_t first_segment;
};

// Splitting a region reads all its segments, so their number is bounded.
constexpr std::size_t kMaxSegments = 1 << 14;

// Rolling hashes modulo 2^64, where a wrong claim costs a comparison only.
constexpr std::uint64_t kRollingBase = 0xD1342543DE82EF95ULL;
// Fibonacci hashing: the high bits of the product depend on all bits.
constexpr std::uint64_t kScatter = 0x9E3779B97F4A7C15ULL;

// Polynomial hashes modulo the Mersenne prime 2^61 - 1, of all prefixes; a window costs one multiplication.
constexpr std::uint64_t kPrime = (std::uint64_t{1} << 61) - 1;
constexpr std::uint64_t kBase = 1181783497276652981ULL;

inline std::uint64_t multiply(std::uint64_t x, std::uint64_t y) {
  const Wide product = static_cast<Wide>(x) * y;
  const std::uint64_t sum = static_cast<std::uint64_t>(product & kPrime) + static_cast<std::uint64_t>(product >> 61);
  return sum >= kPrime ? sum - kPrime : sum;
}

template <class Symbol>
void hash_prefixes(const Symbol* text, int size, std::vector<std::uint64_t>& out) {
  out.resize(static_cast<std::size_t>(size) + 1);
  std::uint64_t hash = 0;
  out[0] = 0;
  for (int i = 0; i < size; ++i) {
    hash = multiply(hash, kBase) + text[i] + 1;
    if (hash >= kPrime) hash -= kPrime;
    out[static_cast<std::size_t>(i) + 1] = hash;
  }
}

inline std::uint64_t window_hash(const std::vector<std::uint64_t>& prefixes, int begin, int length,
                                 std::uint64_t power) {
  const std::uint64_t tail = multiply(prefixes[static_cast<std::size_t>(begin)], power);
  const std::uint64_t head = prefixes[static_cast<std::size_t>(begin) + static_cast<std::size_t>(length)];
  return head >= tail ? head - tail : head + kPrime - tail;
}

// A set of window hashes with open addressing; a slot is known by its index.
class WindowTable {
 public:
  void reset(std::size_t entries) {
    int bits = 4;
    while ((std::size_t{1} << bits) < 2 * entries) ++bits;
    shift_ = 64 - bits;
    mask_ = (std::size_t{1} << bits) - 1;
    keys_.assign(mask_ + 1, kEmpty);
  }
  std::size_t slots() const { return mask_ + 1; }
  std::size_t insert(std::uint64_t hash) {
    std::size_t slot = home(hash);
    while (keys_[slot] != hash && keys_[slot] != kEmpty) slot = (slot + 1) & mask_;
    keys_[slot] = hash;
    return slot;
  }
  // The slot of the hash, or slots() if it is not there.
  std::size_t find(std::uint64_t hash) const {
    std::size_t slot = home(hash);
    while (keys_[slot] != hash) {
      if (keys_[slot] == kEmpty) return slots();
      slot = (slot + 1) & mask_;
    }
    return slot;
  }

 private:
  static constexpr std::uint64_t kEmpty = ~std::uint64_t{0};  // no hash modulo kPrime is this large
  std::size_t home(std::uint64_t hash) const { return static_cast<std::size_t>((hash * kScatter) >> shift_); }
  std::vector<std::uint64_t> keys_;
  std::size_t mask_ = 0;
  int shift_ = 60;
};

// Buffers that one thread uses again for pair after pair.
struct Scratch {
  std::vector<Rectangle> open;
  std::vector<std::uint64_t> masks;                            // bits: of each code, where it occurs
  std::vector<std::uint64_t> rows_first, rows_now, rows_next;  // bits
  std::vector<std::uint8_t> padded, best;                      // diagonals
  std::vector<Hit> hits;
  std::vector<Segment> segments, region_segments;  // anchors
  std::vector<Region> regions;
  std::vector<std::uint64_t> hash_a, hash_b, powers;  // windows
  std::vector<int> windows_a, windows_b, head, next;  // and anchors: head, next
  std::vector<std::size_t> slot_b;
  std::vector<std::uint8_t> slot_hit;
  WindowTable table;
};

// Both texts in dense codes. Two characters that may start a match are equal exactly when their codes are.
template <class Symbol>
struct Codes {
  std::vector<Symbol> a, b;
  std::uint32_t count = kFirstCode;  // codes are below this
};

// Equality of the characters themselves, which differs from that of the codes where b has popular characters.
class Characters {
 public:
  Characters(const TextView& a, const TextView& b) : a_(a), b_(b) {}
  bool equal(int i, int j) const { return at(a_, i) == at(b_, j); }

 private:
  static std::uint32_t at(const TextView& text, int index) {
    switch (text.width) {
      case 1:
        return static_cast<const std::uint8_t*>(text.data)[index];
      case 2:
        return static_cast<const std::uint16_t*>(text.data)[index];
      default:
        return static_cast<const std::uint32_t*>(text.data)[index];
    }
  }
  TextView a_, b_;
};

template <class Symbol>
class Matcher {
 public:
  // `characters` is null when no character is popular: equal codes are then equal characters.
  Matcher(const Codes<Symbol>& codes, const Characters* characters, Scratch& scratch, const SimilarityOptions& options)
      : a_(codes.a.data()),
        b_(codes.b.data()),
        size_a_(static_cast<int>(codes.a.size())),
        size_b_(static_cast<int>(codes.b.size())),
        characters_(characters),
        s_(scratch),
        options_(options) {
    s_.open.clear();
    s_.masks.assign(codes.count, 0);
  }

  // The number of characters in matching blocks.
  std::int64_t count_matches() {
    add({0, size_a_, 0, size_b_, std::min(size_a_, size_b_), std::numeric_limits<int>::max()});
    while (!s_.open.empty()) {
      const Rectangle r = s_.open.back();
      s_.open.pop_back();
      search(r);
    }
    return matched_;
  }

 private:
  // Keeps a rectangle for later, or settles it if it is easy.
  void add(Rectangle r) {
    r.bound = std::min({r.bound, r.ahi - r.alo, r.bhi - r.blo});
    if (r.bound > 0) {
      s_.open.push_back(r);
    } else if (characters_ != nullptr) {
      add_popular_prefix(r);
    }
  }

  // Without a match difflib still lengthens the empty match at the rectangle's corner by popular characters.
  void add_popular_prefix(const Rectangle& r) {
    int i = r.alo;
    int j = r.blo;
    while (i < r.ahi && j < r.bhi && characters_->equal(i, j)) ++i, ++j, ++matched_;
  }

  // The match as difflib counts it: longer by the equal characters around it, of which the first is a popular one.
  Segment lengthen(const Rectangle& r, Segment match) const {
    if (characters_ == nullptr) return match;
    while (match.i > r.alo && match.j > r.blo && characters_->equal(match.i - 1, match.j - 1)) {
      --match.i;
      --match.j;
      ++match.length;
    }
    const int longest = std::min(r.ahi - match.i, r.bhi - match.j);
    while (match.length < longest && characters_->equal(match.i + match.length, match.j + match.length)) ++match.length;
    return match;
  }

  // Takes the match of `length` at (i, j): what is left of it becomes a rectangle, `rest` what is right of it.
  void take(Rectangle& rest, int i, int j, int length) {
    const Segment block = lengthen(rest, {i, j, length});
    matched_ += block.length;
    // difflib does not look at a side that has no rows or no columns, and add() leaves such a one alone too.
    add({rest.alo, block.i, rest.blo, block.j, length - 1, rest.anchors_below});
    rest.alo = block.i + block.length;
    rest.blo = block.j + block.length;
  }

  void finish(Rectangle rest, int length) {
    rest.bound = length - 1;
    add(rest);
  }

  void search(Rectangle r) {
    const int rows = r.ahi - r.alo;
    const int columns = r.bhi - r.blo;
    const bool few_rows = rows <= kWordBits;
    const bool few_columns = columns <= kWordBits;
    switch (options_.way) {
      case SearchWay::automatic:
        if (few_columns) return search_bits_of_b(r);
        if (few_rows) return search_bits_of_a(r);
        if (rows + columns <= r.anchors_below) {
          if (search_anchors(r, 32) || search_anchors(r, 16) || search_anchors(r, 8)) return;
          // Too repetitive, perhaps only in places. Trying it again at every level would be in vain too often.
          r.anchors_below = (rows + columns) / 2;
        }
        return diagonals_are_cheaper(rows, columns) ? search_diagonals(r) : search_windows(r);
      case SearchWay::bits:
        if (few_rows) return search_bits_of_a(r);
        return few_columns ? search_bits_of_b(r) : search_windows(r);
      case SearchWay::anchors:
        if (!search_anchors(r, 4)) search_windows(r);
        return;
      case SearchWay::diagonals:
        return kHasDiagonals ? search_diagonals(r) : search_windows(r);
      case SearchWay::windows:
        return search_windows(r);
    }
  }

  // In steps of ordinary code: windows cost about twelve for each character and question, in perhaps five questions.
  bool diagonals_are_cheaper(int rows, int columns) const {
    const double cells = static_cast<double>(rows) * (columns + kDiagonalPadding);
    return kHasDiagonals && cells / diagonal_cells_per_step(options_.simd) < 60.0 * (rows + columns);
  }

  // ---- bits: word row[i], bit j - blo: a run of equal characters of the length asked for ends at (i, j).

  template <class Rows, class Columns>
  void fill_rows(const Rows* rows, int row_count, const Columns* columns, int column_count) {
    for (int j = 0; j < column_count; ++j) s_.masks[columns[j]] |= std::uint64_t{1} << j;
    s_.rows_first.resize(static_cast<std::size_t>(row_count));
    for (int i = 0; i < row_count; ++i) s_.rows_first[static_cast<std::size_t>(i)] = s_.masks[rows[i]];
    for (int j = 0; j < column_count; ++j) s_.masks[columns[j]] = 0;
  }

  // Leaves in rows_now where the longest runs end, and returns their length (0: no equal characters).
  int longest_runs(int bound) {
    const std::size_t count = s_.rows_first.size();
    s_.rows_now.resize(count);
    s_.rows_next.resize(count);
    const std::uint64_t* const first = s_.rows_first.data();
    std::uint64_t any = 0;
    for (std::size_t i = 0; i < count; ++i) any |= first[i];
    if (any == 0) return 0;
    std::copy(first, first + count, s_.rows_now.data());
    int length = 1;
    for (; length < bound; ++length) {
      const std::uint64_t* const now = s_.rows_now.data();
      std::uint64_t* const next = s_.rows_next.data();
      next[0] = 0;
      any = 0;
      for (std::size_t i = 1; i < count; ++i) {
        next[i] = first[i] & (now[i - 1] << 1);
        any |= next[i];
      }
      if (any == 0) break;
      std::swap(s_.rows_now, s_.rows_next);
    }
    return length;
  }

  void search_bits_of_b(const Rectangle& r) {
    fill_rows(a_ + r.alo, r.ahi - r.alo, b_ + r.blo, r.bhi - r.blo);
    const int length = longest_runs(r.bound);
    Rectangle rest = r;
    if (length > 0) {
      const int rows = r.ahi - r.alo;
      for (int row = length - 1; row < rows && rest.blo + length <= r.bhi; ++row) {
        const int i = r.alo + row - length + 1;
        if (i < rest.alo) continue;
        const std::uint64_t ends = s_.rows_now[static_cast<std::size_t>(row)] & from_bit(rest.blo - r.blo + length - 1);
        if (ends != 0) take(rest, i, r.blo + __builtin_ctzll(ends) - length + 1, length);
      }
    }
    finish(rest, std::max(length, 1));
  }

  // The same with a row for each character of b. The earliest end in a is then the lowest bit of any row.
  void search_bits_of_a(const Rectangle& r) {
    fill_rows(b_ + r.blo, r.bhi - r.blo, a_ + r.alo, r.ahi - r.alo);
    const int length = longest_runs(r.bound);
    Rectangle rest = r;
    while (length > 0 && rest.alo + length <= r.ahi && rest.blo + length <= r.bhi) {
      const std::size_t first_row = static_cast<std::size_t>(rest.blo - r.blo + length - 1);
      std::uint64_t any = 0;
      for (std::size_t row = first_row; row < s_.rows_now.size(); ++row) any |= s_.rows_now[row];
      any &= from_bit(rest.alo - r.alo + length - 1);
      if (any == 0) break;
      const std::uint64_t lowest = any & (~any + 1);
      std::size_t row = first_row;
      while ((s_.rows_now[row] & lowest) == 0) ++row;
      take(rest, r.alo + __builtin_ctzll(any) - length + 1, r.blo + static_cast<int>(row) - length + 1, length);
    }
    finish(rest, std::max(length, 1));
  }

  // Ones from bit `low` up. `low` may be kWordBits.
  static std::uint64_t from_bit(int low) { return low >= kWordBits ? 0 : ~std::uint64_t{0} << low; }

  // ---- diagonals

  static constexpr bool kHasDiagonals = std::is_same_v<Symbol, std::uint8_t>;

  void search_diagonals(const Rectangle& r) {
    const int rows = r.ahi - r.alo;
    const int columns = r.bhi - r.blo;
    const int diagonals = rows + columns - 1;
    s_.padded.assign(static_cast<std::size_t>(columns) + 2 * kDiagonalPadding, static_cast<std::uint8_t>(kNeverB));
    std::copy(b_ + r.blo, b_ + r.bhi, s_.padded.data() + kDiagonalPadding);
    s_.best.resize(static_cast<std::size_t>(diagonals) + kDiagonalPadding);
    if (!diagonal_best_runs(reinterpret_cast<const std::uint8_t*>(a_) + r.alo, rows,
                            s_.padded.data() + kDiagonalPadding, columns, s_.best.data(), options_.simd)) {
      return search_windows(r, kDiagonalRunLimit);
    }
    const std::uint8_t* const best = s_.best.data();
    std::uint8_t longest = 0;
    for (int d = 0; d < diagonals; ++d) longest = std::max(longest, best[d]);
    const int length = longest;
    if (length == 0) return finish(r, 1);
    // Walk the diagonals that have a match of this length. Should they be many, then windows are cheaper.
    std::int64_t budget = 16 * static_cast<std::int64_t>(diagonals);
    s_.hits.clear();
    const auto* at = best;
    while (budget > 0) {
      at = static_cast<const std::uint8_t*>(std::memchr(at, length, static_cast<std::size_t>(best + diagonals - at)));
      if (at == nullptr) break;
      budget -= collect_hits(r, static_cast<int>(at - best) - (rows - 1), length);
      ++at;
    }
    if (budget <= 0) return search_windows(r, length, length);
    std::sort(s_.hits.begin(), s_.hits.end(),
              [](const Hit& x, const Hit& y) { return x.i != y.i ? x.i < y.i : x.j < y.j; });
    Rectangle rest = r;
    for (const Hit& hit : s_.hits) {
      if (hit.i >= rest.alo && hit.j >= rest.blo) take(rest, hit.i, hit.j, length);
    }
    finish(rest, length);
  }

  // Adds the matches of `length`, which is the longest, on one diagonal; returns the number of cells looked at.
  int collect_hits(const Rectangle& r, int diagonal, int length) {
    const int begin = r.alo + std::max(0, -diagonal);
    const int end = std::min(r.ahi, r.alo + (r.bhi - r.blo) - diagonal);
    const int offset = r.blo - r.alo + diagonal;  // j - i
    // A run of `length` covers a multiple of it, so the cells between multiples need a look only around equal ones.
    for (int probe = begin + length - 1; probe < end;) {
      if (a_[probe] != b_[probe + offset]) {
        probe += length;
        continue;
      }
      int first = probe;
      while (first > begin && a_[first - 1] == b_[first - 1 + offset]) --first;
      int last = probe + 1;
      while (last < end && a_[last] == b_[last + offset]) ++last;
      if (last - first == length) s_.hits.push_back({first, first + offset});
      probe = last + length;  // a_[last] differs, so the next run starts after it
    }
    return end - begin;
  }

  // ---- anchors

  // Takes all matches of 2 * size - 1 characters and more, and those in what remains, until there are none: each of
  // them covers one of the anchors, the windows of `size` characters of b that start at multiples of `size`. False, and
  // nothing done, if matches of that length cannot be or if there are too many places to look at.
  bool search_anchors(const Rectangle& r, int size) {
    const int shortest = 2 * size - 1;
    if (r.bound < shortest || !find_segments(r, size)) return false;
    s_.regions.clear();
    s_.regions.push_back({r, 0});
    while (!s_.regions.empty()) {
      const Region region = s_.regions.back();
      s_.regions.pop_back();
      split_region(region, shortest);
    }
    return true;
  }

  // Fills `segments` with the maximal matches of the rectangle that cover an anchor. False if they are too many.
  bool find_segments(const Rectangle& r, int size) {
    s_.segments.clear();
    const int anchors = (r.bhi - r.blo) / size;
    int bits = 6;
    while ((1 << bits) < 4 * anchors) ++bits;
    const int shift = 64 - bits;
    s_.head.assign(std::size_t{1} << bits, -1);
    s_.next.resize(static_cast<std::size_t>(anchors));
    for (int x = anchors; x-- > 0;) {
      std::uint64_t hash = 0;
      for (int c = 0; c < size; ++c) hash = hash * kRollingBase + b_[r.blo + x * size + c];
      int& head = s_.head[static_cast<std::size_t>((hash * kScatter) >> shift)];
      s_.next[static_cast<std::size_t>(x)] = head;
      head = x;
    }
    std::uint64_t leaving = 1;  // what the first character of a window is multiplied with
    std::uint64_t hash = 0;
    for (int c = 0; c < size - 1; ++c) {
      leaving *= kRollingBase;
      hash = hash * kRollingBase + a_[r.alo + c];
    }
    std::int64_t budget = 2 * static_cast<std::int64_t>((r.ahi - r.alo) + (r.bhi - r.blo));
    for (int i = r.alo; i + size <= r.ahi; ++i) {
      hash = hash * kRollingBase + a_[i + size - 1];
      int x = s_.head[static_cast<std::size_t>((hash * kScatter) >> shift)];
      hash -= a_[i] * leaving;
      for (; x >= 0; x = s_.next[static_cast<std::size_t>(x)]) {
        budget -= 4 + add_segment(r, i, r.blo + x * size, size) / 8;
        if (budget < 0 || s_.segments.size() > kMaxSegments) return false;
      }
    }
    return true;
  }

  // Adds the maximal match around the anchor at (i, j), unless there is none or an earlier anchor has added it. Returns
  // how many characters it looked at.
  int add_segment(const Rectangle& r, int i, int j, int size) {
    if (!std::equal(a_ + i, a_ + i + size, b_ + j)) return 0;
    int back = 0;
    while (i - back > r.alo && j - back > r.blo && a_[i - back - 1] == b_[j - back - 1]) {
      if (++back == size) return back;
    }
    const Segment segment{i - back, j - back, 0};
    const int longest = std::min(r.ahi - segment.i, r.bhi - segment.j);
    int length = back + size;
    while (length < longest && a_[segment.i + length] == b_[segment.j + length]) ++length;
    if (length >= 2 * size - 1) s_.segments.push_back({segment.i, segment.j, length});
    return length;
  }

  // Takes the longest of the region's segments and clips the others to the two regions left and right of it. Without a
  // segment the region is a rectangle like others. The region's segments are the last ones of all.
  void split_region(const Region& region, int shortest) {
    if (region.first_segment == s_.segments.size()) return finish(region.rectangle, shortest);
    const auto begin = s_.segments.begin() + static_cast<std::ptrdiff_t>(region.first_segment);
    s_.region_segments.assign(begin, s_.segments.end());
    s_.segments.erase(begin, s_.segments.end());
    const Segment best =
        *std::min_element(s_.region_segments.begin(), s_.region_segments.end(), [](const Segment& x, const Segment& y) {
          if (x.length != y.length) return x.length > y.length;
          return x.i != y.i ? x.i < y.i : x.j < y.j;
        });
    const Segment block = lengthen(region.rectangle, best);
    matched_ += block.length;
    Rectangle left = region.rectangle;
    left.ahi = block.i;
    left.bhi = block.j;
    left.bound = best.length - 1;
    add_region(left, shortest);
    Rectangle right = region.rectangle;
    right.alo = block.i + block.length;
    right.blo = block.j + block.length;
    right.bound = best.length;
    add_region(right, shortest);
  }

  void add_region(const Rectangle& r, int shortest) {
    s_.regions.push_back({r, s_.segments.size()});
    for (const Segment& whole : s_.region_segments) {
      const int skip = std::max({0, r.alo - whole.i, r.blo - whole.j});
      const int length = std::min({whole.length, r.ahi - whole.i, r.bhi - whole.j}) - skip;
      if (length >= shortest) s_.segments.push_back({whole.i + skip, whole.j + skip, length});
    }
  }

  // ---- windows

  std::uint64_t power(int length) const { return s_.powers[static_cast<std::size_t>(length)]; }

  void prepare_hashes() {
    if (hashed_) return;
    hashed_ = true;
    hash_prefixes(a_, size_a_, s_.hash_a);
    hash_prefixes(b_, size_b_, s_.hash_b);
    s_.powers.resize(static_cast<std::size_t>(std::min(size_a_, size_b_)) + 1);
    s_.powers[0] = 1;
    for (std::size_t k = 1; k < s_.powers.size(); ++k) s_.powers[k] = multiply(s_.powers[k - 1], kBase);
  }

  // Keeps of windows_a and windows_b what starts a common substring of `length`; if that is nothing, keeps all.
  bool keep_common(const Rectangle& r, int length) {
    const std::uint64_t factor = power(length);
    s_.table.reset(s_.windows_b.size());
    s_.slot_b.clear();
    for (const int j : s_.windows_b) {
      if (j + length > r.bhi) break;
      s_.slot_b.push_back(s_.table.insert(window_hash(s_.hash_b, j, length, factor)));
    }
    s_.slot_hit.assign(s_.table.slots() + 1, 0);
    std::size_t kept = 0;
    for (const int i : s_.windows_a) {
      if (i + length > r.ahi) break;
      const std::size_t slot = s_.table.find(window_hash(s_.hash_a, i, length, factor));
      if (slot == s_.table.slots()) continue;
      // Nothing is overwritten before the first hit, and from then on only what has been read.
      s_.slot_hit[slot] = 1;
      s_.windows_a[kept++] = i;
    }
    if (kept == 0) return false;
    s_.windows_a.resize(kept);
    kept = 0;
    for (std::size_t x = 0; x < s_.slot_b.size(); ++x) {
      if (s_.slot_hit[s_.slot_b[x]] != 0) s_.windows_b[kept++] = s_.windows_b[x];
    }
    s_.windows_b.resize(kept);
    return true;
  }

  void search_windows(const Rectangle& r) { search_windows(r, 0, r.bound); }
  void search_windows(const Rectangle& r, int lower) { search_windows(r, lower, r.bound); }

  // The longest match is known to have at least `lower` characters and at most `upper`.
  void search_windows(const Rectangle& r, int lower, int upper) {
    prepare_hashes();
    fill_ascending(s_.windows_a, r.alo, r.ahi);
    fill_ascending(s_.windows_b, r.blo, r.bhi);
    int known = 0;  // length that the windows have in common
    int step = 8;
    if (lower > 0 && lower <= upper && keep_common(r, lower)) known = step = lower;
    bool doubling = true;
    while (known < upper) {
      const int length = doubling ? std::min(upper, std::max(known + 1, 2 * step)) : known + (upper - known + 1) / 2;
      step = length;
      if (keep_common(r, length)) {
        known = length;
      } else {
        upper = length - 1;
        doubling = false;
      }
    }
    if (known == 0) {
      finish(r, 1);
    } else {
      take_windows(r, known);
    }
  }

  static void fill_ascending(std::vector<int>& out, int begin, int end) {
    out.resize(static_cast<std::size_t>(end - begin));
    for (int i = begin; i < end; ++i) out[static_cast<std::size_t>(i - begin)] = i;
  }

  // The chain over windows_a, with the windows of b that have the same hash in a list each, in ascending order. A list
  // is only ever shortened from the left, since the chain moves right in b too.
  void take_windows(const Rectangle& r, int length) {
    const std::uint64_t factor = power(length);
    s_.table.reset(s_.windows_b.size());
    s_.head.assign(s_.table.slots(), -1);
    s_.next.resize(s_.windows_b.size());
    for (std::size_t x = s_.windows_b.size(); x-- > 0;) {
      if (s_.windows_b[x] + length > r.bhi) continue;
      const std::size_t slot = s_.table.insert(window_hash(s_.hash_b, s_.windows_b[x], length, factor));
      s_.next[x] = s_.head[slot];
      s_.head[slot] = static_cast<int>(x);
    }
    Rectangle rest = r;
    for (const int i : s_.windows_a) {
      if (i < rest.alo) continue;
      if (i + length > r.ahi) break;
      const std::size_t slot = s_.table.find(window_hash(s_.hash_a, i, length, factor));
      if (slot == s_.table.slots()) continue;
      int& head = s_.head[slot];
      while (head >= 0 && window_b(head) < rest.blo) head = s_.next[static_cast<std::size_t>(head)];
      for (int x = head; x >= 0; x = s_.next[static_cast<std::size_t>(x)]) {
        const int j = window_b(x);
        // Equal hashes of unequal windows are never met in practice; being exact then costs this comparison.
        if (std::equal(a_ + i, a_ + i + length, b_ + j)) {
          take(rest, i, j, length);
          break;
        }
      }
    }
    finish(rest, length);
  }

  int window_b(int index) const { return s_.windows_b[static_cast<std::size_t>(index)]; }

  const Symbol* a_;
  const Symbol* b_;
  int size_a_;
  int size_b_;
  const Characters* characters_;
  Scratch& s_;
  SimilarityOptions options_;
  std::int64_t matched_ = 0;
  bool hashed_ = false;
};

// ---- from characters to dense codes ----

// Character -> small number, in order of first appearance. A table for Latin-1, open addressing for the rest.
class CharacterIndex {
 public:
  static constexpr std::uint32_t kAbsent = ~std::uint32_t{0};

  explicit CharacterIndex(std::size_t texts_size) {
    std::fill(std::begin(latin_), std::end(latin_), kAbsent);
    capacity_hint_ = texts_size;
  }

  std::uint32_t insert(std::uint32_t character) {
    std::uint32_t& entry = character < 256 ? latin_[character] : slot(character, true)->index;
    if (entry == kAbsent) entry = size_++;
    return entry;
  }
  std::uint32_t find(std::uint32_t character) {
    if (character < 256) return latin_[character];
    const Entry* const entry = slot(character, false);
    return entry == nullptr ? kAbsent : entry->index;
  }
  std::uint32_t size() const { return size_; }

 private:
  struct Entry {
    std::uint32_t character = kAbsent;
    std::uint32_t index = kAbsent;
  };
  Entry* slot(std::uint32_t character, bool create) {
    if (entries_.empty()) {
      if (!create) return nullptr;
      std::size_t capacity = 64;
      while (capacity < 2 * std::min<std::size_t>(capacity_hint_, 0x110000)) capacity *= 2;
      entries_.resize(capacity);
    }
    const std::size_t mask = entries_.size() - 1;
    std::size_t at = static_cast<std::size_t>((character * kScatter) >> 20) & mask;
    while (entries_[at].character != character) {
      if (entries_[at].character == kAbsent) {
        if (!create) return nullptr;
        entries_[at].character = character;
        break;
      }
      at = (at + 1) & mask;
    }
    return &entries_[at];
  }
  std::uint32_t latin_[256];
  std::vector<Entry> entries_;
  std::size_t capacity_hint_ = 0;
  std::uint32_t size_ = 0;
};

template <class Symbol>
void write_codes(const std::vector<std::uint32_t>& indices, const std::vector<std::uint32_t>& code_of,
                 std::uint32_t never, std::vector<Symbol>& out) {
  out.resize(indices.size());
  for (std::size_t i = 0; i < indices.size(); ++i) {
    out[i] = static_cast<Symbol>(indices[i] == CharacterIndex::kAbsent ? never : code_of[indices[i]]);
  }
}

struct Indexed {
  std::vector<std::uint32_t> a, b;            // index of each character, kAbsent where it is not in b
  std::vector<std::uint32_t> code_a, code_b;  // of each index
  std::uint32_t codes = kFirstCode;
  bool has_popular = false;
};

Indexed index_texts(const TextView& a, const TextView& b, bool autojunk) {
  Indexed out;
  CharacterIndex index(b.size);
  out.a.resize(a.size);
  out.b.resize(b.size);
  visit_text(b, [&](const auto* text) {
    for (std::size_t j = 0; j < b.size; ++j) out.b[j] = index.insert(text[j]);
  });
  visit_text(a, [&](const auto* text) {
    for (std::size_t i = 0; i < a.size; ++i) out.a[i] = index.find(text[i]);
  });
  std::vector<std::uint8_t> in_a(index.size(), 0);
  for (const std::uint32_t x : out.a) {
    if (x != CharacterIndex::kAbsent) in_a[x] = 1;
  }
  std::vector<std::uint8_t> is_popular(index.size(), 0);
  if (autojunk && b.size >= 200) {
    std::vector<std::size_t> occurrences(index.size(), 0);
    for (const std::uint32_t x : out.b) ++occurrences[x];
    for (std::size_t x = 0; x < occurrences.size(); ++x) is_popular[x] = occurrences[x] > b.size / 100 + 1;
  }
  out.code_a.resize(index.size());
  out.code_b.resize(index.size());
  for (std::size_t x = 0; x < in_a.size(); ++x) {
    out.has_popular = out.has_popular || (in_a[x] != 0 && is_popular[x] != 0);
    const bool may_match = in_a[x] != 0 && is_popular[x] == 0;
    out.code_a[x] = may_match ? out.codes : kNeverA;
    out.code_b[x] = may_match ? out.codes++ : kNeverB;
  }
  return out;
}

template <class Symbol>
std::int64_t count_matches(const TextView& a, const TextView& b, const Indexed& indexed, Scratch& scratch,
                           const SimilarityOptions& options) {
  Codes<Symbol> codes;
  codes.count = indexed.codes;
  write_codes(indexed.a, indexed.code_a, kNeverA, codes.a);
  write_codes(indexed.b, indexed.code_b, kNeverB, codes.b);
  const Characters characters(a, b);
  return Matcher<Symbol>(codes, indexed.has_popular ? &characters : nullptr, scratch, options).count_matches();
}

void check_text(const TextView& text, const char* name) {
  if (text.size >= (std::size_t{1} << 30)) {
    throw std::invalid_argument(std::string(name) + " must have fewer than 2^30 characters; got " +
                                std::to_string(text.size));
  }
}

double ratio(const TextView& a, const TextView& b, bool autojunk, const SimilarityOptions& options, Scratch& scratch) {
  check_text(a, "a");
  check_text(b, "b");
  const std::size_t total = a.size + b.size;
  if (total == 0) return 1.0;
  if (a.size == 0 || b.size == 0) return 0.0;
  const Indexed indexed = index_texts(a, b, autojunk);
  if (indexed.codes == kFirstCode && !indexed.has_popular) return 0.0;  // no character in common
  std::int64_t matched = 0;
  if (indexed.codes <= 0x100) {
    matched = count_matches<std::uint8_t>(a, b, indexed, scratch, options);
  } else if (indexed.codes <= 0x10000) {
    matched = count_matches<std::uint16_t>(a, b, indexed, scratch, options);
  } else {
    matched = count_matches<std::uint32_t>(a, b, indexed, scratch, options);
  }
  return 2.0 * static_cast<double>(matched) / static_cast<double>(total);
}

}  // namespace

double sequence_similarity(const TextView& a, const TextView& b, bool autojunk, const SimilarityOptions& options) {
  Scratch scratch;
  return ratio(a, b, autojunk, {options.way, resolve_simd(options.simd)}, scratch);
}

void sequence_similarities(const TextView* a, const TextView* b, std::size_t count, bool autojunk, int threads,
                           double* out) {
  if (threads < 1) throw std::invalid_argument("threads must be at least 1; got " + std::to_string(threads));
  const SimilarityOptions options{SearchWay::automatic, resolve_simd(SimdLevel::automatic)};
  std::atomic<std::size_t> next{0};
  std::exception_ptr failure;
  std::mutex failure_mutex;
  const auto work = [&] {
    try {
      Scratch scratch;
      for (std::size_t i = next++; i < count; i = next++) out[i] = ratio(a[i], b[i], autojunk, options, scratch);
    } catch (...) {
      const std::lock_guard<std::mutex> lock(failure_mutex);
      failure = std::current_exception();
      next = count;
    }
  };
  const std::size_t workers = std::min<std::size_t>(static_cast<std::size_t>(threads), count);
  std::vector<std::thread> pool;
  try {
    for (std::size_t t = 1; t < workers; ++t) pool.emplace_back(work);
  } catch (const std::system_error&) {
    // The system gives no more threads: those that there are do the work.
  }
  work();
  for (std::thread& thread : pool) thread.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace kc

// The text core on its own, for sanitizers: generated texts, every way of searching, against a few obvious lines.
// Built and run by tests/text/test_text_core.py. Exit status 0 and a line of counts if all is well.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "text/parse_response.h"
#include "text/sequence_similarity.h"

namespace {

using Text = std::vector<std::uint32_t>;

std::mt19937 generator(7);

int uniform(int low, int high) {
  return std::uniform_int_distribution<int>(low, high)(generator);
}

// difflib without autojunk, as its documentation tells it.
int matches(const Text& a, int alo, int ahi, const Text& b, int blo, int bhi) {
  int best = 0, best_i = 0, best_j = 0;
  for (int i = alo; i < ahi; ++i) {
    for (int j = blo; j < bhi; ++j) {
      int k = 0;
      while (i + k < ahi && j + k < bhi && a[i + k] == b[j + k]) ++k;
      if (k > best) best = k, best_i = i, best_j = j;
    }
  }
  if (best == 0) return 0;
  return best + matches(a, alo, best_i, b, blo, best_j) + matches(a, best_i + best, ahi, b, best_j + best, bhi);
}

// The text in as few bytes as it fits in, allocated to the byte, so that a sanitizer sees a read past the end.
template <class Char>
struct Stored {
  explicit Stored(const Text& text) : characters(text.begin(), text.end()) { characters.shrink_to_fit(); }
  kc::TextView view() const { return {characters.data(), characters.size(), sizeof(Char)}; }
  std::vector<Char> characters;
};

template <class Check>
void with_view(const Text& text, Check&& check) {
  const std::uint32_t largest = text.empty() ? 0 : *std::max_element(text.begin(), text.end());
  if (largest < 0x100) {
    check(Stored<std::uint8_t>(text).view());
  } else if (largest < 0x10000) {
    check(Stored<std::uint16_t>(text).view());
  } else {
    check(Stored<std::uint32_t>(text).view());
  }
}

Text random_text(int size, int letters, std::uint32_t first) {
  Text text(static_cast<std::size_t>(size));
  for (auto& character : text) character = first + static_cast<std::uint32_t>(uniform(0, letters - 1));
  return text;
}

Text edited(Text text) {
  for (int edit = uniform(0, 4); edit > 0 && !text.empty(); --edit) {
    const int at = uniform(0, static_cast<int>(text.size()) - 1);
    const int to = std::min(static_cast<int>(text.size()), at + uniform(1, 20));
    if (uniform(0, 1) == 0) {
      text.erase(text.begin() + at, text.begin() + to);
    } else {
      const Text copy(text.begin() + at, text.begin() + to);
      const int where = uniform(0, static_cast<int>(text.size()));
      text.insert(text.begin() + where, copy.begin(), copy.end());
    }
  }
  return text;
}

[[noreturn]] void fail(const char* what, int round) {
  std::printf("%s differs in round %d\n", what, round);
  std::exit(1);
}

void check_similarity(int round) {
  const std::uint32_t starts[] = {0, 'a', 0xd7f0, 0x4e00, 0x1f600};
  const int letters = uniform(0, 2) == 0 ? 300 : uniform(1, 4);
  const std::uint32_t first = starts[uniform(0, 4)];
  const Text a = random_text(uniform(0, 1) == 0 ? uniform(0, 20) : uniform(50, 160), letters, first);
  const Text b = uniform(0, 1) == 0 ? edited(a) : random_text(uniform(0, 140), letters, first);
  const int size_a = static_cast<int>(a.size());
  const int size_b = static_cast<int>(b.size());
  const double expected =
      size_a + size_b == 0 ? 1.0 : 2.0 * matches(a, 0, size_a, b, 0, size_b) / static_cast<double>(size_a + size_b);
  with_view(a, [&](const kc::TextView& view_a) {
    with_view(b, [&](const kc::TextView& view_b) {
      for (const auto way : {kc::SearchWay::automatic, kc::SearchWay::bits, kc::SearchWay::anchors,
                             kc::SearchWay::diagonals, kc::SearchWay::windows}) {
        for (const auto simd : {kc::SimdLevel::generic, kc::SimdLevel::avx2, kc::SimdLevel::avx512}) {
          if (kc::sequence_similarity(view_a, view_b, false, {way, simd}) != expected) fail("similarity", round);
        }
        if (kc::sequence_similarity(view_a, view_b, true, {way, kc::SimdLevel::automatic}) > 1.0) {
          fail("similarity with autojunk", round);
        }
      }
    });
  });
}

// Long texts: no expectation but that all ways agree, with and without autojunk.
void check_long_similarity(int round) {
  const Text a = random_text(uniform(300, 1500), uniform(1, 60), 'A');
  const Text b = uniform(0, 1) == 0 ? edited(a) : random_text(uniform(300, 1500), uniform(1, 60), 'A');
  for (const bool autojunk : {false, true}) {
    with_view(a, [&](const kc::TextView& view_a) {
      with_view(b, [&](const kc::TextView& view_b) {
        const double expected = kc::sequence_similarity(view_a, view_b, autojunk);
        for (const auto way :
             {kc::SearchWay::bits, kc::SearchWay::anchors, kc::SearchWay::diagonals, kc::SearchWay::windows}) {
          if (kc::sequence_similarity(view_a, view_b, autojunk, {way}) != expected) fail("long similarity", round);
        }
        std::vector<double> ratios(9);
        kc::sequence_similarities(std::vector<kc::TextView>(9, view_a).data(),
                                  std::vector<kc::TextView>(9, view_b).data(), 9, autojunk, 3, ratios.data());
        for (const double ratio : ratios) {
          if (ratio != expected) fail("batch", round);
        }
      });
    });
  }
}

void check_response(int round) {
  const std::string pieces[] = {"<thinking>", "</thinking>", "<answer>", "</answer>", "```", "````", "~~~",  "\n",
                                "\r\n",       "\r",          " ",        "    ",      "x",   "`",    "<ans", "\n```\n"};
  std::string text;
  for (int count = uniform(0, 20); count > 0; --count) text += pieces[uniform(0, 15)];
  const Text characters(text.begin(), text.end());
  for (const std::uint32_t last : {0x7fU, 0x4e00U, 0x1f600U}) {
    Text wide = characters;
    wide.push_back(last);
    with_view(wide, [&](const kc::TextView& view) {
      const kc::ParsedResponse parsed = kc::parse_response(view);
      const auto is_inside = [&](const kc::TextSpan& span) { return span.begin <= span.end && span.end <= view.size; };
      if (parsed.thinking && !is_inside(*parsed.thinking)) fail("thinking", round);
      if (parsed.answer && !is_inside(*parsed.answer)) fail("answer", round);
      if (parsed.code && !std::all_of(parsed.code->begin(), parsed.code->end(), is_inside)) fail("code", round);
      if (parsed.error.empty()) fail("verdict on text after the answer", round);
    });
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 1000;
  for (int round = 0; round < rounds; ++round) {
    check_similarity(round);
    if (round % 20 == 0) check_long_similarity(round);
    for (int k = 0; k < 10; ++k) check_response(round);
  }
  std::printf("%d texts compared, %d responses parsed\n", rounds + (rounds + 19) / 20, rounds * 30);
  return 0;
}

#include "parse_response.h"

#include <algorithm>
#include <string_view>

namespace kc {
namespace {

enum Tag { kThinking, kThinkingEnd, kAnswer, kAnswerEnd, kTagCount };

constexpr std::string_view kTagText[kTagCount] = {"<thinking>", "</thinking>", "<answer>", "</answer>"};

constexpr std::size_t tag_length(Tag tag) {
  return kTagText[tag].size();
}

// Where each tag occurs, in ascending order.
struct TagPlaces {
  std::vector<std::size_t> at[kTagCount];

  std::optional<std::size_t> first_from(Tag tag, std::size_t from) const {
    const auto place = std::lower_bound(at[tag].begin(), at[tag].end(), from);
    if (place == at[tag].end()) return std::nullopt;
    return *place;
  }
};

struct Block {
  std::vector<TextSpan> code;
  bool is_closed = false;
  bool is_empty = true;  // white space only
};

template <class Char>
class Parser {
 public:
  Parser(const Char* text, std::size_t size) : text_(text), size_(size) {}

  ParsedResponse parse() {
    find_tags();
    ParsedResponse out;
    std::size_t rest = 0;  // where the thinking has ended
    const auto thinking = find_thinking(rest);
    const auto answer = find_answer(rest);
    const std::vector<Block> blocks = find_blocks(answer.value_or(TextSpan{rest, size_}));
    if (thinking) out.thinking = stripped(*thinking);
    if (answer) out.answer = stripped(*answer);
    for (const Block& block : blocks) {
      if (block.is_empty) continue;
      out.code = block.code;
      break;
    }
    out.error = find_error(blocks);
    return out;
  }

 private:
  void find_tags() {
    for (std::size_t i = 0; i < size_; ++i) {
      if (text_[i] != '<') continue;
      for (int tag = 0; tag < kTagCount; ++tag) {
        if (starts_with(i, kTagText[tag])) tags_.at[tag].push_back(i);
      }
    }
  }

  bool starts_with(std::size_t at, std::string_view word) const {
    return size_ - at >= word.size() &&
           std::equal(word.begin(), word.end(), text_ + at, [](char x, Char y) { return static_cast<Char>(x) == y; });
  }

  // Sets `rest` to the place after it.
  std::optional<TextSpan> find_thinking(std::size_t& rest) const {
    const auto open = tags_.first_from(kThinking, 0);
    const std::size_t begin = open ? *open + tag_length(kThinking) : 0;
    if (const auto close = tags_.first_from(kThinkingEnd, begin)) {
      rest = *close + tag_length(kThinkingEnd);
      return TextSpan{begin, *close};
    }
    if (!open) return std::nullopt;
    rest = tags_.first_from(kAnswer, begin).value_or(size_);
    return TextSpan{begin, rest};
  }

  std::optional<TextSpan> find_answer(std::size_t rest) const {
    auto open = tags_.first_from(kAnswer, rest);
    if (!open) open = tags_.first_from(kAnswer, 0);
    if (open) {
      const std::size_t begin = *open + tag_length(kAnswer);
      return TextSpan{begin, tags_.first_from(kAnswerEnd, begin).value_or(size_)};
    }
    if (const auto close = tags_.first_from(kAnswerEnd, rest)) return TextSpan{rest, *close};
    return std::nullopt;
  }

  // The fence at the start of a line, if there is one.
  struct Fence {
    std::size_t indent;
    std::size_t length;
    Char character;
    std::size_t after;  // the place after it
  };

  std::optional<Fence> fence_at(TextSpan line) const {
    std::size_t i = line.begin;
    while (i < line.end && text_[i] == ' ') ++i;
    const std::size_t begin = i;
    if (i == line.end || (text_[i] != '`' && text_[i] != '~')) return std::nullopt;
    while (i < line.end && text_[i] == text_[begin]) ++i;
    if (i - begin < 3) return std::nullopt;
    return Fence{begin - line.begin, i - begin, text_[begin], i};
  }

  std::vector<Block> find_blocks(TextSpan part) const {
    std::vector<Block> blocks;
    Fence open{};
    bool is_inside = false;
    for (std::size_t begin = part.begin; begin < part.end;) {
      std::size_t end = begin;
      while (end < part.end && text_[end] != '\n' && text_[end] != '\r') ++end;
      std::size_t next = end;
      if (next < part.end) next += text_[end] == '\r' && end + 1 < part.end && text_[end + 1] == '\n' ? 2 : 1;
      const TextSpan line{begin, end};
      const auto fence = fence_at(line);
      if (!is_inside) {
        const Char* const info_end = text_ + end;
        if (fence && (fence->character == '~' || std::find(text_ + fence->after, info_end, Char{'`'}) == info_end)) {
          open = *fence;
          is_inside = true;
          blocks.emplace_back();
        }
      } else if (fence && fence->character == open.character && fence->length >= open.length &&
                 fence->indent <= open.indent + 3 && is_space({fence->after, end})) {
        is_inside = false;
        blocks.back().is_closed = true;
      } else {
        add_line(blocks.back(), line, next, open.indent);
      }
      begin = next;
    }
    for (Block& block : blocks) drop_last_line_end(text_, block.code);
    return blocks;
  }

  // Lines that lose no indent become one span.
  void add_line(Block& block, TextSpan line, std::size_t next, std::size_t indent) const {
    std::size_t begin = line.begin;
    while (begin < line.end && begin - line.begin < indent && text_[begin] == ' ') ++begin;
    block.is_empty = block.is_empty && is_space({begin, line.end});
    if (!block.code.empty() && block.code.back().end == begin) {
      block.code.back().end = next;
    } else {
      block.code.push_back({begin, next});
    }
  }

  static void drop_last_line_end(const Char* text, std::vector<TextSpan>& code) {
    if (code.empty()) return;
    TextSpan& last = code.back();
    const auto drop = [&](char c) {
      if (last.end > last.begin && text[last.end - 1] == static_cast<Char>(c)) --last.end;
    };
    drop('\n');
    drop('\r');  // alone or of \r\n; before a \n that was not of \r\n there is none
  }

  static bool is_white(Char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

  bool is_space(TextSpan span) const { return std::all_of(text_ + span.begin, text_ + span.end, is_white); }

  TextSpan stripped(TextSpan span) const {
    while (span.begin < span.end && is_white(text_[span.begin])) ++span.begin;
    while (span.begin < span.end && is_white(text_[span.end - 1])) --span.end;
    return span;
  }

  std::string find_error(const std::vector<Block>& blocks) const {
    for (int tag = 0; tag < kTagCount; ++tag) {
      if (tags_.at[tag].empty()) return "the tag " + std::string(kTagText[tag]) + " is missing";
    }
    for (int tag = 0; tag < kTagCount; ++tag) {
      const std::size_t count = tags_.at[tag].size();
      if (count > 1) {
        return "the tag " + std::string(kTagText[tag]) + " must occur once; it occurs " + std::to_string(count) +
               " times";
      }
    }
    const std::size_t at[kTagCount] = {tags_.at[0][0], tags_.at[1][0], tags_.at[2][0], tags_.at[3][0]};
    if (!std::is_sorted(at, at + kTagCount)) {
      return "the tags are out of order; they must come as <thinking>, </thinking>, <answer>, </answer>";
    }
    if (!is_space({0, at[kThinking]})) return "there is text before <thinking>";
    if (!is_space({at[kThinkingEnd] + tag_length(kThinkingEnd), at[kAnswer]})) {
      return "there is text between </thinking> and <answer>";
    }
    if (!is_space({at[kAnswerEnd] + tag_length(kAnswerEnd), size_})) return "there is text after </answer>";
    if (blocks.empty()) return "the answer has no code block";
    if (!blocks.back().is_closed) return "the code block in the answer is not closed";
    if (blocks.size() > 1) {
      return "the answer must have one code block; it has " + std::to_string(blocks.size());
    }
    if (blocks.front().is_empty) return "the code block in the answer is empty";
    return {};
  }

  const Char* text_;
  std::size_t size_;
  TagPlaces tags_;
};

}  // namespace

ParsedResponse parse_response(const TextView& text) {
  return visit_text(text, [&](const auto* characters) { return Parser(characters, text.size).parse(); });
}

}  // namespace kc

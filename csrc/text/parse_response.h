// Takes a model's response apart:
//
//   <thinking> ... </thinking> <answer> ... ``` ... ``` ... </answer>
//
// In a response that is right each tag occurs once, in this order, with only white space before, between and after the
// two parts, and the answer has one fenced code block that is closed and not empty. Anything else is an error, of which
// the first in the order of `find_error` is told, and the parts are still found as well as can be:
//
//   thinking  from the first <thinking> to the next </thinking>; without that, to the next <answer> or the end; without
//             <thinking>, from the start to the first </thinking>.
//   answer    from the first <answer> after the thinking (if none is there, the first of all) to the next </answer>, or
//             to the end; without <answer>, from the end of the thinking to the next </answer>.
//   code      the first block in the answer that is not empty, or in what follows the thinking if there is no answer. A
//             block that is never closed goes to the end.
//
// Fences are those of CommonMark: a line of three or more backticks or tildes opens a block, and one of the same
// character, at least as long, alone on its line and indented by at most three spaces more, closes it. An opening line
// may have a language, in which a backtick fence allows no backtick. It may be indented by any number of spaces (a list
// item does that); its lines then lose as many. Lines end with \n, \r\n or \r. White space is ASCII white space.
//
// Linear in the size of the text, whatever it holds.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "text_view.h"

namespace kc {

// Code points [begin, end) of the text.
struct TextSpan {
  std::size_t begin;
  std::size_t end;
};

struct ParsedResponse {
  std::optional<TextSpan> thinking;           // without white space around it
  std::optional<TextSpan> answer;             // likewise
  std::optional<std::vector<TextSpan>> code;  // to be joined; without the last line end
  std::string error;                          // what is wrong, one sentence; empty if nothing is
};

ParsedResponse parse_response(const TextView& text);

}  // namespace kc

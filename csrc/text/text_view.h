// Text as CPython stores it: an array of code points, each of 1, 2 or 4 bytes. A lone surrogate is a code point too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace kc {

// Not owned.
struct TextView {
  const void* data;
  std::size_t size;  // in code points
  int width;         // bytes of one: 1, 2 or 4
};

// visit(pointer to the first code point, as uint8_t, uint16_t or uint32_t).
template <class Visit>
auto visit_text(const TextView& text, Visit&& visit) {
  switch (text.width) {
    case 1:
      return visit(static_cast<const std::uint8_t*>(text.data));
    case 2:
      return visit(static_cast<const std::uint16_t*>(text.data));
    case 4:
      return visit(static_cast<const std::uint32_t*>(text.data));
    default:
      throw std::invalid_argument("text must have characters of 1, 2 or 4 bytes; got " + std::to_string(text.width));
  }
}

}  // namespace kc

// What crosses the border of the sandbox besides shared buffers: frames of one size, never anything to be decoded.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace kc::sandbox {

constexpr std::size_t kFrameBytes = 64;
using Frame = std::array<char, kFrameBytes>;

enum class Arrival { kFrame, kTimeout, kClosed, kMalformed };

// A connected pair of local sockets that keep the borders of messages.
[[nodiscard]] std::pair<int, int> make_channel();

// False if the other end is gone. Throws std::system_error when the other end does not take it within timeout_s.
[[nodiscard]] bool send_frame(int fd, const Frame& frame, double timeout_s);

// Waits for a frame until timeout_s have passed, the other end is closed, or the process behind `pidfd` (-1: none) has
// ended with no frame left to read. A message of another size is kMalformed; descriptors sent along are closed.
[[nodiscard]] Arrival receive_frame(int fd, int pidfd, double timeout_s, Frame* frame);

// An anonymous file of `size` bytes that can be neither grown, shrunk nor sealed further, closed on exec.
[[nodiscard]] int make_buffer(const std::string& name, std::uint64_t size);

}  // namespace kc::sandbox

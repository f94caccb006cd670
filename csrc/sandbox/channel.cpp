#include "sandbox/channel.h"

#ifdef __linux__

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cmath>
#include <system_error>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8U
#endif

namespace kc::sandbox {
namespace {

using Clock = std::chrono::steady_clock;

[[noreturn]] void fail(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

Clock::time_point deadline_in(double timeout_s) {
  const double bounded = std::clamp(timeout_s, 0.0, 1e7);
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(bounded));
}

int milliseconds_until(Clock::time_point deadline) {
  const double left = std::chrono::duration<double, std::milli>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp(std::ceil(left), 0.0, 1e9));
}

}  // namespace

std::pair<int, int> make_channel() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) fail("no socket pair could be made");
  return {ends[0], ends[1]};
}

bool send_frame(int fd, const Frame& frame, double timeout_s) {
  const auto deadline = deadline_in(timeout_s);
  for (;;) {
    if (send(fd, frame.data(), frame.size(), MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return true;
    if (errno == EPIPE || errno == ECONNRESET) return false;
    if (errno == EINTR) continue;
    if (errno != EAGAIN) fail("a frame could not be sent");
    pollfd polled{fd, POLLOUT, 0};
    const int left = milliseconds_until(deadline);
    if (left == 0) {
      errno = ETIMEDOUT;
      fail("the other end of the channel takes no more frames");
    }
    poll(&polled, 1, left);
  }
}

Arrival receive_frame(int fd, int pidfd, double timeout_s, Frame* frame) {
  const auto deadline = deadline_in(timeout_s);
  bool process_ended = false;
  for (;;) {
    // MSG_TRUNC: the size of the whole message, so that a longer one is noticed.
    const ssize_t size = recv(fd, frame->data(), frame->size(), MSG_DONTWAIT | MSG_TRUNC);
    if (size == static_cast<ssize_t>(frame->size())) return Arrival::kFrame;
    if (size > 0) return Arrival::kMalformed;
    if (size == 0 || errno == ECONNRESET) return Arrival::kClosed;
    if (errno == EINTR) continue;
    if (errno != EAGAIN) fail("no frame could be received");
    if (process_ended) return Arrival::kClosed;
    const int left = milliseconds_until(deadline);
    if (left == 0) return Arrival::kTimeout;
    pollfd polled[] = {{fd, POLLIN, 0}, {pidfd, POLLIN, 0}};
    if (poll(polled, 2, left) < 0 && errno != EINTR) fail("no frame could be waited for");
    process_ended = polled[1].revents != 0;  // what it sent before is read first
  }
}

int make_buffer(const std::string& name, std::uint64_t size) {
  const auto flags = static_cast<unsigned>(MFD_CLOEXEC | MFD_ALLOW_SEALING);
  int fd = memfd_create(name.c_str(), flags | MFD_NOEXEC_SEAL);
  if (fd < 0 && errno == EINVAL) fd = memfd_create(name.c_str(), flags);  // before Linux 6.3
  if (fd < 0) fail("no shared buffer could be made");
  if (ftruncate(fd, static_cast<off_t>(size)) != 0 ||
      fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    const int error = errno;
    close(fd);
    errno = error;
    fail("a shared buffer of " + std::to_string(size) + " bytes could not be made");
  }
  return fd;
}

}  // namespace kc::sandbox

#endif  // __linux__

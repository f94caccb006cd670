#include "sandbox/landlock.h"

#ifdef __linux__

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace kc::sandbox {
namespace {

// linux/landlock.h
constexpr long kCreateRuleset = 444, kAddRule = 445, kRestrictSelf = 446;
constexpr std::uint32_t kAskVersion = 1;
constexpr int kPathBeneath = 1;

constexpr std::uint64_t kExecute = 1u << 0, kWriteFile = 1u << 1, kReadFile = 1u << 2, kReadDirectory = 1u << 3;
constexpr std::uint64_t kMakeCharacter = 1u << 6, kMakeBlock = 1u << 11;
constexpr std::uint64_t kTruncate = 1u << 14, kDeviceIoctl = 1u << 15;
constexpr std::uint64_t kBindTcp = 1u << 0, kConnectTcp = 1u << 1;
constexpr std::uint64_t kAbstractSockets = 1u << 0, kSignals = 1u << 1;

struct RulesetAttributes {
  std::uint64_t files;
  std::uint64_t network;  // from version 4
  std::uint64_t scopes;   // from version 6
};

struct __attribute__((packed)) PathBeneath {
  std::uint64_t allowed;
  std::int32_t parent;
};

constexpr std::uint64_t handled_files(int version) {
  if (version >= 5) return (1u << 16) - 1;
  if (version >= 3) return (1u << 15) - 1;
  if (version == 2) return (1u << 14) - 1;
  return (1u << 13) - 1;
}

constexpr std::uint64_t rights(PathAccess access) {
  switch (access) {
    case PathAccess::kRead:
      return kExecute | kReadFile | kReadDirectory;
    case PathAccess::kWrite:
      return ~(kMakeCharacter | kMakeBlock);
    case PathAccess::kDevice:
      return kReadFile | kWriteFile | kReadDirectory | kDeviceIoctl;
    case PathAccess::kProcesses:
      return kReadFile | kReadDirectory | kWriteFile | kTruncate;
  }
  return 0;
}

int add_rule(int ruleset, const PathRule& rule, std::uint64_t handled) {
  const int path = open(rule.path.c_str(), O_PATH | O_CLOEXEC);
  if (path < 0) return errno == ENOENT || errno == ENOTDIR || errno == EACCES ? 0 : errno;
  struct stat status;
  int error = fstat(path, &status) == 0 ? 0 : errno;
  if (error == 0) {
    PathBeneath beneath{rights(rule.access) & handled, path};
    if (!S_ISDIR(status.st_mode)) beneath.allowed &= kExecute | kWriteFile | kReadFile | kTruncate | kDeviceIoctl;
    if (syscall(kAddRule, ruleset, kPathBeneath, &beneath, 0) != 0) error = errno;
  }
  close(path);
  return error;
}

}  // namespace

int landlock_version(int* error) {
  const long version = syscall(kCreateRuleset, nullptr, 0, kAskVersion);
  if (error) *error = version < 0 ? errno : 0;
  return version < 0 ? 0 : static_cast<int>(version);
}

int apply_landlock(const PathRule* rules, std::size_t count, int version) {
  RulesetAttributes attributes{handled_files(version), 0, 0};
  std::size_t size = sizeof(attributes.files);
  if (version >= 4) {
    attributes.network = kBindTcp | kConnectTcp;  // and no rule: no port
    size = 2 * sizeof(std::uint64_t);
  }
  if (version >= 6) {
    attributes.scopes = kAbstractSockets | kSignals;
    size = sizeof(attributes);
  }
  const int ruleset = static_cast<int>(syscall(kCreateRuleset, &attributes, size, 0));
  if (ruleset < 0) return errno;
  int error = 0;
  for (std::size_t i = 0; i < count && error == 0; ++i) error = add_rule(ruleset, rules[i], attributes.files);
  if (error == 0 && syscall(kRestrictSelf, ruleset, 0) != 0) error = errno;
  close(ruleset);
  return error;
}

}  // namespace kc::sandbox

#endif  // __linux__

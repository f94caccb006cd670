// spawn() without Python: what the report says of processes that end by themselves, fail to start, write, or are
// killed.
#include "sandbox/spawn.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <system_error>

#include "sandbox/channel.h"
#include "sandbox/report.h"

namespace sb = kc::sandbox;

namespace {

constexpr std::uint64_t kHead = 64, kTail = 64;

int failures = 0;

void expect(bool holds, const char* what) {
  if (holds) return;
  std::printf("failed: %s\n", what);
  ++failures;
}

// A process, started in the constructor.
class Run {
 public:
  explicit Run(std::vector<std::string> argv, double wall_s = 20, bool closes_lifeline = false,
               int own_end_of_pipe = -1)
      : size_(sizeof(sb::Report) + 2 * (kHead + kTail)) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) std::perror("socketpair");
    report_fd_ = sb::make_buffer("spawn-test", size_);
    map_ = static_cast<char*>(mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, report_fd_, 0));
    sb::SpawnSpec spec;
    spec.argv = std::move(argv);
    spec.environment = {"NAME=value", "PATH=/usr/bin:/bin"};
    spec.directory = "/";
    spec.lifeline = ends[1];
    spec.report = report_fd_;
    spec.head_bytes = kHead;
    spec.tail_bytes = kTail;
    spec.wall_s = wall_s;
    spec.no_new_privs = true;
    if (own_end_of_pipe >= 0) spec.descriptors = {own_end_of_pipe};
    spawned_ = sb::spawn(spec);
    close(ends[1]);
    lifeline_ = ends[0];
    if (closes_lifeline) {
      char byte;
      expect(read(lifeline_, &byte, 1) == 1, "the keeper says that the process runs");
      close(lifeline_);
      lifeline_ = -1;
    }
    pollfd ended{spawned_.pidfd, POLLIN, 0};
    expect(poll(&ended, 1, 30000) == 1, "the keeper ends");
    waitpid(spawned_.pid, nullptr, 0);
  }
  ~Run() {
    if (lifeline_ >= 0) close(lifeline_);
    close(spawned_.pidfd);
    munmap(map_, size_);
    close(report_fd_);
  }
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  const sb::Report& report() const { return *reinterpret_cast<const sb::Report*>(map_); }
  sb::State state() const { return static_cast<sb::State>(report().state); }
  std::string head(int stream) const {
    const std::uint64_t written = report().written[stream];
    return {map_ + sizeof(sb::Report) + static_cast<std::uint64_t>(stream) * (kHead + kTail),
            static_cast<std::size_t>(written < kHead ? written : kHead)};
  }

 private:
  std::size_t size_;
  int report_fd_ = -1, lifeline_ = -1;
  char* map_ = nullptr;
  sb::Spawned spawned_;
};

void an_exit_code_and_output_arrive() {
  const Run run({"/bin/sh", "-c", "echo out; echo err >&2; exit 7"});
  expect(run.state() == sb::State::kEnded, "the process has ended");
  expect(run.report().ended_by == static_cast<std::uint32_t>(sb::EndedBy::kItself), "by itself");
  expect(WIFEXITED(run.report().wait_status) && WEXITSTATUS(run.report().wait_status) == 7, "with its exit code");
  expect(run.head(0) == "out\n" && run.head(1) == "err\n", "what it wrote is in the report");
  expect(run.report().left_running == 0, "and nothing of it is left");
  expect(run.report().ended_ns > run.report().started_ns, "it took time");
}

void the_environment_is_the_given_one() {
  const Run run({"/bin/sh", "-c", "printf '%s|%s|%s' \"$NAME\" \"$HOME\" \"$(pwd)\""});
  expect(run.head(0) == "value||/", "environment and directory are those of the specification");
}

void more_output_than_the_report_holds_is_counted() {
  const Run run({"/bin/sh", "-c", "i=0; while [ $i -lt 1000 ]; do echo 123456789; i=$((i+1)); done"});
  expect(run.report().written[0] == 10000, "all bytes are counted");
  expect(run.head(0).substr(0, 10) == "123456789\n", "the first ones are kept");
}

void a_missing_program_is_a_failed_step() {
  const Run run({"/no/such/program"});
  expect(run.state() == sb::State::kSetupFailed, "setting up failed");
  expect(run.report().failed_step == static_cast<std::int32_t>(sb::Step::exec), "in the step exec");
  expect(run.report().error == ENOENT, "since the file is missing");
}

void the_wall_clock_limit_ends_the_tree() {
  const Run run({"/bin/sh", "-c", "sleep 60 & sleep 60"}, /*wall_s=*/0.3);
  expect(run.report().ended_by == static_cast<std::uint32_t>(sb::EndedBy::kWallLimit), "the wall limit ended it");
  expect(WIFSIGNALED(run.report().wait_status), "by a signal");
}

void a_supervisor_that_leaves_ends_the_tree() {
  const Run run({"/bin/sleep", "60"}, /*wall_s=*/60, /*closes_lifeline=*/true);
  expect(run.report().ended_by == static_cast<std::uint32_t>(sb::EndedBy::kSupervisor), "the supervisor ended it");
}

void descriptors_are_the_given_ones_alone() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) std::perror("pipe2");
  const int stray = open("/dev/null", O_RDONLY);  // without O_CLOEXEC: it would be inherited
  const Run run({"/bin/sh", "-c", "echo through >&3; cd /proc/self/fd && echo *"}, 20, false, ends[1]);
  char text[16] = {};
  expect(read(ends[0], text, sizeof(text) - 1) == 8 && std::strcmp(text, "through\n") == 0, "number 3 is the pipe");
  // The shell lists its own descriptors: 0 to 3, and the one that it reads the directory by.
  expect(run.head(0).rfind("0 1 2 3", 0) == 0, "0 to 3 are there");
  expect(run.head(0).size() <= std::strlen("0 1 2 3 10 11\n"), "and no stray one");
  close(stray);
  close(ends[0]);
  close(ends[1]);
}

}  // namespace

int main() {
  signal(SIGPIPE, SIG_IGN);
  try {
    an_exit_code_and_output_arrive();
    the_environment_is_the_given_one();
    more_output_than_the_report_holds_is_counted();
    a_missing_program_is_a_failed_step();
    the_wall_clock_limit_ends_the_tree();
    a_supervisor_that_leaves_ends_the_tree();
    descriptors_are_the_given_ones_alone();
  } catch (const std::system_error& error) {
    std::printf("spawn failed: %s\n", error.what());
    return 1;
  }
  return failures == 0 ? 0 : 1;
}

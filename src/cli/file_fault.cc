#include "cli/file_fault.h"

#include <unistd.h>

#include <csignal>

#include "cli/terminal.h"

namespace nanovllm::cli {
namespace {

constexpr char kMessage[] =
    "nanovllm: a file of the model can't be read any more: it was cut short while it was in use, "
    "or its disk fails; write a model's files elsewhere and move them into place\n";

// Only what signal handlers may call.
void explain(int, siginfo_t* info, void*) {
  if (info->si_code != BUS_ADRERR) {  // a bug or broken memory: as if there were no handler
    std::signal(SIGBUS, SIG_DFL);
    return;  // to the same instruction
  }
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kMessage, sizeof(kMessage) - 1);
  ::_exit(kExitError);
}

}  // namespace

void explain_file_faults() {
  struct sigaction action = {};
  action.sa_sigaction = explain;
  action.sa_flags = SA_SIGINFO;
  ::sigemptyset(&action.sa_mask);
  ::sigaction(SIGBUS, &action, nullptr);  // fails for no signal that exists
}

}  // namespace nanovllm::cli

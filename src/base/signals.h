// Signals and the threads of a library.
#pragma once

#include <csignal>

namespace nanovllm {

// While it lives, signals from outside wait, and threads that are started inherit that for good: a
// Ctrl-C or a resized terminal is the business of the program's own threads, whose handlers
// (a line editor's, say) need not bear two threads at once. Signals of a thread's own faults, and
// those of profilers, go on.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    ::sigfillset(&all);
    for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS, SIGPROF}) {
      ::sigdelset(&all, own);
    }
    ::pthread_sigmask(SIG_BLOCK, &all, &before_);
  }
  ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace nanovllm

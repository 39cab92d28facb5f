// What a conversation changes of its terminal, and what becomes of that when a signal ends or stops
// the program.
#pragma once

namespace nanovllm::cli {

// While it lives, a signal that ends or stops the program leaves the terminal as it was before, and
// a program that goes on finds it as it had left it. There is one at a time.
class TerminalModes {
 public:
  enum class Event {
    kKey,          // standard input can be read, or has ended
    kResized,      // the terminal has other rows or columns
    kContinued,    // the program was stopped, and others may have written to the terminal
    kInterrupted,  // by another signal
  };

  // `marks_pastes`: the terminal of standard output is to mark what is pasted.
  explicit TerminalModes(bool marks_pastes);
  ~TerminalModes();
  TerminalModes(const TerminalModes&) = delete;
  TerminalModes& operator=(const TerminalModes&) = delete;

  // Whether keys are shown when they are typed, although nobody reads them yet.
  void show_keys(bool shown);
  // Waits for what comes first.
  Event wait();
};

}  // namespace nanovllm::cli

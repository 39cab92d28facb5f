// What a person sees: colours on a terminal only, a progress line, and an answer to Ctrl-C.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include "nanovllm/error.h"
#include "nanovllm/llm_engine.h"

namespace nanovllm::cli {

bool is_terminal(std::FILE* stream);
int columns(std::FILE* terminal);

// Characters are to be those of UTF-8, as tokenizers have them, whatever the environment says:
// where its locale has others or is not installed, C.UTF-8 takes its place.
void use_utf8();

// ANSI styles; texts pass unchanged where `stream` is no terminal or NO_COLOR is set.
std::string bold(std::FILE* stream, std::string_view text);
std::string dim(std::FILE* stream, std::string_view text);
std::string colored(std::FILE* stream, std::string_view text, int color);  // 0..7 ANSI colour

// "LABEL ███░░░ REST" for one line of stderr; without the bar where there is no room for it, or
// where the share that is done, from 0 to 1, is negative.
std::string with_bar(const std::string& label, double share, const std::string& rest);

// "01:05", or with hours "2:01:05".
std::string shown_time(double seconds);

// "nanovllm: MESSAGE" on stderr.
void print_error(std::string_view message);

// Writing to a pipe that nobody reads, or a file beyond the limit on files' sizes, fails from now
// on instead of ending the program: messages that nobody reads must not cost the results.
void let_writes_fail();
// Ends the program as the shell expects of one whose results nobody reads any more, if that is why
// writing them failed, which errno tells.
void end_if_nobody_reads();
// What was printed so far. Throws Error(kIo).
void flush_standard_output();
// Throws Error(kIo) where standard input ended because it can't be read, which streams don't tell.
void check_standard_input();

// While it lives, Ctrl-C (SIGINT) only asks the work to end cleanly; where the program is to ignore
// the signal, as shells have it for scripts' background jobs, it does. There is one at a time.
class InterruptGuard {
 public:
  enum class Again {
    kEndsProgram,  // the second Ctrl-C does so at once, with status 130; SIGTERM counts as Ctrl-C
    kIsNotNeeded,  // the same; and the first does so where interrupted() is not asked for half a
                   // second, in a long step for instance
    kMeansNothing  // the program stays whatever the user types; SIGTERM ends it
  };
  explicit InterruptGuard(Again again = Again::kEndsProgram);
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;
  static bool interrupted();
  static void reset();  // what was interrupted has ended; another work begins

  // While it lives, the first Ctrl-C does not end the program: what is written is written whole.
  class Writing {
   public:
    Writing();
    ~Writing();
    Writing(const Writing&) = delete;
    Writing& operator=(const Writing&) = delete;
  };

 private:
  using Handler = void (*)(int);
  static void install(int signal, Handler handler);
};

inline constexpr int kExitOk = 0;
inline constexpr int kExitError = 1;          // an error, told on stderr
inline constexpr int kExitUsage = 2;          // the command line asks for what can't be had
inline constexpr int kExitSomeFailed = 3;     // some requests were refused or aborted by the engine
inline constexpr int kExitInterrupted = 130;  // Ctrl-C; what was done so far was written

inline int exit_status_of(const Error& error) {
  return error.code() == ErrorCode::kInvalidArgument ? kExitUsage : kExitError;
}

// "Generating ███░░░ 3/6 [00:12, prefill 1234 tok/s, decode 567 tok/s, 00:12 left]" on stderr where
// that is a terminal, redrawn in place. Speeds are those of the last step with such tokens; in the
// last line those of all such steps: their tokens over their seconds, of which a step that prefills
// and decodes counts for both. The time left is there once a part of a known total is done.
class Progress {
 public:
  enum class Elsewhere { kNothing, kLines };  // where stderr is no terminal: a line now and then
  Progress(std::string label, int64_t total, bool enabled,
           Elsewhere elsewhere = Elsewhere::kNothing);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  // `share` of the work is done, from 0 to 1: the bar's filled part, where the total is known.
  void update(int64_t done, double share, const StepStats& step);
  void clear();  // takes the line away so that something else can be printed
  // The same for results. Those that go through a pipe may come to the terminal at any moment
  // later: from now on, there are whole lines every few seconds, which they can't be glued to.
  void clear_for(std::FILE* results);
  // Draws the last state with the run's speeds and ends the line, if there was any work.
  void finish(int64_t done, double share);

 private:
  using Clock = std::chrono::steady_clock;
  // Of the tokens of one kind.
  struct Speed {
    double shown = 0;  // tokens/s
    int64_t num_tokens = 0;
    double seconds = 0;

    void add(int num_tokens_of_step, double seconds_of_step);
    void show_average();
  };
  void draw(const char* end);
  std::string text() const;

  std::string label_;
  int64_t total_;
  bool on_terminal_;
  bool enabled_;
  bool in_place_;
  bool drawn_ = false;
  int64_t done_ = 0;
  double share_ = 0;
  Speed prefill_speed_;
  Speed decode_speed_;
  Clock::time_point start_ = Clock::now();
  Clock::time_point last_draw_ = start_;
};

}  // namespace nanovllm::cli

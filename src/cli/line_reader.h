// What a user writes: at a terminal with editing and history, or the plain lines of a pipe.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace nanovllm::cli {

class LineReader {
 public:
  struct Text {
    std::string text;       // its lines with "\n" between them
    bool verbatim = false;  // in quotes, so that it is no command whatever it looks like
  };

  // `commands` are what the Tab key completes: words that a line may begin with.
  explicit LineReader(std::string prompt, const std::vector<std::string>& commands = {});
  ~LineReader();
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  bool interactive() const { return editor_ != nullptr; }  // input and output are terminals
  // A line, or several: a "\" at a line's end continues it, """ at a line's beginning and at a
  // line's end stand around a text, and what is pasted at a terminal is one text. Nothing at the
  // end of the input. At a terminal, Ctrl-C drops what was typed, and keys that come before the
  // next call are not shown until then. Throws Error: kIo, for a line of a pipe that is longer than
  // any message too, and kInvalidArgument for a text that is too long or whose quotes don't end;
  // after that the next call goes on.
  std::optional<Text> read();

 private:
  enum class Got { kAll, kDropped, kEnd };
  Got read_text(Text& into);
  Got read_line(const std::string& prompt, std::string& line);
  Got edit_line(const std::string& prompt, std::string& line);

  struct Editor;
  const std::string prompt_;
  std::unique_ptr<Editor> editor_;  // null for a pipe
};

}  // namespace nanovllm::cli

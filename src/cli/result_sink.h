// Where results go.
#pragma once

#include <cstdio>
#include <string>

namespace nanovllm::cli {

// Standard output or a file; every failed write is an error with the reason.
class ResultSink {
 public:
  // "" and "-" are standard output. Changes nothing as yet: the file's old content goes when there
  // are results to come. Throws Error(kIo) where opening it is sure to fail.
  explicit ResultSink(const std::string& path);
  ~ResultSink();
  ResultSink(const ResultSink&) = delete;
  ResultSink& operator=(const ResultSink&) = delete;

  // Whether there is a file that has something.
  bool has_content() const;
  // To be called before write(); what the file has goes, unless results go `behind` it. Throws
  // Error(kIo).
  void open(bool behind);
  // What it writes can be read at once. Throws Error(kIo); ends the program where it writes to a
  // pipe that nobody reads any more.
  void write(const std::string& text);
  std::FILE* stream() const { return file_; }

 private:
  [[noreturn]] void fail() const;

  const std::string path_;  // empty: standard output
  std::FILE* file_ = stdout;
};

}  // namespace nanovllm::cli

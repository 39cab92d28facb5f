// An HTTP/1.1 answer, and the events of one that is a stream, as its bytes come.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace nanovllm::cli {

class AnswerReader {
 public:
  // Called with what stands behind "data:" on a line of a stream (text/event-stream, status 200).
  using OnData = std::function<void(std::string_view data)>;
  explicit AnswerReader(OnData on_data) : on_data_(std::move(on_data)) {}

  // Takes what was read. Throws Error(kIo) where it is no HTTP.
  void read(std::string_view bytes);
  // The connection was closed. Throws Error(kIo) where that cuts the answer.
  void read_end();

  bool begun() const { return begun_; }  // a byte of it came
  bool done() const { return part_ == Part::kDone; }
  int status() const { return status_; }
  bool keeps_alive() const { return keeps_alive_; }  // the connection, when it is done
  bool is_stream() const { return is_stream_; }
  const std::string& body() const { return body_; }  // of an answer that is no stream

 private:
  enum class Part { kHead, kChunkSize, kChunk, kChunkEnd, kTrailer, kLength, kUntilEnd, kDone };

  bool step();
  bool take_line(std::string& line);
  bool take_body();
  void parse_head(std::string_view head);
  void parse_header(std::string_view line);
  void take(std::string_view content);

  const OnData on_data_;
  std::string buffer_;  // what was read and not taken
  size_t begin_ = 0;    // of that
  Part part_ = Part::kHead;
  int64_t num_left_ = 0;  // bytes of the chunk or the body
  int status_ = 0;
  bool begun_ = false;
  bool keeps_alive_ = true;
  bool is_stream_ = false;
  std::string body_;
  std::string line_;  // the beginning of a stream's line
};

}  // namespace nanovllm::cli

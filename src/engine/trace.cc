#include "engine/trace.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <iterator>
#include <new>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/message.h"
#include "io/output_file.h"

namespace nanovllm {

namespace {

constexpr size_t kFlushBytes = 1 << 16;
constexpr std::string_view kClosing = "\n]\n";

const char* name_of(Phase phase) {
  switch (phase) {
    case Phase::kNone:
      return "";
    case Phase::kQueued:
      return "queued";
    case Phase::kPrefill:
      return "prefill";
    case Phase::kDecode:
      return "decode";
    case Phase::kPreempted:
      return "preempted";
  }
  return "";
}

// 0, or what went wrong.
int write_all(int file, std::string_view bytes, int64_t offset) {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(file, bytes.data(), bytes.size(), offset);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    bytes.remove_prefix(static_cast<size_t>(written));
    offset += written;
  }
  return 0;
}

}  // namespace

TraceWriter::TraceWriter(std::string path) : path_(std::move(path)) {
  file_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file_ < 0) {
    throw_error(ErrorCode::kIo, "The trace file {} can't be created: {}.", path_,
                std::strerror(errno));
  }
  buffer_.push_back('[');
  for (const auto& [kind, name] :
       {std::pair{"process_name", "nanovllm"}, std::pair{"thread_name", "steps"}}) {
    begin_event();
    fmt::format_to(std::back_inserter(buffer_),
                   R"({{"ph":"M","pid":1,"tid":1,"name":"{}","args":{{"name":"{}"}}}})", kind,
                   name);
  }
  flush();
}

TraceWriter::~TraceWriter() {
  try {
    finish();
  } catch (const std::exception& error) {
    print_message("nanovllm: {}\n", error.what());
  }
  ::close(file_);
}

void TraceWriter::on_phase(uint64_t request_id, int index, Phase from, Phase to,
                           Clock::time_point now) noexcept {
  write([&] { append_phase(fmt::format("{}.{}", request_id, index), from, to, now); });
}

void TraceWriter::on_step(Clock::time_point begin, Clock::time_point end, const StepStats& stats,
                          std::span<const ScheduledRequest> scheduled) noexcept {
  write([&] { append_step(begin, end, stats, scheduled); });
}

// Without memory for them the events are lost, and with them the trace: not the requests.
template <typename Append>
void TraceWriter::write(const Append& append) noexcept {
  if (error_ != 0) return;
  try {
    append();
    if (buffer_.size() >= kFlushBytes) flush();
  } catch (const std::bad_alloc&) {
    fail(ENOMEM);
  }
}

void TraceWriter::append_phase(const std::string& id, Phase from, Phase to, Clock::time_point now) {
  const int64_t now_us = microseconds(now);
  const auto add = [&](char kind, const char* name) {
    begin_event();
    fmt::format_to(std::back_inserter(buffer_),
                   R"({{"ph":"{}","cat":"request","id":"{}","pid":1,"tid":1,"ts":{},"name":"{}"}})",
                   kind, id, now_us, name);
  };
  const std::string life = "request " + id;
  if (from == Phase::kNone) add('b', life.c_str());
  if (from != Phase::kNone) add('e', name_of(from));
  if (to != Phase::kNone) add('b', name_of(to));
  if (to == Phase::kNone) add('e', life.c_str());
}

void TraceWriter::append_step(Clock::time_point begin, Clock::time_point end,
                              const StepStats& stats, std::span<const ScheduledRequest> scheduled) {
  // A trace may have been started while the step ran.
  const int64_t begin_us = microseconds(std::max(begin, begin_)), end_us = microseconds(end);
  const auto out = std::back_inserter(buffer_);
  begin_event();
  fmt::format_to(out,
                 R"({{"ph":"X","pid":1,"tid":1,"ts":{},"dur":{},"name":"step","args":{{)"
                 R"("prefill_tokens":{},"decode_tokens":{},"sequences":{},"preemptions":{},)"
                 R"("draft_tokens":{},"accepted_tokens":{},)"
                 R"("batch":[)",
                 begin_us, end_us - begin_us, stats.num_prefill_tokens, stats.num_decode_tokens,
                 scheduled.size(), stats.num_preemptions, stats.num_draft_tokens,
                 stats.num_accepted_tokens());
  for (size_t i = 0; i < scheduled.size(); ++i) {
    const ScheduledRequest& s = scheduled[i];
    fmt::format_to(out, R"({}{{"request":"{}.{}","computed":{},"new":{}}})", i == 0 ? "" : ",",
                   s.request_id, s.index, s.num_computed_tokens, s.num_new_tokens);
  }
  buffer_ += "]}}";
  begin_event();
  fmt::format_to(out,
                 R"({{"ph":"C","pid":1,"ts":{},"name":"kv cache blocks","args":{{"used":{},)"
                 R"("free":{}}}}})",
                 end_us, stats.num_used_blocks, stats.num_total_blocks - stats.num_used_blocks);
  if (stats.num_total_states > 0) {
    begin_event();
    fmt::format_to(out,
                   R"({{"ph":"C","pid":1,"ts":{},"name":"states","args":{{"used":{},)"
                   R"("free":{}}}}})",
                   end_us, stats.num_used_states, stats.num_total_states - stats.num_used_states);
  }
  begin_event();
  fmt::format_to(out,
                 R"({{"ph":"C","pid":1,"ts":{},"name":"requests","args":{{"running":{},)"
                 R"("waiting":{}}}}})",
                 end_us, stats.num_running, stats.num_waiting);
}

bool TraceWriter::finish() {
  write([this] { flush(); });
  if (std::exchange(finished_, true) || error_ == 0) return true;
  throw_error(ErrorCode::kIo, "The trace file {} is incomplete: {}.", path_, std::strerror(error_));
}

int64_t TraceWriter::microseconds(Clock::time_point time) const {
  return std::chrono::duration_cast<std::chrono::microseconds>(time - begin_).count();
}

void TraceWriter::begin_event() { buffer_ += std::exchange(first_, false) ? "\n" : ",\n"; }

void TraceWriter::flush() {
  if (error_ != 0 || buffer_.empty()) return;
  const auto num_bytes = static_cast<int64_t>(buffer_.size());
  buffer_ += kClosing;
  if (const int error = write_all(file_, buffer_, end_); error != 0) {
    fail(error);
  } else {
    end_ += num_bytes;
  }
  buffer_.clear();
}

// Keeps what was written before: the closing bracket goes back to where it was.
void TraceWriter::fail(int error) noexcept {
  error_ = error;
  if (end_ > 0 && ::ftruncate(file_, end_) == 0) write_all(file_, kClosing, end_);
}

void check_trace_file(const std::string& path, const std::string& model) {
  if (!is_file_of_model(path, model)) return;
  throw_error(ErrorCode::kInvalidArgument,
              "The trace file {} is a file of the model {}; name another one.", path, model);
}

}  // namespace nanovllm

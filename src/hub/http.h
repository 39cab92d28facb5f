// Requests to a hub: several at once, each repeated as long as that may help, none with a token for
// anybody but the hub.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "hub/settings.h"

using CURL = void;
using CURLM = void;
struct curl_slist;

namespace nanovllm::hub {

// One GET. Its methods are called by HttpPool::step(); what they throw comes out of that.
class Fetch {
 public:
  // `what` begins messages; `path` is at the hub, "/api/...". An answer's address, where the hub
  // sent us to another, is left in *location, and asked first where that is not empty.
  Fetch(std::string what, std::string path, std::string* location = nullptr)
      : what_(std::move(what)), path_(std::move(path)), location_(location) {}
  virtual ~Fetch() = default;
  Fetch(const Fetch&) = delete;
  Fetch& operator=(const Fetch&) = delete;

  bool is_done() const { return is_done_; }  // and no longer known to the pool

 protected:
  // "5-9": the bytes that are still to come; empty = all. A repetition asks again.
  virtual std::string range() const { return ""; }
  // Before the first bytes of an answer with status 200, or with 206 and these in Content-Range.
  // total: the bytes of the whole, -1 = not told.
  struct Extent {
    bool is_part = false;
    int64_t begin = 0;
    int64_t total = -1;
  };
  virtual void begin(const Extent& extent) = 0;
  virtual void append(std::string_view bytes) = 0;
  // Whether all is there when the answer ends. If not, the connection was cut.
  virtual bool is_complete() const = 0;
  const std::string& what() const { return what_; }

 private:
  friend class HttpPool;
  using Clock = std::chrono::steady_clock;
  static size_t on_bytes(char* data, size_t size, size_t count, void* self);
  Extent extent() const;

  const std::string what_, path_;
  std::string* const location_;
  std::string url_;
  CURL* handle_ = nullptr;
  curl_slist* headers_ = nullptr;
  bool has_begun_ = false;
  bool is_done_ = false;
  int num_redirects_ = 0;
  int num_failures_ = 0;  // since bytes came
  Clock::time_point retry_at_;
  std::exception_ptr fault_;
};

class HttpPool {
 public:
  explicit HttpPool(const Settings& settings);
  ~HttpPool();
  HttpPool(const HttpPool&) = delete;
  HttpPool& operator=(const HttpPool&) = delete;

  // It must outlive the pool, or be done.
  void start(Fetch& fetch);
  // Waits until something comes, 0.1 s at most, and handles it. Throws what a fetch's methods
  // throw, and Error for an answer that is none, after which the pool is of no more use.
  void step();
  int num_running() const { return static_cast<int>(running_.size() + waiting_.size()); }
  // What it waits for, if not for bytes.
  std::string note() const;

 private:
  struct Answer;
  void send(Fetch& fetch);
  void take_back(Fetch& fetch);
  void finish(Fetch& fetch, int result);
  void follow(Fetch& fetch, const char* target);
  void retry_or_throw(Fetch& fetch, const Answer& answer);
  bool is_of_hub(const std::string& url) const;

  const Settings settings_;
  CURLM* multi_;
  std::map<CURL*, Fetch*> running_;
  std::vector<Fetch*> waiting_;  // for another try
  std::string reason_;           // of the last failure
  bool has_answered_ = false;
};

// A text of a hub, up to 64 MiB.
class TextFetch final : public Fetch {
 public:
  using Fetch::Fetch;
  std::string text;

 private:
  void begin(const Extent& extent) override;
  void append(std::string_view bytes) override;
  bool is_complete() const override { return true; }
};

}  // namespace nanovllm::hub

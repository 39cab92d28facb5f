// Requests to a hub: several at once, each repeated as long as that may help.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hub/settings.h"

using CURL = void;
using CURLM = void;
struct curl_slist;

namespace nanovllm::hub {

// One GET. Its methods are called by HttpPool::step(); what they throw comes out of that.
class Fetch {
 public:
  // `what` begins messages; `path` is at the hub, "/api/...". Where the hub sends us to another
  // address, that is kept in *location, and asked at once, without a token, where there is one.
  Fetch(std::string what, std::string path, std::string* location)
      : what_(std::move(what)), path_(std::move(path)), location_(location) {}
  virtual ~Fetch() = default;
  Fetch(const Fetch&) = delete;
  Fetch& operator=(const Fetch&) = delete;

  bool is_done() const { return is_done_; }  // and no longer known to the pool

 protected:
  // Of an answer; -1 = not told.
  struct Extent {
    bool is_part = false;
    int64_t begin = 0;   // of the part
    int64_t total = -1;  // bytes of the whole
  };
  virtual std::string range() const { return ""; }  // "5-9": bytes that are still to come
  virtual void begin(const Extent& extent) = 0;     // before an answer's first bytes
  virtual void append(std::string_view bytes) = 0;
  virtual bool is_complete() const = 0;  // at an answer's end; if not, the connection was cut
  const std::string& what() const { return what_; }

 private:
  friend class HttpPool;
  static size_t on_bytes(char* data, size_t size, size_t count, void* self);
  void begin_answer();

  const std::string what_, path_;
  std::string* const location_;
  CURL* handle_ = nullptr;
  curl_slist* headers_ = nullptr;
  bool has_begun_ = false, is_done_ = false;
  int num_failures_ = 0;  // since bytes came
  std::chrono::steady_clock::time_point retry_at_;
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
  std::string note() const;  // what all wait for, if not for bytes

 private:
  void take_back(Fetch& fetch);
  void finish(Fetch& fetch, int result);

  const Settings& settings_;
  CURLM* multi_;
  std::map<CURL*, Fetch*> running_;
  std::vector<Fetch*> waiting_;  // for another try
  std::string trouble_;          // the last one
  bool has_answered_ = false;
};

}  // namespace nanovllm::hub

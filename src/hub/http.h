// Requests to a hub: several at once, each repeated as long as that may help.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <string>
#include <vector>

#include "hub/settings.h"

using CURL = void;
using CURLM = void;

namespace nanovllm::hub {

// As a part of an address, "/" too.
std::string escaped(const std::string& text);

// A page or a file of the hub.
struct Source {
  std::string what;           // begins messages
  std::string path;           // at the hub, "/api/..."
  int64_t size = -1;          // bytes; -1 = of a page: nobody knows
  int64_t num_planned = 0;    // bytes that are there or are being asked for
  std::string location = {};  // on another host, where the hub sends us; it gets no token
  bool takes_ranges = false;  // as an answer showed
};

// One GET of a page, or of bytes of a file.
struct Fetch {
  Source* source;
  int64_t begin, end;      // bytes that are still to come; a page's `end` is a bound
  std::string bytes = {};  // that came, for the caller to take
  bool is_done = false;    // and no longer known to the pool
  std::string next = {};   // path at the hub of the page behind this one, where there is one

  // The pool's:
  CURL* handle = nullptr;  // null = it waits for another try
  bool has_begun = false;
  int64_t num_to_skip = 0;  // bytes of an answer that came before
  int num_failures = 0;     // since bytes came
  std::chrono::steady_clock::time_point retry_at = {};
  std::exception_ptr fault = nullptr;
};

class HttpPool {
 public:
  explicit HttpPool(const Settings& settings);
  ~HttpPool();
  HttpPool(const HttpPool&) = delete;
  HttpPool& operator=(const HttpPool&) = delete;

  // It must outlive the pool, or be done.
  void start(Fetch& fetch) { fetches_.push_back(&fetch); }
  // Waits until something comes, 0.1 s at most, and handles it. Throws Error for an answer that is
  // none, after which the pool is of no more use.
  void step();
  int num_running() const { return static_cast<int>(fetches_.size()); }
  std::string note() const;  // what all wait for, if not for bytes

 private:
  void ask(Fetch& fetch);
  void take_back(Fetch& fetch);
  void finish(Fetch& fetch, int result);

  const Settings& settings_;
  CURLM* multi_;
  std::vector<Fetch*> fetches_;  // that are not done
  std::string trouble_;          // the last one
  bool has_answered_ = false;
};

}  // namespace nanovllm::hub

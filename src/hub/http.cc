#include "hub/http.h"

#include <curl/curl.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>

#include "base/check.h"
#include "base/version.h"
#include "io/file.h"
#include "io/json.h"

namespace nanovllm::hub {
namespace {

constexpr int kMaxRedirects = 5;
constexpr int kMaxFailures = 5;  // of one request, one after another
constexpr int kMaxFailuresAtFirst =
    2;  // while nothing has answered: there may be no network at all
constexpr std::chrono::milliseconds kFirstPause{500};  // doubled each time
constexpr std::chrono::seconds kLongestPause{120};     // more than that is left to the user
constexpr long kConnectSeconds = 20, kStalledSeconds = 30;

// Scheme, host and port: who gets what is sent there.
std::string origin_of(const std::string& url) {
  const std::unique_ptr<CURLU, void (*)(CURLU*)> parsed(curl_url(), curl_url_cleanup);
  if (curl_url_set(parsed.get(), CURLUPART_URL, url.c_str(), 0) != CURLUE_OK) return "";
  std::string origin;
  for (const CURLUPart part : {CURLUPART_SCHEME, CURLUPART_HOST, CURLUPART_PORT}) {
    char* text = nullptr;
    if (curl_url_get(parsed.get(), part, &text, CURLU_DEFAULT_PORT) != CURLUE_OK) return "";
    origin += std::string(origin.empty() ? "" : ":") + text;
    curl_free(text);
  }
  std::ranges::transform(origin, origin.begin(), [](unsigned char c) { return std::tolower(c); });
  return origin;
}

std::string header_of(CURL* handle, const char* name) {
  curl_header* header = nullptr;
  const bool found = curl_easy_header(handle, name, 0, CURLH_HEADER, -1, &header) == CURLHE_OK;
  return found ? header->value : "";
}

long status_of(CURL* handle) {
  long status = 0;
  curl_easy_getinfo(handle, CURLINFO_RESPONSE_CODE, &status);
  return status;
}

// Pauses and cut connections pass by themselves, as do most troubles of a server.
bool may_pass(int result, long status) {
  if (result == CURLE_PEER_FAILED_VERIFICATION || result == CURLE_SSL_CACERT_BADFILE ||
      result == CURLE_UNSUPPORTED_PROTOCOL || result == CURLE_URL_MALFORMAT)
    return false;
  return result != CURLE_OK || status == 408 || status == 429 || status >= 500 || status < 300;
}

}  // namespace

// How a request ended.
struct HttpPool::Answer {
  std::string trouble = {};  // in words
  long status = 0;           // 0 = there was none
  std::string code = {};     // X-Error-Code: the hub's word for what is wrong
  std::chrono::milliseconds retry_after{0};
  bool may_pass = false;
};

namespace {

// Why the hub gives nothing, and what to do about it.
[[noreturn]] void refuse(const std::string& what, const std::string& code, long status,
                         const Settings& settings) {
  const bool has_token = !settings.token.empty();
  const std::string login =
      has_token
          ? fmt::format("the token of {} is not one that may", settings.token_source)
          : "no token was sent: run hf auth login or set HF_TOKEN where it is private or gated";
  if (code == "GatedRepo") {
    throw_error(ErrorCode::kNotFound,
                "{}: its owner wants conditions accepted first: do that at its page on {}; {}",
                what, settings.endpoint, login);
  }
  if (code == "RevisionNotFound") {
    throw_error(ErrorCode::kNotFound, "{}: there is no such revision at {}", what,
                settings.endpoint);
  }
  if (status == 404 || code == "RepoNotFound") {
    throw_error(ErrorCode::kNotFound, "{}: {} has nothing of that name; check it, or {}", what,
                settings.endpoint, has_token ? "whether " + login : login);
  }
  if (status == 401) {
    throw_error(ErrorCode::kNotFound, "{}: {} does not let us in, or has nothing of that name; {}",
                what, settings.endpoint, login);
  }
  if (status == 403) {
    throw_error(ErrorCode::kNotFound, "{}: {} does not allow it; {}", what, settings.endpoint,
                login);
  }
  throw_error(ErrorCode::kUnavailable, "{}: {} answers with status {}, which is of no use", what,
              settings.endpoint, status);
}

}  // namespace

size_t Fetch::on_bytes(char* data, size_t size, size_t count, void* self) {
  Fetch& fetch = *static_cast<Fetch*>(self);
  const long status = status_of(fetch.handle_);
  if (status != 200 && status != 206) return size * count;  // what an error's page says is not kept
  try {
    if (!std::exchange(fetch.has_begun_, true)) fetch.begin(fetch.extent());
    fetch.append({data, size * count});
    if (status == 206) fetch.num_failures_ = 0;  // else the next try begins anew
    return size * count;
  } catch (...) {  // through C is no way for it
    fetch.fault_ = std::current_exception();
    return CURL_WRITEFUNC_ERROR;
  }
}

Fetch::Extent Fetch::extent() const {
  Extent extent{.is_part = status_of(handle_) == 206};
  if (!extent.is_part) {
    curl_off_t length = -1;
    curl_easy_getinfo(handle_, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
    extent.total = length;
    return extent;
  }
  // "bytes 5-9/20"
  const std::string text = header_of(handle_, "Content-Range");
  const size_t blank = text.find(' '), slash = text.find('/');
  if (blank == text.npos || slash == text.npos) return {.is_part = true, .begin = -1};
  std::from_chars(text.data() + blank + 1, text.data() + text.size(), extent.begin);
  std::from_chars(text.data() + slash + 1, text.data() + text.size(), extent.total);
  return extent;
}

HttpPool::HttpPool(const Settings& settings) : settings_(settings) {
  static const CURLcode ready = curl_global_init(CURL_GLOBAL_DEFAULT);
  multi_ = ready == CURLE_OK ? curl_multi_init() : nullptr;
  if (multi_ == nullptr) throw_error(ErrorCode::kInternal, "libcurl can't be initialised");
}

HttpPool::~HttpPool() {
  while (!running_.empty()) take_back(*running_.begin()->second);
  curl_multi_cleanup(multi_);
}

void HttpPool::start(Fetch& fetch) {
  const bool is_known = fetch.location_ != nullptr && !fetch.location_->empty();
  fetch.url_ = is_known ? *fetch.location_ : settings_.endpoint + fetch.path_;
  fetch.num_redirects_ = 0;
  send(fetch);
}

bool HttpPool::is_of_hub(const std::string& url) const {
  return origin_of(url) == origin_of(settings_.endpoint);
}

void HttpPool::send(Fetch& fetch) {
  CURL* handle = curl_easy_init();
  if (handle == nullptr) throw std::bad_alloc();
  fetch.handle_ = handle;
  fetch.has_begun_ = false;
  // A proxy or a server that compresses would change sizes.
  fetch.headers_ = curl_slist_append(nullptr, "Accept-Encoding: identity");
  if (!settings_.token.empty() && is_of_hub(fetch.url_)) {
    const std::string header = "Authorization: Bearer " + settings_.token;
    fetch.headers_ = curl_slist_append(fetch.headers_, header.c_str());
  }
  curl_easy_setopt(handle, CURLOPT_URL, fetch.url_.c_str());
  curl_easy_setopt(handle, CURLOPT_HTTPHEADER, fetch.headers_);
  curl_easy_setopt(handle, CURLOPT_USERAGENT, (std::string("nanovllm/") + kVersion).c_str());
  curl_easy_setopt(handle, CURLOPT_PROTOCOLS_STR, "http,https");
  // Streams of HTTP/2 would share one connection, and its speed.
  curl_easy_setopt(handle, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  curl_easy_setopt(handle, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(handle, CURLOPT_BUFFERSIZE, 256L << 10);
  curl_easy_setopt(handle, CURLOPT_CONNECTTIMEOUT, kConnectSeconds);
  curl_easy_setopt(handle, CURLOPT_LOW_SPEED_LIMIT, 1L);
  curl_easy_setopt(handle, CURLOPT_LOW_SPEED_TIME, kStalledSeconds);
  curl_easy_setopt(handle, CURLOPT_WRITEFUNCTION, &Fetch::on_bytes);
  curl_easy_setopt(handle, CURLOPT_WRITEDATA, &fetch);
  if (const std::string range = fetch.range(); !range.empty())
    curl_easy_setopt(handle, CURLOPT_RANGE, range.c_str());
  // As curl's own program and Python's libraries do, for networks with certificates of their own.
  for (const char* name : {"SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE"}) {
    const char* file = std::getenv(name);
    if (file != nullptr && *file != '\0') curl_easy_setopt(handle, CURLOPT_CAINFO, file);
  }
  running_[handle] = &fetch;
  curl_multi_add_handle(multi_, handle);
}

void HttpPool::take_back(Fetch& fetch) {
  running_.erase(fetch.handle_);
  curl_multi_remove_handle(multi_, fetch.handle_);
  curl_easy_cleanup(std::exchange(fetch.handle_, nullptr));
  curl_slist_free_all(std::exchange(fetch.headers_, nullptr));
}

void HttpPool::step() {
  curl_multi_poll(multi_, nullptr, 0, 100, nullptr);
  const auto now = Fetch::Clock::now();
  const auto due = std::ranges::stable_partition(
      waiting_, [&](const Fetch* fetch) { return fetch->retry_at_ > now; });
  const std::vector<Fetch*> again(due.begin(), due.end());
  waiting_.erase(due.begin(), due.end());
  for (Fetch* fetch : again) start(*fetch);
  int num_running = 0, num_left = 0;
  curl_multi_perform(multi_, &num_running);
  while (const CURLMsg* message = curl_multi_info_read(multi_, &num_left)) {
    finish(*running_.at(message->easy_handle), message->data.result);
  }
}

void HttpPool::finish(Fetch& fetch, int result) {
  CURL* handle = fetch.handle_;
  Answer answer{.status = status_of(handle), .code = header_of(handle, "X-Error-Code")};
  const bool is_good = answer.status == 200 || answer.status == 206;
  has_answered_ = has_answered_ || answer.status != 0;
  if (!fetch.fault_ && result == CURLE_OK && is_good && !fetch.has_begun_) {
    fetch.begin(fetch.extent());  // of no bytes
  }
  curl_off_t seconds = 0;
  curl_easy_getinfo(handle, CURLINFO_RETRY_AFTER, &seconds);
  answer.retry_after = std::chrono::seconds(std::clamp<curl_off_t>(seconds, 0, 1 << 20));
  char* target = nullptr;
  curl_easy_getinfo(handle, CURLINFO_REDIRECT_URL, &target);
  const std::string next = target == nullptr ? "" : target;
  take_back(fetch);
  if (fetch.fault_) std::rethrow_exception(fetch.fault_);
  if (result == CURLE_OK && is_good && fetch.is_complete()) {
    if (fetch.location_ != nullptr) *fetch.location_ = fetch.url_;
    fetch.is_done_ = true;
    return;
  }
  if (result == CURLE_OK && !next.empty()) return follow(fetch, next.c_str());
  answer.may_pass = may_pass(result, answer.status);
  if (result != CURLE_OK) {
    answer.trouble = curl_easy_strerror(static_cast<CURLcode>(result));
  } else {
    answer.trouble = is_good ? "the connection was cut" : fmt::format("status {}", answer.status);
  }
  // The address of a file elsewhere is good for a while only.
  if (result == CURLE_OK && !is_of_hub(fetch.url_) && answer.status >= 400) answer.may_pass = true;
  retry_or_throw(fetch, answer);
}

void HttpPool::follow(Fetch& fetch, const char* target) {
  if (++fetch.num_redirects_ > kMaxRedirects) {
    throw_error(ErrorCode::kUnavailable, "{}: {} sends us from one address to another without end",
                fetch.what_, settings_.endpoint);
  }
  if (fetch.url_.starts_with("https:") && !std::string_view(target).starts_with("https:")) {
    throw_error(ErrorCode::kUnavailable, "{}: {} sends us to {}, where nothing is encrypted",
                fetch.what_, settings_.endpoint, printable(target));
  }
  fetch.url_ = target;
  send(fetch);
}

void HttpPool::retry_or_throw(Fetch& fetch, const Answer& answer) {
  if (fetch.location_ != nullptr) fetch.location_->clear();
  ++fetch.num_failures_;
  const auto pause = std::max<std::chrono::milliseconds>(
      answer.retry_after, kFirstPause * (1 << (fetch.num_failures_ - 1)));
  reason_ = answer.trouble;
  if (answer.may_pass &&
      fetch.num_failures_ < (has_answered_ ? kMaxFailures : kMaxFailuresAtFirst) &&
      pause <= kLongestPause) {
    fetch.retry_at_ = Fetch::Clock::now() + pause;
    waiting_.push_back(&fetch);
    return;
  }
  if (!answer.may_pass && answer.status >= 400)
    refuse(fetch.what_, answer.code, answer.status, settings_);
  if (answer.status == 429) {
    throw_error(
        ErrorCode::kUnavailable,
        "{}: {} wants fewer requests (status 429); go on {}, or with a token, which may ask "
        "more often: what has come is kept",
        fetch.what_, settings_.endpoint,
        answer.retry_after.count() > 0 ? fmt::format("in {} s", answer.retry_after.count() / 1000)
                                       : "later");
  }
  throw_error(
      ErrorCode::kUnavailable,
      "{}: {} can't be reached: {}; check the network, proxies (https_proxy) and HF_ENDPOINT, "
      "and try again: what has come is kept",
      fetch.what_, settings_.endpoint, answer.trouble);
}

std::string HttpPool::note() const {
  if (waiting_.empty() || !running_.empty()) return "";
  const auto left =
      (*std::ranges::min_element(waiting_, {}, &Fetch::retry_at_))->retry_at_ - Fetch::Clock::now();
  return fmt::format("{}; trying again in {} s", reason_,
                     std::chrono::ceil<std::chrono::seconds>(left).count());
}

void TextFetch::begin(const Extent&) { text.clear(); }

void TextFetch::append(std::string_view bytes) {
  if (text.size() + bytes.size() > static_cast<size_t>(kMaxTextBytes)) {
    throw_error(ErrorCode::kCorruptData, "{}: the answer is longer than {} bytes", what(),
                kMaxTextBytes);
  }
  text += bytes;
}

}  // namespace nanovllm::hub

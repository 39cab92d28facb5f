#include "hub/http.h"

#include <curl/curl.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "base/check.h"
#include "base/version.h"

namespace nanovllm::hub {
namespace {

using std::chrono::milliseconds;

constexpr long kMaxRedirects = 5;
constexpr int kMaxFailures = 5;           // of one request, one after another
constexpr int kMaxFailuresAtFirst = 2;    // while nothing has answered: there may be no network
constexpr milliseconds kFirstPause{500};  // doubled each time
constexpr std::chrono::seconds kLongestPause{120};  // more is left to the user
constexpr long kConnectSeconds = 20, kStalledSeconds = 30;

std::string header_of(CURL* handle, const char* name) {
  curl_header* header = nullptr;
  const bool found = curl_easy_header(handle, name, 0, CURLH_HEADER, -1, &header) == CURLHE_OK;
  return found ? header->value : "";
}

template <typename T>
T info_of(CURL* handle, CURLINFO what) {
  T value{};
  curl_easy_getinfo(handle, what, &value);
  return value;
}

bool is_good(long status) { return status == 200 || status == 206; }

// Cut connections pass by themselves, as do most troubles of a server.
bool may_pass(int result, long status) {
  switch (result) {
    case CURLE_OK:
      return is_good(status) || status == 408 || status == 429 || status >= 500;
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_UNSUPPORTED_PROTOCOL:  // from https to http
    case CURLE_TOO_MANY_REDIRECTS:
      return false;
    default:
      return true;
  }
}

// Why the hub gives nothing, and what to do about it. `code` is the hub's word for it.
[[noreturn]] void refuse(const std::string& what, const std::string& code, long status,
                         const Settings& settings) {
  std::string why = fmt::format("answers with status {}", status);
  if (code == "GatedRepo") {
    why = "has it for those only who accept its owner's conditions, on its page there";
  } else if (code == "RevisionNotFound") {
    throw_error(ErrorCode::kNotFound, "{}: {} has no such revision", what, settings.endpoint);
  } else if (status == 401 || status == 404) {
    why = "has nothing of that name, or not for us";
  }
  throw_error(ErrorCode::kNotFound, "{}: {} {}; {}", what, settings.endpoint, why,
              settings.token.empty()
                  ? "no token was sent: run hf auth login, or set HF_TOKEN, where it needs one"
                  : fmt::format("the token of {} was sent", settings.token_source));
}

}  // namespace

size_t Fetch::on_bytes(char* data, size_t size, size_t count, void* self) {
  Fetch& fetch = *static_cast<Fetch*>(self);
  const auto status = info_of<long>(fetch.handle_, CURLINFO_RESPONSE_CODE);
  if (!is_good(status)) return size * count;  // what an error's page says is not kept
  try {
    if (!fetch.has_begun_) fetch.begin_answer();
    fetch.append({data, size * count});
    if (status == 206) fetch.num_failures_ = 0;  // else the next try begins anew
    return size * count;
  } catch (...) {  // through C is no way for it
    fetch.fault_ = std::current_exception();
    return CURL_WRITEFUNC_ERROR;
  }
}

void Fetch::begin_answer() {
  has_begun_ = true;
  if (info_of<long>(handle_, CURLINFO_REDIRECT_COUNT) > 0)
    *location_ = info_of<char*>(handle_, CURLINFO_EFFECTIVE_URL);
  Extent extent{.is_part = info_of<long>(handle_, CURLINFO_RESPONSE_CODE) == 206};
  extent.total = info_of<curl_off_t>(handle_, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T);
  if (extent.is_part) {
    const std::string part = header_of(handle_, "Content-Range");
    long long first = -1, total = -1;
    std::sscanf(part.c_str(), "bytes %lld-%*d/%lld", &first, &total);
    extent = {.is_part = true, .begin = first, .total = total};
  }
  begin(extent);
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
  CURL* handle = curl_easy_init();
  if (handle == nullptr) throw std::bad_alloc();
  fetch.handle_ = handle;
  fetch.has_begun_ = false;
  const bool is_at_hub = fetch.location_->empty();
  const std::string url = is_at_hub ? settings_.endpoint + fetch.path_ : *fetch.location_;
  // A proxy or a server that compresses would change sizes.
  fetch.headers_ = curl_slist_append(nullptr, "Accept-Encoding: identity");
  // libcurl sends it to no other scheme, host or port that it is sent to.
  if (!settings_.token.empty() && is_at_hub) {
    const std::string header = "Authorization: Bearer " + settings_.token;
    fetch.headers_ = curl_slist_append(fetch.headers_, header.c_str());
  }
  const bool is_secret = settings_.endpoint.starts_with("https:");
  curl_easy_setopt(handle, CURLOPT_URL, url.c_str());
  curl_easy_setopt(handle, CURLOPT_HTTPHEADER, fetch.headers_);
  curl_easy_setopt(handle, CURLOPT_USERAGENT, (std::string("nanovllm/") + kVersion).c_str());
  curl_easy_setopt(handle, CURLOPT_PROTOCOLS_STR, is_secret ? "https" : "http,https");
  curl_easy_setopt(handle, CURLOPT_REDIR_PROTOCOLS_STR, is_secret ? "https" : "http,https");
  curl_easy_setopt(handle, CURLOPT_FOLLOWLOCATION, 1L);
  curl_easy_setopt(handle, CURLOPT_MAXREDIRS, kMaxRedirects);
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
  // As curl's own program has it, for networks with certificates of their own.
  if (const char* file = std::getenv("SSL_CERT_FILE"); file != nullptr && *file != '\0')
    curl_easy_setopt(handle, CURLOPT_CAINFO, file);
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
  const auto now = std::chrono::steady_clock::now();
  for (Fetch* fetch : std::exchange(waiting_, {})) {
    if (fetch->retry_at_ > now) {
      waiting_.push_back(fetch);
    } else {
      start(*fetch);
    }
  }
  int count = 0;
  curl_multi_perform(multi_, &count);
  while (const CURLMsg* message = curl_multi_info_read(multi_, &count)) {
    finish(*running_.at(message->easy_handle), message->data.result);
  }
}

void HttpPool::finish(Fetch& fetch, int result) {
  CURL* handle = fetch.handle_;
  const auto status = info_of<long>(handle, CURLINFO_RESPONSE_CODE);
  const bool is_whole = result == CURLE_OK && is_good(status);
  if (is_whole && !fetch.has_begun_) fetch.begin_answer();  // of no bytes
  const std::string code = header_of(handle, "X-Error-Code");
  const auto asked_pause =
      std::clamp<curl_off_t>(info_of<curl_off_t>(handle, CURLINFO_RETRY_AFTER), 0, 1'000'000);
  const bool is_elsewhere = !std::string_view(info_of<char*>(handle, CURLINFO_EFFECTIVE_URL))
                                 .starts_with(settings_.endpoint + "/");
  has_answered_ = has_answered_ || status != 0;
  take_back(fetch);
  if (fetch.fault_) std::rethrow_exception(fetch.fault_);
  fetch.is_done_ = is_whole && fetch.is_complete();
  if (fetch.is_done_) return;
  fetch.location_->clear();  // such an address is good for a while only
  trouble_ = result != CURLE_OK ? curl_easy_strerror(static_cast<CURLcode>(result))
             : is_whole         ? "the connection was cut"
                                : fmt::format("status {}", status);
  const auto pause = std::max<milliseconds>(std::chrono::seconds(asked_pause),
                                            kFirstPause * (1 << fetch.num_failures_));
  const bool is_answer = result == CURLE_OK && !is_elsewhere && !may_pass(result, status);
  if (is_answer) refuse(fetch.what_, code, status, settings_);
  const int max_failures = has_answered_ ? kMaxFailures : kMaxFailuresAtFirst;
  if (++fetch.num_failures_ < max_failures && pause <= kLongestPause &&
      (result == CURLE_OK || may_pass(result, status))) {
    fetch.retry_at_ = std::chrono::steady_clock::now() + pause;
    waiting_.push_back(&fetch);
    return;
  }
  throw_error(
      ErrorCode::kUnavailable, "{}: {} {}: {}; {}: what has come is kept", fetch.what_,
      settings_.endpoint, status == 429 ? "wants fewer requests" : "can't be reached", trouble_,
      asked_pause > 0 ? fmt::format("pull again in {} s", asked_pause)
                      : "check the network, proxies (https_proxy) and HF_ENDPOINT, and pull again");
}

std::string HttpPool::note() const {
  if (waiting_.empty() || !running_.empty()) return "";
  const Fetch* next = *std::ranges::min_element(waiting_, {}, &Fetch::retry_at_);
  const auto left = next->retry_at_ - std::chrono::steady_clock::now();
  return fmt::format("{}; trying again in {} s", trouble_,
                     std::chrono::ceil<std::chrono::seconds>(left).count());
}

}  // namespace nanovllm::hub

#include "hub/http.h"

#include <curl/curl.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <regex>
#include <utility>

#include "base/check.h"
#include "base/version.h"
#include "io/json.h"

namespace nanovllm::hub {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr long kMaxRedirects = 5;
constexpr int kMaxFailures = 5;           // of one request, one after another
constexpr int kMaxFailuresAtFirst = 2;    // while nothing has answered: there may be no network
constexpr milliseconds kFirstPause{500};  // doubled each time
constexpr std::chrono::seconds kLongestPause{120};  // more is left to the user
constexpr size_t kMaxLinkBytes = 4096;              // of a header; the pattern recurses
constexpr long kConnectSeconds = 20, kStalledSeconds = 30;

std::string header_of(CURL* handle, const char* name) {
  curl_header* header = nullptr;
  const bool found = curl_easy_header(handle, name, 0, CURLH_HEADER, -1, &header) == CURLHE_OK;
  return found ? header->value : "";
}

// The hub's own words, to stand behind ours.
std::string words_of(CURL* handle) {
  const std::string words = header_of(handle, "X-Error-Message");
  return words.empty() ? "" : fmt::format(" (\"{}\")", printable(words, 500));
}

// Of the page that follows, its path at whatever hub is asked: mirrors may name the first one.
std::string next_of(CURL* handle) {
  static const std::regex form(R"re(<[^<>]*?(/api/[^<>]*)>; *rel="next")re");
  const std::string links = header_of(handle, "Link");
  std::smatch found;
  const bool has_next = links.size() <= kMaxLinkBytes && std::regex_search(links, found, form);
  return has_next ? found.str(1) : "";
}

template <typename T>
T info_of(CURL* handle, CURLINFO what) {
  T value{};
  curl_easy_getinfo(handle, what, &value);
  return value;
}

bool is_good(long status) { return status == 200 || status == 206; }

// Cut connections pass by themselves, as do most troubles of a server. Elsewhere than at the hub
// all other answers may pass too: an address that ran out is refused, for instance.
bool may_pass(int result, long status, bool is_at_hub) {
  const auto lasting = {CURLE_PEER_FAILED_VERIFICATION, CURLE_SSL_CACERT_BADFILE,
                        CURLE_UNSUPPORTED_PROTOCOL /* from https to http */,
                        CURLE_TOO_MANY_REDIRECTS, CURLE_URL_MALFORMAT};
  if (result != CURLE_OK) return std::ranges::find(lasting, result) == lasting.end();
  if (!is_at_hub) return status != 404 && status != 410;
  return is_good(status) || status == 408 || status == 429 || status >= 500;
}

// Why the hub gives nothing, and what to do about it. `code` is the hub's word for it, `words` are
// what it says.
[[noreturn]] void refuse(const std::string& what, const std::string& code, const std::string& words,
                         long status, const Settings& settings) {
  const std::string why =
      code == "GatedRepo"
          ? "has it for those only who accept its owner's conditions, on its page there"
      : code == "RevisionNotFound"     ? "has no such revision"
      : status == 401 || status == 404 ? "has nothing of that name, or not for us"
                                       : fmt::format("answers with status {}", status);
  const std::string token =
      status != 401 && status != 403 && status != 404 ? ""
      : settings.token.empty()
          ? "; no token was sent: run hf auth login, or set HF_TOKEN, where it needs one"
          : fmt::format("; the token of {} was sent", settings.token_source);
  throw_error(ErrorCode::kNotFound, "{}: {} {}{}{}", what, settings.shown, why, words, token);
}

void begin_answer(Fetch& fetch) {
  Source& source = *fetch.source;
  fetch.has_begun = true;
  const bool is_part = info_of<long>(fetch.handle, CURLINFO_RESPONSE_CODE) == 206;
  if (source.size < 0) {  // another try may find another page
    fetch.bytes.clear();
    fetch.begin = 0;
    return;
  }
  long long first = 0,
            total = info_of<curl_off_t>(fetch.handle, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T);
  if (is_part) {
    first = total = -1;
    const std::string part = header_of(fetch.handle, "Content-Range");
    std::sscanf(part.c_str(), "bytes %lld-%*d/%lld", &first, &total);
  }
  if (total >= 0 && total != source.size) {
    throw_error(ErrorCode::kCorruptData,
                "{}: has {} bytes where the hub's list has {}: what answers is no hub or a broken "
                "mirror; check HF_ENDPOINT and proxies, and pull again",
                source.what, total, source.size);
  }
  if (is_part ? first != fetch.begin : source.takes_ranges) {
    throw_error(ErrorCode::kUnavailable,
                "{}: what came is not the part that was asked for: a proxy or mirror between here "
                "and the hub is broken; go around it, and pull again",
                source.what);
  }
  source.takes_ranges = is_part;
  fetch.num_to_skip = is_part ? 0 : fetch.begin;
  if (!is_part) source.num_planned = fetch.end = source.size;  // it is the whole file that comes
}

size_t on_bytes(char* data, size_t /*one*/, size_t count, void* self) {
  Fetch& fetch = *static_cast<Fetch*>(self);
  const auto status = info_of<long>(fetch.handle, CURLINFO_RESPONSE_CODE);
  if (!is_good(status)) return count;  // what an error's page says is not kept
  try {
    if (!fetch.has_begun) begin_answer(fetch);
    const size_t skipped = std::min(count, static_cast<size_t>(fetch.num_to_skip));
    fetch.num_to_skip -= static_cast<int64_t>(skipped);
    fetch.bytes.append(data + skipped, count - skipped);
    fetch.begin += static_cast<int64_t>(count - skipped);
    if (fetch.begin > fetch.end) {
      throw_error(ErrorCode::kCorruptData, "{}: more came than there should be; pull again",
                  fetch.source->what);
    }
    if (status == 206) fetch.num_failures = 0;  // else the next try begins anew
    return count;
  } catch (...) {  // through C is no way for it
    fetch.fault = std::current_exception();
    return CURL_WRITEFUNC_ERROR;
  }
}

}  // namespace

std::string escaped(const std::string& text) {
  const std::unique_ptr<char, void (*)(void*)> copy(
      curl_easy_escape(nullptr, text.data(), static_cast<int>(text.size())), curl_free);
  if (!copy) throw std::bad_alloc();
  return copy.get();
}

HttpPool::HttpPool(const Settings& settings) : settings_(settings) {
  static const CURLcode ready = curl_global_init(CURL_GLOBAL_DEFAULT);
  multi_ = ready == CURLE_OK ? curl_multi_init() : nullptr;
  if (multi_ == nullptr) throw_error(ErrorCode::kInternal, "libcurl can't be initialised");
}

HttpPool::~HttpPool() {
  for (Fetch* fetch : fetches_) take_back(*fetch);
  curl_multi_cleanup(multi_);
}

void HttpPool::ask(Fetch& fetch) {
  CURL* handle = curl_easy_init();
  if (handle == nullptr) throw std::bad_alloc();
  fetch.handle = handle;
  fetch.has_begun = false;
  const Source& source = *fetch.source;
  const std::string url =
      source.location.empty() ? settings_.endpoint + source.path : source.location;
  curl_easy_setopt(handle, CURLOPT_URL, url.c_str());
  // libcurl sends it to no other scheme, host or port than it is meant for.
  if (!settings_.token.empty() && source.location.empty()) {
    curl_easy_setopt(handle, CURLOPT_HTTPAUTH, CURLAUTH_BEARER);
    curl_easy_setopt(handle, CURLOPT_XOAUTH2_BEARER, settings_.token.c_str());
  }
  // A proxy or a server that compresses would change sizes.
  curl_easy_setopt(handle, CURLOPT_ACCEPT_ENCODING, "identity");
  curl_easy_setopt(handle, CURLOPT_USERAGENT, (std::string("nanovllm/") + kVersion).c_str());
  curl_easy_setopt(handle, CURLOPT_FOLLOWLOCATION, 1L);
  curl_easy_setopt(handle, CURLOPT_MAXREDIRS, kMaxRedirects);
  curl_easy_setopt(handle, CURLOPT_REDIR_PROTOCOLS_STR,
                   settings_.endpoint.starts_with("https:") ? "https" : "http,https");
  // Streams of HTTP/2 would share one connection, and its speed.
  curl_easy_setopt(handle, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  curl_easy_setopt(handle, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(handle, CURLOPT_QUICK_EXIT, 1L);  // Ctrl-C waits for no name server
  curl_easy_setopt(handle, CURLOPT_BUFFERSIZE, 256L << 10);
  curl_easy_setopt(handle, CURLOPT_CONNECTTIMEOUT, kConnectSeconds);
  curl_easy_setopt(handle, CURLOPT_LOW_SPEED_LIMIT, 1L);
  curl_easy_setopt(handle, CURLOPT_LOW_SPEED_TIME, kStalledSeconds);
  curl_easy_setopt(handle, CURLOPT_WRITEFUNCTION, &on_bytes);
  curl_easy_setopt(handle, CURLOPT_WRITEDATA, &fetch);
  if (source.size >= 0) {
    const std::string range = fmt::format("{}-{}", fetch.begin, fetch.end - 1);
    curl_easy_setopt(handle, CURLOPT_RANGE, range.c_str());
    // Some stores name an encoding of what they keep: sizes and hashes are of that as it is.
    curl_easy_setopt(handle, CURLOPT_HTTP_CONTENT_DECODING, 0L);
  }
  // As curl's own program has it, for networks with certificates of their own.
  if (const char* file = std::getenv("SSL_CERT_FILE"); file != nullptr && *file != '\0') {
    curl_easy_setopt(handle, CURLOPT_CAINFO, file);
  }
  curl_easy_setopt(handle, CURLOPT_PRIVATE, &fetch);
  curl_multi_add_handle(multi_, handle);
}

void HttpPool::take_back(Fetch& fetch) {
  curl_multi_remove_handle(multi_, fetch.handle);
  curl_easy_cleanup(std::exchange(fetch.handle, nullptr));
}

void HttpPool::step() {
  for (Fetch* fetch : fetches_) {
    if (fetch->handle == nullptr && fetch->retry_at <= Clock::now()) ask(*fetch);
  }
  curl_multi_poll(multi_, nullptr, 0, 100, nullptr);
  int count = 0;
  curl_multi_perform(multi_, &count);
  while (const CURLMsg* message = curl_multi_info_read(multi_, &count)) {
    finish(*info_of<Fetch*>(message->easy_handle, CURLINFO_PRIVATE), message->data.result);
  }
}

void HttpPool::finish(Fetch& fetch, int result) {
  CURL* handle = fetch.handle;
  Source& source = *fetch.source;
  const auto status = info_of<long>(handle, CURLINFO_RESPONSE_CODE);
  const bool is_whole = result == CURLE_OK && is_good(status);
  if (is_whole && !fetch.has_begun) begin_answer(fetch);  // of no bytes
  const std::string code = header_of(handle, "X-Error-Code"), words = words_of(handle);
  fetch.next = next_of(handle);
  const std::string url = info_of<char*>(handle, CURLINFO_EFFECTIVE_URL);
  const bool is_at_hub = url.starts_with(settings_.endpoint + "/");
  // Such an address is good for a while only.
  source.location = is_whole && !is_at_hub ? url : "";
  const auto asked_pause =
      std::clamp<curl_off_t>(info_of<curl_off_t>(handle, CURLINFO_RETRY_AFTER), 0, 1'000'000);
  has_answered_ = has_answered_ || status != 0;
  take_back(fetch);
  if (fetch.fault) std::rethrow_exception(fetch.fault);
  // How a connection ends behind the last byte of a file is of no matter.
  fetch.is_done = source.size < 0 ? is_whole : fetch.begin == fetch.end;
  if (fetch.is_done) {
    std::erase(fetches_, &fetch);
    return;
  }
  trouble_ = result != CURLE_OK ? curl_easy_strerror(static_cast<CURLcode>(result))
             : is_whole         ? "the connection was cut"
             : is_at_hub        ? fmt::format("status {}{}", status, words)
                         : fmt::format("status {} of {}", status, url.substr(0, url.find('/', 8)));
  const auto pause = std::max<milliseconds>(std::chrono::seconds(asked_pause),
                                            kFirstPause * (1 << fetch.num_failures));
  const bool passes = may_pass(result, status, is_at_hub);
  const int max_failures = has_answered_ ? kMaxFailures : kMaxFailuresAtFirst;
  if (passes && ++fetch.num_failures < max_failures && pause <= kLongestPause) {
    fetch.retry_at = Clock::now() + pause;
    return;
  }
  if (!passes && result == CURLE_OK && is_at_hub) {
    refuse(source.what, code, words, status, settings_);
  }
  throw_error(ErrorCode::kUnavailable, "{}: {} {}: {}; {}: what has come is kept", source.what,
              settings_.shown,
              status == 429                   ? "wants fewer requests"
              : !passes && result == CURLE_OK ? "sends us to where it is not"
                                              : "can't be reached",
              trouble_,
              asked_pause > 0
                  ? fmt::format("pull again in {} s", asked_pause)
                  : "check the network, proxies (https_proxy) and HF_ENDPOINT, and pull again");
}

std::string HttpPool::note() const {
  const auto next = std::ranges::min_element(fetches_, {}, &Fetch::retry_at);
  const auto waits = [](const Fetch* fetch) { return fetch->handle == nullptr; };
  if (next == fetches_.end() || !std::ranges::all_of(fetches_, waits)) return "";
  return fmt::format(
      "{}; trying again in {} s", trouble_,
      std::chrono::ceil<std::chrono::seconds>((*next)->retry_at - Clock::now()).count());
}

}  // namespace nanovllm::hub

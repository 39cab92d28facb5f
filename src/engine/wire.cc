#include "engine/wire.h"

#include <bit>
#include <concepts>
#include <cstring>
#include <map>
#include <type_traits>
#include <utility>

#include "base/check.h"

namespace nanovllm {

namespace {

static_assert(std::endian::native == std::endian::little);

constexpr char kVersion = 1;
constexpr size_t kHeaderSize = sizeof(uint32_t) + sizeof(kVersion);

template <typename T, typename U>
concept Is = std::same_as<std::remove_const_t<T>, U>;

// The members of each struct. A struct that gets another one does not compile here until it is
// named, as structured bindings name all or none.
template <Is<AddRequest> T, typename F>
void fields(T& value, const F& f) {
  auto& [id, prompt_token_ids, params, shown] = value;
  f(id, prompt_token_ids, params, shown);
}
template <Is<AbortRequest> T, typename F>
void fields(T& value, const F& f) {
  f(value.id);
}
template <Is<Shutdown> T, typename F>
void fields(T& value, const F& f) {
  f(value.drain);
}
template <Is<SamplingParams> T, typename F>
void fields(T& value, const F& f) {
  auto& [n, temperature, top_p, top_k, min_p, presence_penalty, frequency_penalty,
         repetition_penalty, logit_bias, seed, max_tokens, min_tokens, ignore_eos, stop,
         stop_token_ids, bad_words, include_stop, skip_special, logprobs, prompt_logprobs,
         output_kind] = value;
  f(n, temperature, top_p, top_k, min_p, presence_penalty, frequency_penalty, repetition_penalty,
    logit_bias, seed, max_tokens, min_tokens, ignore_eos, stop, stop_token_ids, bad_words,
    include_stop, skip_special, logprobs, prompt_logprobs, output_kind);
}
template <Is<TokenLogprob> T, typename F>
void fields(T& value, const F& f) {
  auto& [token_id, logprob, rank, decoded_token] = value;
  f(token_id, logprob, rank, decoded_token);
}
template <Is<RequestMetrics> T, typename F>
void fields(T& value, const F& f) {
  auto& [time_to_first_token, time_to_finish] = value;
  f(time_to_first_token, time_to_finish);
}
template <Is<PromptLogprobs> T, typename F>
void fields(T& value, const F& f) {
  auto& [id, positions] = value;
  f(id, positions);
}
template <Is<RequestDelta> T, typename F>
void fields(T& value, const F& f) {
  auto& [id, index, text, token_ids, logprobs] = value;
  f(id, index, text, token_ids, logprobs);
}
template <Is<RequestEnd> T, typename F>
void fields(T& value, const F& f) {
  auto& [id, index, finish_reason, stop_reason, last, num_cached, num_preemptions, metrics] = value;
  f(id, index, finish_reason, stop_reason, last, num_cached, num_preemptions, metrics);
}
template <Is<RequestError> T, typename F>
void fields(T& value, const F& f) {
  auto& [id, code, message] = value;
  f(id, code, message);
}
template <Is<StepStats> T, typename F>
void fields(T& value, const F& f) {
  auto& [prefill, decode, running, waiting, preemptions, used, total, seconds] = value;
  f(prefill, decode, running, waiting, preemptions, used, total, seconds);
}

constexpr FinishReason last_of(FinishReason) { return FinishReason::kAbort; }
constexpr ErrorCode last_of(ErrorCode) { return ErrorCode::kUnavailable; }
constexpr RequestOutputKind last_of(RequestOutputKind) { return RequestOutputKind::kFinalOnly; }

[[noreturn]] void refuse(const char* why) {
  throw_error(ErrorCode::kCorruptData, "A frame between engine and front can't be read: it {}.",
              why);
}

class Writer {
 public:
  explicit Writer(std::string& bytes) : bytes_(bytes) {}

  template <typename T>
  void operator()(const T& value) const {
    if constexpr (std::is_enum_v<T>) {
      raw(static_cast<uint8_t>(value));
    } else if constexpr (std::is_arithmetic_v<T>) {
      raw(value);
    } else {
      fields(value, [this](const auto&... members) { ((*this)(members), ...); });
    }
  }
  void operator()(const std::string& text) const {
    size(text.size());
    bytes_ += text;
  }
  template <typename T>
  void operator()(const std::vector<T>& list) const {
    size(list.size());
    for (const T& item : list) (*this)(item);
  }
  template <typename K, typename V>
  void operator()(const std::map<K, V>& map) const {
    size(map.size());
    for (const auto& [key, value] : map) {
      (*this)(key);
      (*this)(value);
    }
  }
  template <typename T>
  void operator()(const std::optional<T>& value) const {
    raw(value.has_value());
    if (value) (*this)(*value);
  }
  template <typename... T>
  void operator()(const std::variant<T...>& value) const {
    raw(static_cast<uint8_t>(value.index()));
    std::visit(*this, value);
  }
  void operator()(std::monostate) const {}

 private:
  template <typename T>
  void raw(T value) const {
    char bytes[sizeof value];
    std::memcpy(bytes, &value, sizeof value);
    bytes_.append(bytes, sizeof value);
  }
  // More than fits in 32 bits is refused with the frame.
  void size(size_t count) const { raw(static_cast<uint32_t>(count)); }

  std::string& bytes_;
};

// Memory it takes is in proportion to the bytes there are, whatever they claim.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  bool at_end() const { return bytes_.empty(); }

  template <typename T>
  void operator()(T& value) {
    if constexpr (std::is_enum_v<T>) {
      value = static_cast<T>(below(static_cast<uint8_t>(last_of(T{})) + 1));
    } else if constexpr (std::same_as<T, bool>) {
      value = below(2) == 1;
    } else if constexpr (std::is_arithmetic_v<T>) {
      std::memcpy(&value, take(sizeof value).data(), sizeof value);
    } else {
      fields(value, [this](auto&... members) { ((*this)(members), ...); });
    }
  }
  void operator()(std::string& text) { text = take(size()); }
  template <typename T>
  void operator()(std::vector<T>& list) {
    list.clear();
    for (uint32_t i = size(); i > 0; --i) (*this)(list.emplace_back());
  }
  template <typename K, typename V>
  void operator()(std::map<K, V>& map) {
    map.clear();
    for (uint32_t i = size(); i > 0; --i) {
      K key;
      (*this)(key);
      (*this)(map[key]);
    }
  }
  template <typename T>
  void operator()(std::optional<T>& value) {
    value.reset();
    if (below(2) == 1) (*this)(value.emplace());
  }
  template <typename... T>
  void operator()(std::variant<T...>& value) {
    const size_t index = below(sizeof...(T));
    size_t i = 0;
    ((i++ == index ? (*this)(value.template emplace<T>()) : void()), ...);
  }
  void operator()(std::monostate&) {}

 private:
  std::string_view take(size_t count) {
    if (count > bytes_.size()) refuse("ends within a value");
    const std::string_view taken = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return taken;
  }
  size_t below(size_t limit) {
    const auto value = static_cast<uint8_t>(take(1)[0]);
    if (value >= limit) refuse("holds a choice that does not exist");
    return value;
  }
  uint32_t size() {
    uint32_t count = 0;
    (*this)(count);
    return count;
  }

  std::string_view bytes_;
};

template <typename T>
void append(const T& value, std::string& bytes) {
  const size_t begin = bytes.size();
  bytes.append(sizeof(uint32_t), 0);
  bytes += kVersion;
  Writer{bytes}(value);
  const size_t size = bytes.size() - begin - kHeaderSize;
  if (size > kMaxFramePayload) {
    bytes.resize(begin);
    throw_error(ErrorCode::kUnsupported, "A message of {} bytes is too large; {} are the most.",
                size, kMaxFramePayload);
  }
  const auto header = static_cast<uint32_t>(size);
  std::memcpy(bytes.data() + begin, &header, sizeof header);
}

template <typename T>
bool take(std::string_view& bytes, T& value) {
  if (bytes.size() < kHeaderSize) return false;
  uint32_t size = 0;
  std::memcpy(&size, bytes.data(), sizeof size);
  if (bytes[sizeof size] != kVersion) refuse("is of another version");
  if (size > kMaxFramePayload) refuse("claims more bytes than a frame may have");
  if (bytes.size() - kHeaderSize < size) return false;
  Reader reader(bytes.substr(kHeaderSize, size));
  reader(value);
  if (!reader.at_end()) refuse("goes on behind its last value");
  bytes.remove_prefix(kHeaderSize + size);
  return true;
}

}  // namespace

void append_frame(const EngineCommand& command, std::string& bytes) { append(command, bytes); }
void append_frame(const std::vector<EngineEvent>& events, std::string& bytes) {
  append(events, bytes);
}
bool take_frame(std::string_view& bytes, EngineCommand& command) { return take(bytes, command); }
bool take_frame(std::string_view& bytes, std::vector<EngineEvent>& events) {
  return take(bytes, events);
}

}  // namespace nanovllm

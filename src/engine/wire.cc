#include "engine/wire.h"

#include <bit>
#include <concepts>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

#include "base/check.h"

namespace nanovllm {

namespace {

static_assert(std::endian::native == std::endian::little);

constexpr char kVersion = 8;
constexpr size_t kHeaderSize = sizeof(uint32_t) + sizeof(kVersion);

template <typename T, typename... Us>
concept OneOf = (std::same_as<std::remove_const_t<T>, Us> || ...);

// A struct that gets another member does not compile here until it is named, as structured bindings
// name all or none.
template <typename T>
auto members(T& value) {
  if constexpr (OneOf<T, AbortRequest, Shutdown, EngineProgress>) {
    auto& [a] = value;
    return std::tie(a);
  } else if constexpr (OneOf<T, PromptLogprobs, EngineFault, TokenMark>) {
    auto& [a, b] = value;
    return std::tie(a, b);
  } else if constexpr (OneOf<T, RequestError, EngineHello, WeightFormat, ThinkingTags>) {
    auto& [a, b, c] = value;
    return std::tie(a, b, c);
  } else if constexpr (OneOf<T, RequestMetrics, TokenLogprob, LayoutOfWeights>) {
    auto& [a, b, c, d] = value;
    return std::tie(a, b, c, d);
  } else if constexpr (OneOf<T, AddRequest>) {
    auto& [a, b, c, d, grammar] = value;  // which who reads it compiles
    return std::tie(a, b, c, d);
  } else if constexpr (OneOf<T, RequestDelta>) {
    auto& [a, b, c, d, e, f] = value;
    return std::tie(a, b, c, d, e, f);
  } else if constexpr (OneOf<T, EngineLimits>) {
    auto& [a, b, c, d, e, f, g, h] = value;
    return std::tie(a, b, c, d, e, f, g, h);
  } else if constexpr (OneOf<T, RequestEnd>) {
    auto& [a, b, c, d, e, f, g, h] = value;
    return std::tie(a, b, c, d, e, f, g, h);
  } else if constexpr (OneOf<T, StructuredOutputsParams>) {
    auto& [a, b, c, d, e, f, g, h, i] = value;
    return std::tie(a, b, c, d, e, f, g, h, i);
  } else if constexpr (OneOf<T, StepStats>) {
    auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q] = value;
    return std::tie(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q);
  } else if constexpr (OneOf<T, EngineInfo>) {
    // Bindings don't reach a base.
    using Limits = std::conditional_t<std::is_const_v<T>, const EngineLimits, EngineLimits>;
    return std::tie(
        static_cast<Limits&>(value), value.architecture, value.device, value.device_type,
        value.dtype, value.num_parameters, value.num_active_parameters, value.weight_bytes,
        value.mapped_weight_bytes, value.weight_formats, value.weight_layouts, value.layers,
        value.plan, value.kv_bytes_per_token, value.kv_cache_bytes, value.kv_groups,
        value.num_states, value.num_kept_states, value.state_cache_bytes, value.state_slot_bytes,
        value.state_log_bytes, value.sizing, value.default_temperature_source,
        value.reasoning_parser, value.tool_parser, value.load_seconds);
  } else if constexpr (OneOf<T, SamplingParams>) {
    auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x, y, z, z2, z3] =
        value;
    return std::tie(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x, y, z,
                    z2, z3);
  }
}

constexpr FinishReason last_of(FinishReason) { return FinishReason::kAbort; }
constexpr ErrorCode last_of(ErrorCode) { return ErrorCode::kUnavailable; }
constexpr RequestOutputKind last_of(RequestOutputKind) { return RequestOutputKind::kFinalOnly; }

[[noreturn]] void refuse(const char* why) {
  throw_error(ErrorCode::kCorruptData, "A frame between engine and front can't be read: it {}.",
              why);
}

struct Writer {
  std::string& bytes;
  void raw(const void* data, size_t size) { bytes.append(static_cast<const char*>(data), size); }
};

struct Reader {
  std::string_view bytes;
  void raw(void* data, size_t size) {
    if (size > bytes.size()) refuse("ends within a value");
    std::memcpy(data, bytes.data(), size);
    bytes.remove_prefix(size);
  }
};

// Writes a number, or gives the one that is read in its place.
template <typename Number, typename Archive>
Number number(Archive& archive, Number value) {
  archive.raw(&value, sizeof value);
  return value;
}

template <typename Archive>
size_t choice(Archive& archive, size_t value, size_t limit) {
  const size_t chosen = number(archive, static_cast<uint8_t>(value));
  if (chosen >= limit) refuse("holds a choice that does not exist");
  return chosen;
}

// Only what is read is not const.
template <typename T, typename V>
void set(T& to, V value) {
  if constexpr (!std::is_const_v<T>) to = value;
}

// More items than fit in 32 bits are refused with the frame when they are written.
template <typename Archive, typename T>
uint32_t size_of(Archive& archive, const T& list) {
  return number(archive, static_cast<uint32_t>(list.size()));
}

template <typename Archive, typename T>
void transfer(Archive& archive, T& value);

// Lists and maps. The memory that is taken for what is read is in proportion to the bytes that are
// there, whatever they claim.
template <typename Archive, typename T>
void transfer_items(Archive& archive, T& value) {
  uint32_t count = size_of(archive, value);
  if constexpr (std::is_const_v<T>) {
    for (const auto& item : value) transfer(archive, item);
  } else {
    for (value.clear(); count > 0; --count) {
      if constexpr (requires { typename T::mapped_type; }) {
        std::pair<typename T::key_type, typename T::mapped_type> item;
        transfer(archive, item);
        value.insert(std::move(item));
      } else {
        transfer(archive, *value.insert(value.end(), typename T::value_type{}));
      }
    }
  }
}

template <typename Archive, typename... Ts>
void transfer_choice(Archive& archive, std::variant<Ts...>& value) {
  const size_t index = choice(archive, 0, sizeof...(Ts));
  size_t i = 0;
  ((i++ == index ? transfer(archive, value.template emplace<Ts>()) : void()), ...);
}

template <typename Archive, typename... Ts>
void transfer_choice(Archive& archive, const std::variant<Ts...>& value) {
  choice(archive, value.index(), sizeof...(Ts));
  std::visit([&](const auto& held) { transfer(archive, held); }, value);
}

// Writes the value, or reads it where it is not const: one list of what there is for both.
template <typename Archive, typename T>
void transfer(Archive& archive, T& value) {
  if constexpr (std::is_enum_v<T>) {
    const auto limit = static_cast<size_t>(last_of(T{})) + 1;
    set(value, static_cast<T>(choice(archive, static_cast<size_t>(value), limit)));
  } else if constexpr (OneOf<T, bool>) {
    set(value, choice(archive, value ? 1 : 0, 2) == 1);
  } else if constexpr (std::is_arithmetic_v<T>) {
    set(value, number(archive, value));
  } else if constexpr (requires { value.index(); }) {
    transfer_choice(archive, value);
  } else if constexpr (requires { value.has_value(); }) {
    const bool has_value = choice(archive, value.has_value() ? 1 : 0, 2) == 1;
    if constexpr (!std::is_const_v<T>) value = has_value ? T(std::in_place) : std::nullopt;
    if (has_value) transfer(archive, *value);
  } else if constexpr (requires { value.begin(); }) {
    transfer_items(archive, value);
  } else if constexpr (requires { value.second; }) {
    transfer(archive, value.first);
    transfer(archive, value.second);
  } else if constexpr (!OneOf<T, std::monostate>) {
    std::apply([&](auto&... items) { (transfer(archive, items), ...); }, members(value));
  }
}

template <typename T>
void append(const T& value, std::string& bytes) {
  const size_t begin = bytes.size();
  bytes.append(sizeof(uint32_t), 0);
  bytes += kVersion;
  Writer writer{bytes};
  transfer(writer, value);
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
  Reader reader{bytes.substr(kHeaderSize, size)};
  transfer(reader, value);
  if (!reader.bytes.empty()) refuse("goes on behind its last value");
  bytes.remove_prefix(kHeaderSize + size);
  return true;
}

}  // namespace

void append_frame(const EngineCommand& command, std::string& bytes) { append(command, bytes); }
void append_frame(const EngineReport& report, std::string& bytes) { append(report, bytes); }
bool take_frame(std::string_view& bytes, EngineCommand& command) { return take(bytes, command); }
bool take_frame(std::string_view& bytes, EngineReport& report) { return take(bytes, report); }

}  // namespace nanovllm

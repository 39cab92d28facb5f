#include "server/json_body.h"

#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/check.h"
#include "io/json.h"

namespace nanovllm::server {
namespace {

constexpr size_t kMaxValues = size_t{4} << 20;  // each takes some 50 bytes

// The library's own builder looks through an ordered object for every key it adds, which takes
// hours for an object of a few megabytes.
class BodyBuilder {
 public:
  explicit BodyBuilder(int max_depth) : max_depth_(max_depth) {}

  Json take() { return std::move(root_); }

  bool null() { return add(nullptr); }
  bool boolean(bool value) { return add(value); }
  bool number_integer(int64_t value) { return add(value); }
  bool number_unsigned(uint64_t value) { return add(value); }
  bool number_float(double value, const std::string&) { return add(value); }
  bool string(std::string& value) { return add(std::move(value)); }
  bool binary(Json::binary_t&) { return false; }
  bool start_object(size_t) { return open(Json::object()); }
  bool start_array(size_t) { return open(Json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }

  bool key(std::string& name) {
    if (!open_.back().keys.insert(name).second) {
      throw_error(ErrorCode::kInvalidArgument,
                  "The body has the key \"{}\" twice in one object; give it once.",
                  printable(name));
    }
    key_ = std::move(name);
    return true;
  }

  bool parse_error(size_t, const std::string&, const Json::exception& error) {
    throw_error(ErrorCode::kInvalidArgument, "The body is not valid JSON: {}",
                nanovllm::reason_of(error));
  }

 private:
  struct Open {
    Json* value;
    std::unordered_set<std::string> keys = {};
  };

  bool add(Json value) {
    place(std::move(value));
    return true;
  }

  Json* place(Json value) {
    if (++num_values_ > kMaxValues) {
      throw_error(ErrorCode::kInvalidArgument, "The body has more than {} JSON values.",
                  kMaxValues);
    }
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Json& parent = *open_.back().value;
    if (parent.is_array()) return &parent.get_ref<Json::array_t&>().emplace_back(std::move(value));
    Json::object_t::Container& members = parent.get_ref<Json::object_t&>();
    return &members.emplace_back(std::move(key_), std::move(value)).second;
  }

  // What is open does not move: only the innermost container grows.
  bool open(Json container) {
    if (std::cmp_greater_equal(open_.size(), max_depth_)) {
      throw_error(ErrorCode::kInvalidArgument, "The body is JSON nested deeper than {} levels.",
                  max_depth_);
    }
    open_.push_back({place(std::move(container))});
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  int max_depth_;
  Json root_;
  std::string key_;
  std::vector<Open> open_;  // containers, outermost first
  size_t num_values_ = 0;
};

}  // namespace

Json parse_json_body(std::string_view text, int max_depth) {
  BodyBuilder builder(max_depth);
  Json::sax_parse(text.begin(), text.end(), &builder);
  return builder.take();
}

}  // namespace nanovllm::server

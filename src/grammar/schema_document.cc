#include "grammar/schema_document.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "io/json.h"

namespace nanovllm::grammar {
namespace {

constexpr size_t kMaxSchemaBytes = size_t{1} << 20;
constexpr int kMaxSchemaDepth = 100;  // lists and objects, one in another
constexpr double kMaxWholeCount = 4e9;

std::string unescaped(std::string_view token) {
  std::string out;
  for (size_t i = 0; i < token.size(); ++i) {
    if (token[i] == '~' && i + 1 < token.size() && (token[i + 1] == '0' || token[i + 1] == '1')) {
      out.push_back(token[++i] == '0' ? '~' : '/');
    } else {
      out.push_back(token[i]);
    }
  }
  return out;
}

std::string percent_decoded(std::string_view text) {
  const auto digit = [](char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
  };
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && digit(text[i + 1]) >= 0 &&
        digit(text[i + 2]) >= 0) {
      out.push_back(static_cast<char>(digit(text[i + 1]) * 16 + digit(text[i + 2])));
      i += 2;
    } else {
      out.push_back(text[i]);
    }
  }
  return out;
}

}  // namespace

SchemaDocument::SchemaDocument(std::string_view text) {
  if (text.size() > kMaxSchemaBytes) {
    throw_error(ErrorCode::kInvalidArgument,
                "the JSON schema has {} bytes; at most {} are supported", text.size(),
                kMaxSchemaBytes);
  }
  try {
    root_ = parse_ordered_json(text, "the JSON schema",
                               {.max_depth = kMaxSchemaDepth, .exact_members = kEverywhere});
  } catch (const Error& error) {
    throw Error(ErrorCode::kInvalidArgument, error.what());
  }
  const size_t first = text.find("\"$id\"");
  has_resources_ = first != text.npos && text.find("\"$id\"", first + 1) != text.npos;
}

const Json& SchemaDocument::resource_of(const Json& schema) const {
  if (!has_resources_) return root_;
  find_parents();
  for (const Json* at = &schema; at != &root_; at = parents_.at(at).first) {
    if (!at->is_object()) continue;
    const auto id = at->find("$id");
    if (id == at->end() || !id->is_string()) continue;
    if (!id->get_ref<const std::string&>().starts_with('#')) return *at;
  }
  return root_;
}

void SchemaDocument::find_parents() const {
  if (parents_.empty()) find_parents(root_, nullptr, "");
}

void SchemaDocument::find_parents(const Json& part, const Json* parent, std::string name) const {
  parents_.emplace(&part, std::pair(parent, std::move(name)));
  if (part.is_object()) {
    add_anchors(part);
    for (const auto& [key, value] : part.items()) find_parents(value, &part, key);
  } else if (part.is_array()) {
    for (size_t i = 0; i < part.size(); ++i) find_parents(part[i], &part, fmt::format("{}", i));
  }
}

std::string SchemaDocument::path(const Json& part) const {
  find_parents();
  std::vector<const std::string*> keys;
  for (auto at = parents_.find(&part); at != parents_.end() && at->second.first != nullptr;
       at = parents_.find(at->second.first)) {
    keys.push_back(&at->second.second);
  }
  std::string path;
  for (size_t i = keys.size(); i-- > 0;) path += fmt::format("/{}", *keys[i]);
  return printable(path, 300);
}

std::string SchemaDocument::where(const Json& part) const {
  const std::string its = path(part);
  return its.empty() ? "JSON schema" : "JSON schema at " + its;
}

void SchemaDocument::fail(const Json& schema, std::string_view keyword,
                          std::string_view what) const {
  const std::string place = where(schema);
  if (keyword.empty()) throw_error(ErrorCode::kInvalidArgument, "{}: it {}", place, what);
  throw_error(ErrorCode::kInvalidArgument, "{}: {} {}", place, keyword, what);
}

void SchemaDocument::refuse(const Json& schema, std::string_view keyword) const {
  refuse(schema, keyword, "can't be enforced; leave it out, or say it in another way");
}

void SchemaDocument::refuse(const Json& schema, std::string_view keyword,
                            std::string_view what) const {
  throw_error(ErrorCode::kUnsupported, "{}: {} {}", where(schema), keyword, what);
}

const Json* SchemaDocument::find(const Json& schema, const char* keyword) const {
  const auto found = schema.find(keyword);
  return found == schema.end() ? nullptr : &*found;
}

const Json* SchemaDocument::object(const Json& schema, const char* keyword) const {
  const Json* value = find(schema, keyword);
  if (value != nullptr && !value->is_object()) fail(schema, keyword, "is not an object");
  return value;
}

const Json* SchemaDocument::array(const Json& schema, const char* keyword) const {
  const Json* value = find(schema, keyword);
  if (value != nullptr && !value->is_array()) fail(schema, keyword, "is not a list");
  return value;
}

std::optional<uint32_t> SchemaDocument::count(const Json& schema, const char* keyword) const {
  const Json* value = find(schema, keyword);
  if (value == nullptr) return std::nullopt;
  const double number = value->is_number() ? value->get<double>() : -1;
  if (!(number >= 0) || number != std::floor(number)) {
    fail(schema, keyword, "is not a whole number of zero or more");
  }
  return static_cast<uint32_t>(std::min(number, kMaxWholeCount));
}

std::optional<std::string> SchemaDocument::text(const Json& schema, const char* keyword) const {
  const Json* value = find(schema, keyword);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) fail(schema, keyword, "is not a string");
  return value->get<std::string>();
}

const Json& SchemaDocument::schema(const Json& part) const {
  if (!part.is_object() && !part.is_boolean()) {
    fail(part, "", "is no schema: expected an object, true or false");
  }
  return part;
}

// Drafts before 2019 have "$id": "#name", or "id".
void SchemaDocument::add_anchors(const Json& part) const {
  for (const char* keyword : {"$anchor", "$id", "id"}) {
    const auto found = part.find(keyword);
    if (found == part.end() || !found->is_string()) continue;
    std::string_view name = found->get_ref<const std::string&>();
    if (keyword != std::string_view("$anchor")) {
      if (!name.starts_with('#')) continue;
      name.remove_prefix(1);
    }
    anchors_.emplace(name, &part);
  }
}

const Json& SchemaDocument::resolve(const Json& schema) const {
  const auto known = targets_.find(&schema);
  if (known != targets_.end()) return *known->second;
  const Json& target = find_target(schema);
  targets_.emplace(&schema, &target);
  return target;
}

const Json& SchemaDocument::find_target(const Json& schema) const {
  std::string ref = *text(schema, "$ref");
  if (ref.starts_with("/$defs/")) ref = '#' + ref;  // as LiteLLM writes them for /v1/messages
  const size_t hash = std::min(ref.find('#'), ref.size());
  if (const std::string base = ref.substr(0, hash); !base.empty()) {
    bool is_own = false;
    for (const char* keyword : {"$id", "id"}) {
      if (!root_.is_object()) break;
      const auto id = root_.find(keyword);
      if (id == root_.end() || !id->is_string()) continue;
      std::string own = id->get<std::string>();
      if (own.ends_with('#')) own.pop_back();
      is_own = is_own || own == base;
    }
    if (!is_own) {
      refuse(schema, "$ref",
             fmt::format("names \"{}\", which is not in this schema", printable(ref)));
    }
  }
  const std::string fragment =
      hash < ref.size() ? percent_decoded(std::string_view(ref).substr(hash + 1)) : "";
  if (!fragment.empty() && fragment[0] != '/') {
    find_parents();
    const auto found = anchors_.find(fragment);
    if (found != anchors_.end()) return this->schema(*found->second);
    fail(schema, "$ref", fmt::format("names \"{}\", which is not in this schema", printable(ref)));
  }
  const Json* part = hash > 0 ? &root_ : &resource_of(schema);
  for (size_t at = 0; at < fragment.size();) {
    const size_t end = std::min(fragment.find('/', at + 1), fragment.size());
    const std::string token = unescaped(std::string_view(fragment).substr(at + 1, end - at - 1));
    const Json* next = nullptr;
    if (part->is_object()) {
      const auto found = part->find(token);
      if (found != part->end()) next = &*found;
    } else if (part->is_array() && !token.empty() && token.size() < 8 &&
               token.find_first_not_of("0123456789") == token.npos) {
      const size_t index = std::stoul(token);
      if (index < part->size()) next = &(*part)[index];
    }
    if (next == nullptr) {
      fail(schema, "$ref",
           fmt::format("names \"{}\", which is not in this schema", printable(ref)));
    }
    part = next;
    at = end;
  }
  return this->schema(*part);
}

}  // namespace nanovllm::grammar

#include "hub/listing.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "base/check.h"
#include "io/json.h"

namespace nanovllm::hub {
namespace {

constexpr const char* kWeights = "model.safetensors";
constexpr const char* kUsualType = "Q4_K_M";     // of GGUF, that is taken where none was named
constexpr int64_t kMaxBytes = int64_t{1} << 42;  // of a file; a million of them can be added up

[[noreturn]] void fail(const std::string& where, const char* key, const char* expected) {
  throw_error(ErrorCode::kCorruptData, "{}: \"{}\" must be {}; is HF_ENDPOINT that of a hub?",
              where, key, expected);
}

std::string checked_hash(const JsonFields& fields, const char* key, size_t num_digits) {
  std::string hash = fields.string(key).value_or("");
  if (!is_hash(hash, num_digits)) fail(fields.where(), key, "a hash");
  return hash;
}

// How a list calls what it says of a file.
struct Keys {
  const char *path, *hash, *sha256;
};

void add_file(Listing& listing, const Json& value, const Keys& keys, const std::string& where) {
  HubFile file{.path = JsonFields(value, where).string(keys.path).value_or("")};
  if (leaves_folder(file.path)) {
    throw_error(ErrorCode::kCorruptData,
                "{}: lists a file named {}, which would leave the model's folder; nothing was "
                "pulled, for whoever made this means harm, or no hub answers",
                where, printable(file.path));
  }
  if (!is_safe_path(file.path)) return;  // what has such a name is no part of a model
  const JsonFields entry(value, where + ": " + file.path);
  file.size = entry.integer("size", 0, kMaxBytes).value_or(-1);
  const Json* lfs = entry.find("lfs");
  if (lfs != nullptr) {
    file.hash = checked_hash(JsonFields(*lfs, entry.where()), keys.sha256, kSha256Digits);
  } else if (file.size >= 0) {
    file.hash = checked_hash(entry, keys.hash, kSha1Digits);
  }
  listing.push_back(std::move(file));
}

// No model by themselves are projectors of images, and matrices from which others were made.
bool is_gguf(const std::string& path) {
  static const std::regex form(R"((.*/)?(?!mmproj|imatrix)[^/]*\.gguf)");
  return std::regex_match(path, form);
}

// What is read beside the weights, by us or by others' tokenizers of the same folder.
bool is_text(const std::string& path) {
  static const std::regex form(R"([^/]+\.(json|jinja|txt)|additional_chat_templates/[^/]+\.jinja)");
  return std::regex_match(path, form) && (path == kIndex || !path.ends_with(".index.json"));
}

std::string upper(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::toupper(c); });
  return text;
}

// A path without the ending and the number of a part.
std::string stem_of(const std::string& path) {
  static const std::regex ending("(-[0-9]{5}-of-[0-9]{5})?\\.gguf$");
  return std::regex_replace(path, ending, "");
}

const HubFile* find(const Listing& listing, std::string_view path) {
  const auto found = std::ranges::find(listing, path, &HubFile::path);
  return found == listing.end() ? nullptr : &*found;
}

bool has_safetensors(const Listing& listing) {
  return find(listing, kWeights) != nullptr || find(listing, kIndex) != nullptr;
}

Choice choose_gguf(const Listing& listing, const HubName& name) {
  std::map<std::string, Listing> by_stem;
  for (const HubFile& file : listing) {
    if (is_gguf(file.path)) by_stem[stem_of(file.path)].push_back(file);
  }
  if (by_stem.empty() && has_safetensors(listing)) {
    throw_error(
        ErrorCode::kNotFound,
        "{0}: holds safetensors and no GGUF file, of which {1} would be the type; leave :{1} "
        "away, or name a repository of GGUF files, often called OWNER/{2}-GGUF",
        name.repository, printable(name.type),
        name.repository.substr(name.repository.find('/') + 1));
  }
  if (by_stem.empty()) {
    throw_error(ErrorCode::kNotFound,
                "{}: holds neither {} nor its index nor a GGUF file; expected a model in one of "
                "these formats",
                name.repository, kWeights);
  }
  const std::string type = name.type.empty() ? kUsualType : name.type;
  std::set<std::string> types, names;  // of all, of those that fit
  for (const auto& [stem, files] : by_stem) types.insert(type_of_gguf(stem));
  // By its type, or by its name without the folder or with it.
  const auto is_another = [&](const auto& entry) {
    return type_of_gguf(entry.first) != upper(type) &&
           !fmt::format("/{}", entry.first).ends_with(fmt::format("/{}", stem_of(type)));
  };
  if (!name.type.empty() || by_stem.size() > 1) std::erase_if(by_stem, is_another);
  for (const auto& [stem, files] : by_stem) names.insert(files.front().path);
  if (names.size() != 1) {
    const auto& ones = names.empty() ? types : names;
    throw_error(ErrorCode::kNotFound,
                "{}: holds {} of type {}; name one after a colon, as in {}:{}: {}", name.repository,
                names.empty() ? "no GGUF file" : "several GGUF files", type, name.repository,
                *ones.begin(), printable(fmt::format("{}", fmt::join(ones, ", ")), 2000));
  }
  Choice choice{.files = by_stem.begin()->second};
  std::ranges::sort(choice.files, {}, &HubFile::path);
  choice.entry = "/" + choice.files.front().path;
  return choice;
}

}  // namespace

std::pair<std::string, Listing> parse_listing(std::string_view answer, const std::string& where) {
  const Json value = parse_json(answer, where);
  const JsonFields fields(value, where);
  const Json* siblings = fields.find("siblings");
  if (siblings == nullptr || !siblings->is_array()) fail(where, "siblings", "a list of files");
  Listing listing;
  for (const Json& sibling : *siblings) {
    add_file(listing, sibling, {.path = "rfilename", .hash = "blobId", .sha256 = "sha256"}, where);
  }
  return {checked_hash(fields, "sha", kSha1Digits), std::move(listing)};
}

bool tells_sizes(const Listing& listing) {
  return std::ranges::all_of(listing, [](const HubFile& file) { return file.size >= 0; });
}

void add_tree(Listing& listing, std::string_view answer, const std::string& where) {
  const Json value = parse_json(answer, where);
  if (!value.is_array()) {
    throw_error(ErrorCode::kCorruptData, "{}: must be a list; is HF_ENDPOINT that of a hub?",
                where);
  }
  for (const Json& entry : value) {
    if (JsonFields(entry, where).string("type") != "file") continue;
    add_file(listing, entry, {.path = "path", .hash = "oid", .sha256 = "oid"}, where);
  }
  if (!tells_sizes(listing)) fail(where, "size", "a number of bytes");
}

std::string listing_text(const std::string& commit, const Listing& listing) {
  Json siblings = Json::array();
  for (const HubFile& file : listing) {
    Json sibling = {{"rfilename", file.path}, {"size", file.size}};
    if (file.hash.size() == kSha1Digits) {
      sibling["blobId"] = file.hash;
    } else {
      sibling["lfs"] = {{"sha256", file.hash}};
    }
    siblings.push_back(std::move(sibling));
  }
  return Json{{"sha", commit}, {"siblings", std::move(siblings)}}.dump();
}

Choice choose_files(const Listing& listing, const HubName& name) {
  const HubFile* weights = find(listing, kWeights);
  if (!name.type.empty() || !has_safetensors(listing)) return choose_gguf(listing, name);
  Choice choice;
  choice.needs_index = weights == nullptr;
  for (const HubFile& file : listing) {
    const bool is_useless = file.path == kIndex && !choice.needs_index;
    if ((is_text(file.path) && !is_useless) || &file == weights) choice.files.push_back(file);
  }
  return choice;
}

bool is_read(const HubFile& file) {
  static const std::set<std::string_view> names = {
      kIndex,           "config.json",           "generation_config.json",  "hf_quant_config.json",
      "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.json"};
  return !is_text(file.path) || file.path.ends_with(".jinja") || names.contains(file.path);
}

bool is_enough(const Choice& choice) {
  if (choice.needs_index) return false;
  if (choice.entry.empty()) {
    return find(choice.files, "config.json") != nullptr &&
           find(choice.files, "tokenizer.json") != nullptr;
  }
  static const std::regex part("-of-([0-9]{5})\\.gguf$");
  std::smatch found;
  return !std::regex_search(choice.entry, found, part) ||
         choice.files.size() == std::stoul(found[1]);
}

bool is_sure(const Choice& choice, const HubName& name) {
  return choice.entry.empty() || !name.type.empty() || type_of_gguf(choice.entry) == kUsualType;
}

void add_shards(Choice& choice, const Listing& listing, std::string_view index,
                const std::string& where) {
  const Json value = parse_json(index, where);
  const Json* shards = JsonFields(value, where).find("weight_map");
  std::set<std::string> names;
  for (const Json& shard : shards == nullptr ? Json() : *shards) {
    names.insert(shard.is_string() ? shard.get<std::string>() : "");
  }
  std::map<std::string_view, const HubFile*> files;
  for (const HubFile& file : listing) files[file.path] = &file;
  for (const std::string& shard : names) {
    if (!files.contains(shard)) {
      throw_error(ErrorCode::kNotFound, "{}: names a file {}, which the repository does not hold",
                  where, printable(shard));
    }
    choice.files.push_back(*files[shard]);
  }
  choice.needs_index = false;
}

std::string type_of_gguf(const std::string& path) {
  static const std::regex form(
      "(^|[-._/])((UD-)?(I?Q[1-9][A-Z0-9_]*|TQ[12]_0|MXFP4[A-Z0-9_]*|BF16|FP?16|FP?32))$",
      std::regex::icase);
  const std::string stem = stem_of(path);
  std::smatch found;
  if (std::regex_search(stem, found, form)) return upper(found[2]);
  return stem.substr(stem.rfind('/') + 1);
}

}  // namespace nanovllm::hub

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
constexpr int64_t kMaxBytes = int64_t{1} << 50;
constexpr int kTreeFormat = 1;

// Of a name, checked before anything is made of it.
std::string checked_path(const std::string& path, const std::string& where) {
  if (is_safe_path(path)) return path;
  throw_error(
      ErrorCode::kCorruptData,
      "{}: lists a file named {}, which would leave the model's folder; nothing was pulled, "
      "for whoever made this repository means harm or the hub is none",
      where, printable(path));
}

std::string checked_hash(const JsonFields& fields, const char* key, size_t num_digits) {
  std::string hash = fields.string(key).value_or("");
  if (!is_hash(hash, num_digits)) fields.fail(key, fmt::format("{} digits of a hash", num_digits));
  return hash;
}

int64_t checked_size(const JsonFields& fields, const char* key) {
  const auto size = fields.integer(key, 0, kMaxBytes);
  if (!size) fields.fail(key, "a size in bytes");
  return *size;
}

bool is_gguf(std::string_view path) {
  // What goes beside a model: projectors of images, and matrices from which others were made.
  const size_t slash = path.rfind('/');
  const std::string_view name = slash == path.npos ? path : path.substr(slash + 1);
  return name.ends_with(".gguf") && !name.starts_with("mmproj") && !name.starts_with("imatrix");
}

// What is read beside the weights, by us or by others' tokenizers of the same folder.
bool is_text(std::string_view path) {
  if (path.starts_with("additional_chat_templates/")) return path.ends_with(".jinja");
  if (path.find('/') != path.npos || path.ends_with(".index.json")) return path == kIndex;
  return path.ends_with(".json") || path.ends_with(".jinja") || path.ends_with(".txt");
}

std::string upper(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(), [](unsigned char c) { return std::toupper(c); });
  return result;
}

// A path without the ending and the number of a part.
std::string stem_of(std::string_view path) {
  static const std::regex ending("(-[0-9]{5}-of-[0-9]{5})?\\.gguf$", std::regex::icase);
  return std::regex_replace(std::string(path), ending, "");
}

const HubFile* find(const Listing& listing, std::string_view path) {
  const auto found = std::ranges::find(listing, path, &HubFile::path);
  return found == listing.end() ? nullptr : &*found;
}

// Whether a file, told without its ending, is what was asked for by type or by name.
bool is_asked_for(const std::string& stem, const std::string& type) {
  const std::string asked = upper(stem_of(type)), own = upper(stem), label = type_of_gguf(stem);
  return label == asked || own == asked || own.ends_with("/" + asked);
}

Choice choose_gguf(const Listing& listing, const HubName& name) {
  std::map<std::string, Listing> by_stem;
  for (const HubFile& file : listing) {
    if (is_gguf(file.path)) by_stem[stem_of(file.path)].push_back(file);
  }
  if (by_stem.empty()) {
    throw_error(ErrorCode::kNotFound,
                "{}: holds neither {} nor its index nor a GGUF file; expected a model in one of "
                "these formats",
                name.repository, kWeights);
  }
  const bool is_only_one = by_stem.size() == 1 && name.type.empty();
  const std::string type = name.type.empty() ? "Q4_K_M" : name.type;
  std::vector<const Listing*> fits;
  std::set<std::string> types;
  for (const auto& [stem, files] : by_stem) {
    if (is_only_one || is_asked_for(stem, type)) fits.push_back(&files);
    types.insert(type_of_gguf(stem));
  }
  if (fits.size() != 1) {
    std::set<std::string> names;
    for (const Listing* files : fits) names.insert(files->front().path);
    throw_error(ErrorCode::kNotFound, "{}: holds {} {}; name one behind a colon, as in {}:{}: {}",
                name.repository,
                fits.empty() ? "no GGUF file of type" : "several GGUF files of type", type,
                name.repository, fits.empty() ? *types.begin() : *names.begin(),
                printable(fmt::format("{}", fmt::join(fits.empty() ? types : names, ", ")), 2000));
  }
  Choice choice{.files = *fits.front()};
  std::ranges::sort(choice.files, {}, &HubFile::path);
  choice.entry = choice.files.front().path;
  return choice;
}

}  // namespace

Listing parse_siblings(const nlohmann::json& answer, const std::string& where) {
  const JsonFields fields(answer, where);
  const nlohmann::json* siblings = fields.find("siblings");
  if (siblings == nullptr || !siblings->is_array()) fields.fail("siblings", "a list of files");
  Listing listing;
  for (const nlohmann::json& sibling : *siblings) {
    const JsonFields entry(sibling, where);
    HubFile file{.path = checked_path(entry.string("rfilename").value_or(""), where)};
    const JsonFields of_file(sibling, where + ": " + file.path);
    file.size = checked_size(of_file, "size");
    file.blob_id = checked_hash(of_file, "blobId", kSha1Digits);
    if (const nlohmann::json* lfs = of_file.find("lfs")) {
      file.sha256 = checked_hash(JsonFields(*lfs, of_file.where()), "sha256", kSha256Digits);
    }
    listing.push_back(std::move(file));
  }
  return listing;
}

std::string tree_of(const Listing& listing) {
  nlohmann::json files = nlohmann::json::object();
  for (const HubFile& file : listing) {
    files[file.path] = {{"size", file.size}, {"blob_id", file.blob_id}};
    if (file.sha256.empty()) continue;
    files[file.path]["lfs_sha256"] = file.sha256;
    files[file.path]["lfs_size"] = file.size;
  }
  return nlohmann::json{{"format_version", kTreeFormat}, {"files", files}}.dump(1);
}

Listing parse_tree(std::string_view text, const std::string& where) {
  const nlohmann::json tree = parse_json(text, where);
  const JsonFields fields(tree, where);
  const nlohmann::json* files = fields.find("files");
  if (fields.integer("format_version", kTreeFormat, kTreeFormat) == std::nullopt)
    fields.fail("format_version", "1");
  if (files == nullptr || !files->is_object()) fields.fail("files", "an object");
  Listing listing;
  for (const auto& [path, value] : files->items()) {
    const JsonFields entry(value, where + ": " + printable(path));
    HubFile file{.path = checked_path(path, where)};
    file.size = checked_size(entry, entry.has("lfs_size") ? "lfs_size" : "size");
    file.blob_id = checked_hash(entry, "blob_id", kSha1Digits);
    if (entry.has("lfs_sha256")) file.sha256 = checked_hash(entry, "lfs_sha256", kSha256Digits);
    listing.push_back(std::move(file));
  }
  return listing;
}

Choice choose_files(const Listing& listing, const HubName& name) {
  const HubFile* weights = find(listing, kWeights);
  const HubFile* index = find(listing, kIndex);
  if (!name.type.empty() || (weights == nullptr && index == nullptr))
    return choose_gguf(listing, name);
  Choice choice;
  choice.needs_index = weights == nullptr;
  for (const HubFile& file : listing) {
    const bool is_useless = file.path == kIndex && !choice.needs_index;
    if ((is_text(file.path) && !is_useless) || &file == weights) choice.files.push_back(file);
  }
  return choice;
}

void add_shards(Choice& choice, const Listing& listing, std::string_view index,
                const std::string& where) {
  const nlohmann::json value = parse_json(index, where);
  const nlohmann::json* shards = JsonFields(value, where).find("weight_map");
  std::set<std::string> names;
  for (const nlohmann::json& shard : shards == nullptr ? nlohmann::json() : *shards) {
    names.insert(shard.is_string() ? shard.get<std::string>() : "");
  }
  for (const std::string& shard : names) {
    const HubFile* file = find(listing, shard);
    if (file == nullptr) {
      throw_error(ErrorCode::kNotFound, "{}: names a file {}, which the repository does not hold",
                  where, printable(shard));
    }
    choice.files.push_back(*file);
  }
  choice.needs_index = false;
}

std::string type_of_gguf(std::string_view path) {
  static const std::regex type(
      "(^|[-._/])((UD-)?(I?Q[1-9][A-Z0-9_]*|TQ[12]_0|MXFP4[A-Z0-9_]*|BF16|FP?16|FP?32))$",
      std::regex::icase);
  const std::string stem = stem_of(path);
  std::smatch found;
  if (std::regex_search(stem, found, type)) return upper(found[2].str());
  return stem.substr(stem.rfind('/') + 1);
}

}  // namespace nanovllm::hub

#include "io/rounded_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/parallel_jobs.h"
#include "io/json.h"
#include "io/output_file.h"
#include "io/rounded_plan.h"
#include "io/stdio_file.h"

namespace nanovllm {
namespace {

namespace fs = std::filesystem;

constexpr size_t kBytesAtOnce = size_t{8} << 20;  // of what is copied

// A file that takes its place when it is whole. All throw Error(kIo).
class NewFile {
 public:
  explicit NewFile(std::string path)
      : path_(std::move(path)), draft_(path_), file_(std::fopen(draft_.path().c_str(), "wbe")) {
    check(file_ != nullptr);
  }

  void write(const void* data, size_t size) {
    check(std::fwrite(data, 1, size, file_.get()) == size);
  }
  void take_place() { check(std::fflush(file_.get()) == 0 && draft_.take_place() == 0); }

 private:
  void check(bool is_written) const {
    if (is_written) return;
    throw_error(ErrorCode::kIo, "{}: can't be written: {}", path_, std::strerror(errno));
  }

  const std::string path_;
  const Draft draft_;
  const File file_;
};

// Tokenizer, templates, defaults; not the weights, in whatever form.
std::vector<fs::directory_entry> other_files(const std::string& model) {
  static const std::set<std::string> kWeights = {".safetensors", ".bin",     ".pt", ".pth",
                                                 ".gguf",        ".msgpack", ".h5", ".onnx"};
  std::vector<fs::directory_entry> files;
  std::error_code error;
  fs::directory_iterator entry(model, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename();
    std::error_code ignored;
    if (!entry->is_regular_file(ignored) || name == "config.json" ||
        name.ends_with(".index.json") || kWeights.contains(entry->path().extension())) {
      continue;
    }
    files.push_back(*entry);
  }
  if (error) throw_error(ErrorCode::kIo, "{}: can't be listed: {}", model, error.message());
  return files;
}

// Rows [begin, end) in all parts of a matrix; begin is a multiple of kCodesInWord.
void round_rows(const RoundedMatrix& matrix, RoundedFormat format, int64_t cols, int64_t begin,
                int64_t end, std::vector<std::vector<char>>& parts) {
  const CodeFormat& layout = *matrix.code_format();
  const int64_t groups = (cols + layout.group_columns - 1) / layout.group_columns;
  std::vector<uint8_t> codes(static_cast<size_t>(cols));
  std::vector<GroupScale> scales(static_cast<size_t>(groups));
  std::vector<uint32_t> words(static_cast<size_t>(cols / kCodesInWord));
  std::vector<uint32_t> zeros(static_cast<size_t>(groups));
  for (int64_t row = begin; row < end; ++row) {
    matrix.read_codes_and_scales(row, 0, cols, codes.data(), scales.data());
    for (int64_t group = 0; group < groups; ++group) {
      write_scale(layout.scales, scales[static_cast<size_t>(group)].scale,
                  &parts[1][static_cast<size_t>((row * groups + group) * 2)]);
    }
    if (format != RoundedFormat::kInt4) {
      std::memcpy(&parts[0][static_cast<size_t>(row * cols)], codes.data(), codes.size());
      continue;
    }
    std::ranges::fill(words, 0);
    for (size_t col = 0; col < codes.size(); ++col) {
      words[col / kCodesInWord] |= static_cast<uint32_t>(codes[col]) << (col % kCodesInWord * 4);
    }
    std::memcpy(&parts[0][static_cast<size_t>(row) * words.size() * 4], words.data(),
                words.size() * 4);
    if (row % kCodesInWord == 0) std::ranges::fill(zeros, 0);
    for (size_t group = 0; group < zeros.size(); ++group) {
      zeros[group] |= static_cast<uint32_t>(scales[group].offset) << (row % kCodesInWord * 4);
    }
    std::memcpy(&parts[2][static_cast<size_t>(row / kCodesInWord) * zeros.size() * 4], zeros.data(),
                zeros.size() * 4);
  }
}

// Removes what it was told of, the last first, unless it is to stay: whoever is stopped can begin
// again in the same folder.
class Leftovers {
 public:
  Leftovers() = default;
  ~Leftovers() {
    std::error_code ignored;
    for (auto path = paths_.rbegin(); path != paths_.rend(); ++path) fs::remove(*path, ignored);
  }
  Leftovers(const Leftovers&) = delete;
  Leftovers& operator=(const Leftovers&) = delete;

  // A file, or a folder, which only goes when it is empty.
  void add(fs::path path) { paths_.push_back(std::move(path)); }
  void stay() { paths_.clear(); }

 private:
  std::vector<fs::path> paths_;
};

// Tells how much was read, from any thread, one at a time.
class ReadBytes {
 public:
  ReadBytes(int64_t total, const std::function<void(int64_t, int64_t)>& on_bytes)
      : on_bytes_(on_bytes), total_(total) {}

  void add(int64_t bytes) {
    const std::lock_guard lock(mutex_);
    done_ += bytes;
    on_bytes_(done_, total_);
  }

 private:
  const std::function<void(int64_t, int64_t)>& on_bytes_;
  const int64_t total_;
  std::mutex mutex_;
  int64_t done_ = 0;
};

std::vector<std::vector<char>> round_matrix(const RoundedSource& source, int num_threads,
                                            ReadBytes& read) {
  const int64_t rows = source.entry->shape[0], cols = source.entry->shape[1];
  const int64_t row_bytes = static_cast<int64_t>(source.bytes().size()) / rows;
  const RoundedMatrix matrix(
      fmt::format("{}: tensor {}", source.file->path(), printable(source.name)),
      {source.bytes().data(), *source.entry->dtype, nullptr, rows, cols}, *source.format);
  std::vector<std::vector<char>> parts;
  for (const RoundedPart& part : source.parts) parts.emplace_back(part.bytes);
  constexpr int64_t kRowsOfJob = 8 * kCodesInWord;
  std::vector<Job> jobs;
  for (int64_t row = 0; row < rows; row += kRowsOfJob) {
    const int64_t end = std::min(rows, row + kRowsOfJob);
    jobs.push_back({end - row, [&, row, end] {
                      round_rows(matrix, *source.format, cols, row, end, parts);
                      read.add((end - row) * row_bytes);
                    }});
  }
  run_in_parallel(std::move(jobs), num_threads, [] {});
  if (source.format == RoundedFormat::kInt4) {
    const int64_t shape[] = {rows, cols};
    std::memcpy(parts[3].data(), shape, sizeof shape);
  }
  return parts;
}

class FolderWriter {
 public:
  FolderWriter(const std::string& model, std::string out, RoundedPlan plan)
      : others_(other_files(model)), out_(std::move(out)), plan_(std::move(plan)) {}

  RoundedFolder write(int num_threads, const std::function<void(int64_t, int64_t)>& on_bytes) {
    make_folder();
    ReadBytes read(bytes_to_read(), on_bytes);
    write_weights(num_threads, read);
    for (const fs::directory_entry& other : others_) copy(other.path(), read);
    NewFile config(out_ + "/config.json");
    const std::string text = plan_.config.dump(2) + "\n";
    config.write(text.data(), text.size());
    config.take_place();
    leftovers_.stay();
    return plan_.report;
  }

 private:
  int64_t bytes_to_read() const {
    int64_t bytes = 0;
    for (const RoundedSource& source : plan_.sources) {
      bytes += static_cast<int64_t>(source.bytes().size());
    }
    for (const fs::directory_entry& other : others_) {
      std::error_code error;
      const auto size = other.file_size(error);
      if (!error) bytes += static_cast<int64_t>(size);
    }
    return bytes;
  }

  void make_folder() {
    std::vector<fs::path> missing;
    std::error_code error;
    for (fs::path path = out_; !path.empty() && !fs::exists(path, error);
         path = path.parent_path()) {
      missing.push_back(path);
    }
    for (auto path = missing.rbegin(); path != missing.rend(); ++path) leftovers_.add(*path);
    fs::create_directories(out_, error);
    if (error) throw_error(ErrorCode::kIo, "{}: can't be made: {}", out_, error.message());
  }

  std::string header() {
    nlohmann::ordered_json header = {{"__metadata__", {{"format", "pt"}}}};
    size_t end = 0;
    for (const RoundedSource& source : plan_.sources) {
      for (const RoundedPart& part : source.parts) {
        header[part.name] = {
            {"dtype", part.type}, {"shape", part.shape}, {"data_offsets", {end, end + part.bytes}}};
        end += part.bytes;
      }
    }
    plan_.report.bytes = static_cast<int64_t>(end);
    std::string text = header.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');
    uint64_t size = text.size();
    std::string all(sizeof size, '\0');
    std::memcpy(all.data(), &size, sizeof size);
    return all + text;
  }

  void write_weights(int num_threads, ReadBytes& read) {
    const std::string path = out_ + "/model.safetensors";
    NewFile file(path);
    const std::string head = header();
    file.write(head.data(), head.size());
    for (const RoundedSource& source : plan_.sources) {
      const std::span<const std::byte> bytes = source.bytes();
      source.file->check_size();
      if (source.format) {
        for (const std::vector<char>& part : round_matrix(source, num_threads, read)) {
          file.write(part.data(), part.size());
        }
      }
      for (size_t i = 0; !source.format && i < bytes.size(); i += kBytesAtOnce) {
        const size_t size = std::min(kBytesAtOnce, bytes.size() - i);
        file.write(bytes.data() + i, size);
        read.add(static_cast<int64_t>(size));
      }
      source.file->release(bytes.data(), bytes.size());
    }
    leftovers_.add(path);
    file.take_place();
  }

  void copy(const fs::path& from, ReadBytes& read) {
    const fs::path to = fs::path(out_) / from.filename();
    std::error_code ignored;
    if (fs::exists(to, ignored)) {
      throw_error(ErrorCode::kIo, "{}: is there already, where {} is to be copied to", to.string(),
                  from.string());
    }
    const File source(std::fopen(from.c_str(), "rbe"));
    const auto check = [&](bool is_read) {
      if (is_read) return;
      throw_error(ErrorCode::kIo, "{}: can't be read: {}", from.string(), std::strerror(errno));
    };
    check(source != nullptr);
    NewFile file(to);
    std::vector<char> bytes(kBytesAtOnce);
    while (const size_t size = std::fread(bytes.data(), 1, bytes.size(), source.get())) {
      file.write(bytes.data(), size);
      read.add(static_cast<int64_t>(size));
    }
    check(std::ferror(source.get()) == 0);
    leftovers_.add(to);
    file.take_place();
  }

  const std::vector<fs::directory_entry> others_;
  const std::string out_;
  RoundedPlan plan_;
  Leftovers leftovers_;
};

void check_is_free(const std::string& out) {
  std::error_code error;
  if (!fs::exists(out, error)) return;
  const bool is_folder = fs::is_directory(out, error);
  if (is_folder && fs::is_empty(out, error)) return;
  std::string draft;
  if (is_folder) {
    for (const auto& entry : fs::directory_iterator(out, error)) {
      if (entry.path().extension() == ".tmp") draft = entry.path().filename();
    }
  }
  if (draft.empty()) {
    throw_error(ErrorCode::kInvalidArgument,
                "{}: is there already and not an empty folder; remove it or name another", out);
  }
  throw_error(ErrorCode::kInvalidArgument,
              "{}: holds {}, which is left of a run that was killed; remove the folder, or name "
              "another",
              out, printable(draft));
}

}  // namespace

RoundedFolder write_rounded_folder(const std::string& model, const std::string& out,
                                   RoundedFormat format, int num_threads,
                                   const std::function<void(int64_t, int64_t)>& on_bytes) {
  RoundedPlan plan = plan_rounded_folder(model, format);
  check_is_free(out);
  return FolderWriter(model, out, std::move(plan)).write(num_threads, on_bytes);
}

}  // namespace nanovllm

#include "models/weight_loader.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <mutex>
#include <numeric>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/signals.h"

namespace nanovllm {
namespace {

// A part of a table that one thread uploads at a time.
constexpr int64_t kElementsOfTableJob = int64_t{1} << 23;

// All of a tensor; a vector as a column.
HostMatrix whole(const StoredTensor& stored) {
  const int64_t cols = stored.shape.size() == 1 ? 1 : stored.shape[1];
  return {.data = stored.data,
          .dtype = stored.dtype,
          .rows = stored.shape[0],
          .cols = cols,
          .row_stride = cols,
          .interleaved_head = stored.interleaved_head,
          .decoder = stored.decoder};
}

// Elements [begin, end) of a vector.
std::vector<float> read_vector(const StoredTensor& stored, int64_t begin, int64_t end) {
  std::vector<float> values(static_cast<size_t>(end - begin));
  const HostMatrix column = whole(stored);
  for (int64_t i = begin; i < end; ++i) {
    read_elements(column, i, 0, 1, DType::kFloat32, &values[static_cast<size_t>(i - begin)]);
  }
  return values;
}

// Tensors that old checkpoints carry and no model reads.
bool is_harmless(const std::string& name, bool tied) {
  const std::string_view buffer = "rotary_emb.inv_freq";
  if (name.size() >= buffer.size() &&
      name.compare(name.size() - buffer.size(), buffer.size(), buffer) == 0) {
    return true;
  }
  return tied && name == "lm_head.weight";
}

// Runs all jobs, the largest first so that no thread ends with a long one alone. Throws what the
// first failing job threw, after the threads have ended.
template <typename Job>
void run_in_parallel(std::vector<Job>& jobs, int max_threads, const std::function<void()>& beside) {
  std::stable_sort(jobs.begin(), jobs.end(),
                   [](const Job& a, const Job& b) { return a.size > b.size; });
  std::atomic<size_t> next{0};
  std::mutex mutex;
  std::exception_ptr failure;
  const auto guarded = [&](const auto& call) {
    try {
      call();
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
      next = jobs.size();
    }
  };
  const auto work = [&] {
    for (size_t i = next++; i < jobs.size(); i = next++) guarded(jobs[i].run);
  };
  // More threads than this only wait for memory.
  constexpr size_t kMaxThreads = 16;
  const size_t num_threads = std::min({jobs.size(), static_cast<size_t>(max_threads), kMaxThreads});
  std::vector<std::thread> threads;
  try {
    const SignalsBlocked in_threads;
    for (size_t i = 1; i < num_threads; ++i) threads.emplace_back(work);
  } catch (const std::system_error&) {
    // The system gives no more threads: those there are do it.
  }
  guarded(beside);
  work();
  for (std::thread& thread : threads) thread.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace

HostMatrix WeightLoader::find(const MatrixSlice& slice) {
  const std::string name = slice.name + ".weight";
  HostMatrix matrix = whole(context_.weights.get(name, {slice.rows, slice.cols}));
  if (counted_.insert(name).second) num_parameters_ += slice.rows * slice.cols;
  matrix.rows = slice.row_end - slice.row_begin;
  matrix.cols = slice.col_end - slice.col_begin;
  matrix.first_row = slice.row_begin;
  matrix.first_col = slice.col_begin;
  return matrix;
}

std::vector<float> WeightLoader::find_bias(const std::vector<MatrixSlice>& slices) {
  std::vector<float> bias;
  for (const MatrixSlice& slice : slices) {
    const StoredTensor stored = context_.weights.get(slice.name + ".bias", {slice.rows});
    num_parameters_ += slice.rows;
    std::vector<float> values = read_vector(stored, slice.row_begin, slice.row_end);
    if (slice.col_begin != 0) values.assign(values.size(), 0.0f);
    bias.insert(bias.end(), values.begin(), values.end());
  }
  weight_bytes_ += static_cast<int64_t>(bias.size() * sizeof(float));
  return bias;
}

void WeightLoader::linear(std::unique_ptr<LinearWeight>* out, std::vector<MatrixSlice> slices,
                          bool bias) {
  std::vector<HostMatrix> pieces;
  int64_t size = 0;
  for (const MatrixSlice& slice : slices) {
    pieces.push_back(find(slice));
    size += pieces.back().rows * pieces.back().cols;
  }
  linears_.push_back(out);
  std::vector<float> bias_values = bias ? find_bias(slices) : std::vector<float>();
  jobs_.push_back({size, [this, out, slices = std::move(slices), pieces = std::move(pieces),
                          values = std::move(bias_values)] {
                     for (const MatrixSlice& slice : slices) {
                       context_.weights.check_size(slice.name + ".weight");
                     }
                     *out = context_.backend.make_linear(
                         pieces, values.empty() ? nullptr : values.data(), context_.dtype);
                     for (const MatrixSlice& slice : slices) {
                       context_.weights.release(slice.name + ".weight");
                     }
                   }});
}

void WeightLoader::vector(const float** out, const std::string& name, int64_t size) {
  const StoredTensor stored = context_.weights.get(name + ".weight", {size});
  num_parameters_ += size;
  weight_bytes_ += size * static_cast<int64_t>(sizeof(float));
  constant(out, read_vector(stored, 0, size));
}

void WeightLoader::constant(const float** out, std::vector<float> values) {
  vectors_.push_back({out, std::move(values)});
}

void WeightLoader::table(EmbeddingTable* out, const MatrixSlice& slice) {
  NANOVLLM_CHECK(slice.col_begin == 0 && slice.col_end == slice.cols);
  out->host = find(slice);
  out->rows = Tensor(nullptr, context_.dtype, {out->host.rows, out->host.cols});
  const std::string name = slice.name + ".weight";
  if (context_.backend.is_cpu()) {
    const int64_t bytes = context_.weights.get(name, {slice.rows, slice.cols}).bytes;
    weight_bytes_ += bytes / slice.rows * out->host.rows;
  } else {
    weight_bytes_ += static_cast<int64_t>(out->rows.bytes());
    tables_.push_back({out, name});
  }
}

void WeightLoader::linear_of_table(std::unique_ptr<LinearWeight>* out, const MatrixSlice& slice,
                                   const EmbeddingTable& table) {
  table_products_.push_back({out, slice, &table});
}

void WeightLoader::refuse_surplus() const {
  std::vector<std::string> surplus = context_.weights.unused();
  std::erase_if(surplus, [&](const std::string& name) {
    return is_harmless(name, context_.config.tie_word_embeddings);
  });
  if (surplus.empty()) return;
  const size_t count = surplus.size();
  const size_t shown = std::min<size_t>(count, 3);
  surplus.resize(shown);
  throw_error(ErrorCode::kCorruptData,
              "{}: {} tensor{} that a {} of this configuration does not have: {}{}",
              context_.config.model_dir, count, count == 1 ? "" : "s", context_.config.architecture,
              fmt::join(surplus, ", "), count > shown ? ", ..." : "");
}

void WeightLoader::upload_vectors(WeightStorage& storage) {
  constexpr size_t kAlignment = 64 / sizeof(float);
  const auto padded = [](const Vector& v) {
    return (v.values.size() + kAlignment - 1) / kAlignment * kAlignment;
  };
  const size_t total =
      std::accumulate(vectors_.begin(), vectors_.end(), size_t{0},
                      [&](size_t sum, const Vector& v) { return sum + padded(v); });
  storage.push_back(context_.backend.allocate(total * sizeof(float)));
  auto* memory = static_cast<float*>(storage.back()->data());
  for (Vector& vector : vectors_) {
    context_.backend.upload(memory, vector.values.data(), vector.values.size() * sizeof(float));
    *vector.out = memory;
    memory += padded(vector);
  }
}

// Makes room for the tables and adds jobs that fill it, a part each.
void WeightLoader::add_table_jobs(WeightStorage& storage) {
  for (const Table& table : tables_) {
    storage.push_back(context_.backend.allocate(table.out->rows.bytes()));
    table.out->rows.data = storage.back()->data();
    const int64_t rows = table.out->host.rows, cols = table.out->host.cols;
    const int64_t rows_of_job = std::max<int64_t>(1, kElementsOfTableJob / cols);
    for (int64_t row = 0; row < rows; row += rows_of_job) {
      const int64_t end = std::min(rows, row + rows_of_job);
      jobs_.push_back(
          {(end - row) * cols, [this, &table, row, end] { upload_rows(table, row, end); }});
    }
  }
}

void WeightLoader::upload_rows(const Table& entry, int64_t begin, int64_t end) const {
  const Tensor& table = entry.out->rows;
  const HostMatrix& source = entry.out->host;
  context_.weights.check_size(entry.name);
  if (source.is_contiguous() && source.dtype == table.dtype) {
    const Tensor part = table.slice_rows(begin, end);
    context_.backend.upload(part.data, source.row_data(begin), part.bytes());
    return;
  }
  // Converted in pieces that stay in the cache.
  const int64_t rows_at_once = std::max<int64_t>(1, (int64_t{1} << 18) / source.cols);
  const int64_t row_bytes = source.cols * static_cast<int64_t>(size_of(table.dtype));
  std::vector<char> converted;
  for (int64_t row = begin; row < end; row += rows_at_once) {
    const Tensor part = table.slice_rows(row, std::min(end, row + rows_at_once));
    converted.resize(part.bytes());
    for (int64_t r = 0; r < part.rows(); ++r) {
      read_elements(source, row + r, 0, source.cols, table.dtype, converted.data() + r * row_bytes);
    }
    context_.backend.upload(part.data, converted.data(), part.bytes());
  }
}

WeightStorage WeightLoader::finish() {
  refuse_surplus();
  WeightStorage storage;
  add_table_jobs(storage);
  for (const TableProduct& product : table_products_) {
    *product.out = context_.backend.make_linear_of_table(product.table->rows);
    if (*product.out == nullptr) linear(product.out, {product.slice}, false);
  }
  run_in_parallel(jobs_, context_.num_loading_threads, [&] { upload_vectors(storage); });
  for (const auto* linear : linears_) weight_bytes_ += (*linear)->bytes;
  for (const Table& table : tables_) context_.weights.release(table.name);
  context_.backend.finish_loading();
  return storage;
}

}  // namespace nanovllm

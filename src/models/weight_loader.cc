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

float element(const void* data, DType dtype, int64_t i) {
  if (dtype == DType::kFloat32) return static_cast<const float*>(data)[i];
  const uint16_t bits = static_cast<const uint16_t*>(data)[i];
  return dtype == DType::kBFloat16 ? to_float(BFloat16{bits}) : half_to_float(bits);
}

const void* advance(const HostMatrix& matrix, int64_t elements) {
  return static_cast<const char*>(matrix.data) +
         elements * static_cast<int64_t>(size_of(matrix.dtype));
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
  const StoredTensor stored = context_.weights.get(name, {slice.rows, slice.cols});
  if (counted_.insert(name).second) num_parameters_ += slice.rows * slice.cols;
  const HostMatrix whole{stored.data, stored.dtype, slice.rows, slice.cols, slice.cols};
  return {advance(whole, slice.row_begin * slice.cols + slice.col_begin), stored.dtype,
          slice.row_end - slice.row_begin, slice.col_end - slice.col_begin, slice.cols};
}

std::vector<float> WeightLoader::find_bias(const std::vector<MatrixSlice>& slices) {
  std::vector<float> bias;
  for (const MatrixSlice& slice : slices) {
    const StoredTensor stored = context_.weights.get(slice.name + ".bias", {slice.rows});
    num_parameters_ += slice.rows;
    for (int64_t r = slice.row_begin; r < slice.row_end; ++r) {
      bias.push_back(slice.col_begin == 0 ? element(stored.data, stored.dtype, r) : 0.0f);
    }
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
  std::vector<float> values(static_cast<size_t>(size));
  for (int64_t i = 0; i < size; ++i) values[i] = element(stored.data, stored.dtype, i);
  constant(out, std::move(values));
}

void WeightLoader::constant(const float** out, std::vector<float> values) {
  vectors_.push_back({out, std::move(values)});
}

void WeightLoader::table(Tensor* out, const MatrixSlice& slice) {
  NANOVLLM_CHECK(slice.col_begin == 0 && slice.col_end == slice.cols);
  const HostMatrix source = find(slice);
  *out = Tensor(nullptr, context_.dtype, {source.rows, source.cols});
  weight_bytes_ += static_cast<int64_t>(out->bytes());
  if (context_.backend.is_cpu() && source.dtype == context_.dtype) {
    out->data = const_cast<void*>(source.data);
  } else {
    tables_.push_back({out, source, slice.name + ".weight"});
  }
}

void WeightLoader::linear_of_table(std::unique_ptr<LinearWeight>* out, const MatrixSlice& slice,
                                   const Tensor& table) {
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
              "{}: {} tensor{} that a {} with this config.json does not have: {}{}",
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
    storage.push_back(context_.backend.allocate(table.out->bytes()));
    table.out->data = storage.back()->data();
    const int64_t rows = table.source.rows, cols = table.source.cols;
    const int64_t rows_of_job = std::max<int64_t>(1, kElementsOfTableJob / cols);
    for (int64_t row = 0; row < rows; row += rows_of_job) {
      const int64_t end = std::min(rows, row + rows_of_job);
      jobs_.push_back(
          {(end - row) * cols, [this, &table, row, end] { upload_rows(table, row, end); }});
    }
  }
}

void WeightLoader::upload_rows(const Table& entry, int64_t begin, int64_t end) const {
  const Tensor& table = *entry.out;
  const HostMatrix& source = entry.source;
  context_.weights.check_size(entry.name);
  if (source.dtype == table.dtype) {
    const Tensor part = table.slice_rows(begin, end);
    context_.backend.upload(part.data, advance(source, begin * source.cols), part.bytes());
    return;
  }
  // Converted in pieces that stay in the cache.
  const int64_t rows_at_once = std::max<int64_t>(1, (int64_t{1} << 18) / source.cols);
  std::vector<char> converted;
  for (int64_t row = begin; row < end; row += rows_at_once) {
    const Tensor part = table.slice_rows(row, std::min(end, row + rows_at_once));
    converted.resize(part.bytes());
    for (int64_t i = 0; i < part.num_elements(); ++i) {
      const float value = element(advance(source, row * source.cols), source.dtype, i);
      const BFloat16 rounded = to_bfloat16(value);
      if (table.dtype == DType::kFloat32) {
        std::memcpy(converted.data() + i * 4, &value, 4);
      } else {
        std::memcpy(converted.data() + i * 2, &rounded, 2);
      }
    }
    context_.backend.upload(part.data, converted.data(), part.bytes());
  }
}

WeightStorage WeightLoader::finish() {
  refuse_surplus();
  WeightStorage storage;
  add_table_jobs(storage);
  for (const TableProduct& product : table_products_) {
    *product.out = context_.backend.make_linear_of_table(*product.table);
    if (*product.out == nullptr) linear(product.out, {product.slice}, false);
  }
  run_in_parallel(jobs_, context_.num_loading_threads, [&] { upload_vectors(storage); });
  for (const auto* linear : linears_) weight_bytes_ += (*linear)->bytes;
  for (const Table& table : tables_) context_.weights.release(table.name);
  context_.backend.finish_loading();
  return storage;
}

}  // namespace nanovllm

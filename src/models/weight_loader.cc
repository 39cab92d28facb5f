#include "models/weight_loader.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/check.h"

namespace nanovllm {
namespace {

// A part of a table that one thread uploads at a time.
constexpr int64_t kElementsOfTableJob = int64_t{1} << 23;

// All of a tensor: a vector as a column, a stack of matrices as one.
HostMatrix whole(const StoredTensor& stored) {
  const int64_t cols = stored.shape.size() == 1 ? 1 : stored.shape.back();
  return {.data = stored.data,
          .dtype = stored.dtype,
          .rows = stored.shape[0] * (stored.shape.size() == 3 ? stored.shape[1] : 1),
          .cols = cols,
          .row_stride = cols,
          .interleaved_head = stored.interleaved_head,
          .interleaved_rows = stored.interleaved_head,
          .decoder = stored.decoder,
          .source = stored.source};
}

// Which of the layers after the model's own, that predict further tokens, a tensor is of; -1 = of
// none.
int prediction_layer_of(const std::string& name, const ModelConfig& config) {
  for (int i = 0; i < config.num_prediction_layers; ++i) {
    const int layer = config.num_hidden_layers + i;
    for (const std::string& prefix :
         {fmt::format("model.layers.{}.", layer), fmt::format("blk.{}.", layer),
          fmt::format("mtp.layers.{}.", i)}) {
      if (name.starts_with(prefix)) return i;
    }
  }
  return config.num_prediction_layers > 0 && name.starts_with("mtp.") ? 0 : -1;
}

// Tensors that old checkpoints have and no model reads.
bool is_harmless(const std::string& name, bool tied) {
  return name.ends_with("rotary_emb.inv_freq") || (tied && name == "lm_head.weight");
}

}  // namespace

HostMatrix WeightLoader::find(const MatrixSlice& slice) {
  const std::string name = slice.name + ".weight";
  std::vector<int64_t> shape = {slice.rows, slice.cols};
  if (slice.stack_size > 0) shape.insert(shape.begin(), slice.stack_size);
  HostMatrix matrix = whole(context_.weights.get(name, shape));
  if (counted_.insert(name).second) num_parameters_ += matrix.rows * matrix.cols;
  matrix.rows = slice.row_end - slice.row_begin;
  matrix.cols = slice.col_end - slice.col_begin;
  matrix.first_row = slice.stack_index * slice.rows + slice.row_begin;
  matrix.first_col = slice.col_begin;
  if (slice.interleaved_head > 0) {
    matrix.interleaved_head = slice.interleaved_head;
    matrix.interleaved_rows = slice.interleaved_rows;
  }
  return matrix;
}

void WeightLoader::take_runs(HostMatrix& matrix, const MatrixSlice& slice) {
  HostMatrix all = matrix;
  all.rows = slice.rows;
  all.cols = slice.cols;
  all.first_row = all.first_col = 0;
  runs_.push_back(std::make_unique<ColumnRuns>(all, slice.col_begin,
                                               slice.col_end - slice.col_begin, slice.run_stride));
  matrix.data = nullptr;
  matrix.decoder = runs_.back().get();
  matrix.cols = matrix.row_stride = (slice.col_end - slice.col_begin) * slice.num_runs;
  matrix.first_col = 0;
}

HostMatrix WeightLoader::find_coded(const MatrixSlice& slice,
                                    std::optional<RoundedFormat> rounding) {
  HostMatrix matrix = find(slice);
  const bool has_codes = matrix.decoder != nullptr && matrix.decoder->code_format() != nullptr;
  if (rounding && !has_codes && RoundedMatrix::can_round(*rounding, slice.cols)) {
    std::unique_ptr<RoundedMatrix>& rounded = rounded_[{slice.name, *rounding}];
    if (rounded == nullptr) {
      const RoundedMatrix::Numbers numbers = {
          .data = matrix.data,
          .dtype = matrix.dtype,
          .decoder = matrix.decoder,
          .rows = slice.rows * std::max<int64_t>(slice.stack_size, 1),
          .cols = slice.cols};
      rounded = std::make_unique<RoundedMatrix>(
          fmt::format("{}: tensor {}.weight", context_.config.model_dir, slice.name), numbers,
          *rounding);
    }
    matrix.data = nullptr;
    matrix.decoder = rounded.get();
  }
  if (slice.num_runs > 1) take_runs(matrix, slice);
  if (context_.keeps_codes && context_.backend.traits().computes_with_codes &&
      matrix.decoder != nullptr) {
    matrix.codes = matrix.decoder->code_format();
  }
  return matrix;
}

Matrix WeightLoader::exact_matrix(const MatrixSlice& slice, bool bias) {
  Matrix matrix = {.pieces = {find(slice)}, .bias = {}};
  if (bias) matrix.bias = bias_of(slice, matrix.pieces.back());
  weight_bytes_ += static_cast<int64_t>(matrix.bias.size() * sizeof(float));
  return matrix;
}

Matrix WeightLoader::matrix(const std::vector<MatrixSlice>& slices, bool bias) {
  Matrix matrix;
  for (const MatrixSlice& slice : slices) {
    matrix.pieces.push_back(find_coded(slice, context_.rounding));
    if (!bias) continue;
    const std::vector<float> values = bias_of(slice, matrix.pieces.back());
    matrix.bias.insert(matrix.bias.end(), values.begin(), values.end());
  }
  weight_bytes_ += static_cast<int64_t>(matrix.bias.size() * sizeof(float));
  return matrix;
}

void WeightLoader::look_for(const std::vector<MatrixSlice>& slices, bool bias) {
  for (const MatrixSlice& slice : slices) {
    const HostMatrix weight = find(slice);
    if (bias) bias_of(slice, weight);
  }
}

std::vector<float> WeightLoader::bias_of(const MatrixSlice& slice, const HostMatrix& weight) {
  std::string name = slice.name + "_bias";
  if (!context_.weights.contains(name)) name = slice.name + ".bias";
  std::vector<int64_t> shape = {slice.rows};
  if (slice.stack_size > 0) shape.insert(shape.begin(), slice.stack_size);
  HostMatrix bias = whole(context_.weights.get(name, shape));
  bias.interleaved_head = 0;  // its elements are in the order of the weight's rows
  if (counted_.insert(name).second) num_parameters_ += bias.rows * bias.cols;
  std::vector<float> values(static_cast<size_t>(weight.rows));
  for (int64_t i = 0; i < weight.rows; ++i) {
    const int64_t at = weight.file_row(i);
    read_elements(bias, at / bias.cols, at % bias.cols, 1, DType::kFloat32,
                  &values[static_cast<size_t>(i)]);
  }
  if (slice.col_begin != 0) values.assign(values.size(), 0.0f);
  return values;
}

std::vector<float> WeightLoader::values(const std::string& name,
                                        const std::vector<int64_t>& shape) {
  const HostMatrix matrix = whole(context_.weights.get(name, shape));
  std::vector<float> values(static_cast<size_t>(matrix.rows * matrix.cols));
  for (int64_t r = 0; r < matrix.rows; ++r) {
    read_elements(matrix, r, 0, matrix.cols, DType::kFloat32,
                  &values[static_cast<size_t>(r * matrix.cols)]);
  }
  num_parameters_ += std::ssize(values);
  weight_bytes_ += std::ssize(values) * static_cast<int64_t>(sizeof(float));
  return values;
}

bool WeightLoader::is_packed(const EmbeddingTable& table) const {
  return table.host.codes != nullptr && !context_.backend.traits().shares_host_memory;
}

void WeightLoader::table(EmbeddingTable* out, const MatrixSlice& slice) {
  NANOVLLM_CHECK(slice.col_begin == 0 && slice.col_end == slice.cols);
  out->host = find_coded(slice, std::nullopt);
  out->rows = Tensor(nullptr, context_.dtype, {out->host.rows, out->host.cols});
  if (context_.backend.traits().shares_host_memory) {
    const int64_t bytes =
        context_.weights.get(slice.name + ".weight", {slice.rows, slice.cols}).bytes;
    mapped_bytes_ += bytes / slice.rows * out->host.rows;
  } else if (is_packed(*out)) {
    products_.push_back({&out->packed, {.pieces = {out->host}, .bias = {}}, nullptr});
  } else {
    weight_bytes_ += static_cast<int64_t>(out->rows.bytes());
    tables_.push_back(out);
  }
}

void WeightLoader::linear(std::shared_ptr<const LinearWeight>* out, const MatrixSlice& slice,
                          const EmbeddingTable* tied) {
  const auto rounding = context_.rounding ? std::optional(RoundedFormat::kInt8) : std::nullopt;
  Matrix matrix = {.pieces = {find_coded(slice, rounding)}, .bias = {}};
  // One that is rounded has other numbers than the table.
  if (tied != nullptr && matrix.pieces[0] != tied->host) tied = nullptr;
  products_.push_back({out, std::move(matrix), tied});
}

int WeightLoader::num_prediction_layers() const {
  std::set<int> layers;
  for (const std::string& name : context_.weights.unused()) {
    layers.insert(prediction_layer_of(name, context_.config));
  }
  layers.erase(-1);
  return static_cast<int>(layers.size());
}

void WeightLoader::refuse_surplus() const {
  std::vector<std::string> surplus = context_.weights.unused();
  std::erase_if(surplus, [&](const std::string& name) {
    return is_harmless(name, context_.config.tie_word_embeddings) ||
           prediction_layer_of(name, context_.config) >= 0;
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

// Makes room for the tables and adds jobs that fill it, a part each.
void WeightLoader::add_table_jobs(WeightStorage& storage) {
  for (EmbeddingTable* table : tables_) {
    storage.push_back(context_.backend.allocate(table->rows.bytes()));
    table->rows.data = storage.back()->data();
    const int64_t rows = table->host.rows, cols = table->host.cols;
    const int64_t rows_of_job = std::max<int64_t>(1, kElementsOfTableJob / cols);
    for (int64_t row = 0; row < rows; row += rows_of_job) {
      const int64_t end = std::min(rows, row + rows_of_job);
      jobs_.push_back(
          {(end - row) * cols, [this, table, row, end] { upload_rows(*table, row, end); }});
    }
  }
}

void WeightLoader::upload_rows(const EmbeddingTable& embedding, int64_t begin, int64_t end) const {
  const Tensor& table = embedding.rows;
  const HostMatrix& source = embedding.host;
  source.source->check_size();
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

WeightStorage WeightLoader::finish(const std::function<void()>& beside) {
  refuse_surplus();
  WeightStorage storage;
  add_table_jobs(storage);
  for (const Product& product : products_) {
    std::shared_ptr<const LinearWeight>& out = *product.out;
    if (product.tied != nullptr && is_packed(*product.tied)) continue;  // another product's weight
    if (product.tied != nullptr) out = context_.backend.make_linear_of_table(product.tied->rows);
    if (out != nullptr) continue;
    const Matrix& matrix = product.matrix;
    jobs_.push_back({matrix.in_features() * matrix.out_features(), [this, &out, &matrix] {
                       out = pack_matrix(context_.backend, matrix, context_.dtype);
                     }});
  }
  run_in_parallel(std::move(jobs_), context_.num_loading_threads, beside);
  for (const Product& product : products_) {
    if (*product.out != nullptr) {
      weight_bytes_ += (*product.out)->bytes;
    } else {
      *product.out = product.tied->packed;
    }
  }
  for (const EmbeddingTable* table : tables_) table->host.source->release();
  context_.backend.finish_loading();
  return storage;
}

}  // namespace nanovllm

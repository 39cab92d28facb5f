// Finds the weights of a model in a checkpoint: those of its layers as data for Backend::compile,
// those of the embedding and the head as they will be on the device.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/parallel_jobs.h"
#include "models/column_runs.h"
#include "models/model.h"

namespace nanovllm {

// A part of a matrix NAME.weight [rows, cols]: all of it, or one rank's share.
struct MatrixSlice {
  std::string name;
  // Of the whole matrix.
  int64_t rows = 0;
  int64_t cols = 0;
  // Of the part.
  int64_t row_begin = 0;
  int64_t row_end = 0;
  int64_t col_begin = 0;
  int64_t col_end = 0;
  // If num_runs > 1, the part has so many runs of columns like [col_begin, col_end), each
  // `run_stride` columns behind the one before.
  int64_t num_runs = 1;
  int64_t run_stride = 0;
  // If stack_size > 0, NAME.weight is [stack_size, rows, cols], and the matrix is number
  // stack_index of it.
  int64_t stack_size = 0;
  int64_t stack_index = 0;
  // See HostMatrix. For safetensors; a GGUF file says it itself.
  int64_t interleaved_head = 0;
  int64_t interleaved_rows = 0;

  static MatrixSlice whole(std::string name, int64_t rows, int64_t cols) {
    return {std::move(name), rows, cols, 0, rows, 0, cols};
  }
};

// The memory that loaded tables lie in. It must live as long as the model.
using WeightStorage = std::vector<std::unique_ptr<Buffer>>;

// Each method checks names and shapes immediately. Throws what WeightStore::get throws.
class WeightLoader {
 public:
  explicit WeightLoader(const ModelContext& context) : context_(context) {}

  // The slices, stacked along their rows, and NAME.bias (or NAME_bias) of each if `bias`. If ranks
  // split the columns, their products are added up, so only the rank with the first columns gets
  // the bias, the others zeros.
  Matrix matrix(const std::vector<MatrixSlice>& slices, bool bias);
  // The same of a small one on which much depends, such as a router: in numbers, never rounded.
  Matrix exact_matrix(const MatrixSlice& slice, bool bias);
  // Of a matrix that another rank holds, only whether it is there.
  void look_for(const std::vector<MatrixSlice>& slices, bool bias);
  // The tensor NAME, in float32.
  std::vector<float> values(const std::string& name, const std::vector<int64_t>& shape);
  std::vector<float> values(const std::string& name, int64_t size) {
    return values(name, std::vector<int64_t>{size});
  }

  // What the following return is filled in by finish().
  //
  // Whole rows of NAME.weight, in the type of the activations, or packed where they have codes. If
  // the backend reads host memory, the table stays in the mapped file, in the file's format.
  void table(EmbeddingTable* out, const MatrixSlice& slice);
  // The weight of a product. tied: table() puts the same slice there, and if the backend can, the
  // product uses that memory. A head that is rounded is int8 in any format.
  void linear(std::shared_ptr<const LinearWeight>* out, const MatrixSlice& slice,
              const EmbeddingTable* tied = nullptr);
  // Throws Error(kCorruptData) if the checkpoint has tensors that nobody asked for (except some
  // that are known to be harmless). Then loads on several threads, and meanwhile calls `beside` on
  // this one.
  WeightStorage finish(const std::function<void()>& beside);

  // Layers behind the model's own that predict further tokens: the checkpoint has them, nobody
  // asked for them.
  int num_prediction_layers() const;
  int64_t num_parameters() const { return num_parameters_; }  // of the whole model
  // On this rank, after finish(). Does not count the weights that matrix() gave, but their biases.
  int64_t weight_bytes() const { return weight_bytes_; }
  int64_t mapped_bytes() const { return mapped_bytes_; }  // of a table that stays in the file

 private:
  struct Product {
    std::shared_ptr<const LinearWeight>* out;
    Matrix matrix;
    const EmbeddingTable* tied;
  };

  HostMatrix find(const MatrixSlice& slice);
  // Of a product: in codes where it has some or is to be rounded, and in runs of columns.
  HostMatrix find_coded(const MatrixSlice& slice, std::optional<RoundedFormat> rounding);
  // Leaves of a matrix the slice's runs of columns.
  void take_runs(HostMatrix& matrix, const MatrixSlice& slice);
  std::vector<float> bias_of(const MatrixSlice& slice, const HostMatrix& weight);
  void refuse_surplus() const;
  // Whether finish() packs the table as the weight of a product.
  bool is_packed(const EmbeddingTable& table) const;
  void add_table_jobs(WeightStorage& storage);
  void upload_rows(const EmbeddingTable& embedding, int64_t begin, int64_t end) const;

  const ModelContext& context_;
  std::vector<Job> jobs_;
  std::vector<EmbeddingTable*> tables_;
  std::vector<Product> products_;
  // What refers to these is used up when finish() returns. By name and format:
  std::map<std::pair<std::string, RoundedFormat>, std::unique_ptr<RoundedMatrix>> rounded_;
  std::vector<std::unique_ptr<ColumnRuns>> runs_;
  std::set<std::string> counted_;  // names of tensors; a tied one is asked for twice
  int64_t num_parameters_ = 0;
  int64_t weight_bytes_ = 0;
  int64_t mapped_bytes_ = 0;
};

}  // namespace nanovllm

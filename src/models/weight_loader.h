// Finds the weights of a model in a checkpoint: those of its layers as data for the backend's
// compile(), those of the embedding and the head on the device.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/parallel_jobs.h"
#include "models/model.h"

namespace nanovllm {

// A part of a matrix NAME.weight [rows, cols]: all of it, or one rank's share.
struct MatrixSlice {
  std::string name;
  int64_t rows = 0;  // of the whole matrix
  int64_t cols = 0;
  int64_t row_begin = 0;  // of the part
  int64_t row_end = 0;
  int64_t col_begin = 0;
  int64_t col_end = 0;
  // NAME.weight is [stack_size, rows, cols], and the matrix is this one of it; 0 = a matrix alone.
  int64_t stack_size = 0;
  int64_t stack_index = 0;
  int64_t interleaved_head = 0;  // see HostMatrix; where the checkpoint's format does not tell
  int64_t interleaved_rows = 0;

  static MatrixSlice whole(std::string name, int64_t rows, int64_t cols) {
    return {std::move(name), rows, cols, 0, rows, 0, cols};
  }
};

// What weights need besides themselves; lives as long as the model.
using WeightStorage = std::vector<std::unique_ptr<Buffer>>;

// Each method checks names and shapes at once. Throws Error as WeightStore::get does.
class WeightLoader {
 public:
  explicit WeightLoader(const ModelContext& context) : context_(context) {}

  // The slices, stacked along their rows, and NAME.bias (or NAME_bias) of each if asked for. A bias
  // belongs to whole columns: where columns are split, only the rank that has the first ones adds
  // it.
  Matrix matrix(const std::vector<MatrixSlice>& slices, bool bias);
  // NAME.weight [size] + offset, in float32.
  std::vector<float> vector(const std::string& name, int64_t size, float offset = 0);
  // A tensor [size] of any name, in float32.
  std::vector<float> values(const std::string& name, int64_t size);

  // The following are filled in by finish().
  // A table of act dtype, whole rows. Where a backend reads host memory it stays in the mapped
  // file, in its format.
  void table(EmbeddingTable* out, const MatrixSlice& slice);
  void linear(std::unique_ptr<LinearWeight>* out, const MatrixSlice& slice);
  // The slice that table() was asked to put into `table`, without a copy where the backend can.
  void linear_of_table(std::unique_ptr<LinearWeight>* out, const MatrixSlice& slice,
                       const EmbeddingTable& table);
  // Refuses tensors nobody asked for, then loads on several threads while it calls `beside`.
  WeightStorage finish(const std::function<void()>& beside);

  int64_t num_parameters() const { return num_parameters_; }  // of the whole model
  // On this rank, once loaded, but the matrices that matrix() gave.
  int64_t weight_bytes() const { return weight_bytes_; }

 private:
  struct TableProduct {
    std::unique_ptr<LinearWeight>* out;
    MatrixSlice slice;
    const EmbeddingTable* table;
  };

  HostMatrix find(const MatrixSlice& slice);
  std::vector<float> bias_of(const MatrixSlice& slice, const HostMatrix& weight);
  void refuse_surplus() const;
  void add_table_jobs(WeightStorage& storage);
  void upload_rows(const EmbeddingTable& embedding, int64_t begin, int64_t end) const;

  const ModelContext& context_;
  std::vector<Job> jobs_;
  std::vector<const std::unique_ptr<LinearWeight>*> linears_;
  std::vector<EmbeddingTable*> tables_;
  std::vector<TableProduct> table_products_;
  std::set<std::string> counted_;  // tied tensors are asked for twice
  int64_t num_parameters_ = 0;
  int64_t weight_bytes_ = 0;
};

}  // namespace nanovllm

// Turns the tensors of a checkpoint into the weights of a model, in parallel.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

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

  static MatrixSlice whole(std::string name, int64_t rows, int64_t cols) {
    return {std::move(name), rows, cols, 0, rows, 0, cols};
  }
};

// What weights need besides themselves; lives as long as the model.
using WeightStorage = std::vector<std::unique_ptr<Buffer>>;

// Each method checks name and shape at once and does the work in finish(), where the results are
// put where the pointers say. Throws Error as WeightStore::get does.
class WeightLoader {
 public:
  explicit WeightLoader(const ModelContext& context) : context_(context) {}

  // The slices, stacked along their rows, and NAME.bias of each if asked for. A bias belongs to
  // whole columns: where columns are split, only the rank that has the first ones adds it.
  void linear(std::unique_ptr<LinearWeight>* out, std::vector<MatrixSlice> slices, bool bias);
  // NAME.weight [size], as float32 on the device.
  void vector(const float** out, const std::string& name, int64_t size);
  // A table of act dtype, whole rows. On the CPU it stays in the mapped file, in its format.
  void table(EmbeddingTable* out, const MatrixSlice& slice);
  // The slice that table() was asked to put into `table`, without a copy where the backend can.
  void linear_of_table(std::unique_ptr<LinearWeight>* out, const MatrixSlice& slice,
                       const EmbeddingTable& table);
  // Float32 values of our own, on the device.
  void constant(const float** out, std::vector<float> values);

  // Refuses tensors nobody asked for, then loads everything on several threads.
  WeightStorage finish();

  int64_t num_parameters() const { return num_parameters_; }  // of the whole model
  int64_t weight_bytes() const { return weight_bytes_; }      // on this rank, once loaded

 private:
  struct Vector {
    const float** out;
    std::vector<float> values;
  };
  struct Table {
    EmbeddingTable* out;
    std::string name;
  };
  struct TableProduct {
    std::unique_ptr<LinearWeight>* out;
    MatrixSlice slice;
    const EmbeddingTable* table;
  };
  struct Job {
    int64_t size;  // elements
    std::function<void()> run;
  };

  HostMatrix find(const MatrixSlice& slice);
  std::vector<float> find_bias(const std::vector<MatrixSlice>& slices);
  void refuse_surplus() const;
  void upload_vectors(WeightStorage& storage);
  void add_table_jobs(WeightStorage& storage);
  void upload_rows(const Table& entry, int64_t begin, int64_t end) const;

  const ModelContext& context_;
  std::vector<Job> jobs_;
  std::vector<const std::unique_ptr<LinearWeight>*> linears_;
  std::vector<Vector> vectors_;
  std::vector<Table> tables_;
  std::vector<TableProduct> table_products_;
  std::set<std::string> counted_;  // tied tensors are asked for twice
  int64_t num_parameters_ = 0;
  int64_t weight_bytes_ = 0;
};

}  // namespace nanovllm

// The file that a matrix is read from.
#pragma once

namespace nanovllm {

// Of one matrix. Thread-safe.
class MatrixSource {
 public:
  virtual ~MatrixSource() = default;
  // To be called before reading. Throws Error(kCorruptData) when the file has been cut short since
  // it was mapped: reading on would end the process.
  virtual void check_size() const = 0;
  // The matrix has been copied and is not going to be read again soon: its pages stop counting as
  // memory of this process. It stays valid.
  virtual void release() const = 0;
};

}  // namespace nanovllm

// Reading files: mapped, or as one string.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace nanovllm {

// A regular file mapped for reading; empty files map to an empty span. The memory lives as long as
// the object, and reflects what others write to the file meanwhile.
//
// Where somebody cuts the file short, touching what is gone raises SIGBUS. check_size() before a
// part is read turns that into an error but for a file that is cut between the check and the read,
// and for parts that are read in place as long as the model runs (the table of embeddings on the
// CPU). Only a signal handler can tell that, and signals belong to the program: the binary has one
// (cli/file_fault.h).
class MappedFile {
 public:
  // Throws Error: kNotFound, kIo (no permission, not a regular file, out of address space),
  // kCorruptData (a pointer of Git LFS).
  explicit MappedFile(std::string path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  // Throws Error(kCorruptData) when the file has become shorter than what is mapped.
  void check_size() const;
  // Asks the kernel to read the file ahead; returns at once. A file that is cached already costs
  // next to nothing.
  void prefetch() const;
  // Tells the kernel that a part of the file has been read: it no longer counts as memory of this
  // process. Reading it again is allowed and costs a little.
  void release(const void* data, size_t bytes) const;

 private:
  std::string path_;
  int fd_ = -1;  // open as long as the mapping, for check_size()
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// More than any text, template or request needs, and less than memory has.
constexpr int64_t kMaxTextBytes = int64_t{64} << 20;

// The whole of a regular file, without a byte order mark. Throws Error: kNotFound, kIo,
// kCorruptData (longer than max_bytes, a pointer of Git LFS).
std::string read_text_file(const std::string& path, int64_t max_bytes = kMaxTextBytes);

// Only a name that does not exist is absent: throws Error(kNotFound, kIo) for a link that leads
// nowhere, as pruned caches have them, and for what can't be looked at.
bool file_exists(const std::string& path);

// Throws Error(kNotFound) unless `path` is a folder.
void check_is_folder(const std::string& path);

}  // namespace nanovllm

// The page to chat with the model: files of src/server/page, compiled into the binary.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nanovllm::server {

struct PageFile {
  std::string_view content_type;
  std::string_view body;
  std::string_view etag;  // with its quotes; also among the headers
  // What a browser has to be told with every answer, 304 too.
  std::vector<std::pair<std::string, std::string>> headers;
};

// The file at a path of the server: "/", "/style.css", "/app.js" and the other scripts. They name
// each other and the API relatively: the page's own address has to end in "/", under a prefix too.
std::optional<PageFile> page_file(std::string_view path);

// All paths that have one: they want no key, as the page is what asks for it.
std::vector<std::string> page_paths();

}  // namespace nanovllm::server

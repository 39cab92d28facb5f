#include "server/page/page.h"

#include <fmt/format.h>

#include <array>

#include "page_files.h"
#include "text/hash.h"

namespace nanovllm::server {
namespace {

constexpr const char* kSecurityPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

struct EmbeddedFile {
  std::string_view path, content_type, body;
  std::string etag = fmt::format("\"{:016x}\"", text::hash_bytes(body));
};

const std::array<EmbeddedFile, 8>& embedded_files() {
  constexpr std::string_view kScript = "text/javascript; charset=utf-8";
  static const std::array<EmbeddedFile, 8> files = {
      {{"/", "text/html; charset=utf-8", kIndexHtml},
       {"/style.css", "text/css; charset=utf-8", kStyleCss},
       {"/storage.js", kScript, kStorageJs},
       {"/markdown.js", kScript, kMarkdownJs},
       {"/inline.js", kScript, kInlineJs},
       {"/render.js", kScript, kRenderJs},
       {"/api.js", kScript, kApiJs},
       {"/app.js", kScript, kAppJs}}};
  return files;
}

}  // namespace

std::optional<PageFile> page_file(std::string_view path) {
  for (const EmbeddedFile& file : embedded_files()) {
    if (file.path != path) continue;
    return PageFile{file.content_type,
                    file.body,
                    file.etag,
                    {{"ETag", file.etag},
                     {"Cache-Control", "no-cache"},
                     {"Content-Security-Policy", kSecurityPolicy},
                     {"X-Content-Type-Options", "nosniff"},
                     {"Referrer-Policy", "no-referrer"}}};
  }
  return std::nullopt;
}

std::vector<std::string> page_paths() {
  std::vector<std::string> paths;
  for (const EmbeddedFile& file : embedded_files()) paths.emplace_back(file.path);
  return paths;
}

}  // namespace nanovllm::server

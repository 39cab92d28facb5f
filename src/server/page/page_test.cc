#include "server/page/page.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/testing.h"

namespace nanovllm::server {
namespace {

constexpr const char* kScripts[] = {"/storage.js", "/markdown.js", "/inline.js",
                                    "/render.js",  "/api.js",      "/app.js"};

TEST(Page, IsTheFilesOfTheRepository) {
  for (const auto& entry :
       std::filesystem::directory_iterator(test::source_path("src/server/page"))) {
    const std::string name = entry.path().filename();
    if (name.ends_with(".cc") || name.ends_with(".h")) continue;
    std::ifstream file(entry.path());
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    const auto page = page_file(name == "index.html" ? "/" : "/" + name);
    ASSERT_TRUE(page) << name;
    EXPECT_FALSE(text.empty());
    EXPECT_EQ(page->body, text) << name;
  }
}

TEST(Page, HasTypesTagsAndAPolicy) {
  EXPECT_EQ(page_file("/")->content_type, "text/html; charset=utf-8");
  EXPECT_EQ(page_file("/style.css")->content_type, "text/css; charset=utf-8");
  for (const char* script : kScripts) {
    EXPECT_EQ(page_file(script)->content_type, "text/javascript; charset=utf-8") << script;
  }
  EXPECT_NE(page_file("/")->etag, page_file("/app.js")->etag);
  EXPECT_EQ(page_file("/")->etag.size(), 18u);
  EXPECT_EQ(page_file("/")->headers[0].second, page_file("/")->etag);
  EXPECT_EQ(page_file("/")->headers[2].second.substr(0, 19), "default-src 'none';");
}

TEST(Page, NamesAllItsPaths) {
  EXPECT_EQ(page_paths().size(), 2 + std::size(kScripts));
  for (const std::string& path : page_paths()) EXPECT_TRUE(page_file(path)) << path;
}

TEST(Page, HasNoOtherFiles) {
  for (const char* path :
       {"", "/index.html", "/page", "//", "/app.js/", "/../app.js", "/v1/models"}) {
    EXPECT_FALSE(page_file(path)) << path;
  }
}

// The policy would keep a browser from running them.
TEST(Page, HasNothingInline) {
  const std::string_view page = page_file("/")->body;
  for (const char* text : {"<style", "style=", "onclick=", "http://", "https://", "javascript:"}) {
    const size_t at = page.find(text);
    EXPECT_TRUE(at == page.npos || page.substr(at).starts_with("http://www.w3.org/2000/svg"))
        << text;
  }
  EXPECT_EQ(page.find("<script>"), page.npos);
  for (const char* script : kScripts) {
    for (const char* text : {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write"}) {
      EXPECT_EQ(page_file(script)->body.find(text), std::string_view::npos) << script << text;
    }
    EXPECT_NE(page.find(std::string("src=\"") + (script + 1)), std::string_view::npos) << script;
  }
}

}  // namespace
}  // namespace nanovllm::server

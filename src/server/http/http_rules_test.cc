#include "server/http/http_rules.h"

#include <gtest/gtest.h>

namespace nanovllm::server::http_testing {
namespace {

HttpRequest request_of(const std::string& method, const HttpHeaders& headers) {
  return {.method = method, .path = "/v1/models", .headers = headers};
}

int status(const HttpRules& rules, const HttpRequest& request, bool has_body = false) {
  const auto answer = rules.answer(request, has_body);
  return answer ? answer->status : 0;
}

TEST(HttpRules, DecodeWhatIsAnEscapeAndNothingElse) {
  EXPECT_EQ(percent_decoded("/a%20b%2Fc%41%c3%A4"), "/a b/cA\xc3\xa4");
  EXPECT_EQ(percent_decoded("%"), "%");
  EXPECT_EQ(percent_decoded("%4"), "%4");
  EXPECT_EQ(percent_decoded("%4g%g4%-1%+1% 1%%41"), "%4g%g4%-1%+1% 1%A");
  EXPECT_EQ(percent_decoded("%00").size(), 1U);
}

TEST(HttpRules, StripTheRootPathOnlyWhereItIsOne) {
  for (const char* root : {"/llm", "/llm/", "llm"}) {
    const HttpOptions options = {.root_path = root};
    const HttpRules rules(options, false);
    EXPECT_EQ(rules.strip_root("/llm/v1/models"), "/v1/models");
    EXPECT_EQ(rules.strip_root("/llm"), "");
    EXPECT_EQ(rules.strip_root("/llm/"), "/");
    EXPECT_EQ(rules.strip_root("/llmv/x"), "/llmv/x");
    EXPECT_EQ(rules.strip_root("/v1/models"), "/v1/models");
  }
  EXPECT_EQ(HttpRules({}, false).strip_root("/v1"), "/v1");
  EXPECT_EQ(HttpRules({.root_path = "/"}, false).strip_root("/v1"), "/v1");
}

TEST(HttpRules, KnowTheHostsOfALoopbackAddress) {
  const HttpOptions options = {.host = "My-Box"};
  const HttpRules rules(options, true);
  for (const char* host : {"localhost", "LOCALHOST:8000", "127.0.0.1", "127.0.0.1:80",
                           "127.8.9.1:1", "[::1]", "[::1]:8000", "my-box", "my-box:8000", ""}) {
    EXPECT_EQ(status(rules, request_of("GET", {{"Host", host}})), 0) << host;
  }
  for (const char* host : {"evil.example", "evil.example:8000", "127.0.0.1.evil.example",
                           "localhost.evil.example", "10.0.0.1", "[::2]", "[", "128.0.0.1", "0",
                           "127.1", "localhost@evil.example", ":8000", "my-box.example"}) {
    EXPECT_EQ(status(rules, request_of("GET", {{"Host", host}})), 403) << host;
  }
  // Where others can connect there is no telling by which name.
  EXPECT_EQ(status(HttpRules(options, false), request_of("GET", {{"Host", "evil.example"}})), 0);
}

TEST(HttpRules, KnowTheHostsOfAllowedOriginsAsProxiesKeepThem) {
  const HttpOptions options = {.allowed_origins = {"https://Chat.example", "http://x:81",
                                                   "https://[2001:db8::1]:4", "bare.example"}};
  const HttpRules rules(options, true);
  for (const char* host :
       {"chat.example", "CHAT.EXAMPLE:443", "x", "x:81", "x:82", "[2001:db8::1]"}) {
    EXPECT_EQ(status(rules, request_of("GET", {{"Host", host}})), 0) << host;
  }
  for (const char* host : {"chat.example.evil", "evil.chat.example", "bare.example", "https",
                           "https://chat.example", "[2001:db8::2]", "evil.example"}) {
    EXPECT_EQ(status(rules, request_of("GET", {{"Host", host}})), 403) << host;
  }
  const auto refused = rules.answer(request_of("GET", {{"Host", "evil.example"}}), false);
  EXPECT_NE(refused->body.find("--allowed-origins"), std::string::npos);
  // Its own page, through the proxy.
  EXPECT_EQ(status(rules, request_of("GET", {{"Host", "chat.example"},
                                             {"Origin", "https://chat.example"}})),
            0);
  const HttpOptions all = {.allowed_origins = {"*"}};
  EXPECT_EQ(status(HttpRules(all, true), request_of("GET", {{"Host", "evil.example"}})), 0);
}

TEST(HttpRules, RefuseOriginsThatAreNeitherOursNorAllowed) {
  const HttpOptions options = {.allowed_origins = {"https://chat.example", "http://x:81"}};
  const HttpRules rules(options, true);
  const auto ask = [&](const char* origin) {
    return status(rules, request_of("GET", {{"host", "localhost:8000"}, {"origin", origin}}));
  };
  for (const char* origin : {"http://localhost:8000", "https://LOCALHOST:8000",
                             "https://chat.example", "HTTPS://Chat.Example", "http://x:81"}) {
    EXPECT_EQ(ask(origin), 0) << origin;
  }
  for (const char* origin : {"http://localhost", "http://localhost:8001", "http://chat.example",
                             "https://chat.example.evil", "https://chat.example:444", "http://x",
                             "null", "localhost:8000", "http://127.0.0.1:8000"}) {
    EXPECT_EQ(ask(origin), 403) << origin;
  }
  const HttpOptions all = {.allowed_origins = {"*"}};
  EXPECT_EQ(status(HttpRules(all, true), request_of("GET", {{"Origin", "null"}})), 0);
}

TEST(HttpRules, AnswerWhatBrowsersAskBeforehand) {
  const HttpOptions options = {.api_keys = {"secret"}, .allowed_origins = {"https://chat.example"}};
  const HttpRules rules(options, false);
  const std::string wanted =
      "authorization,content-type,x-stainless-arch,x-stainless-lang,x-stainless-os,"
      "x-stainless-package-version,x-stainless-retry-count,x-stainless-runtime,"
      "x-stainless-runtime-version,x-stainless-timeout";
  HttpHeaders headers = {{"Origin", "https://chat.example"},
                         {"Access-Control-Request-Method", "POST"},
                         {"Access-Control-Request-Headers", wanted}};
  const auto answer = rules.answer(request_of("OPTIONS", headers), false);
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 200);
  HttpRequest seen = {.headers = answer->headers};
  EXPECT_EQ(seen.header("access-control-allow-headers"), wanted);
  EXPECT_NE(seen.header("access-control-allow-methods").find("POST"), std::string::npos);
  EXPECT_EQ(seen.header("access-control-max-age"), "600");

  HttpHeaders added;
  rules.allow_origin(request_of("OPTIONS", headers), added);
  seen.headers = added;
  EXPECT_EQ(seen.header("access-control-allow-origin"), "https://chat.example");
  EXPECT_EQ(seen.header("vary"), "Origin");

  headers[0].second = "https://evil.example";
  EXPECT_EQ(status(rules, request_of("OPTIONS", headers)), 403);
  added.clear();
  rules.allow_origin(request_of("OPTIONS", headers), added);
  EXPECT_EQ(HttpRequest{.headers = added}.header("access-control-allow-origin"), "");
  // No browser's question: the handler says which methods there are.
  EXPECT_EQ(status(rules, request_of("OPTIONS", {})), 0);

  added.clear();
  HttpRules({}, false).allow_origin(request_of("GET", {{"Origin", "http://a"}}), added);
  EXPECT_TRUE(added.empty());
  const HttpOptions all = {.allowed_origins = {"*"}};
  HttpRules(all, false).allow_origin(request_of("GET", {{"Origin", "http://a"}}), added);
  EXPECT_EQ(HttpRequest{.headers = added}.header("access-control-allow-origin"), "*");
}

TEST(HttpRules, WantOneOfTheKeysWhereThereAreAny) {
  const HttpOptions options = {.api_keys = {"first", "second key"}, .open_paths = {"/health"}};
  const HttpRules rules(options, false);
  const auto ask = [&](const std::string& authorization) {
    return status(rules, request_of("GET", {{"Authorization", authorization}}));
  };
  for (const char* given : {"Bearer first", "bearer second key", "BEARER first"}) {
    EXPECT_EQ(ask(given), 0) << given;
  }
  for (const char* given : {"", "first", "Basic first", "Bearer", "Bearer ", "Bearer firs",
                            "Bearer firstt", "Bearer FIRST", "Bearer  first", "Bearer first "}) {
    EXPECT_EQ(ask(given), 401) << given;
  }
  // Clients of Anthropic's API send theirs so, or so too.
  const auto status_with = [&](const HttpHeaders& headers) {
    return status(rules, request_of("GET", headers));
  };
  EXPECT_EQ(status_with({{"x-api-key", "second key"}}), 0);
  EXPECT_EQ(status_with({{"X-Api-Key", "first"}, {"Authorization", "Bearer none"}}), 0);
  EXPECT_EQ(status_with({{"x-api-key", "none"}, {"Authorization", "Bearer first"}}), 0);
  for (const char* given : {"", "firs", "FIRST", "Bearer first"}) {
    EXPECT_EQ(status_with({{"x-api-key", given}}), 401) << given;
  }
  const auto answer = rules.answer(request_of("GET", {}), false);
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->body, R"({"error":"Unauthorized"})");
  EXPECT_NE(answer->error->message.find("x-api-key"), std::string::npos);
  EXPECT_EQ(status(rules, {.method = "GET", .path = "/health"}), 0);
  EXPECT_EQ(status(rules, {.method = "GET", .path = "/health/"}), 401);
  EXPECT_EQ(status(rules, request_of("OPTIONS", {})), 0);
}

TEST(HttpRules, TakeBodiesThatSayTheyAreJson) {
  const HttpOptions options;
  const HttpRules rules(options, false);
  const auto ask = [&](const char* type) {
    return status(rules, request_of("POST", {{"Content-Type", type}}), true);
  };
  for (const char* type :
       {"application/json", "Application/JSON", "application/json; charset=utf-8",
        "application/json;charset=utf-8", "application/json ; a=b", "application/vnd.api+json",
        "application/problem+JSON; charset=utf-8"}) {
    EXPECT_EQ(ask(type), 0) << type;
  }
  for (const char* type : {"", "text/plain", "application/x-www-form-urlencoded", "application/",
                           "application/jsonp", "application/+json", "application/xjson",
                           "text/json", "text/plain; application/json", "multipart/form-data"}) {
    EXPECT_EQ(ask(type), 400) << type;
  }
  const auto answer = rules.answer(request_of("POST", {}), true);
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->body,
            "{\"error\":{\"message\":\"1 validation error:\\n  Unsupported Media Type: Only "
            "'application/json' is allowed\",\"type\":\"Bad Request\",\"param\":null,"
            "\"code\":400}}");
  EXPECT_EQ(status(rules, request_of("POST", {}), false), 0);
}

TEST(HttpRules, TakeBodiesThatAreNotEncoded) {
  const HttpOptions options = {.api_keys = {"secret"}};
  const HttpRules rules(options, false);
  const auto ask = [&](const char* encoding, bool has_body = true) {
    return rules.answer(request_of("POST", {{"Authorization", "Bearer secret"},
                                            {"Content-Type", "application/json"},
                                            {"Content-Encoding", encoding}}),
                        has_body);
  };
  for (const char* encoding : {"", "identity", "Identity"}) EXPECT_FALSE(ask(encoding));
  for (const char* encoding : {"gzip", "br", "zstd", "deflate", "gzip, identity", "x"}) {
    const auto answer = ask(encoding);
    ASSERT_TRUE(answer) << encoding;
    EXPECT_EQ(answer->status, 415) << encoding;
    EXPECT_EQ(HttpRequest{.headers = answer->headers}.header("accept-encoding"), "identity");
    EXPECT_NE(answer->body.find("Unsupported Media Type"), std::string::npos) << answer->body;
  }
  EXPECT_FALSE(ask("gzip", false));
  EXPECT_EQ(status(rules, request_of("POST", {{"Content-Encoding", "gzip"}}), true), 401);
}

TEST(HttpRules, WriteALineForEachRequest) {
  HttpRequest request = {.peer = "127.0.0.1:53211", .id = "a\"b\n"};
  HttpOptions options;
  const std::chrono::system_clock::time_point time(std::chrono::milliseconds(1'700'000'000'042));
  EXPECT_EQ(access_log_line(options, request, "POST /v1/completions HTTP/1.1", 200, 12.34, time),
            "2023-11-14T22:13:20.042Z 127.0.0.1:53211 - \"POST /v1/completions HTTP/1.1\" 200 12.3 "
            "ms a\\x22b\\x0a");
  EXPECT_EQ(access_log_line(options, request, "GET /\x1b[31m\xff\\\" HTTP/1.1", 404, 0, time),
            "2023-11-14T22:13:20.042Z 127.0.0.1:53211 - \"GET /\\x1b[31m\\xff\\x5c\\x22 HTTP/1.1\" "
            "404 0.0 ms "
            "a\\x22b\\x0a");
  options.access_log_json = true;
  EXPECT_EQ(access_log_line(options, request, "GET /\xff\x7f HTTP/1.1", 404, 0.5, time),
            "{\"time\":\"2023-11-14T22:13:20.042Z\",\"peer\":\"127.0.0.1:53211\",\"request\":\"GET "
            "/\\ufffd\\u007f HTTP/1.1\","
            "\"status\":404,\"ms\":0.5,\"id\":\"a\\\"b\\n\"}");
}

}  // namespace
}  // namespace nanovllm::server::http_testing

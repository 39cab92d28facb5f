// One connection: its requests one after the other, each with a read pending beside its answer.
#pragma once

#include <atomic>
#include <boost/asio/basic_stream_socket.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/ssl/context.hpp>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "server/http/http_rules.h"
#include "server/http/http_server.h"

namespace nanovllm::server {

using StreamSocket = asio::basic_stream_socket<asio::generic::stream_protocol>;

class HttpConnection;

// Between a server and threads that live longer: they wake its connections only while it is open.
struct WakeGate {
  std::mutex mutex = {};
  bool is_closed = false;
};

// What the connections of a server share; lives as long as the last of them.
struct HttpShared {
  HttpShared(HttpOptions o, HttpHandler h, bool on_loopback)
      : options(std::move(o)), handler(std::move(h)), rules(options, on_loopback) {}

  const HttpOptions options;
  const HttpHandler handler;
  const HttpRules rules;
  std::optional<asio::ssl::context> tls = {};
  int max_connections = 0;
  int max_refused = 0;  // beside them, to be told that they are too many
  std::atomic<int> num_connections = 0;
  std::atomic<bool> stopping = false;
  const std::shared_ptr<WakeGate> gate = std::make_shared<WakeGate>();

  // Taken when a connection comes, when it goes and at the end; not for requests.
  std::mutex mutex = {};
  std::unordered_map<HttpConnection*, std::weak_ptr<HttpConnection>> connections = {};
};

// Begins to serve what was accepted on a strand of its own.
void serve_connection(std::shared_ptr<HttpShared> shared, StreamSocket socket, std::string peer);

// Ends the connection that has been without the whole head of a request for the longest time;
// false = all have one.
bool end_an_idle_connection(HttpShared& shared);
// Ends the connections that have no request, or all.
void end_connections(HttpShared& shared, bool at_once);

}  // namespace nanovllm::server

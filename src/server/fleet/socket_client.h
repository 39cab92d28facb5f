// An engine at the other end of a socket, be it in a process of its own or on threads of this one.
#pragma once

#include <memory>

#include "server/fleet/engine_client.h"

namespace nanovllm::server {

// What runs the engine. One thread makes all calls.
class EngineHost {
 public:
  virtual ~EngineHost() = default;
  // Lets the engine serve the socket, which its caller closes. Throws Error.
  virtual void start(int socket) = 0;
  // Ends it where it has not ended, once the other end of its socket is closed. Returns why it did,
  // where it did not tell.
  virtual EngineFault end() = 0;
};

std::unique_ptr<EngineClient> make_socket_client(std::unique_ptr<EngineHost> host,
                                                 EngineListener listener);

}  // namespace nanovllm::server

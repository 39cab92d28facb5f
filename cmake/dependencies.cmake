# Every library the project stands on; scripts/install_packages.sh names the packages they come in.
find_package(Threads REQUIRED)
find_package(nlohmann_json 3.11 REQUIRED)
find_package(fmt REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(pcre2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(utf8proc REQUIRED IMPORTED_TARGET libutf8proc)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)
find_package(CURL 7.87 REQUIRED)
find_package(OpenSSL REQUIRED)

# The binary's.
find_package(CLI11 REQUIRED)
pkg_check_modules(libedit REQUIRED IMPORTED_TARGET libedit)
# Older versions of Boost have no coroutines under clang 14.
find_package(Boost 1.81 REQUIRED)
find_package(prometheus-cpp REQUIRED CONFIG)
find_package(yaml-cpp REQUIRED)
set(NANOVLLM_SERVER_LIBRARIES Boost::headers OpenSSL::SSL prometheus-cpp::core yaml-cpp)

# What someone who links libnanovllm.a has to link as well.
set(NANOVLLM_LINK_LIBRARIES fmt::fmt Threads::Threads PkgConfig::pcre2 PkgConfig::utf8proc
    PkgConfig::xxhash CURL::libcurl OpenSSL::Crypto)

# Compile options and include directories of every target of the project.
add_library(nanovllm_dependencies INTERFACE)
target_include_directories(nanovllm_dependencies INTERFACE
  ${CMAKE_CURRENT_SOURCE_DIR}/include ${CMAKE_CURRENT_SOURCE_DIR}/src)
target_compile_features(nanovllm_dependencies INTERFACE cxx_std_20)
target_compile_options(nanovllm_dependencies INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow
    -fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=>)  # __FILE__ is the same in every clone
target_link_libraries(nanovllm_dependencies INTERFACE
  ${NANOVLLM_LINK_LIBRARIES} nlohmann_json::nlohmann_json)
if(NANOVLLM_SANITIZE)
  # More optimisation or debug information than this makes the large tests compile for a minute each.
  target_compile_options(nanovllm_dependencies INTERFACE -O1 -g1
    -fsanitize=${NANOVLLM_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(nanovllm_dependencies INTERFACE -fsanitize=${NANOVLLM_SANITIZE})
  if(NANOVLLM_SANITIZE MATCHES "thread")
    # Of fences, which Boost.Asio has beside locks that ThreadSanitizer follows.
    target_compile_options(nanovllm_dependencies INTERFACE -Wno-tsan)
  endif()
  target_compile_options(nanovllm_dependencies INTERFACE -UNDEBUG)  # the engine checks itself, libraries assert
  # For what no sanitizer need look at; linked last.
  add_library(nanovllm_uninstrumented INTERFACE)
  target_compile_options(nanovllm_uninstrumented INTERFACE -O2 -fno-sanitize=all)
endif()
# For tests, linked last: the code under test is checked for undefined behaviour; checking the tests' own would double
# the time they take to compile.
add_library(nanovllm_test_options INTERFACE)
if(NANOVLLM_SANITIZE MATCHES "undefined")
  # Asking whether each pointer is null takes a tenth of the time to compile, and AddressSanitizer tells of those that are.
  target_compile_options(nanovllm_dependencies INTERFACE -fno-sanitize=null)
  target_compile_options(nanovllm_test_options INTERFACE -fno-sanitize=undefined)
endif()

if(NANOVLLM_CUDA)
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 90a)  # e.g. -DCMAKE_CUDA_ARCHITECTURES="80;86;89;90a;120"
  endif()
  enable_language(CUDA)
  # nvcc's host compiler may be older than the one that links, which is to find its own C++ library.
  list(FILTER CMAKE_CUDA_IMPLICIT_LINK_DIRECTORIES EXCLUDE REGEX "/gcc/")
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_FLAGS "${CMAKE_CUDA_FLAGS} --expt-relaxed-constexpr")  # constexpr functions in kernels
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)  # CMake 3.25 does not know that nvcc can
  find_package(CUDAToolkit 12.4 REQUIRED)
  # For what sees CUDA's headers. All else is compiled as it is without CUDA, so that ccache may have it already.
  add_library(nanovllm_cuda INTERFACE)
  target_compile_definitions(nanovllm_cuda INTERFACE NANOVLLM_WITH_CUDA
                             $<$<BOOL:${NANOVLLM_RACECHECK}>:NANOVLLM_RACECHECK>)
  target_link_libraries(nanovllm_cuda INTERFACE CUDA::cudart_static CUDA::cublasLt)
  if(NANOVLLM_CUDA_MAX_SHARED_MEMORY)
    set_source_files_properties(src/backend/cuda/device/device_context.cu PROPERTIES COMPILE_DEFINITIONS
      NANOVLLM_CUDA_MAX_SHARED_MEMORY=${NANOVLLM_CUDA_MAX_SHARED_MEMORY})
  endif()
  list(APPEND NANOVLLM_LINK_LIBRARIES $<LINK_ONLY:CUDA::cudart_static> $<LINK_ONLY:CUDA::cublasLt>)
endif()

# What one clone compiled, another one has, wherever it is: paths below its folder count as relative.
find_program(CCACHE ccache)
if(CCACHE)
  set(launcher ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${launcher})
endif()

# Every library the project stands on; scripts/install_packages.sh names the packages they come in.
find_package(Threads REQUIRED)
find_package(nlohmann_json 3.11 REQUIRED)
find_package(CLI11 REQUIRED)
find_package(fmt REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(pcre2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(utf8proc REQUIRED IMPORTED_TARGET libutf8proc)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)

# What someone who links libnanovllm.a has to link as well.
set(NANOVLLM_LINK_LIBRARIES fmt::fmt Threads::Threads PkgConfig::pcre2 PkgConfig::utf8proc
    PkgConfig::xxhash)

# Compile options and include directories of every target of the project.
add_library(nanovllm_dependencies INTERFACE)
target_include_directories(nanovllm_dependencies INTERFACE
  ${CMAKE_CURRENT_SOURCE_DIR}/include ${CMAKE_CURRENT_SOURCE_DIR}/src)
target_compile_features(nanovllm_dependencies INTERFACE cxx_std_20)
target_compile_options(nanovllm_dependencies INTERFACE -Wall -Wextra -Wpedantic -Wshadow)
target_link_libraries(nanovllm_dependencies INTERFACE
  ${NANOVLLM_LINK_LIBRARIES} nlohmann_json::nlohmann_json)
if(NANOVLLM_SANITIZE)
  target_compile_options(nanovllm_dependencies INTERFACE
    -fsanitize=${NANOVLLM_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(nanovllm_dependencies INTERFACE -fsanitize=${NANOVLLM_SANITIZE})
endif()

find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
endif()

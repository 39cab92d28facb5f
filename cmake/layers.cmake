# nanovllm_layer(NAME DEPENDENCY...): an object library of src/NAME, tests excluded. A layer's tests (*_test.cc beside
# the code) link that layer and its dependencies only, so that a dependency upwards does not even link.
set(NANOVLLM_LAYERS "")
set(NANOVLLM_LAYER_OBJECTS "")

function(nanovllm_layer name)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/src/${name}/*.cc)
  if(NANOVLLM_CUDA)
    file(GLOB_RECURSE kernels CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/src/${name}/*.cu)
    # Versions of CMake from 3.31 on would merge them too, and they are not written for that.
    set_source_files_properties(${kernels} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    list(APPEND sources ${kernels})
  else()
    list(FILTER sources EXCLUDE REGEX "/backend/cuda/")
  endif()
  if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64|amd64")
    list(FILTER sources EXCLUDE REGEX "_(avx2|avx512|avx512bf16|amx)\\.cc$")
  endif()
  list(FILTER sources EXCLUDE REGEX "_each_isa\\.cc$")  # cmake/isa.cmake
  list(FILTER sources EXCLUDE REGEX "/ops/reference(_recurrent|_sampling)?\\.cc$")  # nanovllm_tests() has them
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "_test\\.cc$")
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  if(NOT sources)
    return()
  endif()
  add_library(nanovllm_${name} OBJECT ${sources})
  target_link_libraries(nanovllm_${name} PUBLIC nanovllm_dependencies)
  set(NANOVLLM_TESTS_${name} "${tests}" PARENT_SCOPE)
  set(NANOVLLM_NEEDS_${name} "${name};${ARGN}" PARENT_SCOPE)
  set(NANOVLLM_LAYERS ${NANOVLLM_LAYERS} ${name} PARENT_SCOPE)
  set(NANOVLLM_LAYER_OBJECTS ${NANOVLLM_LAYER_OBJECTS} $<TARGET_OBJECTS:nanovllm_${name}> PARENT_SCOPE)
endfunction()

# Tells ctest of a program's tests: of each, or under sanitizers, which start slowly, of eight shares of them.
function(nanovllm_register_tests program)
  if(NOT NANOVLLM_SANITIZE)
    # Ranks of tests may share a GPU, where streams of one hardware queue would wait for each other.
    gtest_discover_tests(${program} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60 NO_PRETTY_VALUES
      PROPERTIES TIMEOUT 600 ENVIRONMENT CUDA_DEVICE_MAX_CONNECTIONS=32)
    return()
  endif()
  set(filter "*")
  if(NANOVLLM_SANITIZE MATCHES "thread")
    # Threads divide and meet in the same loops for all instruction sets, and whatever the model.
    set(filter "-*portable*:Isas/*avx2*:Goldens/*:All/*:*.RefusedOnesAreKnownForAWhile")
  endif()
  foreach(share RANGE 7)
    add_test(NAME ${program}_${share} COMMAND ${program} --gtest_brief=1)
    set_tests_properties(${program}_${share} PROPERTIES TIMEOUT 900
      ENVIRONMENT "GTEST_TOTAL_SHARDS=8;GTEST_SHARD_INDEX=${share};GTEST_FILTER=${filter}")
  endforeach()
endfunction()

# One test program a layer: NAME_tests.
function(nanovllm_tests)
  find_package(GTest REQUIRED)
  include(GoogleTest)
  add_library(nanovllm_reference OBJECT src/ops/reference.cc src/ops/reference_recurrent.cc src/ops/reference_sampling.cc)
  target_link_libraries(nanovllm_reference PUBLIC nanovllm_dependencies)
  # The tests' measure, not what is tested. Programs link it behind the layers, whose inline functions they get.
  if(NANOVLLM_SANITIZE)
    target_link_libraries(nanovllm_reference PRIVATE nanovllm_uninstrumented)
  endif()
  # The way from the programs to what they read: no absolute path, by which ccache would tell one clone from another.
  file(REAL_PATH ${CMAKE_BINARY_DIR} programs)
  file(REAL_PATH ${CMAKE_CURRENT_SOURCE_DIR} source)
  file(RELATIVE_PATH source ${programs} ${source})
  set(layers ${NANOVLLM_LAYERS})
  if(NANOVLLM_SANITIZE MATCHES "thread")
    # One thread, or those that `backend` and `runner` test: there is nothing to race.
    list(REMOVE_ITEM layers io text ops models)
  endif()
  if(NOT DEFINED CMAKE_UNITY_BUILD)  # the headers, which take most of the time, are read once for eight files of tests
    set(CMAKE_UNITY_BUILD ON)
    set(CMAKE_UNITY_BUILD_BATCH_SIZE 8)
  endif()
  foreach(name ${layers})
    set(tests ${NANOVLLM_TESTS_${name}})
    if(NANOVLLM_SANITIZE MATCHES "thread")  # one thread as well, some of them many thousand times
      list(FILTER tests EXCLUDE REGEX "/(json|json_schema|regex|gbnf|structural_tag|gguf_config|load_config|protocol|resume|transcript_parser|wire|[a-z]+_property)_test\\.cc$")
    endif()
    if(tests)
      add_executable(${name}_tests ${tests})
      foreach(layer ${NANOVLLM_NEEDS_${name}})
        if(TARGET nanovllm_${layer})
          target_link_libraries(${name}_tests PRIVATE nanovllm_${layer})
        endif()
      endforeach()
      target_link_libraries(${name}_tests PRIVATE GTest::gtest GTest::gtest_main nanovllm_test_options)
      if(name MATCHES "^(ops|backend|api)$")
        target_link_libraries(${name}_tests PRIVATE nanovllm_reference)
      endif()
      target_compile_definitions(${name}_tests PRIVATE NANOVLLM_SOURCE_FROM_BUILD="${source}")
      nanovllm_register_tests(${name}_tests)
    endif()
  endforeach()
endfunction()
